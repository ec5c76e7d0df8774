"""Reading of Parquet tables with pyarrow, which is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import AdtError, pip_install, shown
from ..files import opened


def read_columns(path: Path, needed: Sequence[str], known: Sequence[str]) -> dict[str, list[Any]]:
    """Return columns of a Parquet table by their names in lower case. Other columns are not read.

    Args:
        needed: Names of columns, of which the first that exists is returned.
        known: Names of further columns, which are returned if they exist.

    Raises:
        AdtError: If pyarrow is not installed.
        ValueError: If the file is not a Parquet table, or lacks all needed columns.
        OSError: If the file cannot be read.
    """
    if importlib.util.find_spec("pyarrow") is None:
        command = pip_install("pyarrow")
        raise AdtError(f"`prompts`: '{path}' needs the package pyarrow, which is not installed; run {command}")
    import pyarrow.parquet  # type: ignore[import-untyped]

    with opened(path) as file:
        table = pyarrow.parquet.ParquetFile(file)
        columns = {name.strip().lower(): name for name in reversed(table.schema_arrow.names)}
        text = next((name for name in needed if name in columns), None)
        if text is None:
            found = ", ".join(map(shown, table.schema_arrow.names[:20]))
            raise ValueError(f"its columns are {found}: name one of them {' or '.join(map(repr, needed))}")
        names = [name for name in (text, *known) if name in columns]
        content = table.read(columns=[columns[name] for name in names], use_threads=False)
        return {name: content.column(columns[name]).to_pylist() for name in names}
