"""Choose drafting constants on one prompt set, compare the winners on another.

    python -m benchmarks.sweep [--tune 6] [--evaluate 16] [--threads 2]

Three families: fixed EAGLE-2 trees (a tree of width 1 is a chain), ADT-Tree, and both with confidence pruning. Each family's best (median ratio to plain
decoding, interleaved) on the tuning captions goes to the evaluation captions, where ADT-Tree is set against the best fixed tree
prompt by prompt.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.report import PLAIN, median_interval, ratios, summary, table

from .harness import captions, interleaved, runner
from .speed import EVALUATION

TUNING = 2000


def families() -> dict[str, list[Drafting]]:
    """The candidates of each family."""
    fixed = [
        Drafting(method="eagle2", depth=d, width=k, nodes=n)
        for d, k, n in [
            (2, 1, 2),
            (3, 1, 3),
            (4, 1, 4),
            (5, 1, 5),
            (6, 1, 6),
            (3, 2, 4),
            (3, 2, 6),
            (4, 2, 6),
            (5, 2, 8),
            (5, 3, 10),
        ]
    ]
    adt = [
        Drafting(depth=3, width=w, nodes=n, beta=b, depth_max=d, width_max=k, init=i)
        for w, n, b, d, k, i in [
            (1, 6, 0.5, 6, 1, "horizontal"),
            (1, 8, 0.6, 8, 1, "horizontal"),
            (1, 8, 0.8, 8, 1, "horizontal"),
            (1, 6, 0.6, 6, 1, "vertical"),
            (2, 6, 0.6, 6, 2, "horizontal"),
            (2, 6, 0.8, 6, 2, "horizontal"),
            (2, 8, 0.6, 8, 2, "horizontal"),
            (2, 6, 0.6, 6, 3, "horizontal"),
            (2, 6, 0.6, 6, 3, "vertical"),
            (2, 10, 0.6, 8, 4, "horizontal"),
        ]
    ]
    shapes = [
        ("eagle2", 8, 1, 8),
        ("eagle2", 8, 2, 8),
        ("eagle2", 8, 3, 8),
        ("adt-tree", 4, 2, 8),
        ("adt-tree", 4, 3, 8),
    ]
    pruned = [
        Drafting(method=m, depth=d, width=k, nodes=n, depth_max=8, width_max=k, expand_above=e, keep_above=q)
        for (m, d, k, n), (e, q) in itertools.product(shapes, [(0.35, 0.1), (0.5, 0.1), (0.6, 0.05)])
    ]
    return {"fixed": fixed, "adt": adt, "pruned": pruned}


def label(d: Drafting) -> str:
    text = f"{d.method} d{d.depth} k{d.width} N{d.nodes}"
    if d.method == "adt-tree":
        text += f" beta{d.beta} D{d.depth_min}-{d.depth_max} K{d.width_min}-{d.width_max} {d.init}"
    return text + (f" expand{d.expand_above} keep{d.keep_above}" if d.expand_above or d.keep_above else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=int, default=6)
    parser.add_argument("--evaluate", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = load_target()
    drafter = load_drafter("bundled", target)
    sampling = Sampling(seed=3, temperature=args.temperature)

    def measure(candidates: list[Drafting], prompts: list[str]) -> list[dict]:
        runs = {PLAIN: Drafting(method="autoregressive"), **{label(c): c for c in candidates}}
        return interleaved(
            {name: runner(target, drafter, sampling, drafting) for name, drafting in runs.items()}, prompts
        )

    best = {}
    for family, candidates in families().items():
        records = measure(candidates, captions(TUNING, args.tune))
        print(f"\n## {family}, tuning set\n\n{table(summary(records), args.tune)}", flush=True)
        best[family] = max(candidates, key=lambda c: np.median(ratios(records, PLAIN, label(c))))
    records = measure(list(best.values()), captions(EVALUATION, args.evaluate))
    print(f"\n## the winners, evaluation set\n\n{table(summary(records), args.evaluate)}")
    against = ratios(records, label(best["fixed"]), label(best["adt"]))
    low, high = median_interval(against)
    print(
        f"\nADT-Tree against the best fixed tree: {np.median(against):.3f} times as fast, 95 % interval {low:.3f} to {high:.3f}"
    )


if __name__ == "__main__":
    main()
