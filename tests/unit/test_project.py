"""What is written in two places says the same, and tests see the modules that they should."""

import importlib.util
import sys
from pathlib import Path

import pytest

from adt_core.version import VERSION

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def dev():
    """dev.py as a module."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_requirements(dev):
    assert dev.requirements() == PROJECT["dependencies"]
    assert dev.TESTS == PROJECT["optional-dependencies"]["test"]
    assert not any(name.startswith("torch") for name in PROJECT["dependencies"]), "torch is ComfyUI's to choose"


def test_version():
    assert VERSION == PROJECT["version"]


def test_our_nodes_are_not_comfyuis():
    spec = importlib.util.find_spec("nodes")
    assert spec is None or not Path(spec.origin).is_relative_to(ROOT / "nodes")
    assert importlib.util.find_spec("adt_core") and importlib.util.find_spec("training")
