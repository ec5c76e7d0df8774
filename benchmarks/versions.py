"""Is this checkout faster than another one? Both draw the same images, in processes of their own that take turns.

    git worktree add ../before COMMIT
    python -m benchmarks.versions ../before [--prompts 12] [--threads 2]

Seconds an image of the bundled model, prompt and codec left out; medians of ratios with bootstrap intervals. The other checkout must know the same calls.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from adt_core.app.report import median_interval

HERE = Path(__file__).resolve().parents[1]
FIRST = 4100  # held-out caption of this benchmark
WORKER = """
import os, sys, time
sys.path.insert(0, os.getcwd())
import torch
from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.app.benchmark import sources
from benchmarks.harness import captions

torch.set_num_threads(int(sys.argv[1]))
target = load_target()
network = load_drafter("bundled", target)
drafters = sources(network)
window, both = drafters["jacobi"], drafters["network+jacobi"]
methods = {"plain": (None, Drafting(method="autoregressive")), "ADT-Tree": (network, Drafting()), "window, a chain of 16": (
    window, Drafting(method="eagle2", depth=16, width=1, nodes=16)), "window": (window, window.default), "network and window": (both, both.default)}

def draw(method, caption, seed):
    drafter, drafting = methods[method]
    decoding = Decoding(target, [target.encode_prompt(caption)], sampling=Sampling(seed=seed), drafting=drafting, drafter=drafter)
    rounds = iter(decoding)
    next(rounds)
    started = time.perf_counter()
    for _ in rounds:
        pass
    return time.perf_counter() - started

for method in methods:
    draw(method, "a warm-up", 0)
print(*methods, sep="|", flush=True)
for line in sys.stdin:
    method, number = line.strip().split("|")
    print(draw(method, captions(int(number), 1)[0], int(number)), flush=True)
"""


class Worker:
    """One checkout at work."""

    def __init__(self, checkout: Path, threads: int):
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(threads)],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.methods = self._answer().split("|")

    def _answer(self) -> str:
        line = self._process.stdout.readline().strip()
        if not line:
            sys.exit("A checkout could not draw; its own words are above.")
        return line

    def seconds(self, method: str, number: int) -> float:
        self._process.stdin.write(f"{method}|{number}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of another commit")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    workers = [Worker(checkout, args.threads) for checkout in (args.before, HERE)]
    methods = workers[0].methods
    taken: dict[str, list[list[float]]] = {method: [[], []] for method in methods}
    for number in range(FIRST, FIRST + args.prompts):
        for method in methods:
            for which in (0, 1) if number % 2 else (1, 0):
                taken[method][which].append(workers[which].seconds(method, number))
    for worker in workers:
        worker.close()
    print(
        "| method | seconds an image, before | now | before / now | times plain, before | now |\n|---|---|---|---|---|---|"
    )
    plain = taken[methods[0]]
    for method, both in taken.items():
        before, now = map(np.array, both)
        shares = [_interval(before / now), *(_interval(np.array(plain[which]) / both[which]) for which in (0, 1))]
        print(f"| {method} | {np.median(before):.3f} | {np.median(now):.3f} | " + " | ".join(shares) + " |")


def _interval(ratios: np.ndarray) -> str:
    low, high = median_interval(ratios)
    return f"{np.median(ratios):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
