"""What tests can import: ``adt_core``, ``model_making`` and ``tests`` from this repository, and nothing else.

ComfyUI has a top-level module of its own called ``nodes``. With the repository root on ``sys.path``, ``import nodes``
would find our folder of that name instead, so the root is taken off the path (``python -m pytest`` puts it there) and
the packages that are meant to be used alone are found by name.
"""

import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


class _Ours:
    """A meta-path finder for the packages of the repository root that may be imported by their plain names."""

    NAMES = {"adt_core", "model_making", "benchmarks", "tests"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, [str(ROOT)]) if name in cls.NAMES else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that share a server, a browser or a cluster stay in one process when the suite runs in several; all others
    go wherever there is time."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = re.search(r"/(browser/|unit/test_distributed|workflow/)", nodeid)
            release = re.search(r"\[.*?(\d+\.\d+\.\d+)", nodeid)
            return f"{shared[1]} {release[1] if release else ''}" if shared else nodeid

    return BySharing(config, log)


sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
sys.meta_path.insert(0, _Ours)
