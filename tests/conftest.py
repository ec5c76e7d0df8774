"""What tests can import from this repository, by name: ``adt_core``, ``adt_lab``, and what stands beside them.

ComfyUI has a top-level module of its own called ``nodes``. With the repository root on ``sys.path``, ``import nodes``
would find our folder of that name instead. So the root is taken off the path (``python -m pytest`` puts it there), and
the packages that are meant to be used alone are found by name.

A few modules of our ``nodes/`` need no ComfyUI. Tests import them as ``adt_tree_pack.nodes.<module>``: in ComfyUI, too,
the pack's root is a package, named after its folder. The ``__init__.py`` of the two folders are not run.
"""

import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIRST = "the longest tests that need no ComfyUI"
"""One process begins with them, while another may be installing it: that takes two minutes."""


class _Ours:
    """A meta-path finder for the packages of this repository that tests import."""

    NAMES = {"adt_core", "adt_lab", "model_making", "benchmarks", "tests"}
    FOLDERS = {"adt_tree_pack": ROOT, "adt_tree_pack.nodes": ROOT / "nodes"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.FOLDERS:  # a package that is a folder and nothing else
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(cls.FOLDERS[name])]
            return spec
        return PathFinder.find_spec(name, [str(ROOT)]) if name in cls.NAMES else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """When the suite runs in several processes, tests that share a server, a browser or a cluster stay in one; all
    others go wherever there is time."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if re.search(r"/unit/test_(distributed|lossless)", nodeid):
                return FIRST
            shared = re.search(r"/(browser/|workflow/)", nodeid)
            release = re.search(r"\[.*?(\d+\.\d+\.\d+)", nodeid)
            return f"{shared[1]} {release[1] if release else ''}" if shared else nodeid

        def _assign_work_unit(self, node):
            if FIRST in self.workqueue:
                self.workqueue.move_to_end(FIRST, last=False)
            super()._assign_work_unit(node)

    return BySharing(config, log)


@pytest.fixture(scope="session", autouse=True)
def safe_pickles():
    """The first torch that reads pickles of strangers. The tests write their own, and any torch reads those."""
    from adt_core.models import checkpoint

    before = checkpoint.SAFE_PICKLES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "SAFE_PICKLES", "0")
        yield before


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user(tmp_path_factory):
    """What rounds cost is neither read from the user's cache folder nor written there; servers inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADT_TREE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def costs_measured_once():
    """What rounds cost is measured with one reading of each size: the tests ask that it is, and not how precisely."""
    from adt_core.engine import measuring

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "ENOUGH_SECONDS", 0.0)
        yield


sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
sys.meta_path.insert(0, _Ours)
