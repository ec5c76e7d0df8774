"""The page of a run: tables of what was measured, and sentences that follow from them."""

from __future__ import annotations

from .bars import BARS, MEANT_FOR

REHEARSAL = """# A rehearsal: small random models on {device}; the figures say nothing of any GPU

Only *tokens* uses the bundled model here. Whatever the tables call bundled, or name after a published model, is small
and random."""
TITLE = "# Measured on {device}"


def cell(value: object) -> str:
    """A value of a table: a median has its middle half beside it."""
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
    """Rows as Markdown. Their columns are those of any of them."""
    columns = list(dict.fromkeys(column for row in rows for column in row if column != "table"))
    lines = [columns, ["---"] * len(columns), *([cell(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(results: dict) -> dict:
    """Names and versions; {} if they are not known."""
    rows = results["parts"].get("device", {}).get("rows", [])
    return next((row for row in rows if "torch" in row), {})


def bars(results: dict) -> str:
    """What should be reached, and what was."""
    rows, name = {part: found["rows"] for part, found in results["parts"].items()}, machine(results).get("device", "")
    lines = ["| bar | wanted | measured | |", "|---|---|---|---|"]
    for bar in BARS:
        value = bar.value(rows)
        verdict = "not measured" if value is None else "met" if bar.met(value) else "**not met**"
        verdict = "a rehearsal tells nothing" if results["rehearsal"] else verdict
        lines.append(
            f"| {bar.title} | at {'most' if bar.most else 'least'} {bar.bound:g} | {cell(value)} | {verdict} |"
        )
    if not any(meant in name for meant in MEANT_FOR):
        lines.append(f"\nThe bars are meant for {' and '.join(MEANT_FOR)}, and this is neither.")
    return "\n".join(lines)


HOW = {"ended": "It ended", "failed": "It failed", "cut off at its limit": "It was cut off"}


def section(name: str, part: dict) -> str:
    """A part: what it is, how it went, its tables and its errors."""
    rows, errors = part["rows"], part["errors"]
    went = f"{HOW[part['status']]} after {part['seconds']:.0f} s of at most {part['limit']:.0f}"
    done = f"{part['begun']} of {part['cases']} cases begun, {len(rows)} rows, {len(errors)} errors"
    lines = [f"## {name.capitalize()}", (part["about"] or "It could not be loaded.").strip(), f"{went}: {done}."]
    if part["left_out"]:
        lines.append(f"Left out for want of time: {', '.join(part['left_out'])}.")
    for title in dict.fromkeys(row["table"] for row in rows):
        lines += [f"**{title}**", table([row for row in rows if row["table"] == title])]
    if errors:
        lines.append("\n".join(f"- {error['what']}: {error['error']}" for error in errors))
    return "\n\n".join(lines)


def markdown(results: dict) -> str:
    """The page."""
    known, parts = machine(results), results["parts"]
    title = (REHEARSAL if results["rehearsal"] else TITLE).format(device=known.get("device", "an unknown device"))
    versions = [f"{key} {cell(value)}" for key, value in known.items() if value and key not in ("table", "device")]
    ran = (
        f"Run on {results['date']} at commit {results['commit'] or 'unknown'}; {', '.join(versions) or 'no versions'}."
    )
    wrong = [name for name, part in parts.items() if part["errors"]]
    whole = f"Not everything went well: see {', '.join(wrong)}." if wrong else "Every part ended without an error."
    how = (
        "Figures are medians with the middle half of the readings behind them; what is compared took turns unless told."
    )
    sections = [section(name, part) for name, part in parts.items()]
    return "\n\n".join([title, ran, f"{whole} {how}", "## Bars", bars(results), *sections]) + "\n"
