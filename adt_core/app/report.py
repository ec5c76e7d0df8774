"""The table of a benchmark: ratios to plain decoding with their intervals, as Markdown, CSV, JSON and two plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from .images import write_json

PLAIN = "autoregressive"
COLUMNS = {
    "method": "method",
    "speedup": "SR (median)",
    "low": "95 % from",
    "high": "to",
    "tau": "tau",
    "mean_depth": "d-bar",
    "target_forwards": "target forwards",
    "drafter_forwards": "drafter forwards",
    "nodes_per_round": "nodes a round",
    "seconds": "seconds an image",
    "identical": "identical images",
    "agreement": "equal tokens",
    "substitution_rate": "substituted",
}
"""Name of a column in CSV and JSON -> its heading; columns of image quality come behind, under the names that their metrics give them."""

COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")


def median_interval(values: np.ndarray, draws: int = 4000) -> tuple[float, float]:
    """95 % bootstrap interval of the median, with a generator of its own."""
    rng = np.random.Generator(np.random.Philox(key=0))
    medians = np.median(rng.choice(values, (draws, len(values))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def ratios(records: list[dict], of: str, to: str) -> np.ndarray:
    """Seconds of ``of`` / seconds of ``to``, prompt by prompt: above 1, ``to`` is faster."""
    return np.array([record["runs"][of]["seconds"] / record["runs"][to]["seconds"] for record in records])


def summary(records: list[dict], sets: dict[str, dict[str, float]] | None = None) -> list[dict]:
    """A row per method, by the names of COLUMNS and of metrics. SR is a ratio prompt by prompt, then the median.

    sets: columns that belong to all pictures of a method, by method.
    """
    rows = []
    for name in records[0]["runs"]:
        runs = [record["runs"][name] for record in records]
        speedups = ratios(records, PLAIN, name)
        low, high = median_interval(speedups)
        average = {
            key: mean(run[key] for run in runs)
            for key in (
                "tau",
                "mean_depth",
                "target_forwards",
                "drafter_forwards",
                "seconds",
                "agreement",
                "substitution_rate",
            )
        }
        rows.append(
            {
                "method": name,
                "speedup": float(np.median(speedups)),
                "low": low,
                "high": high,
                **average,
                "nodes_per_round": sum(run["verified_nodes"] for run in runs)
                / sum(run["target_forwards"] for run in runs),
                "identical": sum(run["agreement"] == 1 for run in runs),
                **_quality(runs),
                **(sets or {}).get(name, {}),
            }
        )
    return rows


def _quality(runs: list[dict]) -> dict[str, float]:
    """Sum over count of every column that the runs' metrics gave."""
    found = [run.get("quality", {}) for run in runs]
    return {
        column: sum(scores[column][0] for scores in found) / sum(scores[column][1] for scores in found)
        for column in found[0]
    }


def _headings(rows: list[dict]) -> dict[str, str]:
    return COLUMNS | {name: name for name in rows[0] if name not in COLUMNS}


def table(rows: list[dict], images: int, columns: Sequence[str] | None = None) -> str:
    """Rows of :func:`summary` as Markdown; of their columns these, or all."""
    form = {
        "method": str,
        "target_forwards": "{:.0f}".format,
        "drafter_forwards": "{:.0f}".format,
        "identical": f"{{}} of {images}".format,
        "agreement": "{:.1%}".format,
        "substitution_rate": "{:.1%}".format,
    }
    headings = {key: heading for key, heading in _headings(rows).items() if columns is None or key in columns}
    form = {key: form.get(key, ("{:.2f}" if key in COLUMNS else "{:.4g}").format) for key in headings}
    lines = ["| " + " | ".join(headings.values()) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(form[key](row[key]) for key in headings) + " |" for row in rows)])


def markdown(rows: list[dict], settings: dict, note: str = "") -> str:
    """The table, and under it what it was measured with, and ``note``."""
    images = len(settings["prompts"])
    sampling = ", ".join(f"{key} {value}" for key, value in settings["sampling"].items())
    named = ", ".join(
        f"{key} {settings[key]}"
        for key in ("model", "drafter", "engine", "commit", "torch", "device", "threads", "dtype")
    )
    return "\n".join(
        [
            table(rows, images),
            "",
            f"{images} prompts, one image each. {sampling}. {named}.",
            *([note] if note else []),
            "",
        ]
    )


def write(
    records: list[dict], settings: dict, folder: Path, sets: dict[str, dict[str, float]] | None = None, note: str = ""
) -> tuple[str, list[Path]]:
    """Write ``results.md``, ``.csv``, ``.json`` and, where matplotlib is installed, the plots; the table, and the paths that were written."""
    rows = summary(records, sets)
    shown = markdown(rows, settings, note)
    text = io.StringIO()
    table = csv.DictWriter(text, list(_headings(rows)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    (folder / "results.md").write_text(shown, encoding="utf-8")
    (folder / "results.csv").write_text(text.getvalue(), encoding="utf-8")
    write_json(folder / "results.json", {"settings": settings, "summary": rows, "records": records})
    return shown, [
        folder / "results.md",
        folder / "results.csv",
        folder / "results.json",
        *_plots(rows, records, folder),
    ]


class Bar(NamedTuple):
    """A bar, its 95 % interval, and the number of the group whose colour it has."""

    label: str
    value: float
    low: float
    high: float
    group: int = 0


def draw_bars(path: Path, bars: list[Bar], title: str) -> None:
    """Write a chart of horizontal bars, the first on top. ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure((7, 0.3 * len(bars) + 1), layout="constrained")
    axes = figure.subplots()
    error = [[max(0.0, bar.value - bar.low) for bar in bars], [max(0.0, bar.high - bar.value) for bar in bars]]
    axes.barh(
        [bar.label for bar in bars],
        [bar.value for bar in bars],
        xerr=error,
        color=[COLORS[bar.group] for bar in bars],
        ecolor="#222222",
    )
    axes.invert_yaxis()
    axes.axvline(1, color="#222222", linewidth=0.8)
    figure.supxlabel(title, fontsize="medium")
    figure.savefig(path, dpi=120)


def _plots(rows: list[dict], records: list[dict], folder: Path) -> list[Path]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    draw_bars(
        folder / "speedup.png",
        [Bar(row["method"], row["speedup"], row["low"], row["high"]) for row in rows],
        "times as fast as plain decoding (median, 95 % interval)",
    )
    drafting = [row["method"] for row in rows if row["method"] != PLAIN]
    if not drafting:
        return [folder / "speedup.png"]
    columns = min(4, len(drafting))
    figure = Figure((2.6 * columns, 2.8 * -(-len(drafting) // columns)), layout="constrained")
    grid = np.atleast_1d(figure.subplots(-(-len(drafting) // columns), columns)).flatten()
    maps = {name: np.mean([record["runs"][name]["acceptance"] for record in records], 0) for name in drafting}
    high = max(values.max() for values in maps.values())
    for axes, name in zip(grid, drafting):
        shown = axes.imshow(maps[name], vmin=1, vmax=high)
        axes.set_title(name, fontsize=8)
    for axes in grid:
        axes.set_axis_off()
    figure.colorbar(shown, ax=list(grid), label="tokens per forward")
    figure.savefig(folder / "regions.png", dpi=150)
    return [folder / "speedup.png", folder / "regions.png"]
