"""The tables of docs/results.md, measured anew on the bundled model.

    python -m benchmarks.results [--output output/results] [--prompts 32] [--ablation-prompts 8]

Writes ``tables.md``, ``results.json`` and, where matplotlib is installed, ``speedup.png`` into ``--output``. The runs,
one after another, are benchmarks of ``adt_lab.benchmark``: all methods of a run take turns on every prompt, and a
run that was interrupted goes on where it stopped. What the figures mean is for people to say.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from adt_core import AdtError, Drafting, Lantern, Sampling, load_drafter, load_target
from adt_core.app.checkpoints import BUNDLED_SAMPLING
from adt_core.errors import pip_install
from adt_core.files import write, write_json
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_lab.benchmark import PRESETS, RELAXED, Benchmark, Preset, measure
from adt_lab.report import COLUMNS, Bar, draw_bars, median_interval, ratios, summary, table

from .harness import BUNDLED, BUNDLED_COUNT, SCENES, captions, scene_metric

SAMPLING = Sampling(1, BUNDLED_SAMPLING.temperature, guidance=BUNDLED_SAMPLING.guidance)
LANTERN = Lantern(100, 0.1)
RELAXABLE = ("adt-tree", "merged")
MAIN = [
    "static:naive_extend_57",
    "static:mc_sim_7b_63",
    "eagle2-top-k",
    "eagle2",
    "eagle2-pruned",
    "adt-tree",
    "jacobi-chain",
    "jacobi",
    "merged",
    "merged-64",
    "auto",
    "auto-jacobi",
    *(name + RELAXED for name in RELAXABLE),
]
PAIRS = [
    ("eagle2", "eagle2-top-k"),
    ("adt-tree", "eagle2"),
    ("merged", "jacobi"),
    ("merged", "adt-tree"),
    ("merged-64", "merged"),
    ("auto", "merged"),
    ("auto-jacobi", "jacobi"),
    *((name + RELAXED, name) for name in RELAXABLE),
]
"""Methods of the main run that are set against each other."""
GREEDY = ["eagle2", "adt-tree", "jacobi", "merged", "auto"]
SHORT = ("method", "speedup", "low", "high", "tau", "mean_depth", "nodes_per_round", "substitution_rate", SCENES)
DRAFTER_SHARE = 1 / 32
"""Of a step, for a forward of a one-layer drafter beside a target of 32 layers."""


def relaxed() -> dict[str, Preset]:
    """The other LANTERN settings."""
    rules = {"delta 0.05": Lantern(100, 0.05), "delta 0.3": Lantern(100, 0.3), "lambda 2": Lantern(100, factor=2.0)}
    return {
        f"{name} {rule}": PRESETS[name]._replace(lantern=lantern)
        for name in RELAXABLE
        for rule, lantern in rules.items()
    }


def _changed(name: str, **changes) -> Preset:
    return PRESETS[name]._replace(drafting=PRESETS[name].drafting.replace(**changes))


def ablations() -> dict[str, dict[str, Preset]]:
    """Tables of one change each; the first row of each is the default."""
    adt, window = {"adt-tree": PRESETS["adt-tree"]}, {"jacobi": PRESETS["jacobi"]}
    d, w = PRESETS["adt-tree"].drafting.settings, PRESETS["jacobi"].drafting.settings
    proposals = {
        f"{title}: proposals (default: coupled)": {
            name: PRESETS[name],
            f"{name} top-k": _changed(name, proposal="top-k"),
        }
        for name, title in (("adt-tree", "ADT-Tree"), ("jacobi", "Window"), ("merged", "Network and window"))
    }
    lantern = {
        f"adt-tree{RELAXED}": PRESETS["adt-tree"],
        **{f"lantern k {k}": PRESETS["adt-tree"]._replace(lantern=replace(LANTERN, neighbours=k)) for k in (10, 1000)},
    }
    bounds = {
        "depth to 3": _changed("adt-tree", depth_max=3),
        "depth to 10, width to 6, 16 drafts": _changed("adt-tree", depth_max=10, width_max=6, nodes=16),
    }
    branches = {
        "no branches": _changed("jacobi", width=1, nodes=w.depth),
        "5 candidates": _changed("jacobi", width=5),
        "40 drafts": _changed("jacobi", nodes=40),
    }
    return {
        f"ADT-Tree: where a tree's shape starts from (default: {d.init})": adt
        | {f"init {i}": _changed("adt-tree", init=i) for i in ("vertical", "random")},
        f"ADT-Tree: beta (default: {d.beta})": adt | {f"beta {b}": _changed("adt-tree", beta=b) for b in (0.3, 0.9)},
        f"ADT-Tree: steps (default: depth {d.depth_step}, width {d.width_step})": adt
        | {f"{s} step 2": _changed("adt-tree", **{f"{s}_step": 2}) for s in ("depth", "width")},
        f"ADT-Tree: bounds (default: depth to {d.depth_max}, width to {d.width_max}, {d.nodes} drafts)": adt | bounds,
        f"ADT-Tree: the first tree of a row (default: {d.wrap})": adt
        | {f"wrap {r}": _changed("adt-tree", wrap=r) for r in ("vertical", "reset")},
        **proposals,
        f"Window: length (default: {w.depth}, and {w.nodes - w.depth} drafts on branches)": window
        | {f"window of {n}": _changed("jacobi", depth=n, nodes=n + w.nodes - w.depth) for n in (8, 32)},
        f"Window: branches (default: {w.width} candidates, {w.nodes} drafts)": window | branches,
        f"LANTERN: neighbours looked at (default: {LANTERN.neighbours})": lantern,
    }


def controls(row: dict) -> dict[str, Preset]:
    """Fixed shapes with ADT-Tree's mean number of drafts, and its mean depth rounded either way.

    row: ADT-Tree's line of the summary, which states both.
    """
    found, nodes = {}, round(row["nodes_per_round"])
    for depth in sorted({math.floor(row["mean_depth"]), math.ceil(row["mean_depth"])}):
        width = 1 if depth >= nodes else 2
        found[f"eagle2 d{depth} k{width} N{nodes}"] = Preset(
            Drafting(method="eagle2", depth=depth, width=width, nodes=nodes)
        )
    return found


class Run(NamedTuple):
    """A finished benchmark: its settings, records and summary."""

    settings: dict
    records: list[dict]
    rows: list[dict]

    def table(self, columns: tuple[str, ...] | None = None, methods: list[str] | None = None) -> str:
        """Columns (all) of the methods (all) as Markdown."""
        rows = [row for row in self.rows if methods is None or row["method"] in methods]
        return table(rows, len(self.records), columns)

    def pairs(self, pairs: list[tuple[str, str]]) -> str:
        """How many times as fast the first of a pair is as the second, prompt by prompt, as Markdown."""
        lines = ["| method | against | times as fast (median) | 95 % from | to |", "|---|---|---|---|---|"]
        for one, other in pairs:
            values = ratios(self.records, other, one)
            low, high = median_interval(values)
            lines.append(f"| {one} | {other} | {np.median(values):.2f} | {low:.2f} | {high:.2f} |")
        return "\n".join(lines)

    def bounds(self) -> str:
        """The speed-ups that tokens alone would allow, if checking a whole tree took no longer than one plain step."""
        lines = ["| method | drafting free | a drafter's forward 1/32 of a step |", "|---|---|---|"]
        plain = next(row for row in self.rows if row["method"] == PLAIN)["target_forwards"]
        for row in self.rows:
            target, drafter = row["target_forwards"], row["drafter_forwards"]
            charged = plain / (target + DRAFTER_SHARE * drafter)
            lines.append(f"| {row['method']} | {plain / target:.2f} | {charged:.2f} |")
        return "\n".join(lines)


class Runner:
    """Runs benchmarks on one loaded model."""

    def __init__(self, folder: Path):
        self._folder, self._metrics, self._target = folder, {SCENES: scene_metric()}, load_target()
        self._network = load_drafter("bundled", self._target)

    def __call__(
        self, name: str, prompts: int, presets: dict[str, Preset], temperature: float = SAMPLING.temperature
    ) -> Run:
        """Measure the methods on the first ``prompts`` captions, in a folder of this name."""
        sampling = replace(SAMPLING, temperature=temperature)
        benchmark = Benchmark(
            captions(BUNDLED, prompts),
            list(presets),
            Recipe(sampling, lantern=LANTERN, drafter="bundled"),
            metrics=self._metrics,
            known=PRESETS | {key: preset for key, preset in presets.items() if not key.endswith(RELAXED)},
        )
        jobs = benchmark.jobs(self._target, self._network)
        running = measure(benchmark, jobs, self._folder / name)
        records = list(tqdm(running, name, prompts, unit=" prompts"))
        return Run(benchmark.settings(self._target), records, summary(records))


def _named(names: list[str]) -> dict[str, Preset]:
    return {name: PRESETS[name.removesuffix(RELAXED)] for name in names}


def measured(run: Runner, prompts: int, few: int) -> tuple[dict[str, Run], dict[str, str]]:
    """All runs by name, and all tables by title."""
    groups = ablations()
    main = run("main", prompts, _named(MAIN))
    adt = next(row for row in main.rows if row["method"] == "adt-tree")
    runs = {
        "main": main,
        "lantern": run("lantern", max(1, prompts // 4), relaxed()),
        "greedy": run("greedy", few, _named(GREEDY), temperature=0.0),
        "ablations": run(
            "ablations", few, {name: preset for group in groups.values() for name, preset in group.items()}
        ),
        "control": run("control", max(1, prompts // 2), _named(["adt-tree"]) | controls(adt)),
    }
    control = [row["method"] for row in runs["control"].rows if row["method"] not in (PLAIN, "adt-tree")]
    tables = {
        "Speed": main.table(),
        "Of these, one against another": main.pairs(PAIRS),
        "On a GPU where nodes are nearly free: bounds on the speed-up, computed, not measured": main.bounds(),
        "LANTERN, other settings": runs["lantern"].table(SHORT),
        "Speed, temperature 0": runs["greedy"].table((*SHORT[:7], "seconds", "identical", "agreement")),
        "Fixed trees with ADT-Tree's budget": runs["control"].table(SHORT[:7]),
        "ADT-Tree against them": runs["control"].pairs([("adt-tree", name) for name in control]),
    }
    for title, (first, *others) in ((title, list(group)) for title, group in groups.items()):
        tables[title] = runs["ablations"].table(SHORT, [first, *others])
        tables[f"{title}: against the default"] = runs["ablations"].pairs([(other, first) for other in others])
    return runs, tables


def draw(folder: Path, rows: list[dict]) -> None:
    """The chart of the main table, where matplotlib is installed."""
    bars = [
        Bar(row["method"], row["speedup"], row["low"], row["high"], int(row["method"].endswith(RELAXED)))
        for row in rows
    ]
    try:
        draw_bars(folder / "speedup.png", bars, f"{COLUMNS['speedup']}: times as fast as plain decoding, 95 % interval")
    except ImportError:
        print(f"The chart needs matplotlib: {pip_install('matplotlib')}, then run this again.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/results"))
    parser.add_argument(
        "--prompts",
        type=int,
        default=32,
        help="of the main table; the control takes half, LANTERN's other settings a quarter",
    )
    parser.add_argument("--ablation-prompts", type=int, default=8)
    args = parser.parse_args()
    if not (1 <= args.prompts <= BUNDLED_COUNT and 1 <= args.ablation_prompts <= BUNDLED_COUNT):
        parser.error(f"the numbers of prompts must be from 1 to {BUNDLED_COUNT}")
    try:
        runs, tables = measured(Runner(args.output), args.prompts, args.ablation_prompts)
    except AdtError as error:  # the folder holds runs of another commit, say
        sys.exit(str(error))
    text = "\n".join(f"## {title}\n\n{shown}\n" for title, shown in tables.items())
    write(args.output / "tables.md", text.encode())
    figures = {name: {"settings": run.settings, "summary": run.rows} for name, run in runs.items()}
    write_json(args.output / "results.json", figures)
    draw(args.output, runs["main"].rows)
    print(f"{args.output / 'tables.md'} and results.json are written.")


if __name__ == "__main__":
    main()
