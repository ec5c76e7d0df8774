"""Choose drafting constants on one prompt set, compare the winners on another.

    python -m benchmarks.sweep [--tune 6] [--evaluate 16] [--threads 2]

Three families: fixed EAGLE-2 trees (a tree of width 1 is a chain), ADT-Tree, and both with confidence pruning. Each
family's best on the tuning captions (median ratio to plain decoding, interleaved) goes to the evaluation captions.
There ADT-Tree is set against the best fixed tree prompt by prompt.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable

import numpy as np
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.jobs import Job
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_lab.report import median_interval, ratios, summary, table

from .harness import captions, interleaved, runner
from .speed import EVALUATION

TUNING = 2000


def families() -> dict[str, dict[str, Drafting]]:
    """The candidates of each family, by a label."""
    fixed = [
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
    adaptive = [
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
    shapes = [("eagle2", 8, 1), ("eagle2", 8, 2), ("eagle2", 8, 3), ("adt-tree", 4, 2), ("adt-tree", 4, 3)]
    bounds = [(0.35, 0.1), (0.5, 0.1), (0.6, 0.05)]
    return {
        "fixed": _labelled({"method": "eagle2", "depth": d, "width": k, "nodes": n} for d, k, n in fixed),
        "adt": _labelled(
            {"method": "adt-tree", "width": w, "nodes": n, "beta": b, "depth_max": d, "width_max": k, "init": i}
            for w, n, b, d, k, i in adaptive
        ),
        "pruned": _labelled(
            {"method": m, "depth": d, "width": k, "nodes": 8, "expand_above": e, "keep_above": q}
            | ({"depth_max": 8, "width_max": k} if m == "adt-tree" else {})
            for (m, d, k), (e, q) in itertools.product(shapes, bounds)
        ),
    }


def _labelled(candidates: Iterable[dict]) -> dict[str, Drafting]:
    """Draftings by their options in words."""
    return {" ".join(f"{k} {v}" if k != "method" else v for k, v in c.items()): Drafting(**c) for c in candidates}


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

    def measure(candidates: dict[str, Drafting], prompts: list[str]) -> list[dict]:
        compared = {PLAIN: Drafting(method=PLAIN), **candidates}
        runs = {name: runner(Job(target, Recipe(sampling, drafting), drafter)) for name, drafting in compared.items()}
        return interleaved(runs, prompts)

    best: dict[str, str] = {}
    for family, candidates in families().items():
        records = measure(candidates, captions(TUNING, args.tune))
        print(f"\n## {family}, tuning set\n\n{table(summary(records), args.tune)}", flush=True)
        best[family] = max(candidates, key=lambda name: np.median(ratios(records, PLAIN, name)))
    winners = {best[family]: candidates[best[family]] for family, candidates in families().items()}
    records = measure(winners, captions(EVALUATION, args.evaluate))
    print(f"\n## the winners, evaluation set\n\n{table(summary(records), args.evaluate)}")
    against = ratios(records, best["fixed"], best["adt"])
    low, high = median_interval(against)
    print(
        f"\nADT-Tree against the best fixed tree: {np.median(against):.3f} times as fast, "
        f"95 % interval {low:.3f} to {high:.3f}"
    )


if __name__ == "__main__":
    main()
