"""Comparisons of the ADT-Tree paper (arXiv 2512.21857): `benchmark --paper`, and `paper` in the Benchmark node.

The benchmark measures the paper's methods at temperature 0 and 1. Then it measures ADT-Tree again, in turns with fixed
trees of ADT-Tree's mean depth. So a gain over EAGLE-2 can be attributed to the adaptation, not to the mean depth.
Each of the four benchmarks has its own folder in the output folder, and an interrupted one is resumed. Shards
leave out the fixed trees, which the run without `shard` measures.

The tables are written as Markdown and CSV. If the paper has a figure for a method, it is in a separate column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..app.args import BenchmarkArgs, QualityArgs, WorkerArgs
from ..app.csv_tables import to_csv
from ..errors import AdtError
from ..files import read_text, write_in
from ..policies import ADT_TREE, EAGLE2, PLAIN, RELAXED, method_title
from ..recipe import Placement
from ..run import race
from . import benchmark, report
from .presets import PAPER_TREE
from .records import MAX_FILE_MIB, WHOLE

METHODS = "paper"
"""Name of these comparisons in a list of methods."""
TEMPERATURES = (0.0, 1.0)
BASELINE = "eagle2-paper"
TABLES = {
    "I. Speed": (
        *(PLAIN, BASELINE, BASELINE + RELAXED, EAGLE2),
        *(ADT_TREE, ADT_TREE + RELAXED, f"{ADT_TREE}-top-k"),
    ),
    "II. First shape of ADT-Tree": (ADT_TREE, f"{ADT_TREE}-vertical", f"{ADT_TREE}-random"),
}
"""Methods of the tables that the first benchmark of a temperature fills. Table III has the fixed trees, and table IV
the scores of the images."""
HEADINGS = {
    "temperature": "T",
    "name": "method",
    "speedup": "SR",
    "low": "95 % CI low",
    "high": "95 % CI high",
    "seconds": "seconds per image",
    "tau": "tau",
    "accepted_per_round": "accepted drafts per pass",
    "mean_depth": "mean depth",
    "drafts_per_round": "drafts per pass",
    "substitution_rate": "replaced tokens",
    "adt_tree": "ADT-Tree's speed-up over it (95 % CI)",
    "paper_speedup": "SR in the paper",
    "paper_tau": "tau in the paper",
    "paper_depth": "mean depth in the paper",
}
"""Headings of the columns of tables I to III."""


class PaperFigures(NamedTuple):
    """Figures of the paper for a method with Anole on MS-COCO 2017 at temperature 0; None if they are not known."""

    speedup: float
    tau: float | None = None
    depth: float | None = None


PAPER_FIGURES = {
    BASELINE: PaperFigures(1.62),
    BASELINE + RELAXED: PaperFigures(3.03),
    ADT_TREE: PaperFigures(2.21, 3.40, 3.86),
    ADT_TREE + RELAXED: PaperFigures(3.13, 4.86, 5.15),
}
PAPER_MODEL = "anole"
"""Part of the names of the models to which `PAPER_FIGURES` applies."""
FILES = ("paper.md", "paper.csv")


class Measurement(NamedTuple):
    """Benchmark to run: its folder in the output folder, its methods without plain decoding, and its temperature."""

    part: str
    methods: tuple[str, ...]
    temperature: float


def run(
    args: BenchmarkArgs, quality_args: QualityArgs, parallel: WorkerArgs, given: Mapping[str, Any], placement: Placement
) -> str:
    """Run the benchmarks that are missing, and write the tables.

    Arguments and errors as in :func:`.benchmark.run`, but the user must not give `methods` and `temperature`.

    Returns:
        The tables in Markdown, followed by the paths of the files. For a shard: what to run next.
    """
    for name, value in (("methods", args.methods), ("temperature", given.get("temperature"))):
        if value is not None:
            raise AdtError("paper.fixed", input=name)

    def measure(wanted: Measurement) -> None:
        part = replace(args, methods=",".join(wanted.methods), output=args.output / wanted.part)
        benchmark.run(part, quality_args, parallel, {**given, "temperature": wanted.temperature}, placement)

    if args.stride != WHOLE:
        for temperature in TEMPERATURES:
            measure(first(temperature))
        return f"This shard is measured; {benchmark.REMAINING}"
    text, paths = compare(measure, args.output)
    return f"{text}\n" + ", ".join(map(str, paths))


def compare(measure: Callable[[Measurement], None], folder: Path) -> tuple[str, list[Path]]:
    """Measure all benchmarks, write the tables, and return them in Markdown with the paths of the files.

    Args:
        measure: Function that runs the missing part of a benchmark, and writes its report into its folder.
        folder: Output folder.
    """
    rows: list[dict] = []
    settings: dict = {}
    for temperature in TEMPERATURES:
        wanted = first(temperature)
        measure(wanted)
        settings, own = _results(folder, wanted)
        adt_tree = next(row for row in own if row["method"] == ADT_TREE)
        fixed = Measurement(f"{wanted.part}-fixed", (ADT_TREE, *fixed_trees(adt_tree)), temperature)
        measure(fixed)
        rows += [{**row, "part": "methods"} for row in own]
        rows += [{**row, "part": "fixed"} for row in _results(folder, fixed)[1]]
    text = markdown(rows, settings)
    columns = list(dict.fromkeys(["part", *HEADINGS, "method", *(column for row in rows for column in row)]))
    named = [{**row, **_extra(row, settings["model"])} for row in rows]
    for name, content in zip(FILES, (text.encode(), to_csv(columns, named))):
        write_in(folder, name, content)
    return text, [folder / name for name in FILES]


def first(temperature: float) -> Measurement:
    """Return the first benchmark at a temperature. Its methods fill the tables I and II."""
    methods = dict.fromkeys(method for names in TABLES.values() for method in names if method != PLAIN)
    return Measurement(f"temperature-{temperature:g}", tuple(methods), temperature)


def _results(folder: Path, measured: Measurement) -> tuple[dict, list[dict]]:
    """Return the settings of a benchmark, and the rows of its summary with the temperature and ADT-Tree's speed-up."""
    results = json.loads(read_text(folder / measured.part / "results.json", MAX_FILE_MIB))
    records = results["records"]
    adt_tree = report.seconds(records, ADT_TREE)
    rows = []
    for row in results["summary"]:
        ratio = race.speedup(report.seconds(records, row["method"]), adt_tree)
        over = {} if row["method"] == ADT_TREE else {"adt_tree": ratio.text()}
        rows.append({**row, **over, "temperature": measured.temperature})
    return results["settings"], rows


def fixed_trees(adt_tree: dict) -> list[str]:
    """Return EAGLE-2's trees of ADT-Tree's mean depth: the depths are the integers below and above it.

    Args:
        adt_tree: Row of ADT-Tree in the summary of a benchmark. The trees have its mean number of drafts per pass.
    """
    drafts = max(round(adt_tree["drafts_per_round"]), 1)
    mean = adt_tree["mean_depth"]
    depths = dict.fromkeys(max(depth, 1) for depth in (math.floor(mean), math.ceil(mean)))
    return [f"{EAGLE2}:depth={depth},drafts={max(drafts, depth)}" for depth in depths]


def markdown(rows: list[dict], settings: Mapping[str, Any]) -> str:
    """Format the rows of the summaries of all benchmarks, with `temperature` and `part`, as Markdown tables."""
    model = settings["model"]
    sections = []
    for title, methods in TABLES.items():
        own = [row for row in rows if row["part"] == "methods" and row["method"] in methods]
        sections.append(_section(title, own, HEADINGS, model))
    fixed = [row for row in rows if row["part"] == "fixed"]
    sections.append(_section("III. Fixed trees of ADT-Tree's mean depth", fixed, HEADINGS, model))
    known = {*HEADINGS, *report.COLUMNS, "part"}
    scored = list(dict.fromkeys(column for row in rows for column in row if column not in known))
    if scored:
        own = [row for row in rows if row["part"] == "methods"]
        headings = {"temperature": "T", "name": "method", **{column: column for column in scored}}
        sections.append(_section("IV. Image quality", own, headings, model))
    notes = ["SR is the time of no drafting divided by that of the method, the median over the prompts."]
    tree = ", ".join(f"{name} {value}" for name, value in PAPER_TREE.items())
    notes.append(f"The paper's tree has {tree}; methods without 'top-k' draft coupled proposals.")
    if PAPER_MODEL in model.lower():
        notes.append("Figures of the paper: Anole, MS-COCO 2017, temperature 0, on the authors' machine.")
    return "\n\n".join([*sections, " ".join(notes), report.conditions(settings)]) + "\n"


def _section(title: str, rows: list[dict], headings: Mapping[str, str], model: str) -> str:
    """Return a table with its title, without columns that are empty."""
    full = [{**row, **_extra(row, model)} for row in rows]
    columns = [name for name in headings if any(row.get(name) is not None for row in full)]
    lines = [[headings[name] for name in columns], ["---"] * len(columns)]
    lines += [[_text(name, row.get(name)) for name in columns] for row in full]
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _extra(row: dict, model: str) -> dict[str, Any]:
    """Return the values of a row that the summary lacks: the name of the method, and the paper's figures."""
    extra: dict[str, Any] = {"name": method_title(row["method"])}
    figures = PAPER_FIGURES.get(row["method"])
    if figures is not None and PAPER_MODEL in model.lower() and row["temperature"] == 0:
        extra |= {"paper_speedup": figures.speedup, "paper_tau": figures.tau, "paper_depth": figures.depth}
    return extra


def _text(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if name == "temperature":
        return f"{value:g}"
    return f"{value:.1%}" if name == "substitution_rate" else f"{value:.2f}" if name in HEADINGS else f"{value:.4g}"
