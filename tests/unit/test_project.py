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


@pytest.mark.parametrize("bundled_pip", [True, False])
def test_the_environment_is_set_up_once(dev, tmp_path, monkeypatch, bundled_pip):
    """With pip from Python itself, or from outside where Debian has taken ``ensurepip`` away; and later runs run nothing."""
    ran = []

    def quietly(*arguments, python=sys.executable):
        ran.append(" ".join(arguments))
        dev.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        dev.PYTHON.touch()

    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(dev, "READY", tmp_path / ".venv" / "ready")
    monkeypatch.setattr(dev, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(dev, "_quietly", quietly)
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: bundled_pip or None)
    dev.environment(["numpy", "pytest"])
    assert ("--without-pip" in ran[0]) is not bundled_pip and any("--python" in line for line in ran) is not bundled_pip
    torch = next(i for i, line in enumerate(ran) if dev.TORCH in line)
    assert "numpy" not in ran[torch] and "numpy" in ran[torch + 1], "torch goes in first, alone"
    done = len(ran)
    dev.environment(["numpy"])
    dev.environment(["numpy", "pytest"])
    assert len(ran) == done
    dev.environment(["numpy", "scipy"])
    assert len(ran) > done


def test_a_failed_set_up_is_one_sentence(dev, monkeypatch, capsys):
    def fail(packages):
        raise dev.SetUpError("No space left on device.")

    monkeypatch.setattr(dev, "environment", fail)
    assert dev.main(["demo"]) == 1
    assert capsys.readouterr().err == "No space left on device.\n"
    assert dev.main(["paint"]) == 2
