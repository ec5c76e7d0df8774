"""What it costs to keep the image in half precision, and what is lost without it.

    python -m benchmarks.half [--prompts 8] [--dtypes bfloat16 float16] [--threads 1]

For each dtype one interleaved run on the bundled model: plain decoding and drafting, with the exact mode on and off. A
ratio compares two runs of the same prompt, side by side in time; behind the median stands its 95 % bootstrap interval.
Identical images are those of plain decoding in the same mode.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.jobs import Job
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe

from .harness import captions, runner
from .turns import in_turns, interval

FIRST = 3600  # held-out caption of this benchmark
METHODS = {
    PLAIN: ("jacobi", {"method": PLAIN}),
    "window, a chain": ("jacobi", {"method": "eagle2", "depth": 16, "width": 1, "nodes": 16}),
    "ADT-Tree": ("bundled", {"method": "adt-tree"}),
    "network and window": ("bundled+jacobi", {"method": "eagle2", "depth": 8, "width": 3, "nodes": 24}),
}
MODES = {"on": True, "off": False}


def measure(dtype: str, prompts: list[str]) -> dict[tuple[str, str], list[tuple[float, torch.Tensor]]]:
    """Seconds and codes of every prompt, by method and mode."""
    runs = {}
    for mode, exact in MODES.items():
        target = load_target(dtype=getattr(torch, dtype), exact=exact)
        for name, (drafter, options) in METHODS.items():
            job = Job(target, Recipe(Sampling(seed=1), Drafting(**options)), load_drafter(drafter, target))
            runs[name, mode] = runner(job)
    _, *turns = in_turns(runs, [prompts[0], *prompts])  # the first is uncounted: first calls are slow
    return {cell: [(turn[cell][0]["seconds"], turn[cell][1]) for turn in turns] for cell in runs}


def words(above: list, below: list) -> str:
    """The median ratio of seconds, and its interval."""
    return interval(one[0] / other[0] for one, other in zip(above, below))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.prompts} prompts, CPU, {args.threads} threads, torch {torch.__version__}\n")
    print("| dtype | method | exact | seconds an image | times as fast as plain | seconds, on / off | identical |")
    print("|---|---|---|---|---|---|---|")
    for dtype in args.dtypes:
        found = measure(dtype, captions(FIRST, args.prompts))
        for name, mode in product(METHODS, MODES):
            mine, plain = found[name, mode], found[PLAIN, mode]
            same = sum(bool(codes.equal(theirs)) for (_, codes), (_, theirs) in zip(mine, plain))
            seconds, cost = np.median([one[0] for one in mine]), words(found[name, "on"], found[name, "off"])
            print(
                f"| {dtype} | {name} | {mode} | {seconds:.2f} | {words(plain, mine)} | {cost if MODES[mode] else ''} "
                f"| {same} of {len(mine)} |"
            )


if __name__ == "__main__":
    main()
