"""Tables for spreadsheets, of texts that anybody may have written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = re.compile(r"""(^|[;\t\r\n])([\s"]*)([=+\-@\uff1d\uff0b\uff0d\uff20])""")
"""What begins a formula: at the beginning of a cell, or behind a mark at which the spreadsheets of some countries cut
lines into cells, even within quotes. The last four signs are the full-width forms of the first four."""


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], encoding: str = "utf-8") -> bytes:
    """A table with a heading. Of each row, the columns are taken. Spreadsheets see no formula in it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return text.getvalue().encode(encoding, "backslashreplace")


def _harmless(cell: object) -> object:
    """A cell in which spreadsheets see no formula: an apostrophe marks a text. Numbers stay numbers."""
    return cell if isinstance(cell, int | float | None) else _FORMULA.sub(r"\1\2'\3", str(cell))
