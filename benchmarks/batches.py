"""Images a minute when several are decoded together, plain and with drafts: what a shared read of the weights is worth on this device.

    python -m benchmarks.batches [--sizes 1,2,4,8,16] [--prompts 16] [--repeats 3] [--threads 2] [--drafter bundled] [--methods adt-tree,auto]

Every cell decodes the same prompts, so many images at once; a place that becomes free goes to the next prompt. Cells take turns in an order drawn
anew for each repeat. *Times one by one* compares with the first of the sizes.
Times hold the prefills; loading, writing and the image decoder are left out. The last column is the share of images whose
tokens are those of decoding one by one without drafts (float32 may part at a near tie).
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from adt_core import Decoding, Drafting, Sampling, Target, load_drafter, load_target
from adt_core.app.generation import choose_device
from adt_core.app.report import PLAIN

from .harness import captions

FIRST = 3000  # held-out caption of this benchmark


def decode(target: Target, drafter, prompts: list[str], drafting: Drafting, at_once: int) -> tuple[float, torch.Tensor]:
    """Seconds and codes [prompts, T]."""
    decoding = Decoding(
        target,
        [target.encode_prompt(prompt) for prompt in prompts],
        sampling=Sampling(seed=1),
        drafting=drafting,
        drafter=drafter,
        at_once=at_once,
    )
    for _ in decoding:
        pass
    return decoding.trace.report()["seconds"], decoding.codes


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
    drafter = load_drafter(args.drafter, target)
    methods = {method: replace(drafter.default, method=method) for method in (PLAIN, *args.methods.split(","))}
    prompts, sizes = captions(FIRST, args.prompts), [int(size) for size in args.sizes.split(",")]
    cells, rng = list(product(methods, sizes)), np.random.default_rng(0)
    seconds: dict[tuple[str, int], list[float]] = {cell: [] for cell in cells}
    codes: dict[tuple[str, int], torch.Tensor] = {}
    for drafting in methods.values():
        decode(target, drafter, prompts[:1], drafting, 1)  # uncounted
    for _ in range(args.repeats):
        for method, size in (cells[i] for i in rng.permutation(len(cells))):
            taken, codes[method, size] = decode(target, drafter, prompts, methods[method], size)
            seconds[method, size].append(taken)
    print(
        f"{args.prompts} prompts, {args.repeats} repeats, {target.decoder.embedding.device}, {args.threads} threads, torch {torch.__version__}\n"
    )
    print(
        "| method | at once | images a minute (least to most) | times one by one | times plain | identical |\n|---|---|---|---|---|---|"
    )
    for method, size in cells:
        rates = [60 * args.prompts / taken for taken in seconds[method, size]]
        alone, plain = (
            [a / b for a, b in zip(seconds[other], seconds[method, size])]
            for other in ((method, sizes[0]), (PLAIN, size))
        )
        same = (codes[method, size] == codes[PLAIN, sizes[0]]).all(1).double().mean().item()
        print(
            f"| {method} | {size} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) | {statistics.median(alone):.2f} "
            f"({min(alone):.2f} to {max(alone):.2f}) | {statistics.median(plain):.2f} | {same:.0%} |"
        )


if __name__ == "__main__":
    main()
