"""Is drafting ever slower? One image, and several together, by all methods in turns.

    python -m benchmarks.batches [--sizes 1,2,4,8,16] [--repeats 3] [--images 4] [--methods auto,chain] [--kinds ...]
                                 [--drafter bundled] [--first] [--busy] [--json FILE]

Two kinds of captions: the bundled model's own, which it has not seen, and free words, of which it is less sure. A cell
draws ``--images`` images, or one batch if that is more. Methods take turns batch by batch. *Times plain* is the ratio
of all seconds, plain decoding's over the method's; in brackets stands the 95 % interval of a bootstrap over the turns.
Times hold the prefills; loading, writing and the image decoder are left out. *Identical* is the share of images whose
tokens are plain decoding's.

``--first`` leaves out the warm-up, in which ``auto`` measures what rounds cost. ``--busy`` compares one image of every
method with the same beside a process that keeps one core busy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.jobs import Job, decode, warm_up
from adt_core.app.options import choose_device
from adt_core.drafters import drafter_defaults
from adt_core.policies import PLAIN

from .harness import captions
from .turns import in_turns

FIRST = 3000  # held-out caption of this benchmark
FREE_WORDS = (
    "a white tent in a snowy field at night",
    "a boat near a brick wall",
    "an old man reading a newspaper",
    "a glass of water on a table",
    "two dogs running on the beach",
    "city skyline at sunset",
)
KINDS = ("captions", "free words")
WINDOW = "jacobi"
CHAIN = Drafting("eagle2", depth=16, width=1, nodes=16)
"""The fixed method that was fastest on a CPU: the window as a chain."""


def prompts_of(kind: str, count: int) -> list[str]:
    """So many prompts of a kind; few free words come again, with other noise."""
    return captions(FIRST, count) if kind == KINDS[0] else [FREE_WORDS[i % len(FREE_WORDS)] for i in range(count)]


def jobs_of(methods: list[str], drafter: str) -> dict[str, Job]:
    """A job for plain decoding and for every method: ``chain``, or one of the table of policies."""
    device = choose_device("auto")
    target, defaults = load_target("bundled", device), drafter_defaults(drafter, device.type)
    loaded = {WINDOW: load_drafter(WINDOW, target), drafter: load_drafter(drafter, target)}
    found = {PLAIN: Job(target, Sampling(seed=1), Drafting(PLAIN))}
    for method in methods:
        chain = method == "chain"
        drafting = CHAIN if chain else Drafting.of({**defaults, "method": method})
        found[method] = Job(target, Sampling(seed=1), drafting, loaded[WINDOW if chain else drafter])
    return found


def interval(plain: list[float], method: list[float]) -> str:
    """Ratio of all seconds, and its 95 % bootstrap interval over the turns."""
    both = np.array([plain, method])
    drawn = both[:, np.random.default_rng(0).integers(len(plain), size=(2000, len(plain)))].sum(-1)
    low, high = np.percentile(drawn[0] / drawn[1], (2.5, 97.5))
    return f"{sum(plain) / sum(method):.2f} ({low:.2f} to {high:.2f})"


@contextmanager
def busy_neighbour():
    """A process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(job: Job, prompts: list[str], images: range) -> tuple[float, Tensor]:
    """Seconds and codes of a batch, one image for each prompt. images: their numbers."""
    decoding = decode(job.decoding(prompts, list(images)))
    return decoding.trace.report()["seconds"], decoding.codes


def compare(jobs: dict[str, Job], kind: str, at_once: int, images: int, repeats: int) -> list[dict]:
    """A line of the table for every method but plain decoding."""
    count = max(1, images // at_once) * at_once
    prompts, numbers = prompts_of(kind, count), range(count)
    parts = [slice(i, i + at_once) for i in range(0, count, at_once)]
    methods = {name: lambda part, job=job: measure(job, prompts[part], numbers[part]) for name, job in jobs.items()}
    turns = list(in_turns(methods, parts * repeats))
    seconds = {method: [turn[method][0] for turn in turns] for method in jobs}
    lines = []
    for method in list(jobs)[1:]:
        same = [(turn[PLAIN][1] == turn[method][1]).all(1).double().mean().item() for turn in turns]
        line = {"kind": kind, "at once": at_once, "method": method, "identical": statistics.mean(same)}
        lines.append(line | {"seconds": seconds[method], "plain": seconds[PLAIN]})
    return lines


def slowed(jobs: dict[str, Job], repeats: int) -> None:
    """Print how much longer an image takes beside a busy process."""
    print("\n| method | beside a busy process, times as long (least to most) |\n|---|---|")
    for name, job in jobs.items():
        ratios = []
        for _ in range(repeats):
            seconds = []
            for neighbour in (nullcontext(), busy_neighbour()):
                with neighbour:
                    seconds.append(decode(job.decoding(prompts_of(KINDS[0], 1))).trace.report()["seconds"])
            ratios.append(seconds[1] / seconds[0])
        print(f"| {name} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--methods", default="auto,chain")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    jobs, lines = jobs_of(args.methods.split(","), args.drafter), []
    if args.busy:
        for job in jobs.values():
            warm_up(job.decoding(prompts_of(KINDS[0], 1)))
        return slowed(jobs, args.repeats)
    device = jobs[PLAIN].target.decoder.embedding.device
    print(f"{device}, {torch.get_num_threads()} threads at most, torch {torch.__version__}, {args.repeats} repeats\n")
    print("| captions | at once | method | images a minute | times plain | identical |\n|---|---|---|---|---|---|")
    for at_once, kind in product([int(size) for size in args.sizes.split(",")], args.kinds.split(",")):
        for job in [] if args.first else jobs.values():  # uncounted: first calls are slow
            warm_up(job.decoding(prompts_of(kind, at_once), list(range(at_once))))
        for line in compare(jobs, kind, at_once, args.images, args.repeats):
            taken = line["seconds"]
            rate, times = 60 * at_once * len(taken) / sum(taken), interval(line["plain"], taken)
            print(
                f"| {kind} | {at_once} | {line['method']} | {rate:.1f} | {times} | {line['identical']:.0%} |",
                flush=True,
            )
            lines.append(line)
    if args.json:
        args.json.write_text(json.dumps(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
