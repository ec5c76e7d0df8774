"""Tables of spreadsheets: writing them, of texts that anybody may have written, and reading them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ..errors import shown

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


def read_table(text: str, delimiters: str, needed: Sequence[str], known: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table, without empty ones, each a dict by the names of the columns in lower case.

    Args:
        text: CSV or TSV with a heading. Cells in quotation marks may hold delimiters and line breaks.
        delimiters: Characters that may separate cells; the first one with which the heading has a needed column does.
        needed: Names of columns, of which the heading has to have one.
        known: Names of other columns that are read, for the error.
    Raises:
        ValueError: If the heading has no needed column, if the quotation marks of a cell don't match, or if a row has
            more cells than the heading.
    """
    for delimiter in delimiters:
        heading, *rows = _cells(text, delimiter) or [[]]
        names = [name.strip().lower() for name in heading]
        if not set(names).isdisjoint(needed):
            return [_named(names, row, number) for number, row in enumerate(rows, start=1)]
    found = ", ".join(map(shown, (_cells(text, delimiters[0]) or [["none"]])[0]))
    raise ValueError(
        f"its columns are {found}: name one of them {' or '.join(map(repr, needed))} in the first line; "
        f"{' and '.join(map(repr, known))} are read, too"
    )


def _cells(text: str, delimiter: str) -> list[list[str]]:
    """Return the cells of a table row by row, without empty rows. Raises ValueError for unmatched quotation marks.

    In PartiPrompts, quotation marks belong to the texts, as in ``"Hi" on a sign``, which is not sound CSV. So in a
    table with tabs that is not sound, they are kept as they are.
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


def _named(names: Sequence[str], row: Sequence[str], number: int) -> dict[str, str]:
    """Return a row by the names of its columns. Raises ValueError if it has more cells than there are names."""
    if any(map(str.strip, row[len(names) :])):
        remedy = "put text with commas in quotation marks"
        raise ValueError(f"row {number} has {len(row)} cells, but the heading has {len(names)}: {remedy}")
    return dict(zip(names, row))
