"""Prompts from the files that people have: plain text, tables, MS-COCO captions, JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import AdtError, shown
from ..files import LARGEST_LIST, opened, parse_json, read_text, reason
from ..rules.settings import LARGEST_SEED
from .tables import read_table

FILES = (".txt", ".json", ".jsonl", ".csv", ".tsv")
"""Endings of the files that are read; any other is taken for plain text."""
BUNDLED_CAPTIONS = Path(__file__).parents[1] / "bundled" / "captions.json"
"""Captions of scenes that the bundled model was not trained on, in MS-COCO's layout."""
CAPTIONS = ("first", "longest", "all")
"""Which of the captions of an MS-COCO image are prompts."""
_WORDINGS, _OTHERS = ("prompt", "caption"), ("id", "seed")
"""Columns of a table, and fields of JSON lines, that are read: one of the first two is needed."""
_ZIP = b"PK\x03\x04"
"""Bytes that zip archives begin with."""
_ZIPPED = {
    ".docx": "a Word document",
    ".xlsx": "an Excel workbook",
    ".odt": "an OpenDocument text",
    ".ods": "an OpenDocument spreadsheet",
}
"""Zip archives that people write prompts in, by how their names end."""
_NAMED = 5
"""Blank prompts that a note names."""
_LONGEST = 40
"""Of a part of a file's name."""
_Item = TypeVar("_Item")


class PromptEntry(NamedTuple):
    """A prompt, what its source calls it, and the seed that it has there, if any."""

    id: str
    text: str
    seed: int | None = None


def read_prompts(path: str | Path, caption: str = CAPTIONS[0]) -> list[str]:
    """The texts of the prompts of a file, without blank ones; see :func:`read_all`."""
    return [prompt.text for prompt in non_blank(read_all(path, caption))]


def read_all(path: str | Path, caption: str = CAPTIONS[0]) -> list[PromptEntry]:
    """The prompts of a file, blank ones with an empty text. Its ending says how it is read. Raises AdtError if it can't
    be, and if all are blank.

    ``.json``: a list of strings, or MS-COCO's ``captions_*.json``, in the order of the image ids. Of each image,
    ``caption`` takes the ``first`` or the ``longest`` one, under the id of the image, or ``all``, under their own ids.
    ``.jsonl``: on each line a string, or an object with "prompt" or "caption" and maybe "id" and "seed". ``.csv`` and
    ``.tsv``, such as PartiPrompts: columns of these names, in upper or lower case; others are ignored. Any other
    ending: one prompt per line. Where no id is given, it is the number of the line, of the table's row or of the
    string, from 1.
    """
    path = Path(path)
    readers = {".json": lambda text: _json(text, caption), ".jsonl": _json_lines, ".csv": _csv, ".tsv": _tsv}
    try:
        prompts = readers.get(path.suffix.lower(), parse_lines)(_text_of(path))
    except OSError as error:
        raise AdtError(f"`prompts`: '{path}' can't be read as UTF-8 text ({reason(error)}).") from error
    except AdtError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AdtError(
            f"`prompts`: '{path}' does not have the format of its file extension ({error}); use MS-COCO captions, "
            "a table with a column 'prompt', JSON lines or plain text."
        ) from error
    if not non_blank(prompts):
        raise AdtError(f"`prompts`: '{path}' is empty; write one prompt per line.")
    return prompts


def _text_of(path: Path) -> str:
    """Return the text of a list. Raises OSError, or AdtError if it is not UTF-8."""
    with opened(path) as file:
        head = file.read(len(_ZIP))
    kind = "not a UTF-8 text file (but in another encoding, such as UTF-16, or not text)"
    if head == _ZIP:
        kind = f"{_ZIPPED.get(path.suffix.lower(), 'a zip archive')}, not a text file"
    else:
        with suppress(UnicodeDecodeError):
            text = read_text(path, LARGEST_LIST)
            if "\0" not in text:
                return text
    raise AdtError(f"`prompts`: '{path}' is {kind}; save the prompts as a UTF-8 text file.")


def parse_lines(text: str) -> list[PromptEntry]:
    """One prompt per line, under the number of the line. A blank line between others is a prompt with an empty text."""
    return _numbered(_lines(text.rstrip()))


def non_blank(prompts: Iterable[PromptEntry]) -> list[PromptEntry]:
    """The prompts that are not blank."""
    return [prompt for prompt in prompts if prompt.text]


def blank_note(prompts: Sequence[PromptEntry]) -> str:
    """A sentence that says which of the prompts are blank, or ""."""
    blank = [prompt.id for prompt in prompts if not prompt.text]
    names = ", ".join(shown(id) for id in blank[:_NAMED]) + (" and others" if len(blank) > _NAMED else "")
    return f"{len(blank)} of {len(prompts)} prompts are blank and were left out: {names}." if blank else ""


def select(
    prompts: list[PromptEntry], filter: str = "", shuffle: int = 0, start: int = 0, count: int | None = None
) -> list[PromptEntry]:
    """Some of the prompts; ``count`` at most, all for 0 and None. Raises AdtError if none is left.

    filter: a text that they contain, in upper or lower case. shuffle: fixes their order; 0 leaves them as they are.
    start: how many are left out at the beginning.
    """
    chosen = [prompt for prompt in prompts if filter.casefold() in prompt.text.casefold()]
    if not chosen:
        raise AdtError(
            f"filter: none of the {len(prompts)} prompts contains {shown(filter)}; "
            "enter part of a prompt, or leave it empty for all."
        )
    if start >= len(chosen):
        raise AdtError(f"start is {start}, but there are only {len(chosen)} prompts; use a smaller number.")
    if shuffle:
        chosen = sample(chosen, len(chosen), shuffle)
    return chosen[start:][: count or None]


def slug(text: str) -> str:
    """The first words of a text for a file name: letters, digits, hyphens; ``_LONGEST`` at most. May be empty."""
    words = re.findall(r"[^\W_]+", text.casefold())
    name = "-".join(words)[: _LONGEST + 1]
    return name[:_LONGEST] if len(name) <= _LONGEST or "-" not in name else name.rpartition("-")[0]


def file_stems(prompts: list[PromptEntry]) -> list[str]:
    """Names for the prompts' files, without an ending: the id and the first words.

    Ids that are numbers get leading zeros, so that files are sorted by them.
    """
    ids = [file_name_part(prompt.id) for prompt in prompts]
    width = max((len(id) for id in ids if id.isdecimal()), default=0)
    ids = [id.zfill(width) if id.isdecimal() else id for id in ids]
    return ["-".join(filter(None, (id, slug(prompt.text)))) or "prompt" for id, prompt in zip(ids, prompts)]


def file_prefixes(ids: Sequence[str]) -> list[str]:
    """What the names of a list's files begin with: the place in the list, from 1, and the id if that is another."""
    width = len(str(len(ids)))
    numbers = (str(number).zfill(width) for number in range(1, len(ids) + 1))
    return [
        "-".join(filter(None, (n, "" if n.lstrip("0") == id else file_name_part(id)))) for n, id in zip(numbers, ids)
    ]


def file_name_part(id: str) -> str:
    """An id for a file name: letters, digits, hyphens and dots; ``_LONGEST`` bytes at most. May be empty."""
    return re.sub(r"[^\w.-]+", "-", id).encode("utf-8", "ignore")[:_LONGEST].decode("utf-8", "ignore").strip(".-")


def sample(prompts: list[_Item], count: int, seed: int) -> list[_Item]:
    """``count`` of the prompts, in an order that ``seed`` fixes; all of them if there are no more."""
    order = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))).permutation(len(prompts))
    return [prompts[i] for i in order[:count]]


def _lines(text: str) -> list[str]:
    """The lines of a text. ``splitlines`` ends them at characters, too, that may stand in a prompt, such as U+2028."""
    return re.split(r"\r\n?|\n", text)


def _numbered(texts: Iterable[str]) -> list[PromptEntry]:
    """Prompts under their numbers, from 1."""
    return _stripped(PromptEntry(str(number), text) for number, text in enumerate(texts, start=1))


def _stripped(prompts: Iterable[PromptEntry]) -> list[PromptEntry]:
    return [prompt._replace(text=prompt.text.strip()) for prompt in prompts]


def _json(text: str, caption: str) -> list[PromptEntry]:
    values = parse_json(text)
    if isinstance(values, list):
        return _numbered(values)
    annotations = sorted(values["annotations"], key=lambda a: (a["image_id"], a["id"]))
    if caption == "all":
        return _stripped(PromptEntry(str(annotation["id"]), annotation["caption"]) for annotation in annotations)
    images: dict[int, list[str]] = {}
    for annotation in annotations:
        images.setdefault(annotation["image_id"], []).append(annotation["caption"].strip())
    if caption == "longest":
        return [PromptEntry(str(image), max(captions, key=len)) for image, captions in images.items()]
    return [PromptEntry(str(image), next(filter(None, captions), "")) for image, captions in images.items()]


def _json_lines(text: str) -> list[PromptEntry]:
    prompts = []
    for number, line in enumerate(_lines(text), start=1):
        if line.strip():
            value = parse_json(line)
            value = {"prompt": value} if isinstance(value, str) else value
            wording = value["prompt"] if "prompt" in value else value["caption"]
            prompts.append(PromptEntry(str(value.get("id", number)), wording, _seed(value.get("seed"))))
    return _stripped(prompts)


def _csv(text: str) -> list[PromptEntry]:
    """Return the prompts of a CSV file. Spreadsheets separate its cells by semicolons if decimals have a comma."""
    return _table(text, ",;\t")


def _tsv(text: str) -> list[PromptEntry]:
    return _table(text, "\t")


def _table(text: str, delimiters: str) -> list[PromptEntry]:
    """Return the prompts of a table. Raises ValueError as :func:`read_table`."""
    prompts = []
    for number, row in enumerate(read_table(text, delimiters, _WORDINGS, _OTHERS), start=1):
        wording = row.get("prompt", row.get("caption", ""))
        prompts.append(
            PromptEntry(row.get("id", "").strip() or str(number), wording, _seed(row.get("seed", "").strip()))
        )
    return _stripped(prompts)


def _seed(value: Any) -> int | None:
    """A seed as lists give it: a whole number, or its digits; None or nothing is none. ValueError for anything else."""
    if value is None or value == "":
        return None
    if isinstance(value, bool | float) or not 0 <= int(value) <= LARGEST_SEED:
        raise ValueError(f"{shown(value)} is not a seed, which is a whole number from 0 to 2**64 - 1")
    return int(value)
