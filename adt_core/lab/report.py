"""Report of a benchmark: speed-ups over no drafting with 95 % confidence intervals (CI), and other statistics.

Intervals need at least :data:`~adt_core.run.race.MIN_SAMPLES` prompts.

The report is written as Markdown, CSV, JSON and two plots. A record has the results of all methods for one prompt; see
:func:`.benchmark.measure`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from ..app.csv_tables import to_csv
from ..files import to_json, write_in
from ..messages import Message, join, message
from ..policies import PLAIN, RELAXED, method_title
from ..run import race

COLUMNS = {
    "method": "method",
    "speedup": "speed-up",
    "low": "95 % CI low",
    "high": "95 % CI high",
    "totals": "ratio of totals",
    "tau": "tau",
    "accepted_per_round": "accepted drafts per pass",
    "mean_depth": "mean depth",
    "target_forwards": "target forwards",
    "drafter_forwards": "drafter forwards",
    "drafts_per_round": "drafts per round",
    "seconds": "seconds per image",
    "identical": "identical images",
    "agreement": "identical tokens",
    "substitution_rate": "replaced tokens",
}
"""Headings in Markdown by column name. The column names are used in CSV and JSON.

The table also has one column per quality score, such as "FID". The name of the column is its heading too.
"""
MEANS = (
    "tau",
    "accepted_per_round",
    "mean_depth",
    "target_forwards",
    "drafter_forwards",
    "seconds",
    "agreement",
    "substitution_rate",
)
"""Columns that show the mean over all prompts of the run statistic with the same name."""
_FORMATS = {
    **dict.fromkeys(COLUMNS, "{:.2f}"),
    **dict.fromkeys(("target_forwards", "drafter_forwards"), "{:.0f}"),
    **dict.fromkeys(("agreement", "substitution_rate"), "{:.1%}"),
    "method": "{}",
    "identical": "{} of {images}",
}
"""Number formats of columns in Markdown. Other columns have four significant digits."""
FILES = ("results.md", "results.csv", "results.json", "speedup.png", "regions.png")
"""Names of the report's files."""


def seconds(records: list[dict], method: str) -> list[float]:
    """Return the time of a method for each prompt."""
    return [record["runs"][method]["seconds"] for record in records]


def summary(records: list[dict], sets: dict[str, dict[str, float]] | None = None) -> list[dict]:
    """Summarise a benchmark in one row per method.

    The speed-up of a method is the median over all prompts of (time of plain decoding / time of the method). The column
    "totals" is the ratio of the total times, as in papers.

    Args:
        sets: Scores of all images of a method together, such as FID: {method: {column: score}}.

    Returns:
        One dictionary per method. The keys are the names in `COLUMNS` and the names of quality columns.
    """
    rows = []
    qualities = [run.get("quality", {}) for record in records for run in record["runs"].values()]
    shared = [name for name in qualities[0] if all(name in scores for scores in qualities)]
    for name in records[0]["runs"]:
        runs = [record["runs"][name] for record in records]
        times = seconds(records, PLAIN), seconds(records, name)
        speedup, low, high = race.speedup(*times)
        row = {"method": name, "speedup": speedup, "low": low, "high": high, "totals": race.ratio_of_totals(*times)}
        row |= {column: mean(run[column] for run in runs) for column in MEANS}
        drafts, forwards = (sum(run[column] for run in runs) for column in ("verified_drafts", "target_forwards"))
        row |= {"drafts_per_round": drafts / max(forwards, 1), "identical": sum(run["agreement"] == 1 for run in runs)}
        for column in shared:
            sums, counts = zip(*(run["quality"][column] for run in runs))
            row[column] = sum(sums) / sum(counts)
        rows.append({**row, **(sets or {}).get(name, {})})
    return rows


def _headings(rows: list[dict]) -> dict[str, str]:
    return COLUMNS | {name: name for name in rows[0] if name not in COLUMNS}


def table(rows: list[dict], images: int, columns: Sequence[str] | None = None) -> str:
    """Format a summary as a Markdown table.

    Args:
        images: Number of images per method.
        columns: Names of the columns to include (default: all that have values).
    """
    shown = [key for key in rows[0] if rows[0][key] is not None] if columns is None else columns
    headings = {key: heading for key, heading in _headings(rows).items() if key in shown}
    named = [{**row, "method": method_title(row["method"])} for row in rows]
    cells = [[_FORMATS.get(key, "{:.4g}").format(row[key], images=images) for key in headings] for row in named]
    lines = ["| " + " | ".join(line) + " |" for line in (headings.values(), *cells)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def verdict(rows: list[dict], images: int) -> Message:
    """Return a line that says whether exact methods keep the images the same, and which method was the fastest."""
    drafted = [row for row in rows if row["method"] != PLAIN]
    changed = [row["method"] for row in drafted if row["identical"] < images]
    differing = join((method_title(name) for name in changed if RELAXED not in name), ", ")
    relaxed = join((method_title(name) for name in changed if RELAXED in name), ", ")
    same = message("diagnostics.differs", methods=differing) if differing else message("diagnostics.same")
    if relaxed:
        same = join((same, message("benchmark.relaxed", methods=relaxed)))
    if not drafted:
        return same
    best = max(drafted, key=lambda row: row["speedup"])
    fastest = message("benchmark.fastest", method=method_title(best["method"]), ratio=f"{best['speedup']:.1f}")
    return join((same, fastest, race.Estimate(best["speedup"], best["low"], best["high"]).remark))


def _learned(records: list[dict]) -> str:
    """Return a line on the cost profiles that methods such as `auto` used, or "" if no method used one."""
    runs = (run for record in records for run in record["runs"].values())
    counts = [run["profile"].get("decodings", 0) for run in runs if run.get("profile")]
    if not counts:
        return ""
    return f"Cost profiles were learned from {min(counts)} to {max(counts)} earlier decodings on this device."


def markdown(rows: list[dict], settings: dict, note: str) -> str:
    """Format a summary with its settings as Markdown, with a note below the table."""
    images = len(settings["prompts"])
    sampling = ", ".join(f"{key} {value}" for key, value in settings["sampling"].items())
    footer = f"{conditions(settings)} {sampling}.\n"
    return f"**{verdict(rows, images)}**\n\n{table(rows, images)}\n\n{footer}" + (f"{note}\n" if note else "")


def conditions(settings: Mapping[str, Any]) -> str:
    """Return sentences on the prompts, the models, the software and the hardware of a benchmark."""
    named = ("model", "drafter", "engine", "commit", "torch", "device", "threads", "dtype")
    run = ", ".join(f"{key} {settings[key]}" for key in named)
    count = len(settings["prompts"])
    return f"{count} {'prompt' if count == 1 else 'prompts'}, one image each. {run}."


def write(
    records: list[dict], settings: dict, folder: Path, sets: dict[str, dict[str, float]] | None = None, note: str = ""
) -> tuple[str, list[Path]]:
    """Write the report, and the plots if matplotlib is installed.

    Args:
        sets: Scores of all images of a method together; see :func:`summary`.
        note: Line below the table, or "".

    Returns:
        The report in Markdown, and the paths of the files.

    Raises:
        AdtError: If a file cannot be written.
    """
    rows = summary(records, sets)
    paths = [folder / name for name in FILES[:3]]
    text = markdown(rows, settings, "\n".join(filter(None, (_learned(records), note))))
    data = to_json({"settings": settings, "summary": rows, "records": records})
    for path, content in zip(paths, (text.encode(), to_csv(list(_headings(rows)), rows), data)):
        write_in(folder, path.name, content)
    return text, [*paths, *_plots(rows, records, folder)]


def _draw_speed(path: Path, rows: list[dict]) -> None:
    """Write a bar chart of the speed-ups with their intervals. The first method is at the top."""
    from matplotlib.figure import Figure

    figure = Figure((7, 0.3 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    values, low, high = (np.array([row[name] for row in rows]) for name in ("speedup", "low", "high"))
    error = None if None in low else np.maximum(0, [values - low, high - values])
    axes.barh([method_title(row["method"]) for row in rows], values, xerr=error, color="#4c78a8", ecolor="#222222")
    axes.invert_yaxis()
    axes.axvline(1, color="#222222", linewidth=0.8)
    figure.supxlabel("speed-up over no drafting (median" + (")" if error is None else ", 95 % CI)"), fontsize="medium")
    _save(figure, path, 120)


def _save(figure: Any, path: Path, dpi: int) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi)
    write_in(path.parent, path.name, buffer.getvalue())


def _plots(rows: list[dict], records: list[dict], folder: Path) -> list[Path]:
    """Write the two plots if matplotlib is installed, and return their paths.

    One plot shows the speed-ups. The other shows for each method the acceptance map: for each cell of the image, the
    number of tokens that were decoded in the same round, averaged over all prompts.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    _draw_speed(folder / "speedup.png", rows)
    names = [row["method"] for row in rows if row["method"] != PLAIN]
    if not names:
        return [folder / "speedup.png"]
    maps = [np.mean([record["runs"][name]["acceptance"] for record in records], 0) for name in names]
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure((2.6 * columns, 2.8 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, name, values in zip(grid, names, maps):
        shown = axes.imshow(values, vmin=1, vmax=np.max(maps))
        axes.set_title(method_title(name), fontsize=8)
    for axes in grid:
        axes.set_axis_off()
    figure.colorbar(shown, ax=list(grid), label="tokens per target pass")
    _save(figure, folder / "regions.png", 150)
    return [folder / "speedup.png", folder / "regions.png"]
