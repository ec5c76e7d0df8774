"""What is written in two places says the same, and tests see the modules that they should."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from adt_core.version import VERSION

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


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


def test_changes_are_told_of_this_version():
    assert f"\n## {VERSION} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_registry_gets_what_it_asks_for():
    name, comfy = PROJECT["name"], PYPROJECT["tool"]["comfy"]
    assert name.isascii() and len(name) < 100 and name[0].isalpha() and "comfyui" not in name.lower()
    assert (
        re.fullmatch(r"\d+\.\d+\.\d+", PROJECT["version"])
        and (ROOT / PROJECT["license"]["file"]).is_file()
        and PROJECT["description"]
    )
    assert comfy["PublisherId"] and comfy["DisplayName"] and comfy["requires-comfyui"]
    with Image.open(ROOT / "assets" / "icon.png") as icon, Image.open(ROOT / "assets" / "banner.png") as banner:
        assert icon.width == icon.height <= 400 and banner.width * 9 == banner.height * 21


def test_what_users_get_is_whole():
    """.comfyignore leaves out nothing that the nodes, their help or their workflows need: its folders are those of the root."""
    lines = [
        line
        for line in (ROOT / ".comfyignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    anchored = {line.strip("/") for line in lines if line.startswith("/")}
    assert anchored.isdisjoint(
        {
            "__init__.py",
            "adt_core",
            "nodes",
            "js",
            "locales",
            "workflows",
            "requirements.txt",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        }
    )
    assert {line for line in lines if not line.startswith("/")} == {".*", "__pycache__/", "*.pyc"}


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
