"""Prompt lists: plain text, CSV, TSV and Parquet tables, MS-COCO captions and JSON lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import AdtError, Check, shown
from ..files import (
    LARGEST_LIST,
    LONGEST_PART,
    file_name_part,
    folded,
    foreign_text,
    opened,
    parse_json,
    read_text,
    reason,
)
from ..messages import message
from ..recipe import Recipe
from ..run.jobs import PromptEntry
from ..settings import MAX_SEED
from ..untrusted import Kind, record
from .csv_tables import read_table
from .parquet import read_rows

PROMPT_FILES = (".txt", ".json", ".jsonl", ".csv", ".tsv")
"""Suffixes of files that need no further package. A file with another suffix is read as plain text.

The command line also reads `PARQUET`."""
PARQUET = ".parquet"
BUNDLED_CAPTIONS = Path(__file__).parents[1] / "bundled" / "captions.json"
"""File of captions in MS-COCO's format. The bundled model was not trained on these captions."""
EXAMPLE_CAPTIONS = BUNDLED_CAPTIONS.with_name("captions_example.json")
"""Small file in MS-COCO's format with several captions per image, as in captions_val2017.json."""
CAPTIONS = ("first", "longest", "all")
"""Which captions of an MS-COCO image become prompts. An MS-COCO image has several captions."""
_TEXT_COLUMNS = ("prompt", "caption")
_TEXT_KEYS = (*_TEXT_COLUMNS, "text", "input")
"""Keys of a prompt in JSON, in order of preference."""
SETTING_COLUMNS = "size", "guidance_scale", "negative_prompt"
"""Optional columns with settings of single prompts."""
_OPTIONAL_COLUMNS = ("id", "seed", *SETTING_COLUMNS)
"""Optional columns of a table. One of `_TEXT_COLUMNS` is required.

JSON lines have keys with the same names."""
_SIZE = re.compile(r"([0-9]{1,5}) ?[xX×] ?([0-9]{1,5})")
_ZIP = b"PK\x03\x04"
"""First bytes of a zip archive."""
_HEAD = 4096
"""Number of bytes from which the kind of a file is guessed."""
_ZIPPED = {".docx": "kind.docx", ".xlsx": "kind.xlsx", ".odt": "kind.odt", ".ods": "kind.ods"}
"""Formats of office documents, by suffix. Files of these formats are zip archives."""
MAX_ENTRIES = 1_000_000
"""Maximum number of prompts of a file. Each needs about 300 bytes of memory."""
_MAX_ID = 200
"""Maximum number of characters of an id; the rest is cut off."""
_PER_CHECK = 10_000
"""Number of entries between two calls of the cancellation callback."""
_MAX_IDS = 5
"""Maximum number of blank prompts that a note names."""
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
"""Whole number with a comma before every three digits."""
_VISIBLE = re.compile(r"\S")
_WINDOW = 2**18
"""Number of characters that are searched at a time: no other thread runs during a search."""
_ANY = Kind("a text", "texts", lambda value: True)
_KEY = Kind("a whole number", "whole numbers", lambda value: type(value) is int)
_ANNOTATION = record({"image_id": _KEY, "id": _KEY, "caption": _ANY})
_OPTIONS = Recipe.options()
_Item = TypeVar("_Item")


def read_prompts(path: str | Path, caption: str = CAPTIONS[0]) -> list[str]:
    """Return the texts of the prompts in a file, without blank prompts. Arguments and errors as in `read_all`."""
    return [prompt.text for prompt in non_blank(read_all(path, caption))]


def read_all(path: str | Path, caption: str = CAPTIONS[0], check: Check = lambda: None) -> list[PromptEntry]:
    """Return the prompts in a file, including blank prompts: entries without a text, or with a blank one.

    The suffix of the file determines the format:
    - `.json`: a list of values, or MS-COCO's `captions_*.json`. MS-COCO's captions are sorted by image id. A value is a
      string, or an object with one of `_TEXT_KEYS`. The keys `_OPTIONAL_COLUMNS` are optional. null is a blank prompt.
    - `.jsonl`: one such value per line.
    - `.csv` and `.tsv`: a table with a column "prompt" or "caption", such as PartiPrompts. `_OPTIONAL_COLUMNS` are
      optional. Names of columns may be in upper or lower case. Other columns are ignored.
    - `.parquet`: a table with the same columns. Any other suffix: one prompt per line.

    A prompt without an id gets a number from 1 as its id: the number of its line, table row or string in the file.

    Args:
        caption: Which captions of an MS-COCO image to return. "first" and "longest" return one caption per image, with
            the id of the image. "all" returns all captions, each with the id of the caption.
        check: Called after every `_PER_CHECK` entries. It may raise an exception to cancel.

    Raises:
        AdtError: If the file cannot be read, has more than `MAX_ENTRIES` prompts, or all prompts are blank.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        entries = _parquet(path) if suffix == PARQUET else _entries(_read_text_file(path), suffix, caption)
        prompts = _collect(entries, check)
    except OSError as error:
        key = "prompts.unreadable_table" if suffix == PARQUET else "prompts.unreadable"
        raise AdtError(key, path=path, reason=reason(error)) from error
    except AdtError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AdtError("prompts.bad_format", path=path, reason=error) from error
    if not non_blank(prompts):
        raise AdtError("prompts.empty_file", path=path)
    return prompts


def _read_text_file(path: Path) -> str:
    """Return the content of a file of prompts. Raise AdtError if it is not UTF-8 text."""
    with opened(path) as file:
        head = file.read(_HEAD)
    kind = foreign_text(head)
    if head.startswith(_ZIP):
        kind = message(_ZIPPED.get(path.suffix.lower(), "kind.zip"))
    else:
        with suppress(UnicodeDecodeError):
            text = read_text(path, LARGEST_LIST)
            if "\0" not in text:
                return text
    raise AdtError("prompts.not_text", path=path, kind=kind)


def _entries(text: str, suffix: str, caption: str) -> Iterator[PromptEntry]:
    """Yield the entries of a text file; see `read_all`."""
    readers: dict[str, Callable[[str], Iterable[PromptEntry]]] = {
        ".json": lambda text: _json(text, caption),
        ".jsonl": lambda text: (_entry(parse_json(line), f"line {number}", number) for number, line in _lines(text)),
        # Spreadsheet programs write semicolons in locales in which the comma is the decimal separator.
        ".csv": lambda text: _table(text, ",;\t"),
        ".tsv": lambda text: _table(text, "\t"),
    }
    yield from readers.get(suffix, _plain_lines)(text)


def _collect(entries: Iterable[PromptEntry], check: Check) -> list[PromptEntry]:
    """Return the entries, at most `MAX_ENTRIES`, without surrounding white space, and with ids of limited length."""
    prompts: list[PromptEntry] = []
    for id, text, seed, settings in entries:
        if len(prompts) % _PER_CHECK == 0:
            check()
        if len(prompts) == MAX_ENTRIES:
            raise AdtError("prompts.too_many", most=MAX_ENTRIES)
        prompts.append(PromptEntry(id[:_MAX_ID], text.strip(), seed, settings))
    return prompts


def parse_lines(text: str, check: Check = lambda: None) -> list[PromptEntry]:
    """Return one prompt per line. The id is the number of the line, from 1.

    Blank lines separate prompts, and lines that begin with "# " are comments. Both are ignored.
    """
    return _collect(_plain_lines(text), check)


def _plain_lines(text: str) -> Iterator[PromptEntry]:
    lines = _lines(text)
    return (PromptEntry(str(number), line) for number, line in lines if not f"{line} ".startswith("# "))


def non_blank(prompts: Iterable[PromptEntry]) -> list[PromptEntry]:
    """Return the prompts that are not blank."""
    return [prompt for prompt in prompts if prompt.text]


def blank_note(prompts: Sequence[PromptEntry]) -> str:
    """Return a sentence that names the blank prompts, or "" if no prompt is blank."""
    blank = [prompt.id for prompt in prompts if not prompt.text]
    names = ", ".join(shown(id) for id in blank[:_MAX_IDS]) + (" and others" if len(blank) > _MAX_IDS else "")
    return message("prompts.blank", blank=len(blank), count=len(prompts), names=names) if blank else ""


def select(
    prompts: list[PromptEntry], filter: str = "", shuffle_seed: int = 0, start_index: int = 0, count: int | None = None
) -> list[PromptEntry]:
    """Return a selection of the prompts.

    Args:
        filter: Text that a selected prompt must contain. The case of letters is ignored.
        shuffle_seed: Seed of the random order. 0 keeps the order of the list.
        count: Maximum number of prompts to return. 0 and None return all.

    Raises:
        AdtError: If there are no prompts, or the selection is empty.
    """
    if not prompts:
        raise AdtError("prompts.none")
    selected = [prompt for prompt in prompts if folded(filter) in folded(prompt.text)]
    if not selected:
        raise AdtError("filter.no_match", count=len(prompts), text=shown(filter))
    if start_index >= len(selected):
        raise AdtError("start_index.too_large", index=start_index, count=len(selected))
    if shuffle_seed:
        selected = sample(selected, len(selected), shuffle_seed)
    return selected[start_index:][: count or None]


def slug(text: str) -> str:
    """Return the first words of a text for use in a file name, such as "a-red-house".

    The result contains only letters, digits and hyphens, and has at most `LONGEST_PART` characters. It may be "".
    """
    words = re.findall(r"[^\W_]+", text.casefold())
    name = "-".join(words)[: LONGEST_PART + 1]
    return name[:LONGEST_PART] if len(name) <= LONGEST_PART or "-" not in name else name.rpartition("-")[0]


def file_stems(prompts: list[PromptEntry]) -> list[str]:
    """Return a file name without suffix for each prompt, such as "07-a-red-house".

    A name consists of the id and the first words of the prompt. Numeric ids get leading zeros, so that sorting by file
    name also sorts by id.
    """
    ids = [file_name_part(prompt.id) for prompt in prompts]
    width = max((len(id) for id in ids if id.isdecimal()), default=0)
    ids = [id.zfill(width) if id.isdecimal() else id for id in ids]
    return ["-".join(filter(None, (id, slug(prompt.text)))) or "prompt" for id, prompt in zip(ids, prompts)]


def sample(prompts: list[_Item], count: int, seed: int) -> list[_Item]:
    """Return a random sample of at most `count` items, in random order."""
    order = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))).permutation(len(prompts))
    return [prompts[i] for i in order[:count]]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the content of each line that is not blank, without surrounding white space.

    `str.splitlines` is not used, because it also splits at the character U+2028, which a prompt may contain. A text may
    consist of millions of line ends, so blank lines are skipped without an object for each.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    number = 1
    counted = 0
    while counted < len(text):
        match = _VISIBLE.search(text, counted, counted + _WINDOW)
        start = match.start() if match else min(counted + _WINDOW, len(text))
        number += text.count("\n", counted, start)
        counted = start
        if match:
            end = text.find("\n", start)
            counted = end if end >= 0 else len(text)
            yield number, text[start:counted].rstrip()


def _json(text: str, caption: str) -> Iterator[PromptEntry]:
    values = parse_json(text)
    if isinstance(values, list):
        return (_entry(value, f"entry {number}", number) for number, value in enumerate(values, start=1))
    return iter(_captions(values, caption))


def _captions(values: Any, caption: str) -> list[PromptEntry]:
    """Return the captions of MS-COCO's format: `{"annotations": [{"image_id": 1, "id": 2, "caption": "a dog"}, ...]}`.

    Raises:
        ValueError: If the values have another format.
    """
    listed = values.get("annotations") if isinstance(values, dict) else None
    if not isinstance(listed, list):
        raise ValueError(f"it is {shown(values)}, but a list, or an object with a list 'annotations', was expected")
    for number, one in enumerate(listed, start=1):
        if not _ANNOTATION.fits(one):
            raise ValueError(_ANNOTATION.problem(f"entry {number} of 'annotations'", one))
    annotations: list[dict[str, Any]] = sorted(listed, key=lambda a: (a["image_id"], a["id"]))
    captions = [_text(one["caption"], f"the caption {one['id']}").strip() for one in annotations]
    if caption == "all":
        return [PromptEntry(str(one["id"]), text) for one, text in zip(annotations, captions)]
    images: dict[int, list[str]] = {}
    for one, text in zip(annotations, captions):
        images.setdefault(one["image_id"], []).append(text)
    if caption == "longest":
        return [PromptEntry(str(image), max(texts, key=len)) for image, texts in images.items()]
    return [PromptEntry(str(image), next(filter(None, texts), "")) for image, texts in images.items()]


def _entry(value: Any, where: str, number: int) -> PromptEntry:
    """Return the prompt of a JSON value: a text, an object, or null for a blank prompt. Raise ValueError for others.

    Args:
        value: The value. In an object, names of keys may be in upper or lower case.
        number: Id of a prompt without an id.
    """
    if not isinstance(value, dict):
        return PromptEntry(str(number), _text(value, where))
    fields = {name.strip().lower(): field for name, field in value.items()}
    name = next((name for name in _TEXT_KEYS if name in fields), None)
    if name is None:
        raise ValueError(f"{where} has none of the keys {', '.join(map(repr, _TEXT_KEYS))}")
    id = fields.get("id")
    if not isinstance(id, str | int | float | None):
        raise ValueError(f"{where}, key 'id' is {shown(id)}, but a text or a number was expected")
    prompt = _text(fields[name], f"{where}, key {name!r}")
    return _prompt(number, prompt, fields, f"{where}, key")


def _prompt(number: int, text: str, fields: Mapping[str, Any], where: str) -> PromptEntry:
    """Return a prompt with its id, seed and settings in the list.

    Args:
        number: Id of a prompt without an id.
        fields: Values of `_OPTIONAL_COLUMNS`, as far as the list has them. None and "" count as missing.
        where: Place of the fields, to which an error adds the name of one.
    """
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    settings = tuple(
        (name, _setting(name, given[name], f"{where} {name!r}")) for name in SETTING_COLUMNS if name in given
    )
    return PromptEntry(str(given.get("id", number)), text, _seed(given.get("seed"), f"{where} 'seed'"), settings)


def _setting(name: str, value: Any, where: str) -> Any:
    """Return the value of a setting. Raise ValueError if it is not valid."""
    option = _OPTIONS[name]
    found = value
    if name == "size":
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        found = (int(match[1]), int(match[2])) if match else tuple(value) if isinstance(value, list) else value
    elif option.kind is float and isinstance(value, str):
        with suppress(ValueError):
            found = float(value)
    try:
        option.check(name, found)
    except AdtError as error:
        expected = "width and height, such as 768x512" if name == "size" else str(error).partition("; ")[2].rstrip(".")
        raise ValueError(
            f"{where} is {shown(value)}; expected: {expected}, or another name if the column means something else"
        ) from error
    return found


def _text(value: Any, where: str) -> str:
    """Return a text of a JSON file, "" for null. Raise ValueError if it is anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError(f"{where} is {shown(value)}, but a text was expected")


def _table(text: str, delimiters: str) -> Iterator[PromptEntry]:
    for number, row in enumerate(read_table(text, delimiters, _TEXT_COLUMNS, _OPTIONAL_COLUMNS), start=1):
        prompt = row.get("prompt", row.get("caption", ""))
        fields = {name: row[name].strip() for name in _OPTIONAL_COLUMNS if name in row}
        yield _prompt(number, prompt, fields, f"row {number}, column")


def _parquet(path: Path) -> Iterator[PromptEntry]:
    for number, (text, *values) in enumerate(read_rows(path, _TEXT_COLUMNS, _OPTIONAL_COLUMNS), start=1):
        yield _prompt(number, text or "", dict(zip(_OPTIONAL_COLUMNS, values)), f"row {number}, column")


def _is_rounded(value: Any, number: Decimal) -> bool:
    """Return whether a program has rounded a seed when it wrote the list.

    Spreadsheets show large numbers with six digits, such as 1.23457E+18. Floating-point numbers above 2**53 are
    rounded, and a column of pandas with a missing value has such numbers.
    """
    if isinstance(value, float):
        return number > 2**53
    _, digits, exponent = number.as_tuple()
    return "e" in str(value).lower() and isinstance(exponent, int) and exponent > 0 and len(digits) >= 6


def _seed(value: Any, where: str) -> int | None:
    """Return a seed from a list of prompts.

    Args:
        value: A whole number, or text of a whole number, such as "42.0", "1.2E+5" or "1,234": spreadsheet programs and
            pandas write seeds like this. None and "" mean that there is no seed.

    Raises:
        ValueError: If the value is anything else.
    """
    if value is None or value == "":
        return None
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    with suppress(InvalidOperation):
        number = Decimal(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text)
        if number.is_finite() and 0 <= number <= MAX_SEED and number % 1 == 0:
            if _is_rounded(value, number):
                remedy = "store the column as text, not as numbers"
                raise ValueError(f"{where} is {shown(value)}, which has lost its last digits; {remedy}")
            return int(number)
    raise ValueError(f"{where} is {shown(value)}, but a whole number from 0 to 2**64 - 1 was expected, or none")
