"""Compare the speed of this checkout with the speed of another commit.

    git worktree add ../before COMMIT
    python -m benchmarks.versions ../before [--prompts 12] [--threads 2]

Each checkout runs in a separate process. Both checkouts decode the first image, then both decode the second image, and
so on. The benchmark reports the seconds per image of the bundled model, without reading the prompt and without the
codec. It also reports two speed-ups, as medians with 95 % intervals (from 6 prompts on): of this checkout over the
other commit, and of each method over plain decoding.

Both checkouts must accept the same options of ``generate``. This benchmark does not compare the images; use
``benchmarks.identity`` for that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from adt_core.run import race

from .checkouts import Checkout
from .harness import ROOT, captions
from .tables import header, row

FIRST_CAPTION = 4100  # number of the first held-out caption of this benchmark
METHODS = {
    "plain": "--method no-drafting",
    "ADT-Tree": "--method adt-tree",
    "window, a chain of 16": "--drafter jacobi --method eagle2 --depth 16 --width 1 --drafts 16",
    "window": "--drafter jacobi --method eagle2",
    "network and window": "--drafter bundled+jacobi --method eagle2",
}
"""Options of ``generate`` for each method."""


def seconds(checkout: Checkout, folder: Path, task: tuple[str, int]) -> float:
    """Measure the decoding time of one image.

    Args:
        checkout: Checkout that runs ``generate``.
        folder: Folder for the files that ``generate`` writes.
        task: Name of the method, and number of the held-out caption.

    Returns:
        Seconds of decoding, without reading the prompt.
    """
    method, number = task
    report = folder / "report.json"
    arguments = ["generate", "--prompt", captions(number, 1)[0], "--seed", str(number)]
    arguments += ["--output", str(folder / "picture.png"), "--report", str(report)]
    checkout.run([*arguments, *METHODS[method].split()])
    figures = json.loads(report.read_text(encoding="utf-8"))
    return figures["seconds"] - figures["prefill_seconds"]


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of another commit")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    numbers = [FIRST_CAPTION, *range(FIRST_CAPTION, FIRST_CAPTION + args.prompts)]  # the first run is a warm-up
    tasks = [(method, number) for number in numbers for method in METHODS]
    with (
        Checkout(args.before, args.threads) as before,
        Checkout(ROOT, args.threads) as now,
        tempfile.TemporaryDirectory() as folder,
    ):
        runs = {name: partial(seconds, checkout, Path(folder)) for name, checkout in (("old", before), ("new", now))}
        results = list(race.by_tasks(runs, tasks))
    counted = list(zip(tasks, results))[len(METHODS) :]
    times = {}
    for method in METHODS:
        selected = [result for task, result in counted if task[0] == method]
        times[method] = [[result[name] for result in selected] for name in runs]
    print(header("method", "seconds per image, before", "now", "before / now", "speed-up over plain, before", "now"))
    for method, (old, new) in times.items():
        speedups = [race.speedup(plain, drafted) for plain, drafted in zip(times["plain"], (old, new))]
        print(row(method, f"{np.median(old):.3f}", f"{np.median(new):.3f}", race.speedup(old, new), *speedups))


if __name__ == "__main__":
    main()
