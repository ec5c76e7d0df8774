"""Figures on all methods with the bundled model, one image at a time."""

from __future__ import annotations

from adt_core import Drafting
from adt_core.lab.presets import PRESETS, Preset
from adt_core.lab.report import seconds, summary
from adt_core.lab.report import table as summary_table
from adt_core.policies import RELAXED, method_title
from adt_core.run import race

from ..harness import BUNDLED, captions, compared
from ..tables import estimate, table
from . import FigurePart

RELAXABLE = ("adt-tree", "merged")
FIXED = {
    f"eagle2:depth={depth},width=2,drafts=6": Preset(Drafting("eagle2", depth=depth, width=2, drafts=6))
    for depth in (4, 5)
}
"""Fixed trees that are comparable with the trees of ADT-Tree.

Their number of drafts is the mean number of drafts of ADT-Tree's trees. Their depths are the integers next to the mean
depth of ADT-Tree's trees."""
MAIN = {
    **{
        name: PRESETS[name]
        for name in (
            "static:naive_extend_57", "static:mc_sim_7b_63", "eagle2-top-k", "eagle2", "eagle2-pruned", "adt-tree",
            "jacobi-chain", "jacobi", "merged", "merged-64", "auto", "auto-jacobi",
        )
    },
    **FIXED,
    **{name + RELAXED: PRESETS[name] for name in RELAXABLE},
}  # fmt: skip
PAIRS = [
    ("eagle2", "eagle2-top-k"), ("adt-tree", "eagle2"), *(("adt-tree", name) for name in FIXED), ("merged", "jacobi"),
    ("merged", "adt-tree"), ("merged-64", "merged"), ("auto", "merged"), ("auto-jacobi", "jacobi"),
    *((name + RELAXED, name) for name in RELAXABLE),
]  # fmt: skip
"""Pairs of a method and a baseline. The benchmark reports the speed-up of the method over the baseline."""
SPEED = "auto", "merged", "merged-64", "jacobi-chain", "eagle2", "eagle2-top-k", "adt-tree"
"""Methods in the table in README.md."""


def measure_methods(count: int) -> dict:
    """Measure all methods, and the speed-ups of `PAIRS` with their 95 % intervals."""
    records = compared(MAIN, captions(BUNDLED, count), judged=True)
    pairs = []
    for one, other in PAIRS:
        times = seconds(records, other), seconds(records, one)
        pairs.append([one, other, *race.speedup(*times), race.ratio_of_totals(*times)])
    return {"rows": summary(records), "pairs": pairs, "images": count}


def tables_of_methods(data: dict) -> dict[str, str]:
    """Return the tables of `measure_methods` by name. See `FigurePart.tables`."""
    rows = {row["method"]: row for row in data["rows"]}
    speed = [
        [
            method_title(name),
            estimate(rows[name][key] for key in ("speedup", "low", "high")),
            rows[name]["totals"],
            f"{rows[name]['tau']:.1f}",
        ]
        for name in SPEED
    ]
    pairs = ["method", "baseline", "speed-up (median)", "95 % CI low", "95 % CI high", "ratio of totals"]
    return {
        "speed": table(["method", "speed-up over no drafting", "ratio of totals", "tokens per target pass"], speed),
        "methods": summary_table(data["rows"], data["images"]),
        "pairs": table(pairs, ([method_title(one), method_title(other), *row] for one, other, *row in data["pairs"])),
    }


PARTS = {"methods": FigurePart(8, measure_methods, tables_of_methods)}
