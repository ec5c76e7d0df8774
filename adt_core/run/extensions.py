"""Policies and drafters of other installed packages.

A package names them as entry points in its pyproject.toml, and pip records the names:

    [project.entry-points."adt_tree.policies"]
    streak = "my_package:Streak"

    [project.entry-points."adt_tree.drafters"]
    last-token = "my_package:LastToken"
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..policies import POLICIES, Policy


@cache
def add_installed() -> None:
    """Add the policies and drafters of other installed packages to the tables, once per process.

    The command line and the pipeline call this when they start to work, not when they are imported: a package that
    imports this one could not be imported from here. Drafters are imported only if there are any, because they need
    torch.
    """
    _add("adt_tree.policies", POLICIES, Policy)
    if entry_points(group="adt_tree.drafters"):
        from ..drafters import DRAFTERS, Drafter

        _add("adt_tree.drafters", DRAFTERS, Drafter)


def _add(group: str, table: dict[str, Any], kind: type) -> None:
    """Add the classes of a group of entry points, which have the base class `kind`, to a table.

    A class that can't be used is left out with a warning. Names of this package can't be replaced.
    """
    for entry in entry_points(group=group):
        offered, problem = _loaded(entry, kind)
        if entry.name in table:
            problem = "the name is taken"
        if problem:
            message = "%s %r (%s) is ignored: %s; update or remove its package."
            logging.getLogger(__name__).warning(message, group, entry.name, entry.value, problem)
        else:
            table[entry.name] = offered


def _loaded(entry: EntryPoint, kind: type) -> tuple[Any, str]:
    """Return the class of an entry point, and why it can't be used or ""."""
    try:
        offered = entry.load()
    except Exception as error:  # the package may raise any exception
        return None, f"{type(error).__name__}: {error}"
    is_valid = isinstance(offered, type) and issubclass(offered, kind)
    return offered, "" if is_valid else f"it is no {kind.__name__}"
