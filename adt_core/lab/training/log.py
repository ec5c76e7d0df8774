"""Log of a training run: a CSV table, a chart, and a summary for the user."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from ...app.csv_tables import to_csv
from ...files import write_in
from .unroll import CHILDREN

WIDTH = 640
HEIGHT = 400
COLOUR = "#1f77b4"


def sentence(row: dict, passes: int) -> str:
    """Return a summary of the acceptance on held-out images, for the user.

    Args:
        row: Result of :func:`.unroll.acceptance`.
    """
    depths = (
        " / ".join(f"{row[f'depth {depth} of {count}']:.3f}" for count in CHILDREN) + f" at depth {depth}"
        for depth in range(1, passes + 1)
    )
    return (
        f"held-out acceptance of the first {' / '.join(map(str, CHILDREN))} children {'; '.join(depths)}; "
        f"a chain of {passes} gives {row['tau']:.3f} tokens per forward"
    )


def write_log(folder: Path, rows: list[dict], passes: int) -> None:
    """Write `log.csv` and `log.png`.

    Args:
        rows: One row for each measurement: step, seconds, mean loss and acceptance, by column name.
    """
    write_in(folder, "log.csv", to_csv(list(rows[0]), rows))
    buffer = io.BytesIO()
    curve(rows, passes).save(buffer, "PNG")
    write_in(folder, "log.png", buffer.getbuffer())


def curve(rows: list[dict], passes: int) -> Image.Image:
    """Draw a chart of the tokens per target pass on held-out images, over the training steps.

    Args:
        passes: Number of drafts in a chain. A chain yields 1 to `passes + 1` tokens per target pass.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(18)
    left = top = 50
    right = WIDTH - 30
    bottom = HEIGHT - 50

    def place(step: float, tau: float) -> tuple[float, float]:
        return left + (right - left) * step / rows[-1]["step"], bottom - (bottom - top) * (tau - 1) / passes

    for tau in range(1, passes + 2):
        draw.line([place(0, tau), place(rows[-1]["step"], tau)], "lightgrey")
        draw.text((left - 12, place(0, tau)[1]), str(tau), "black", font, "rm")
    points = [place(row["step"], row["tau"]) for row in rows]
    draw.line(points, COLOUR, 3, "curve")
    for x, y in points:
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), COLOUR)
    title = f"tokens per pass on held-out prompts, a chain of {passes} drafts: {rows[-1]['tau']:.2f}"
    draw.text((left, top - 20), title, "black", font, "ls")
    draw.text((left, bottom + 16), "0", "black", font, "mt")
    draw.text((right, bottom + 16), f"{rows[-1]['step']} steps", "black", font, "rt")
    return image
