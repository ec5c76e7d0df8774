"""Bar charts: by matplotlib where it is installed, otherwise drawn plainly, so that the pages always have their pictures."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from adt_core.app.report import COLORS, Bar, draw_bars


def bars(path: Path, rows: list[Bar], title: str) -> None:
    """Write a chart of horizontal bars, the first on top."""
    try:
        draw_bars(path, rows, title)
    except ImportError:
        _plain_bars(path, rows, title)


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
