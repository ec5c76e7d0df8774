"""Bar charts: by matplotlib where it is installed, otherwise drawn plainly, so that the pages always have their pictures."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")


class Bar(NamedTuple):
    """A bar, its 95 % interval, and the number of the group whose colour it has."""

    label: str
    value: float
    low: float
    high: float
    group: int = 0


def bars(path: Path, rows: list[Bar], title: str) -> None:
    """Write a chart of horizontal bars, the first on top."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        _plain_bars(path, rows, title)
        return
    figure = Figure((7, 0.3 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    error = [[max(0.0, row.value - row.low) for row in rows], [max(0.0, row.high - row.value) for row in rows]]
    axes.barh([row.label for row in rows], [row.value for row in rows], xerr=error, color=[COLORS[row.group] for row in rows], ecolor="#222222")
    axes.invert_yaxis()
    axes.axvline(1, color="#222222", linewidth=0.8)
    figure.supxlabel(title, fontsize="medium")
    figure.savefig(path, dpi=120)


def _plain_bars(path: Path, rows: list[Bar], title: str) -> None:
    left, width, step = 240, 800, 22
    picture = Image.new("RGB", (width, step * (len(rows) + 2)), "white")
    draw, scale = ImageDraw.Draw(picture), (width - left - 60) / max(row.high for row in rows)
    draw.text((left, 4), title, fill="black")
    for number, row in enumerate(rows, start=1):
        top = number * step + 4
        draw.text((8, top), row.label, fill="black")
        draw.rectangle((left, top, left + row.value * scale, top + step - 8), fill=COLORS[row.group])
        draw.line((left + row.low * scale, top + 7, left + row.high * scale, top + 7), fill="black")
        draw.text((left + row.high * scale + 6, top), f"{row.value:.2f}", fill="black")
    draw.line((left + scale, step, left + scale, step * (len(rows) + 1)), fill="black")
    picture.save(path)
