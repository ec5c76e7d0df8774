"""Images a minute when several are decoded together, plainly and with drafts.

    python -m benchmarks.batches [--sizes 1,2,4,8,16] [--prompts 16] [--repeats 3] [--threads 2] [--drafter bundled]
                                 [--methods adt-tree,auto]

Images that are decoded together share every read of the weights; this measures what that is worth on this device.
Every cell of the table decodes the same prompts, so many images at once; the next prompt takes the place of a finished
image. Cells take turns in an order drawn anew for each repeat. *Times one by one* compares with the first of the sizes.
Times hold the prefills; loading, writing and the image decoder are left out. The last column is the share of images
whose tokens are those of decoding one by one without drafts (float32 may part at a near tie).
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product

import numpy as np
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.generation import choose_device
from adt_core.app.jobs import Job, decode
from adt_core.drafters import drafter_defaults
from adt_core.policies import PLAIN

from .harness import captions

FIRST = 3000  # held-out caption of this benchmark


def row(method: str, size: int, sizes: list[int], seconds: dict, codes: dict) -> str:
    """A line of the table. seconds: of every repeat, by method and size. codes: [prompts, T], likewise."""
    taken, images = np.array(seconds[method, size]), len(codes[method, size])
    rates = 60 * images / taken
    alone, plain = (np.array(seconds[other]) / taken for other in ((method, sizes[0]), (PLAIN, size)))
    same = (codes[method, size] == codes[PLAIN, sizes[0]]).all(1).double().mean().item()
    return (
        f"| {method} | {size} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) "
        f"| {statistics.median(alone):.2f} ({min(alone):.2f} to {max(alone):.2f}) | {statistics.median(plain):.2f} "
        f"| {same:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,2,4,8,16")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--methods", default="adt-tree,auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = load_target("bundled", choose_device("auto"))
    drafter, defaults = load_drafter(args.drafter, target), drafter_defaults(args.drafter)
    jobs = {
        method: Job(target, Sampling(seed=1), Drafting.of({**defaults, "method": method}), drafter)
        for method in (PLAIN, *args.methods.split(","))
    }
    prompts, sizes = captions(FIRST, args.prompts), [int(size) for size in args.sizes.split(",")]
    cells, rng = list(product(jobs, sizes)), np.random.default_rng(0)
    seconds: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    codes: dict[tuple[str, int], torch.Tensor] = {}
    for job in jobs.values():
        decode(job.decoding(prompts[:1]))  # uncounted: first calls are slow
    for _ in range(args.repeats):
        for method, size in (cells[i] for i in rng.permutation(len(cells))):
            decoding = decode(jobs[method].decoding(prompts, at_once=size))
            seconds[method, size].append(decoding.trace.report()["seconds"])
            codes[method, size] = decoding.codes
    device = f"{target.decoder.embedding.device}, {args.threads} threads, torch {torch.__version__}"
    print(f"{args.prompts} prompts, {args.repeats} repeats, {device}\n")
    print("| method | at once | images a minute (least to most) | times one by one | times plain | identical |")
    print("|---|---|---|---|---|---|")
    for method, size in cells:
        print(row(method, size, sizes, seconds, codes))


if __name__ == "__main__":
    main()
