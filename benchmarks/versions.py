"""Is this checkout faster than another one? Both draw the same images, in processes of their own that take turns.

    git worktree add ../before COMMIT
    python -m benchmarks.versions ../before [--prompts 12] [--threads 2]

Seconds an image of the bundled model, without its prompt and codec; medians of ratios with bootstrap intervals. Both
checkouts must know the same options of ``generate``. Whether they draw the same is what ``benchmarks.identity`` says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from .checkouts import HERE, Checkout
from .harness import captions
from .turns import head, in_turns, interval, row

FIRST = 4100  # held-out caption of this benchmark
METHODS = {
    "plain": "--method autoregressive",
    "ADT-Tree": "--method adt-tree",
    "window, a chain of 16": "--drafter jacobi --method eagle2 --depth 16 --width 1 --nodes 16",
    "window": "--drafter jacobi --method eagle2",
    "network and window": "--drafter bundled+jacobi --method eagle2",
}
"""Options of ``generate`` for each method."""


def seconds(checkout: Checkout, folder: Path, task: tuple[str, int]) -> float:
    """Seconds that a checkout takes to decode by a method the held-out caption of a number, after its prompt was read.

    task: the method and the number.
    """
    method, number = task
    report, caption = folder / "report.json", captions(number, 1)[0]
    arguments = ["generate", "--prompt", caption, "--seed", number, "--output", folder / "picture.png"]
    code, said = checkout.run([*map(str, arguments), "--report", str(report), *METHODS[method].split()])
    if code:
        sys.exit(f"generate {METHODS[method]} ended with {code}: {said.strip().splitlines()[-1]}")
    figures = json.loads(report.read_text(encoding="utf-8"))
    return figures["seconds"] - figures["prefill_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of another commit")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    tasks = [(method, FIRST + max(number, 0)) for number in range(-1, args.prompts) for method in METHODS]
    with (
        Checkout(args.before, args.threads) as before,
        Checkout(HERE, args.threads) as now,
        tempfile.TemporaryDirectory() as folder,
    ):
        runs = {name: partial(seconds, checkout, Path(folder)) for name, checkout in (("old", before), ("new", now))}
        turns = list(in_turns(runs, tasks))
    counted = list(zip(tasks, turns))[len(METHODS) :]  # the first prompt warms up and does not count
    taken = {}
    for method in METHODS:
        mine = [turn for task, turn in counted if task[0] == method]
        taken[method] = [np.array([turn[name] for turn in mine]) for name in runs]
    print(head("method", "seconds an image, before", "now", "before / now", "times plain, before", "now"))
    for method, (old, new) in taken.items():
        times = [interval(plain / ours) for plain, ours in zip(taken["plain"], (old, new))]
        print(row(method, f"{np.median(old):.3f}", f"{np.median(new):.3f}", interval(old / new), *times))


if __name__ == "__main__":
    main()
