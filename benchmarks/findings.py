"""docs/results.md from the runs of ``benchmarks/results.py``: tables, charts, and sentences that the figures themselves decide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from adt_core.app.benchmark import RELAXED
from adt_core.app.images import write, write_json
from adt_core.app.report import COLUMNS, PLAIN, Bar, median_interval, ratios, table

from .charts import bars
from .regions import detail, spearman
from .scenes import SCENES

REGIONS = ("adt-tree", "jacobi", "merged")
QUARTERS = ("smoothest quarter", "second", "third", "busiest quarter")
DRAFTER_SHARE = 1 / 32
"""Of a step, for a forward of a one-layer drafter beside a target of 32 layers."""
ENOUGH = 6
"""Values from which on a 95 % interval of a median exists: 1 - 2 / 2**n is its coverage at most."""
SHORT = ("method", "speedup", "low", "high", "tau", "mean_depth", "nodes_per_round", "substitution_rate", SCENES)
BOUND, CHARGED = "bound on SR, computed", "with the drafter charged, computed"


@dataclass(frozen=True)
class Run:
    """A finished benchmark: its settings, records and summary, and the folder that holds its pictures."""

    name: str
    settings: dict
    records: list[dict]
    rows: list[dict]
    folder: Path

    def row(self, method: str) -> dict:
        """A method's line of the summary."""
        return next(row for row in self.rows if row["method"] == method)

    def table(self, columns: tuple[str, ...] | None = None, methods: list[str] | None = None) -> str:
        """Columns (all) of the methods (all) as Markdown."""
        return table([self.row(name) for name in methods] if methods else self.rows, len(self.records), columns)

    def lossless(self) -> list[dict]:
        """The lines of the methods whose acceptance is exact."""
        return [
            row
            for row in self.rows
            if not self.settings["methods"][row["method"]]["lantern"] and row["method"] != PLAIN
        ]


def interval(values: np.ndarray, unit: str = "") -> str:
    """Median and its 95 % interval, in words."""
    low, high = median_interval(values)
    return f"{np.median(values):.2f}{unit} (95 % interval {low:.2f} to {high:.2f})"


def verdict(values: np.ndarray, even: float, above: str, below: str, neither: str) -> str:
    """Which of the phrases the interval of the median allows."""
    low, high = median_interval(values)
    if len(values) < ENOUGH:
        return neither
    return above if low > even else below if high < even else neither


def compare(run: Run, one: str, other: str) -> str:
    """Whether one method is faster than another, prompt by prompt."""
    values = ratios(run.records, other, one)
    verb = verdict(values, 1, "is faster than", "is slower than", "is not told apart in time from")
    return f"`{one}` {verb} `{other}`: {interval(values, ' times as fast')}"


def _identity(run: Run) -> str:
    rows = run.lossless()
    same, made = sum(row["identical"] for row in rows), len(rows) * len(run.records)
    worst = min(rows, key=lambda row: row["agreement"])
    text = f"Of the {made} images of the {len(rows)} lossless methods {same} are plain decoding's, token by token"
    return text + ("." if same == made else f"; least equal tokens: {worst['agreement']:.2%}, `{worst['method']}`.")


def _main(run: Run) -> list[str]:
    best = max(run.lossless(), key=lambda row: row["speedup"])
    pairs = [
        ("eagle2", "eagle2-top-k"),
        ("adt-tree", "eagle2"),
        ("merged", "jacobi"),
        ("merged", "adt-tree"),
        ("merged-64", "merged"),
        ("auto", "merged"),
        ("auto-jacobi", "jacobi"),
        ("adt-tree" + RELAXED, "adt-tree"),
        ("merged" + RELAXED, "merged"),
    ]
    return [
        "## Speed, temperature 1",
        "",
        f"{_setup(run)} All methods took turns on every prompt. SR: plain decoding's seconds / the method's.",
        "",
        run.table(),
        "",
        "![Speed-up of every method](speedup.png)",
        "",
        _identity(run),
        f"The fastest lossless one, chosen on these very prompts, is `{best['method']}`: {best['speedup']:.2f} times as fast as plain decoding "
        f"(95 % interval {best['low']:.2f} to {best['high']:.2f}).",
        "",
        *(f"- {compare(run, *pair)}" for pair in pairs),
        "",
    ]


def _lantern(run: Run, main: Run) -> list[str]:
    plain = main.row(PLAIN)
    lines = [
        f"- `{row['method']}`: {row['substitution_rate']:.1%} of the tokens substituted; {row[SCENES]:.1%} of the captions' attributes found, "
        f"{plain[SCENES]:.1%} in plain decoding's pictures"
        for row in main.rows
        if row["method"].endswith(RELAXED)
    ]
    return [
        "## LANTERN",
        "",
        f"In the table above {_rule(main)}. Other settings, a run of their own with {len(run.records)} prompts:",
        "",
        run.table(SHORT),
        "",
        "From the table above:",
        "",
        *lines,
        "",
    ]


def _rule(run: Run) -> str:
    lantern = run.settings["lantern"]
    return f"`{RELAXED}` is LANTERN with k {lantern['neighbours']} and delta {lantern['delta']:g}"


def _greedy(run: Run) -> list[str]:
    return [
        "## Speed, temperature 0",
        "",
        _setup(run),
        "",
        run.table(SHORT[:7] + ("seconds", "identical", "agreement")),
        "",
        _identity(run),
        "",
    ]


def bounds(run: Run) -> list[dict]:
    """The summary with the speed-ups that tokens alone would allow."""
    plain = run.row(PLAIN)["target_forwards"]
    return [
        row
        | {
            BOUND: plain / row["target_forwards"],
            CHARGED: plain / (row["target_forwards"] + DRAFTER_SHARE * row["drafter_forwards"]),
        }
        for row in run.rows
    ]


def _bounds(run: Run) -> list[str]:
    rows = bounds(run)
    best = max((row for row in rows if not row["method"].endswith(RELAXED)), key=lambda row: row[CHARGED])
    return [
        "## On a GPU where nodes are nearly free",
        "",
        "**Computed, not measured.** From the tokens of the first run: the speed-up if checking a whole tree cost no more than one plain step and "
        f"drafting nothing, and the same with each of the drafter's forwards charged at {DRAFTER_SHARE:.3f} of a step (one layer of 32). "
        "No overhead is counted.",
        "",
        table(rows, len(run.records), ("method", "tau", "target_forwards", "drafter_forwards", BOUND, CHARGED)),
        "",
        f"By the last column `{best['method']}` would lead among the lossless methods, with at most {best[CHARGED]:.2f}.",
        "",
    ]


def _ablations(run: Run, groups: dict[str, list[str]]) -> list[str]:
    lines = [
        "## One change at a time",
        "",
        f"{_setup(run)} One run for all tables; the first line of each is the default. With so many comparisons, one in "
        "twenty seems to differ by chance alone.",
        "",
    ]
    for title, names in groups.items():
        lines += [
            f"### {title}",
            "",
            run.table(SHORT, names),
            "",
            *(f"- {compare(run, name, names[0])}" for name in names[1:]),
            "",
        ]
    return lines


def _control(run: Run) -> list[str]:
    adt = run.row("adt-tree")
    fixed = [row for row in run.rows if row["method"].startswith("eagle2 ")]
    best = max(fixed, key=lambda row: row["speedup"])
    return [
        "## Does adapting the shape pay? The same budget, fixed",
        "",
        f"{_setup(run)} ADT-Tree's trees had {adt['nodes_per_round']:.2f} drafts and depth {adt['mean_depth']:.2f} on average. Beside it, fixed "
        f"EAGLE-2 trees with as many drafts and the depths around it. The best of them is `{best['method']}`, chosen on the very prompts that it is "
        "compared on, which favours it.",
        "",
        run.table(SHORT[:7]),
        "",
        *(f"- {compare(run, 'adt-tree', row['method'])}" for row in fixed),
        "",
    ]


def regions(run: Run, downsample: int) -> dict[str, dict[str, np.ndarray]]:
    """By method: ``spearman`` [images], tokens per forward against detail, and ``quarters`` [images, 4], tokens per forward by detail.

    A token of a round that emitted n took 1/n of a forward. The first token has no round.
    """
    found = {}
    for name in REGIONS:
        correlations, quarters = [], []
        for record in run.records:
            pixels = (
                torch.from_numpy(np.array(Image.open(run.folder / record["runs"][name]["picture"]))).permute(2, 0, 1)
                / 127.5
                - 1
            )
            busy, tokens = detail(pixels, downsample)[1:], np.array(record["runs"][name]["acceptance"]).flatten()[1:]
            correlations.append(spearman(tokens, busy))
            quarters.append(
                [
                    1 / np.mean(1 / tokens[part])
                    for part in np.array_split(np.argsort(busy, kind="stable"), len(QUARTERS))
                ]
            )
        found[name] = {"spearman": np.array(correlations), "quarters": np.array(quarters)}
    return found


def _regions(found: dict[str, dict[str, np.ndarray]]) -> list[str]:
    lines = []
    for name, values in found.items():
        follows = verdict(
            values["spearman"],
            0,
            "accepts more where the picture is busier",
            "accepts more where the picture is smoother",
            "shows no clear trend",
        )
        ends = values["quarters"][:, 0] / values["quarters"][:, -1]
        lines.append(
            f"- `{name}` {follows}: Spearman {interval(values['spearman'])}, negative in {(values['spearman'] < 0).sum()} of {len(ends)} "
            f"images; tokens per forward in the smoothest quarter are {interval(ends, ' times')} those in the busiest"
        )
    return [
        "## Acceptance by region",
        "",
        "Tokens per forward against the detail of the picture around them (mean absolute gradient), within the images of "
        "the first run; medians over images.",
        "",
        "![Tokens per forward by detail of the picture](acceptance_by_region.png)",
        "",
        *lines,
        "",
    ]


def _setup(run: Run) -> str:
    s = run.settings
    temperature, guidance, seed = (s["sampling"][key] for key in ("temperature", "guidance", "seed"))
    return (
        f"Temperature {temperature:g}, guidance {guidance:g}, seed {seed}; {len(run.records)} prompts, one image each."
    )


def _machine(run: Run) -> str:
    s = run.settings
    return (
        f"Model and drafter: {s['model']} and {s['drafter']}, {s['grid'][0]} x {s['grid'][1]} tokens, {s['dtype']}. Device: {s['device']}, "
        f"{s['threads']} threads, torch {s['torch']}, Python {s['python']}. {s['engine']}, commit {s['commit']}. Prompts: the captions that come with "
        "the pack, from the first on. "
        f'"{SCENES}": share of what the captions name that `model_making.attributes` finds in the pictures.'
    )


def _charts(folder: Path, main: Run, found: dict[str, dict[str, np.ndarray]]) -> None:
    bars(
        folder / "speedup.png",
        [
            Bar(row["method"], row["speedup"], row["low"], row["high"], int(row["method"].endswith(RELAXED)))
            for row in main.rows
        ],
        f"{COLUMNS['speedup']}: times as fast as plain decoding, 95 % interval",
    )
    rows = [
        Bar(f"{name}, {quarter}", float(np.median(values)), *median_interval(values), group)
        for group, (name, result) in enumerate(found.items())
        for quarter, values in zip(QUARTERS, result["quarters"].T)
    ]
    bars(
        folder / "acceptance_by_region.png",
        rows,
        "tokens per forward (median over images, 95 % interval), by detail of the picture",
    )


def write_all(
    folder: Path,
    downsample: int,
    main: Run,
    lantern: Run,
    greedy: Run,
    ablation: Run,
    groups: dict[str, list[str]],
    control: Run,
) -> None:
    """Write ``results.md``, ``results.json`` and the charts."""
    folder.mkdir(parents=True, exist_ok=True)
    found = regions(main, downsample)
    lines = [
        "# Results",
        "",
        "Written by `python -m benchmarks.results`, sentences included. Intervals are bootstrap intervals of medians over prompts; "
        f"with fewer than {ENOUGH} prompts they say nothing.",
        "",
        _machine(main),
        "",
        *_main(main),
        *_lantern(lantern, main),
        *_greedy(greedy),
        *_bounds(main),
        *_ablations(ablation, groups),
        *_control(control),
        *_regions(found),
    ]
    write(folder / "results.md", "\n".join(lines).encode())
    runs = {
        run.name: {"settings": {**run.settings, "prompts": len(run.records)}, "summary": run.rows}
        for run in (main, lantern, greedy, ablation, control)
    }
    by_detail = {name: {key: values.tolist() for key, values in result.items()} for name, result in found.items()}
    computed = [{key: row[key] for key in ("method", BOUND, CHARGED)} for row in bounds(main)]
    write_json(folder / "results.json", {"runs": runs, "computed": computed, "regions": by_detail})
    _charts(folder, main, found)
