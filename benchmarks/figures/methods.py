"""Figures on all methods with the bundled model, one image at a time, and on the effect of single options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adt_core import Drafting, Lantern, load_drafter
from adt_core.lab.benchmark import PRESETS, RELAXED, Preset
from adt_core.lab.report import median_interval, ratios, summary
from adt_core.lab.report import table as summary_table
from adt_core.policies import PLAIN

from ..harness import BUNDLED, RECIPE, SAMPLING, SCENES, bundled, captions, compared, comparison
from ..interleaving import table
from .parts import FigurePart

RELAXABLE = ("adt-tree", "merged")
FIXED = {f"eagle2 d{depth} k2 N6": Preset(Drafting("eagle2", depth=depth, width=2, drafts=6)) for depth in (4, 5)}
"""Fixed trees that are comparable with the trees of ADT-Tree.

N is their number of drafts. It is the mean number of drafts of ADT-Tree's trees. d is their depth: the two depths are
the integers next to the mean depth of ADT-Tree's trees. k is the width."""
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
GREEDY = ("eagle2", "adt-tree", "jacobi", "merged", "auto")
SHORT = ("method", "speedup", "low", "high", "tau", "mean_depth", "drafts_per_round", "substitution_rate", SCENES)
DRAFTER_SHARE = 1 / 32
"""Cost of a drafter forward as a share of a plain round: a drafter with 1 layer for a target with 32 layers."""
SPEED = {
    "auto": "*auto*, the default",
    "merged": "network and Jacobi window in one tree, 24 drafts",
    "merged-64": "network and Jacobi window in one tree, 64 drafts",
    "jacobi-chain": "Jacobi window as a chain, no network",
    "eagle2": "EAGLE-2, coupled",
    "eagle2-top-k": "EAGLE-2 with the usual top-k proposals",
    "adt-tree": "ADT-Tree",
}
"""Rows of the table in README.md: method -> title of the row."""


def measure_methods(count: int) -> dict:
    """Measure all methods, and the speed-ups of `PAIRS` with their 95 % intervals."""
    records = compared(MAIN, captions(BUNDLED, count), judged=True)
    pairs = []
    for one, other in PAIRS:
        values = ratios(records, other, one)
        pairs.append([one, other, float(np.median(values)), *median_interval(values)])
    return {"rows": summary(records), "pairs": pairs, "images": count}


def upper_bounds(rows: list[dict]) -> list[list]:
    """Return upper bounds of the speed-ups: the speed-ups if verifying a tree took only as long as one plain round.

    Args:
        rows: One dictionary of results per method, from `measure_methods`.

    Returns:
        One list per method with three items: name of the method, speed-up if drafting took no time, and speed-up if
        each drafter forward took the share `DRAFTER_SHARE` of a plain round.
    """
    plain = next(row for row in rows if row["method"] == PLAIN)["target_forwards"]
    forwards = [(row["method"], row["target_forwards"], row["drafter_forwards"]) for row in rows]
    return [[name, plain / target, plain / (target + DRAFTER_SHARE * drafter)] for name, target, drafter in forwards]


def tables_of_methods(data: dict) -> dict[str, str]:
    """Return the tables of `measure_methods` by name. See `FigurePart.tables`."""
    rows = {row["method"]: row for row in data["rows"]}
    speed = [
        [title, "{speedup:.2f} ({low:.2f} to {high:.2f})".format(**rows[name]), f"{rows[name]['tau']:.1f}"]
        for name, title in SPEED.items()
    ]
    with_drafter = f"drafter forward = 1/{round(1 / DRAFTER_SHARE)} step"
    return {
        "speed": table(["method", "speed-up over plain decoding", "tokens per target pass"], speed),
        "methods": summary_table(data["rows"], data["images"]),
        "pairs": table(["method", "baseline", "speed-up (median)", "95 % CI low", "95 % CI high"], data["pairs"]),
        "bounds": table(["method", "free drafting", with_drafter], upper_bounds(data["rows"])),
    }


def lantern_presets() -> dict[str, Preset]:
    """Return methods with LANTERN settings that `measure_methods` does not measure."""
    deltas = {f"delta {delta}": Lantern(100, delta) for delta in (0.05, 0.3, 0.7, 1.0)}
    rules = {"exact": None, **deltas, "lambda 2": Lantern(100, factor=2.0), "lambda 20": Lantern(1000, factor=20.0)}
    chosen = {"adt-tree": rules, "adt-tree-top-k": ("exact", "delta 0.3"), "merged": ("delta 0.3", "delta 1.0")}
    return {
        name if rule == "exact" else f"{name} {rule}": PRESETS[name]._replace(lantern=rules[rule])
        for name, some in chosen.items()
        for rule in some
    }


def measure_lantern(count: int) -> dict:
    """Measure the methods of `lantern_presets`."""
    return {"rows": summary(compared(lantern_presets(), captions(BUNDLED, count), judged=True)), "images": count}


def measure_greedy(count: int) -> dict:
    """Measure the methods of `GREEDY` at temperature 0."""
    recipe = replace(RECIPE, sampling=replace(SAMPLING, temperature=0.0))
    presets = {name: PRESETS[name] for name in GREEDY}
    return {"rows": summary(compared(presets, captions(BUNDLED, count), recipe)), "images": count}


CHANGES: dict[str, dict[str, dict]] = {
    "adt-tree": {
        "init vertical": {"init": "vertical"},
        "init random": {"init": "random"},
        "beta 0.3": {"beta": 0.3},
        "beta 0.9": {"beta": 0.9},
        "depth step 2": {"depth_step": 2},
        "width step 2": {"width_step": 2},
        "depth to 3": {"depth_max": 3},
        "depth to 10, width to 6, 16 drafts": {"depth_max": 10, "width_max": 6, "drafts": 16},
        "wrap vertical": {"wrap": "vertical"},
        "wrap reset": {"wrap": "reset"},
        "proposals top-k": {"proposal": "top-k"},
    },
    "jacobi": {
        "window of 8": {"depth": 8, "drafts": 16},
        "window of 32": {"depth": 32, "drafts": 40},
        "no branches": {"width": 1, "drafts": 16},
        "5 candidates": {"width": 5},
        "40 drafts": {"drafts": 40},
        "proposals top-k": {"proposal": "top-k"},
    },
    "merged": {"proposals top-k": {"proposal": "top-k"}},
}
"""Changed options: method -> title of the change -> options."""


def with_changes(name: str) -> dict[str, Preset]:
    """Return a method, and a variant of the method for each change in `CHANGES`."""
    preset = PRESETS[name]
    return {name: preset} | {
        change: preset._replace(drafting=preset.drafting.replace(**options))
        for change, options in CHANGES[name].items()
    }


def measure_changes(count: int) -> list[list]:
    """Decode all prompts as one batch, once for each method and change of `CHANGES`.

    Returns:
        One list per method and change: method, change, tokens per target pass, mean tree depth, mean number of drafts
        per round.
    """
    prompts = captions(BUNDLED, count)
    lines = []
    for presets in map(with_changes, CHANGES):
        pipelines = comparison(presets, prompts).pipelines(bundled(), load_drafter("bundled", bundled()))
        method = next(iter(presets))
        for name in presets:
            report = pipelines[name].decoding(prompts).run().trace.report()
            lines.append([method, name, *(report[figure] for figure in ("tau", "mean_depth", "mean_drafts"))])
    return lines


def tables_of_lantern(data: dict) -> dict[str, str]:
    """Return the table, by its name ``lantern``. See `FigurePart.tables`."""
    return {"lantern": summary_table(data["rows"], data["images"], SHORT)}


def tables_of_greedy(data: dict) -> dict[str, str]:
    """Return the table, by its name ``greedy``. See `FigurePart.tables`."""
    columns = (*SHORT[:7], "seconds", "identical", "agreement")
    return {"greedy": summary_table(data["rows"], data["images"], columns)}


def tables_of_changes(lines: list[list]) -> dict[str, str]:
    """Return the table, by its name ``changes``. See `FigurePart.tables`."""
    return {"changes": table(["method", "change", "tokens per target pass", "depth", "drafts per round"], lines)}


PARTS = {
    "methods": FigurePart(8, measure_methods, tables_of_methods),
    "lantern": FigurePart(4, measure_lantern, tables_of_lantern),
    "greedy": FigurePart(4, measure_greedy, tables_of_greedy),
    "changes": FigurePart(6, measure_changes, tables_of_changes),
}
