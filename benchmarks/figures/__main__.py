"""Measure the figures of this pack in README.md and docs, on the bundled model.

    python -m benchmarks.figures [--only NAME,...]                  measure, store the figures, update the documents
    python -m benchmarks.figures [--only NAME,...] --count N        with another number of prompts
    python -m benchmarks.figures --write                            update the documents from the stored figures

A part is a group of figures that are measured together. The file docs/figures.json stores the figures of each part,
together with the commit, the machine and the date of the measurement. A place for figures in a document begins with
``<!-- figures: NAME -->`` and ends with ``<!-- /figures -->``. This command writes a table into each place, followed by
the commit, the machine and the date.

All parts together take about 30 minutes on two cores. Run nothing else at the same time.

Published figures have a minimum number of prompts and a clean commit. With fewer prompts, the command is a dry run: it
prints the tables and changes no file. In a checkout with uncommitted changes, it refuses to measure figures for the
documents. ``--force`` stores the figures in both cases; ``-dirty`` is then added to the commit.

Two measurements take longer and have their own commands: ``python -m model_making.quality`` measures the quality of the
images, and ``python -m benchmarks.lossless`` checks losslessness.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from adt_core.files import write
from adt_core.models.cpu import processor

from ..harness import ROOT, empty_profile_cache, git
from . import FigurePart, generate, methods, others

STORED = ROOT / "docs" / "figures.json"
_MODULES = (generate, methods, others)
PARTS: dict[str, FigurePart] = {name: part for module in _MODULES for name, part in module.PARTS.items()}
MARKED = re.compile(r"<!-- figures: (\w+) -->(?:(?!<!-- ).)*<!-- /figures -->", re.DOTALL)
DIGITS = 6  # number of significant digits of a stored float


def pages() -> list[Path]:
    """Return the documents that may contain figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def load_figures() -> dict[str, dict]:
    """Return the stored figures by the name of the part."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def rounded(value: Any) -> Any:
    """Return a copy of a JSON value in which every float is rounded to `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{float(value):.{DIGITS}g}") if isinstance(value, float) else value


def uncommitted() -> list[str]:
    """Return the files of this checkout that differ from its commit, without the files that this command writes."""
    written = {path.relative_to(ROOT).as_posix() for path in (STORED, *pages())}
    changed = [line[3:] for line in git("status", "--porcelain").splitlines()]
    return [path for path in changed if path not in written]


def origin() -> dict[str, str]:
    """Return the commit, the machine and the date of a measurement that runs at this moment."""
    commit = git("rev-parse", "--short=7", "HEAD") or "unknown"
    commit += "-dirty" if uncommitted() else ""
    machine = f"{processor()}, {os.cpu_count()} cores ({torch.get_num_threads()} used), torch {torch.__version__}"
    return {"commit": commit, "machine": machine, "day": date.today().isoformat()}


def render(figures: dict[str, dict]) -> dict[str, str]:
    """Return the text for every place in the documents.

    A table is followed by the commit, the machine and the date of its part. A text of one line is not.

    Returns:
        Texts by the name of the place.
    """
    texts = {}
    for name, part in figures.items():
        footer = "\n\n*{count} prompts; commit {commit}, {day}; {machine}.*".format(**part)
        for marker, text in PARTS[name].tables(part["data"]).items():
            texts[marker] = text + (footer if "\n" in text else "")
    return texts


def fill(document: str, texts: dict[str, str]) -> str:
    """Replace the texts in the places of a document.

    Raises:
        KeyError: If the document has a place whose name is not in `texts`.
    """

    def replacement(marker: re.Match) -> str:
        edge = "\n" if "\n" in texts[marker[1]] else ""
        return f"<!-- figures: {marker[1]} -->{edge}{texts[marker[1]]}{edge}<!-- /figures -->"

    return MARKED.sub(replacement, document)


def measure(name: str, count: int) -> dict:
    """Measure a part with an empty cache of cost profiles.

    Returns:
        Dictionary with the number of prompts and the figures.
    """
    started = time.monotonic()
    with empty_profile_cache():
        data = json.loads(json.dumps(rounded(PARTS[name].measure(count))))
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return {"count": count, "data": data}


def measure_parts(names: list[str], count: int | None, figures: dict[str, dict], is_stored: bool) -> None:
    """Measure parts, and replace their figures.

    Args:
        count: Number of prompts (default: the number of each part).
        figures: Figures of all parts by name.
        is_stored: Whether to write all figures to the file after each part.
    """
    where = origin()  # now, because the files of the checkout may change during the measurement
    for name in names:
        figures[name] = where | measure(name, count or PARTS[name].count)
        if is_stored:
            lines = [f"{json.dumps(part)}: {json.dumps(figures[part])}" for part in PARTS if part in figures]
            write(STORED, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def update_documents(texts: dict[str, str]) -> None:
    """Write the texts into their places in all documents. `texts` has the texts by the name of the place."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := fill(text, texts)) != text:
            write(page, new.encode())
            print(f"{page.relative_to(ROOT)} was updated")


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--count", type=int, help="number of prompts of every part")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--force", action="store_true", help="store figures of few prompts or of a changed checkout")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(PARTS)
    if unknown := set(names) - set(PARTS):
        parser.error(f"--only: unknown parts {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    figures = load_figures()
    is_checked = not args.write and not args.force
    is_dry = is_checked and args.count is not None and any(args.count < PARTS[name].count for name in names)
    if is_checked and not is_dry and (changed := uncommitted()):
        parser.error(f"{changed[0]} has changes without a commit; commit them, or measure with --force or less --count")
    if not args.write:
        measure_parts(names, args.count, figures, is_stored=not is_dry)
    if is_dry:
        texts = render({name: figures[name] for name in names})
        unchanged = "No file was changed, because of the small --count; --force stores the figures."
        print(*texts.values(), unchanged, sep="\n\n")
    else:
        update_documents(render(figures))


if __name__ == "__main__":
    main()
