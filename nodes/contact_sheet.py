"""Report of a batch: a contact sheet (PNG), a table (CSV), and all statistics (JSON).

A batch is a list of prompts and the images that were generated from this list.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from statistics import mean

from PIL import Image, ImageDraw

from ..adt_core.app import to_csv
from ..adt_core.files import LARGEST_LIST, parse_json, read_text, to_json, write_in
from ..adt_core.run import text_chunks
from .lettering import MISSING, Lettering

COLUMNS = tuple(
    "id prompt seed seconds tokens tau target_forwards mean_depth substitution_rate file note relaxed".split()
)
"""Columns of the CSV file. The JSON file has more statistics of each image."""
_IDENTITY = "id", "prompt", "file"
"""Keys that identify the image of a row. Two rows with equal values for these keys describe the same image, even if the
rows are in different reports."""
ENDINGS = "csv", "json", "png"  # extensions of a report's files
LONGEST_SIDE = 8192  # maximum length of a contact sheet's longer side, in pixels. Thumbnails shrink to fit.
NOTE = f"{MISSING}: no font on this machine has this letter. The table beside this sheet has the prompts in full."
_PAPER, _INK, _GAP, _LINES = (24, 24, 24), (235, 235, 235), 8, 3
_COMPRESSION = 4
"""PNG compression level of the sheet. Compared with Pillow's default of 6, writing needs half the time, and the file is
3 % larger."""


def summary(rows: Sequence[dict], left_out: int = 0) -> dict:
    """Summarise the statistics of all images.

    Args:
        rows: One row per prompt that has an image, with `id`, `prompt`, `file` and the statistics of the image.

    Returns:
        `images` is the number of rows. `distinct_images` is the number of files, because several rows can have the same
        file. `left_out` is the argument. The other values count each file once: sums of `seconds` and `tokens`, and
        means of `tau` (tokens per target pass), `accepted_per_round` (accepted drafts per target pass), `mean_depth`
        (levels of the draft trees) and `substitution_rate` (share of replaced tokens).
    """
    images = list({row["file"]: row for row in rows}.values())
    seconds, tokens = (sum(image[name] for image in images) for name in ("seconds", "tokens"))
    means = {name: mean(image[name] for image in images) for name in ("tau", "mean_depth", "substitution_rate")}
    return {
        "images": len(rows),
        "distinct_images": len(images),
        "left_out": left_out,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        **means,
        "accepted_per_round": max(means["tau"] - 1, 0.0),
    }


def own_name(folder: Path, name: str, rows: Sequence[dict]) -> str:
    """Return the name for the report of a list of prompts. Append a number if another list's report has the name.

    An existing report belongs to this list if the list contains all images of the report. If a user adds prompts to a
    list, the new report of the list therefore replaces its old report.

    Args:
        rows: Rows of the list; see `summary`.
    """
    mine = {tuple(row[key] for key in _IDENTITY) for row in rows}
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(name for name in names if _may_replace(folder, name, mine))


def _may_replace(folder: Path, name: str, mine: set[tuple]) -> bool:
    """Return whether no report has this name, or `mine`, the images of the list, contains all images of that report."""
    if not any(os.path.lexists(folder / f"{name}.{ending}") for ending in ENDINGS):
        return True
    try:
        images = parse_json(read_text(folder / f"{name}.json", LARGEST_LIST))["images"]
        return {tuple(row[key] for key in _IDENTITY) for row in images} <= mine
    except (OSError, ValueError, KeyError, TypeError):
        return False  # unreadable, so it may belong to another list


def remark(rows: Sequence[dict]) -> str:
    """Return the line with the share of tokens that LANTERN replaced, or "" if all images are exact.

    The contact sheet shows this line below the thumbnails.
    """
    replaced = [row["substitution_rate"] for row in rows if row["relaxed"]]
    return f"Relaxed (LANTERN): {100 * mean(replaced):.1f} % of the tokens replaced" if replaced else ""


def write_report(
    rows: Sequence[dict],
    settings: dict,
    sheet: Image.Image,
    folder: Path,
    name: str,
    texts: Mapping[str, str] = {},
    left_out: Sequence[dict] = (),
) -> list[Path]:
    """Write `name.csv`, `name.json` and `name.png` into the folder, and replace files of these names.

    Args:
        rows: One row per image; see `summary`.
        settings: Settings that all images share.
        name: File name without extension.
        texts: Text chunks of the PNG, by keyword.
        left_out: `id`, `prompt` and `note` of each prompt for which no image was generated.

    Returns:
        Paths of the CSV, JSON and PNG files.
    """
    picture = io.BytesIO()
    sheet.save(picture, "PNG", pnginfo=text_chunks(texts), compress_level=_COMPRESSION)
    paths = [folder / f"{name}.{ending}" for ending in ENDINGS]
    whole = {"summary": summary(rows, len(left_out)), "images": list(rows), "left_out": list(left_out)}
    # The JSON file is written first, because `own_name` needs it even if writing the other files fails.
    # The CSV file has a byte order mark ("utf-8-sig"), by which spreadsheets detect UTF-8.
    write_in(folder, paths[1].name, to_json({"settings": settings, **whole}))
    write_in(folder, paths[0].name, to_csv(COLUMNS, [*rows, *left_out], "utf-8-sig"))
    write_in(folder, paths[2].name, picture.getvalue())
    return paths


def contact_sheet(
    pictures: Sequence[Image.Image], labels: Sequence[str], columns: int = 0, width: int = 192, remark: str = ""
) -> Image.Image:
    """Draw thumbnails in rows, with a label below each, on a sheet of at most `LONGEST_SIDE` pixels per side.

    Args:
        pictures: Images, all of the same size.
        labels: One label per image, "" for none.
        columns: Thumbnails per row, 0 for a roughly square sheet.
        width: Maximum width of a thumbnail in pixels.
    """
    columns = min(columns or math.ceil(math.sqrt(len(pictures))), len(pictures))
    size = max(8, min(12, width // 8))
    letters = Lettering(size)
    texts = [letters.readable(label) for label in labels]
    rows = -(-len(pictures) // columns)
    caption = _LINES * (size + 4) if any(texts) else 0
    notes = [line for line in (remark, NOTE if any(MISSING in text for text in texts) else "") if line]
    note = (size + 2 * _GAP) * len(notes)
    ratio = pictures[0].height / pictures[0].width
    room = LONGEST_SIDE - _GAP
    width = max(8, min(width, room // columns - _GAP, int(((room - note) // rows - _GAP - caption) / ratio)))
    shape = (width, max(1, round(width * ratio)))
    height = rows * (shape[1] + _GAP + caption) + _GAP
    sheet = Image.new("RGB", (columns * (shape[0] + _GAP) + _GAP, height + note), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (picture, text) in enumerate(zip(pictures, texts)):
        left = _GAP + number % columns * (shape[0] + _GAP)
        top = _GAP + number // columns * (shape[1] + _GAP + caption)
        sheet.paste(picture.convert("RGB").resize(shape, Image.Resampling.LANCZOS), (left, top))
        for row, line in enumerate(letters.wrap(text, shape[0], _LINES)):
            letters.draw(draw, left, top + shape[1] + 2 + row * (size + 3), line, _INK)
    for number, line in enumerate(notes):
        letters.draw(draw, _GAP, height + number * (size + 2 * _GAP), line, _INK)
    return sheet
