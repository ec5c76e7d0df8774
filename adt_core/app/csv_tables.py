"""Reading of CSV and TSV tables, and writing of CSV tables.

Tables may contain untrusted text. This text is written so that spreadsheet programs do not run it as a formula.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Literal

from ..errors import shown

_FORMULA = re.compile(r"""(?<![\s";])([\s";]*)([=+\-@\uff1d\uff0b\uff0d\uff20])""")
"""Pattern of a possible start of a spreadsheet formula, after all spaces, quotation marks and semicolons before it.

A formula starts at the beginning of a cell, or after a semicolon, tab or line break. In some locales, spreadsheet
programs treat a semicolon, tab or line break as a delimiter, even inside quotation marks. The formula itself starts
with "=", "+", "-" or "@", or with the full-width form of one of these characters. The lookbehind keeps the search
linear: without it, the search would start again at every tab of a long run of tabs."""
_DELIMITERS = frozenset(";\t\r\n")
LONGEST_CELL = 32_767
"""Maximum number of characters of a cell. Spreadsheet programs cut longer cells, or refuse the table."""


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], encoding: str = "utf-8") -> bytes:
    """Return a CSV table. Arguments as in :func:`write_csv`."""
    table = io.BytesIO()
    write_csv(table, columns, rows, encoding)
    return table.getvalue()


def write_csv(
    file: BinaryIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], encoding: str = "utf-8"
) -> None:
    """Write a CSV table with a header. Text that a spreadsheet program would run as a formula is escaped.

    Args:
        rows: Values by column name. Missing columns have empty cells, and keys that are not in `columns` are ignored.
    """
    text = io.TextIOWrapper(file, encoding, "backslashreplace", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_escape, columns))
    writer.writerows([_escape(row.get(name)) for name in columns] for row in rows)
    text.detach()  # writes what is left, and leaves the file open


def _escape(cell: object) -> object:
    """Return a cell with an apostrophe added before each formula. Numbers and None stay unchanged."""
    return cell if isinstance(cell, int | float | None) else _FORMULA.sub(_escape_start, str(cell)[:LONGEST_CELL])


def _escape_start(match: re.Match) -> str:
    is_start = match.start() == 0 or not _DELIMITERS.isdisjoint(match[1])
    return f"{match[1]}'{match[2]}" if is_start else match[0]


def read_table(text: str, delimiters: str, needed: Sequence[str], known: Sequence[str]) -> list[dict[str, str]]:
    """Return the non-empty rows of a table as dictionaries. The keys are the column names in lower case.

    Args:
        text: CSV or TSV with a header. Quoted cells may contain delimiters and line breaks.
        delimiters: Possible delimiters. The first delimiter with which the header contains a needed column is used.
        needed: Names of columns, of which the header must contain at least one.
        known: Names of optional columns, for the error message.

    Raises:
        ValueError: If the header has no needed column, if quotation marks are unbalanced, or if a row has more cells
            than the header.
    """
    for delimiter in delimiters:
        header, *rows = _cells(text, delimiter) or [[]]
        names = [name.strip().lower() for name in header]
        if not set(names).isdisjoint(needed):
            return [_to_dict(names, row, number) for number, row in enumerate(rows, start=1)]
    found = ", ".join(map(shown, (_cells(text, delimiters[0]) or [["none"]])[0]))
    raise ValueError(
        f"its columns are {found}: name one of them {' or '.join(map(repr, needed))} in the first line; "
        f"{' and '.join(map(repr, known))} are read, too"
    )


def _cells(text: str, delimiter: str) -> list[list[str]]:
    """Return the cells of a table row by row, without empty rows.

    If the quoting of a tab-separated table is invalid, its quotation marks are part of the text: PartiPrompts has
    prompts such as `"Hi" on a sign`.
    """
    try:
        return _rows(text, delimiter, csv.QUOTE_MINIMAL)
    except ValueError as error:
        if delimiter != "\t":
            raise ValueError(f"{error}; double every quotation mark inside quotation marks") from error
        return _rows(text, delimiter, csv.QUOTE_NONE)


def _rows(text: str, delimiter: str, quoting: Literal[0, 3]) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    rows = []
    start = 1
    try:
        for row in reader:
            start = reader.line_num + 1
            if any(map(str.strip, row)):
                rows.append(row)
    except csv.Error as error:  # the row may begin many lines before the place of the error
        raise ValueError(f"the row that begins in line {start}: {error}") from error
    return rows


def _to_dict(names: Sequence[str], row: Sequence[str], number: int) -> dict[str, str]:
    """Return a row as a dictionary. Raise ValueError if the row has more cells than the header."""
    if any(map(str.strip, row[len(names) :])):
        remedy = "put text with commas in quotation marks"
        raise ValueError(f"row {number} has {len(row)} cells, but the heading has {len(names)}: {remedy}")
    return dict(zip(names, row))
