"""Command lines built from names and values, and reading of the files that commands write."""

import csv
import json
from pathlib import Path


def words(command: str, **options) -> list[str]:
    """Return a command line as a list of words. Options whose value is None are left out.

    ``words("generate", batch_size=2)`` is ``["generate", "--batch-size", "2"]``.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return [command, *(str(word) for name in given for word in (f"--{name.replace('_', '-')}", given[name]))]


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_table(path) -> list[dict[str, str]]:
    """Return the rows of a CSV table."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def read_lines(path) -> list[dict]:
    """Return the objects in a JSON Lines file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def read_grids(path) -> list[list[list[int]]]:
    """Return the tokens of each image in a file of ``generate --tokens``."""
    return [line["tokens"] for line in read_lines(path)]
