"""Choose drafting constants on one prompt set, compare the winners on another.

    python -m benchmarks.sweep [--tune 6] [--evaluate 16] [--temperature 0.6]

Three families: fixed EAGLE-2 trees (a tree of width 1 is a chain), ADT-Tree, and both with confidence pruning. Each
family's best on the tuning captions (median ratio to plain decoding, interleaved) goes to the evaluation captions.
There ADT-Tree is set against the best fixed tree prompt by prompt.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace

import numpy as np

from adt_core import Drafting
from adt_core.lab.benchmark import Preset
from adt_core.lab.report import ratios, summary, table
from adt_core.policies import PLAIN

from .harness import RECIPE, SAMPLING, captions, compared
from .turns import interval

TUNING, EVALUATION = 2000, 1000  # first held-out captions
FIXED = ((2, 1, 2), (3, 1, 3), (4, 1, 4), (5, 1, 5), (6, 1, 6), (3, 2, 4), (3, 2, 6), (4, 2, 6), (5, 2, 8), (5, 3, 10))
"""Depth, width, nodes."""
ADAPTIVE = (
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
)
"""Width at first, nodes, beta, most depth, most width, beginning."""
SHAPES = (("eagle2", 8, 1), ("eagle2", 8, 2), ("eagle2", 8, 3), ("adt-tree", 4, 2), ("adt-tree", 4, 3))
"""Method, depth, width of the pruned ones."""
BOUNDS = ((0.35, 0.1), (0.5, 0.1), (0.6, 0.05))
"""Confidence above which a pruned tree expands a node, and keeps it."""


def families() -> dict[str, dict[str, Preset]]:
    """The candidates of each family, by a label."""
    fixed = [{"method": "eagle2", "depth": d, "width": k, "nodes": n} for d, k, n in FIXED]
    adaptive = [
        {"method": "adt-tree", "width": w, "nodes": n, "beta": b, "depth_max": d, "width_max": k, "init": i}
        for w, n, b, d, k, i in ADAPTIVE
    ]
    pruned = [
        {"method": m, "depth": d, "width": k, "nodes": 8, "expand_above": e, "keep_above": q}
        | ({"depth_max": 8, "width_max": k} if m == "adt-tree" else {})
        for (m, d, k), (e, q) in itertools.product(SHAPES, BOUNDS)
    ]
    return {
        family: {
            " ".join(f"{k} {v}" if k != "method" else v for k, v in one.items()): Preset(Drafting(**one))
            for one in candidates
        }
        for family, candidates in {"fixed": fixed, "adt": adaptive, "pruned": pruned}.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=int, default=6)
    parser.add_argument("--evaluate", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=SAMPLING.temperature)
    args = parser.parse_args()
    recipe = replace(RECIPE, sampling=replace(SAMPLING, seed=3, temperature=args.temperature))
    best: dict[str, str] = {}
    for family, candidates in families().items():
        records = compared(candidates, captions(TUNING, args.tune), recipe)
        print(f"\n## {family}, tuning set\n\n{table(summary(records), args.tune)}", flush=True)
        best[family] = max(candidates, key=lambda name: np.median(ratios(records, PLAIN, name)))
    winners = {best[family]: candidates[best[family]] for family, candidates in families().items()}
    records = compared(winners, captions(EVALUATION, args.evaluate), recipe)
    print(f"\n## the winners, evaluation set\n\n{table(summary(records), args.evaluate)}")
    against = interval(ratios(records, best["fixed"], best["adt"]))
    print(f"\nADT-Tree against the best fixed tree: {against} times as fast")


if __name__ == "__main__":
    main()
