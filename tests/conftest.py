"""What tests can import from this repository, by name: ``adt_core``, ``adt_core.lab``, and what stands beside them.

ComfyUI has a top-level module of its own called ``nodes``. With the repository root on ``sys.path``, ``import nodes``
would find our folder of that name instead. So the root is taken off the path (``python -m pytest`` puts it there), and
the packages that are meant to be used alone are found by name.

A few modules of our ``nodes/`` need no ComfyUI. Tests import them as ``adt_tree_pack.nodes.<module>``: in ComfyUI, too,
the pack's root is a package, named after its folder. The ``__init__.py`` of the two folders are not run.
"""

import sys
from contextlib import ExitStack
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytest_plugins = ["tests.tiers"]


class _Ours:
    """A meta-path finder for the packages of this repository that tests import."""

    NAMES = {"adt_core", "model_making", "benchmarks", "tests"}
    FOLDERS = {"adt_tree_pack": ROOT, "adt_tree_pack.nodes": ROOT / "nodes"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.FOLDERS:  # a package that is a folder and nothing else
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(cls.FOLDERS[name])]
            return spec
        return PathFinder.find_spec(name, [str(ROOT)]) if name in cls.NAMES else None


@pytest.fixture(scope="session")
def meter(request):
    """The processor time of this session; see :class:`tests.tiers.Meter`."""
    from tests.tiers import METER

    return request.config.stash[METER]


@pytest.fixture(scope="session")
def served(tmp_path_factory, meter):
    """A function that returns a running ComfyUI of a release that serves the page of a frontend (None: its own).

    Each is started once and stopped at the end. Beside the bundled model it has small random ones: ``small``, and
    ``tiny`` of 12 x 12 tokens.
    """
    from comfy_server import PACKS, Comfy, page
    from small import write_picture, write_small, write_tiny, write_upscaler

    with ExitStack() as stack:

        @cache
        def start(release, frontend) -> Comfy:
            base = tmp_path_factory.mktemp(f"comfyui-{release.version}")
            write_picture(base)
            write_small(base / "models")
            write_tiny(base / "models")
            write_upscaler(base / "models" / "upscale_models")
            with meter.uncounted():
                served = ("--front-end-root", str(page(frontend))) if frontend else ()
                server = stack.enter_context(Comfy(release, base, PACKS, ("--preview-method", "auto", *served)))
            server.post("/settings/Comfy.TutorialCompleted", True)
            return server

        yield start


@pytest.fixture(scope="session", autouse=True)
def safe_pickles():
    """The first torch that reads pickles of strangers. The tests write their own, and any torch reads those."""
    from adt_core.models.reading import checkpoint

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


@pytest.fixture
def runtime():
    """State of a process that has just started."""
    from adt_core.runtime import new_runtime

    with new_runtime() as runtime:
        yield runtime


@pytest.fixture(scope="session", autouse=True)
def costs_measured_once():
    """What rounds cost is measured with one reading of each size: the tests ask that it is, and not how precisely."""
    from adt_core.engine.device import measuring

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "TIME_LIMIT", 0.0)
        yield


sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
sys.meta_path.insert(0, _Ours)
