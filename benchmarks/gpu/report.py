"""Markdown report of a run of the GPU benchmark.

The report contains a table of the thresholds ("bars"), and a section with the tables of each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from adt_core.policies import PLAIN

from .. import tables
from .device import CAPTURED
from .kernels import BITS, DIFFERING, ROUNDS
from .models import MERGED, SEVEN_B, TITLES
from .pieces import DRAFTS, FORWARD, LEVEL, PLAIN_ROUND, REST

REHEARSAL = """# Rehearsal with small random models on {device}; not a GPU measurement

Only *tokens* uses the bundled model here. In the other tables, the bundled model and the published models are replaced
by small random ones."""
TITLE = "# Measured on {device}"
STATUS = {
    "ended": "Completed",
    "failed": "Failed",
    "cut off at its limit": "Stopped at its time limit",
    "left out, because the time was over": "Left out, because the time was over,",
}
"""Texts for the status of a part."""


# ---- bars (thresholds) for an H100 or H200 ------------------------------------------------------------------

MEANT_FOR = ("H100", "H200")


Rows = dict[str, list[dict]]  # result rows of a run, by the name of the part


class Bar(NamedTuple):
    """Performance threshold."""

    title: str
    part: str  # part that measures the value
    column: str
    where: Mapping[str, object]  # values that the row must have in other columns
    bound: float
    most: bool = False  # whether the threshold is a maximum, not a minimum

    def value(self, rows: Rows) -> float | None:
        """Return the worst measured value (of a value with quartiles the median), or None if no row contains it."""
        found = [row.get(self.column) for row in rows.get(self.part, []) if self.where.items() <= row.items()]
        values = [figure["median"] if isinstance(figure, dict) else figure for figure in found if figure is not None]
        return (max if self.most else min)(values, default=None)

    def met(self, value: float) -> bool:
        """Return whether a measured value meets the threshold."""
        return value <= self.bound if self.most else value >= self.bound


def _piece(title: str, name: str, column: str, bound: float, most: bool = False) -> Bar:
    """Return a bar for a piece (a component of a round) of the 7B model in bfloat16, launched as a CUDA graph."""
    where = {"shape": SEVEN_B, "weights": "bf16", "launched": CAPTURED, "piece": name}
    return Bar(f"{SEVEN_B} in bf16: {title}", "pieces", column, where, bound, most)


def _kernels(title: str, method: str, bound: float) -> Bar:
    """Return a bar for the speed-up of rounds of the 7B model by Triton kernels."""
    where = {"table": ROUNDS, "weights": "bf16", "round": TITLES[method], "Triton": "on"}
    return Bar(f"{SEVEN_B} in bf16: {title}, speed-up by Triton kernels", "rounds", "times as fast", where, bound)


TREE = f"{FORWARD}{DRAFTS + 1}"
BATCH = {"table": "Batches of the bundled model", "method": TITLES[MERGED], "images": 1}
USED = {"table": BITS, "Triton is used": True}
BARS = (
    _piece("a plain round, share of the weight-streaming limit", PLAIN_ROUND, "share of the limit", 0.70),
    _piece(f"a {TREE} nodes, in plain rounds", TREE, "steps", 1.15, most=True),
    _piece(f"a {LEVEL}, in plain rounds", LEVEL, "steps", 0.06, most=True),
    _piece(f"{REST} of a round, in plain rounds", REST, "steps", 0.05, most=True),
    _kernels("a plain round", PLAIN, 1.3),
    _kernels("a round with 24 drafts", MERGED, 1.2),
    Bar("used Triton kernels: elements that depend on the number of rows", "bits", DIFFERING, USED, 0, most=True),
    Bar(f"bundled model: {TITLES[MERGED]}, speed-up over {TITLES[PLAIN]}", "batches", "times plain", BATCH, 3.0),
)


# ---- tables and sections ------------------------------------------------------------------------------------


def cell(value: object) -> str:
    """Format a value for a table. A median is followed by its quartiles, such as "1.5 (1.4 to 1.7)"."""
    if isinstance(value, dict):
        return f"{cell(value['median'])} ({cell(value['low'])} to {cell(value['high'])})"
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "/")


def table(rows: list[dict]) -> str:
    """Return a Markdown table. It has every column that occurs in at least one row."""
    columns = list(dict.fromkeys(column for row in rows for column in row if column != "table"))
    return tables.table(columns, ([cell(row.get(column)) for column in columns] for row in rows))


def machine(results: dict) -> dict:
    """Return the row with the name of the device and the versions of the software, or {} if it is missing."""
    rows = results["parts"].get("device", {}).get("rows", [])
    return next((row for row in rows if "torch" in row), {})


def bars(results: dict) -> str:
    """Return the table that compares the measured values with the thresholds."""
    rows = {part: found["rows"] for part, found in results["parts"].items()}
    device = machine(results).get("device", "")
    lines = [tables.header("bar", "wanted", "measured", "")]
    for bar in BARS:
        value = bar.value(rows)
        wanted = f"at {'most' if bar.most else 'least'} {bar.bound:g}"
        if results["rehearsal"]:
            status = "rehearsal"
        elif value is None:
            status = "not measured"
        else:
            status = "met" if bar.met(value) else "**not met**"
        lines.append(tables.row(bar.title, wanted, cell(value), status))
    if not any(name in device for name in MEANT_FOR):
        lines.append(f"\nThe bars apply to {' and '.join(MEANT_FOR)}, and this device is neither.")
    return "\n".join(lines)


def section(name: str, part: dict) -> str:
    """Return the section of a part: its description, status, tables and errors."""
    rows = part["rows"]
    errors = part["errors"]
    status = f"{STATUS[part['status']]} after {part['seconds']:.0f} s of at most {part['limit']:.0f}"
    counts = f"{part['begun']} of {part['cases']} cases begun, {len(rows)} rows, {len(errors)} errors"
    about = (part["about"] or "The part could not be loaded.").strip()
    lines = [f"## {name.capitalize()}", about, f"{status}: {counts}."]
    if part["left_out"]:
        lines.append(f"Not run for lack of time: {', '.join(part['left_out'])}.")
    for title in dict.fromkeys(row["table"] for row in rows):
        lines += [f"**{title}**", table([row for row in rows if row["table"] == title])]
    if errors:
        lines.append("\n".join(f"- {error['what']}: {error['error']}" for error in errors))
    return "\n\n".join(lines)


def markdown(results: dict) -> str:
    """Return the complete report of a run."""
    versions = machine(results)
    parts = results["parts"]
    title = (REHEARSAL if results["rehearsal"] else TITLE).format(device=versions.get("device", "an unknown device"))
    listed = [f"{key} {cell(value)}" for key, value in versions.items() if value and key not in ("table", "device")]
    run = f"Run on {results['date']} at commit {results['commit'] or 'unknown'}; {', '.join(listed) or 'no versions'}."
    failed = [name for name, part in parts.items() if part["errors"]]
    errors = f"Some parts had errors: see {', '.join(failed)}." if failed else "No part had errors."
    how = "Figures are medians followed by their quartiles. Compared methods were interleaved unless stated otherwise."
    sections = [section(name, part) for name, part in parts.items()]
    return "\n\n".join([title, run, f"{errors} {how}", "## Bars", bars(results), *sections]) + "\n"
