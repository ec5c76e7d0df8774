"""Prompts from the files that people have: plain text, MS-COCO captions, PartiPrompts, JSON lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from .errors import AdtError

CAPTIONS = ("first", "longest")
"""Which of the captions of an MS-COCO image is its prompt."""


def read_prompts(path: str | Path, caption: str = CAPTIONS[0]) -> list[str]:
    """The prompts of a file, by its ending.

    ``.json``: MS-COCO's ``captions_*.json``, one caption per image in the order of the image ids, the ``first`` or the ``longest``; or a
    plain list of strings. ``.jsonl``: a string, or an object with "prompt" or "caption", on each line. ``.tsv``: PartiPrompts, the column
    "Prompt". Anything else: one prompt per line. Raises AdtError.
    """
    path = Path(path)
    readers = {".json": lambda text: _json(text, caption), ".jsonl": _json_lines, ".tsv": _table}
    try:
        found = readers.get(path.suffix.lower(), str.splitlines)(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise AdtError(f"--prompts: '{path}' can't be read as UTF-8 text ({getattr(error, 'strerror', None) or error}).") from error
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise AdtError(f"--prompts: '{path}' is not what its ending says ({error}); captions in MS-COCO's layout, PartiPrompts' table, "
                       "JSON lines or plain text were expected.") from error
    prompts = [prompt.strip() for prompt in found if prompt.strip()]
    if not prompts:
        raise AdtError(f"--prompts: '{path}' is empty; write one prompt per line.")
    return prompts


def sample(prompts: list[str], count: int, seed: int) -> list[str]:
    """``count`` of the prompts, in an order that ``seed`` fixes; all of them if there are no more."""
    order = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))).permutation(len(prompts))
    return [prompts[i] for i in order[:count]]


def _json(text: str, caption: str) -> list[str]:
    values = json.loads(text)
    if isinstance(values, list):
        return [str.strip(value) for value in values]
    images: dict[int, list[str]] = {}
    for annotation in sorted(values["annotations"], key=lambda a: (a["image_id"], a["id"])):
        images.setdefault(annotation["image_id"], []).append(annotation["caption"])
    return [captions[0] if caption == "first" else max(captions, key=len) for captions in images.values()]


def _json_lines(text: str) -> list[str]:
    prompts = []
    for line in filter(str.strip, text.splitlines()):
        value = json.loads(line)
        prompts.append(value if isinstance(value, str) else value["prompt"] if "prompt" in value else value["caption"])
    return prompts


def _table(text: str) -> list[str]:
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    if "Prompt" not in (rows.fieldnames or []):
        raise ValueError("no column Prompt")
    return [row["Prompt"] for row in rows]
