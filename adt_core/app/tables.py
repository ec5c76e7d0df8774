"""CSV and TSV tables: writing untrusted text safely for spreadsheets, and reading."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ..errors import shown

_FORMULA = re.compile(r"""(^|[;\t\r\n])([\s"]*)([=+\-@\uff1d\uff0b\uff0d\uff20])""")
"""Start of a formula: at the beginning of a cell, or after a character that spreadsheets of some locales treat as a
delimiter, even in quotes. The last four characters are full-width forms of the first four."""


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], encoding: str = "utf-8") -> bytes:
    """Return a CSV table with a header. Text that a spreadsheet would run as a formula is escaped.

    Args:
        columns: Names of the columns, which are the keys of the rows.
        rows: Values by column. Missing values are empty, other keys are ignored.
        encoding: Encoding of the file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_escape, columns))
    writer.writerows([_escape(row.get(name)) for name in columns] for row in rows)
    return text.getvalue().encode(encoding, "backslashreplace")


def _escape(cell: object) -> object:
    """Return a cell with an apostrophe before a formula. Numbers are unchanged."""
    return cell if isinstance(cell, int | float | None) else _FORMULA.sub(r"\1\2'\3", str(cell))


def read_table(text: str, delimiters: str, needed: Sequence[str], known: Sequence[str]) -> list[dict[str, str]]:
    """Return the non-empty rows of a table as dictionaries by column name in lower case.

    Args:
        text: CSV or TSV with a header. Quoted cells may contain delimiters and line breaks.
        delimiters: Possible delimiters. The first one with which the header has a needed column is used.
        needed: Names of columns. The header must contain at least one.
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

    In PartiPrompts, which is tab-separated, quotation marks are part of the text, as in `"Hi" on a sign`. A table with
    tabs and unbalanced quotation marks is therefore read without quoting.
    """
    try:
        return _rows(text, delimiter, csv.QUOTE_MINIMAL)
    except ValueError as error:
        if delimiter != "\t":
            raise ValueError(f"{error}; double every quotation mark inside quotation marks") from error
        return _rows(text, delimiter, csv.QUOTE_NONE)


def _rows(text: str, delimiter: str, quoting: Literal[0, 3]) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        return [row for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error


def _to_dict(names: Sequence[str], row: Sequence[str], number: int) -> dict[str, str]:
    """Return a row as a dictionary. Raise ValueError if it has more cells than the header."""
    if any(map(str.strip, row[len(names) :])):
        remedy = "put text with commas in quotation marks"
        raise ValueError(f"row {number} has {len(row)} cells, but the heading has {len(names)}: {remedy}")
    return dict(zip(names, row))
