"""Tests of the message for a library that is missing or cannot be loaded.

It must name the library and the pip command for the Python in use. It must not call the error a bug of this package.
"""

import asyncio
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType

import pytest
import torch

from adt_core import cli
from adt_core.errors import library_error, pip_install, wrap_library_errors
from adt_core.models.families.emu3 import Emu3Codec
from adt_core.models.glm_pixels import diffusers
from adt_core.models.reading.t5 import t5_encoder
from tests.raising import raises_key

ROOT = Path(__file__).resolve().parents[3]
NMS = "operator torchvision::nms does not exist"
"""Error of a torchvision that was built for another version of PyTorch."""
TORCH = f"torch=={torch.__version__.partition('+')[0]}"


def absent(name):
    return ModuleNotFoundError(f"No module named '{name}'", name=name)


@pytest.mark.parametrize(
    "name, library, package", [("psutil", "psutil", "psutil"), ("PIL", "PIL", "pillow"), ("tqdm.auto", "tqdm", "tqdm")]
)
def test_a_missing_library_is_named(name, library, package):
    error = library_error(absent(name))
    assert error.key == "library.missing"
    assert error.parameters == {"library": library, "command": pip_install(package)}


@pytest.mark.parametrize(
    "text, name, library",
    [
        ("DLL load failed while importing _safetensors_rust", "safetensors._safetensors_rust", "safetensors"),
        ("cannot import name 'Tokenizer' from 'tokenizers'", "tokenizers", "tokenizers"),
    ],
)
def test_a_broken_library_is_named(text, name, library):
    found = library_error(ImportError(text, name=name))
    command = pip_install(f"--upgrade {library}")
    assert found.key == "library.broken"
    assert found.parameters == {"library": library, "reason": text, "command": command}


@pytest.mark.parametrize(
    "error",
    [absent("adt_core.models.nothing"), RuntimeError("shapes differ"), ImportError("nothing else"), KeyError(1)],
)
def test_other_errors_have_other_reasons(error):
    assert library_error(error) is None


class FailingImport(MetaPathFinder, Loader):
    """Import hook that raises an error when a module is imported."""

    def __init__(self, name, error):
        self.name = name
        self.error = error

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        raise self.error


@pytest.fixture
def without_torchvision(monkeypatch):
    """Make transformers import its models again, with a torchvision that does not fit PyTorch."""
    before = _take_modules("torchvision", "transformers")
    monkeypatch.setattr(sys, "meta_path", [FailingImport("torchvision", RuntimeError(NMS)), *sys.meta_path])
    yield
    _take_modules("torchvision", "transformers")
    sys.modules.update(before)


def _take_modules(*packages):
    """Remove all modules of these packages from `sys.modules`, and return them."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] in packages}


@pytest.mark.parametrize(
    "make", [lambda: t5_encoder({}, "file", {}), lambda: Emu3Codec({}, "file")], ids=["T5", "Emu3"]
)
def test_a_torchvision_for_another_pytorch_is_named(without_torchvision, make):
    """transformers raises "Could not import module" for every error in its imports, with the error as the cause.

    The command names the version of PyTorch. Otherwise pip may replace PyTorch.
    """
    command = pip_install(f"--upgrade torchvision {TORCH}")
    with raises_key("library.broken", library="torchvision", reason=NMS, command=command):
        make()


def test_diffusers_is_not_called_missing_if_torchvision_is_broken(monkeypatch):
    def fail(name):
        raise RuntimeError("Failed to import diffusers.pipelines.glm_image") from RuntimeError(NMS)

    library = ModuleType("diffusers")
    library.__getattr__ = fail
    monkeypatch.setitem(sys.modules, "diffusers", library)
    with raises_key("library.broken", library="torchvision"):
        diffusers()


def test_a_missing_library_does_not_make_a_file_damaged():
    """Files that a library cannot read are called damaged, but not if the library lacks another one."""
    with raises_key("library.missing", library="sentencepiece", command="pip install sentencepiece"):
        with wrap_library_errors("tokenizer.unreadable", file="a.json"):
            raise absent("sentencepiece")


@pytest.mark.parametrize("library", ["safetensors", "PIL"])
def test_the_command_line_names_a_missing_library(monkeypatch, capsys, library):
    def fail(options):
        raise absent(library)

    monkeypatch.setattr(cli, "parse", lambda argv: (fail, {}))
    assert cli.main(["inspect", "bundled"]) == 1
    assert capsys.readouterr().err.strip() == f"error: {library_error(absent(library))}"


@pytest.mark.parametrize("library", ["numpy", "psutil"])
def test_a_process_without_a_library(tmp_path, library):
    """numpy is imported before the command line can report errors, and psutil when the command runs."""
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('hidden', name='{library}')", encoding="utf-8")
    command = [sys.executable, ROOT / "adt.py", "generate", "--prompt", "a cat", "--output", tmp_path / "a.png"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (1, f"error: {library_error(absent(library))}")


@pytest.mark.parametrize("module, kind", [("tokenizers", "AdtError"), ("comfy_api", "ModuleNotFoundError")])
def test_comfyui_shows_the_command_when_it_loads_the_pack(monkeypatch, module, kind):
    """A module of ComfyUI is no library: pip would install a package of somebody else."""
    spec = importlib.util.spec_from_file_location("pack", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    pack = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pack", pack)
    monkeypatch.setattr(sys, "meta_path", [FailingImport("pack.nodes", absent(module)), *sys.meta_path])
    spec.loader.exec_module(pack)
    # In a separate thread, because a browser test in the same process may have left an event loop in this one.
    with pytest.raises(Exception, match=module) as caught, ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, pack.comfy_entrypoint()).result()
    assert type(caught.value).__name__ == kind
    assert ("pip install tokenizers" in str(caught.value)) == (kind == "AdtError")
