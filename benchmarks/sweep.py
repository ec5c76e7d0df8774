"""Tune drafting options on one set of prompts, and compare the best options on another set.

    python -m benchmarks.sweep [--tune 6] [--evaluate 16] [--temperature 0.6]

A candidate is a set of drafting options. There are three families of candidates: fixed EAGLE-2 trees (a tree of width 1
is a chain), ADT-Tree, and trees of either kind with confidence pruning. The benchmark measures all candidates on the
tuning captions. In each family, the winner is the candidate with the highest median speed-up over plain decoding. The
benchmark then measures the three winners on the evaluation captions, and compares ADT-Tree with the best fixed tree
prompt by prompt.
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
from .interleaving import format_median

TUNING = 2000  # number of the first held-out caption for tuning
EVALUATION = 1000  # number of the first held-out caption for the comparison
FIXED = ((2, 1, 2), (3, 1, 3), (4, 1, 4), (5, 1, 5), (6, 1, 6), (3, 2, 4), (3, 2, 6), (4, 2, 6), (5, 2, 8), (5, 3, 10))
"""Depth, width and nodes of fixed trees."""
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
"""Options of ADT-Tree: initial width, nodes, beta, maximum depth, maximum width, and the option `init`."""
SHAPES = (("eagle2", 8, 1), ("eagle2", 8, 2), ("eagle2", 8, 3), ("adt-tree", 4, 2), ("adt-tree", 4, 3))
"""Method, depth and width of pruned trees."""
CONFIDENCES = ((0.35, 0.1), (0.5, 0.1), (0.6, 0.05))
"""Confidence thresholds of pruned trees: nodes above the first are expanded, nodes above the second are verified."""


def families() -> dict[str, dict[str, Preset]]:
    """Return the candidates of each family. The key of a candidate is a label that lists its options."""
    fixed = [{"method": "eagle2", "depth": depth, "width": width, "drafts": nodes} for depth, width, nodes in FIXED]
    names = ("width", "nodes", "beta", "depth_max", "width_max", "init")
    adaptive = [{"method": "adt-tree", **dict(zip(names, values, strict=True))} for values in ADAPTIVE]
    pruned = [
        {"method": method, "depth": depth, "width": width, "drafts": 8, "expand_above": expand, "keep_above": keep}
        | ({"depth_max": 8, "width_max": width} if method == "adt-tree" else {})
        for (method, depth, width), (expand, keep) in itertools.product(SHAPES, CONFIDENCES)
    ]
    return {
        family: {_label(options): Preset(Drafting(**options)) for options in candidates}
        for family, candidates in {"fixed": fixed, "adt": adaptive, "pruned": pruned}.items()
    }


def _label(options: dict) -> str:
    return " ".join(value if name == "method" else f"{name} {value}" for name, value in options.items())


def main() -> None:
    """Run the command line of this benchmark."""
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
    print(f"\n## best candidates, evaluation set\n\n{table(summary(records), args.evaluate)}")
    speedup = format_median(ratios(records, best["fixed"], best["adt"]))
    print(f"\nSpeed-up of ADT-Tree over the best fixed tree: {speedup}")


if __name__ == "__main__":
    main()
