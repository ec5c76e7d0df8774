"""Reading of Parquet tables with pyarrow, which is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import AdtError, pip_install, shown
from ..files import LARGEST_LIST, opened

_MAX_ROWS = 10**7
"""Maximum number of rows. A file of 1 KiB can have any number of equal rows."""
_ROWS = 8192
"""Number of rows that are decoded at a time."""


def read_rows(path: Path, needed: Sequence[str], known: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns of a Parquet table, row by row. Other columns are not read.

    Equal texts of a column are decoded once, because a file of 1 KiB can have many rows of one text of many MiB.

    Args:
        needed: Names of columns in lower case, of which the first that exists is returned.
        known: Names of further columns. If a column does not exist, its value is None in all rows.

    Yields:
        Value of the needed column, then the values of the columns in `known`.

    Raises:
        AdtError: If pyarrow is not installed.
        ValueError: If the file is not a Parquet table, lacks all needed columns, has a column that contains neither
            text nor numbers, or is too large.
        OSError: If the file cannot be read.
    """
    if importlib.util.find_spec("pyarrow") is None:
        command = pip_install("pyarrow")
        raise AdtError("prompts.no_pyarrow", path=path, command=command)
    import pyarrow.parquet  # type: ignore[import-untyped]

    with opened(path) as file:
        names = _chosen(pyarrow.parquet.ParquetFile(file), needed, known)
        present = [name for name in names if name is not None]
        file.seek(0)
        table = pyarrow.parquet.ParquetFile(file, read_dictionary=present)
        _check_size(table.metadata, present)
        total = 0
        for batch in table.iter_batches(_ROWS, columns=present, use_threads=False):
            columns = {name: batch.column(batch.schema.get_field_index(name)) for name in present}
            total += sum(map(_characters, columns.values()))
            if total > LARGEST_LIST * 2**20:
                raise ValueError(f"its texts have more than {LARGEST_LIST} MiB: divide it into several files")
            values = {name: column.to_pylist() for name, column in columns.items()}
            empty = [None] * len(batch)
            yield from zip(*(empty if name is None else values[name] for name in names))


def _chosen(table: Any, needed: Sequence[str], known: Sequence[str]) -> list[str | None]:
    """Return the names, as they are in the table, of the needed column and of the known ones. Check their types."""
    import pyarrow.types as types

    schema = table.schema_arrow
    columns = {name.strip().lower(): name for name in reversed(schema.names)}
    text = next((name for name in needed if name in columns), None)
    if text is None:
        found = ", ".join(map(shown, schema.names[:20]))
        raise ValueError(f"its columns are {found}: name one of them {' or '.join(map(repr, needed))}")
    for name in filter(columns.__contains__, (text, *known)):
        kind = schema.field(columns[name]).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)
        is_number = name != text and (types.is_integer(kind) or types.is_floating(kind))
        if not is_text and not is_number:
            expected = "text" if name == text else "text or numbers"
            raise ValueError(f"column {name!r} has the type {shown(str(kind))}, but {expected} was expected")
    return [columns.get(name) for name in (text, *known)]


def _check_size(metadata: Any, names: Sequence[str]) -> None:
    """Raise ValueError if the columns are too large. The file states their sizes, so this is only the first check."""
    size = sum(
        column.total_uncompressed_size
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema in names
    )
    if metadata.num_rows > _MAX_ROWS or size > LARGEST_LIST * 2**20:
        found = f"it has {metadata.num_rows} rows and {size / 2**20:.0f} MiB"
        raise ValueError(f"{found}, but at most {_MAX_ROWS} and {LARGEST_LIST} MiB are read")


def _characters(column: Any) -> int:
    """Return the number of bytes of a column's texts, including repetitions; 0 for numbers."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        lengths = compute.binary_length(column.dictionary).take(column.indices)
        return compute.sum(lengths).as_py() or 0
    return column.nbytes if types.is_string(column.type) or types.is_large_string(column.type) else 0
