"""Import paths and fixtures for all tests.

ComfyUI has a top-level module called ``nodes``. This repository has a folder of the same name. If the repository root
is on ``sys.path``, ``import nodes`` finds the folder instead of ComfyUI's module. ``python -m pytest`` adds the root to
``sys.path``. This file removes the root again, and installs a finder for the packages that work without ComfyUI.

A few modules in the folder ``nodes`` work without ComfyUI. Tests import them as ``adt_tree_pack.nodes.<module>``. This
resembles ComfyUI, which imports the pack as a package with the name of its folder. The imports don't run the
``__init__.py`` files of the repository root and of ``nodes``.
"""

import os
import sys
from contextlib import ExitStack
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # tests run Triton kernels on a CPU; Triton reads this when it is imported
ROOT = Path(__file__).resolve().parents[1]
pytest_plugins = ["tests.tiers"]


class _PackFinder:
    """Meta-path finder for the packages of this repository that tests import."""

    NAMES = {"adt_core", "model_making", "benchmarks", "tests"}
    FOLDERS = {"adt_tree_pack": ROOT, "adt_tree_pack.nodes": ROOT / "nodes"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.FOLDERS:  # a package without an ``__init__.py``
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(cls.FOLDERS[name])]
            return spec
        return PathFinder.find_spec(name, [str(ROOT)]) if name in cls.NAMES else None


@pytest.fixture(scope="session")
def meter(request):
    """Meter of the processor time of this process; see :class:`tests.tiers.Meter`."""
    from tests.tiers import METER

    return request.config.stash[METER]


@pytest.fixture(scope="session")
def served(tmp_path_factory, meter):
    """Return a function that starts ComfyUI and returns its server.

    The function has two arguments: a release of ComfyUI and a frontend. The frontend replaces the release's default
    frontend; None keeps the default. Each server starts once and stops at the end of the pytest session. A server has
    the bundled model and two small random models: ``small``, and ``tiny`` with 12 x 12 tokens.
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
    """Let the loader read pickles with every version of torch.

    By default, the loader refuses pickles if torch is too old to read them safely. The tests write their pickles
    themselves, so this check isn't needed.

    Yields:
        The oldest torch version with which the loader reads pickles by default.
    """
    from adt_core.models.reading import checkpoint

    before = checkpoint.SAFE_PICKLES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "SAFE_PICKLES", "0")
        yield before


@pytest.fixture(scope="session", autouse=True)
def isolated_cache_folder(tmp_path_factory):
    """Store cost profiles in an empty folder instead of the user's cache folder. Servers also use this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADT_TREE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def runtime():
    """Runtime state as in a process that has just started."""
    from adt_core.runtime import new_runtime

    with new_runtime() as runtime:
        yield runtime


sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
sys.meta_path.insert(0, _PackFinder)
