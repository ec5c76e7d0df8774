"""Everything that docs/results.md says, measured anew on the bundled model and the CPU.

    python -m benchmarks.results --output docs [--prompts 32] [--ablation-prompts 8] [--work output/results]

Writes ``results.md``, ``results.json``, ``speedup.png`` and ``acceptance_by_region.png`` into ``--output``. Runs, one after another, are
benchmarks of ``adt_core.app.benchmark``: all methods of a run take turns on every prompt, and one that was interrupted goes on where it stopped,
from what ``--work`` holds. What is said about the figures is in ``benchmarks/findings.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from adt_core import AdtError, Drafting, Lantern, Sampling, load_drafter, load_target
from adt_core.app.benchmark import PRESETS, RELAXED, Benchmark, Preset, measure
from adt_core.app.report import summary

from . import findings
from .findings import Run
from .harness import captions
from .scenes import COUNT, FIRST, SCENES, scene_metric

SAMPLING = Sampling(seed=1, temperature=1.0, guidance=3.0)
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
GREEDY = ["eagle2", "adt-tree", "jacobi", "merged", "auto"]
CONTROLS = 2
"""Fixed shapes at most that ADT-Tree is set against."""


def relaxed() -> dict[str, Preset]:
    """The other LANTERN settings."""
    rules = {"delta 0.05": Lantern(100, 0.05), "delta 0.3": Lantern(100, 0.3), "lambda 2": Lantern(100, factor=2.0)}
    return {
        f"{name} {rule}": PRESETS[name]._replace(lantern=lantern)
        for name in RELAXABLE
        for rule, lantern in rules.items()
    }


def _changed(name: str, **changes) -> Preset:
    return PRESETS[name]._replace(drafting=replace(PRESETS[name].drafting, **changes))


def ablations() -> dict[str, dict[str, Preset]]:
    """Tables of one change each; the first row of each is the default."""
    adt, window = {"adt-tree": PRESETS["adt-tree"]}, {"jacobi": PRESETS["jacobi"]}
    d, w = PRESETS["adt-tree"].drafting, PRESETS["jacobi"].drafting
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
    """Fixed shapes with ADT-Tree's mean number of drafts, and its mean depth rounded either way; ``row`` of its summary states them."""
    found, nodes = {}, round(row["nodes_per_round"])
    for depth in sorted({math.floor(row["mean_depth"]), math.ceil(row["mean_depth"])}):
        width = 1 if depth >= nodes else 2
        found[f"eagle2 d{depth} k{width} N{nodes}"] = Preset(
            Drafting(method="eagle2", depth=depth, width=width, nodes=nodes)
        )
    return found


class Runner:
    """Runs benchmarks on one loaded model, with one progress bar for all of them."""

    def __init__(self, work: Path, bar: tqdm):
        self._work, self._bar, self._metrics = work, bar, {SCENES: scene_metric()}
        self.target = load_target()
        self._network = load_drafter("bundled", self.target)

    def __call__(
        self,
        name: str,
        prompts: int,
        methods: list[str],
        presets: dict[str, Preset] | None = None,
        temperature: float = 1.0,
    ) -> Run:
        """Measure the methods, named in PRESETS or given as ``presets``, on the first ``prompts`` captions."""
        presets = presets or {}
        benchmark = Benchmark(
            captions(FIRST, prompts),
            [*methods, *presets],
            replace(SAMPLING, temperature=temperature),
            LANTERN,
            metrics=self._metrics,
            known=PRESETS | presets,
        )
        settings = benchmark.settings(self.target)
        self._bar.set_description(name)
        records = []
        for record in measure(benchmark, settings, self.target, benchmark.choose(self._network), self._work / name):
            records.append(record)
            self._bar.update(len(benchmark.names))
        return Run(name, settings, records, summary(records), self._work / name)


def _count(prompts: int, few: int) -> int:
    """Images that will be made, for the bar."""
    changes = {name for group in ablations().values() for name in group}
    half, quarter = _shares(prompts)
    return (
        prompts * (1 + len(MAIN))
        + quarter * (1 + len(relaxed()))
        + few * (2 + len(GREEDY) + len(changes))
        + half * (2 + CONTROLS)
    )


def _shares(prompts: int) -> tuple[int, int]:
    """Half and a quarter of the prompts."""
    return max(1, prompts // 2), max(1, prompts // 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--prompts",
        type=int,
        default=32,
        help="of the main table; the control takes half, LANTERN's other settings a quarter",
    )
    parser.add_argument("--ablation-prompts", type=int, default=8)
    parser.add_argument(
        "--work", type=Path, default=Path("output/results"), help="folder of the runs and their pictures"
    )
    args = parser.parse_args()
    if not (1 <= args.prompts <= COUNT and 1 <= args.ablation_prompts <= COUNT):
        parser.error(f"the numbers of prompts must be from 1 to {COUNT}")
    with tqdm(total=_count(args.prompts, args.ablation_prompts), unit=" images") as bar:
        try:
            _run(args, Runner(args.work, bar))
        except AdtError as error:  # the folder holds runs of another commit, say
            sys.exit(str(error).replace("--output", "--work"))
    print(f"{args.output / 'results.md'} and what it shows are written.")


def _run(args: argparse.Namespace, run: Runner) -> None:
    """Measure what is missing, and write the results."""
    few, (half, quarter) = args.ablation_prompts, _shares(args.prompts)
    groups = ablations()
    changes = {name: preset for group in groups.values() for name, preset in group.items()}
    named = [name for name in changes if name.removesuffix(RELAXED) in PRESETS]
    first = run("main", args.prompts, MAIN)
    lantern = run("lantern", quarter, [], relaxed())
    greedy = run("greedy", few, GREEDY, temperature=0.0)
    ablation = run("ablations", few, named, {name: preset for name, preset in changes.items() if name not in named})
    control = run("control", half, ["adt-tree"], controls(first.row("adt-tree")))
    tables = {title: list(group) for title, group in groups.items()}
    findings.write_all(args.output, run.target.downsample, first, lantern, greedy, ablation, tables, control)


if __name__ == "__main__":
    main()
