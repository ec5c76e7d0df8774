"""Every figure of this program in README.md and docs, measured anew on the bundled model.

    python -m benchmarks.figures [--only NAME,...] [--count N]      measure, keep the numbers, write the documents
    python -m benchmarks.figures --write                            write the documents from the numbers that are kept

The numbers are kept in docs/figures.json, part by part, with the commit, the machine and the day of each. In the
documents a table stands between ``<!-- figures: NAME -->`` and ``<!-- /figures -->``, and below it where it comes from.
All parts take some 15 minutes on two cores, and nothing else should run beside them; those that only count (tokens,
depths) don't mind. ``--count`` is the number of prompts in place of each part's own. What the model draws is judged by
``python -m model_making.quality``, and losslessness by ``python -m benchmarks.lossless``: both take longer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from adt_core.files import write

from ..auto import empty_profile_cache
from . import methods, others, rounds
from .parts import Part

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "figures.json"
PARTS: dict[str, Part] = {**methods.PARTS, **others.PARTS, **rounds.PARTS}
MARKED = re.compile(r"<!-- figures: (\w+) -->(?:(?!<!-- ).)*<!-- /figures -->", re.DOTALL)
DIGITS = 6
"""Of a number that is kept."""


def pages() -> list[Path]:
    """The documents that may show figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def kept() -> dict[str, dict]:
    """The figures of every part that was measured."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def short(value: Any) -> Any:
    """The same JSON with DIGITS digits of every number with a fraction."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [short(one) for one in value]
    return float(f"{float(value):.{DIGITS}g}") if isinstance(value, float) else value


def origin() -> dict[str, str]:
    """Where and when figures are measured."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7"], cwd=ROOT, capture_output=True, text=True
    )
    names = re.findall(r"^model name\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    processor = names[0] if names else platform.processor() or platform.machine()
    machine = f"{processor}, {os.cpu_count()} cores, torch {torch.__version__}"
    return {"commit": told.stdout.strip() or "unknown", "machine": machine, "day": date.today().isoformat()}


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""


def shown(figures: dict[str, dict]) -> dict[str, str]:
    """What stands between the markers of every name. A table has its origin below; a short text has not."""
    found = {}
    for name, part in figures.items():
        below = "\n\n*{count} prompts; commit {commit}, {day}; {machine}.*".format(**part)
        for marker, text in PARTS[name].tables(part["data"]).items():
            found[marker] = text + (below if "\n" in text else "")
    return found


def filled(text: str, texts: dict[str, str]) -> str:
    """A document with the figures of these names in it. KeyError for a marker of another name."""

    def placed(marker: re.Match) -> str:
        edge = "\n" if "\n" in texts[marker[1]] else ""
        return f"<!-- figures: {marker[1]} -->{edge}{texts[marker[1]]}{edge}<!-- /figures -->"

    return MARKED.sub(placed, text)


def measured(name: str, count: int) -> dict:
    """A part's figures."""
    begun = time.monotonic()
    with empty_profile_cache():
        data = json.loads(json.dumps(short(PARTS[name].measure(count))))
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return {"count": count, "data": data}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--count", type=int, help="prompts of every part")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument(
        "--output", type=Path, help="a JSON file to write in place of docs/figures.json and the documents"
    )
    args = parser.parse_args()
    chosen = [] if args.write else args.only.split(",") if args.only else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    figures = kept() if KEPT.exists() and not args.output else {}
    where = origin()  # at first: what is written later changes the checkout
    for name in chosen:
        figures[name] = where | measured(name, args.count or PARTS[name].count)
        lines = [f"{json.dumps(part)}: {json.dumps(figures[part])}" for part in PARTS if part in figures]
        write(args.output or KEPT, ("{\n" + ",\n".join(lines) + "\n}\n").encode())  # a line for each part
    texts = shown(figures)
    if args.output:
        print("\n\n".join(texts.values()))
        return
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := filled(text, texts)) != text:
            write(page, new.encode())
            print(f"{page.relative_to(ROOT)} is written anew")


if __name__ == "__main__":
    main()
