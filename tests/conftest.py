"""What tests can import: ``adt_core``, ``training`` and ``tests`` from this repository, and nothing else.

ComfyUI has a top-level module of its own called ``nodes``. With the repository root on ``sys.path``, ``import nodes``
would find our folder of that name instead, so the root is taken off the path (``python -m pytest`` puts it there) and
the packages that are meant to be used alone are found by name.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


class _Ours:
    """A meta-path finder for the packages of the repository root that may be imported by their plain names."""

    NAMES = {"adt_core", "training", "benchmarks", "tests"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, [str(ROOT)]) if name in cls.NAMES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that share a server or a browser stay in one process when the suite runs in several."""
    for item in items:
        folder = item.path.parent.name
        if folder in ("workflow", "browser"):
            release = getattr(item, "callspec", None) and item.callspec.params.get("release")
            item.add_marker(pytest.mark.xdist_group(f"{folder} {release.version}" if release else folder))


sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
sys.meta_path.insert(0, _Ours)
