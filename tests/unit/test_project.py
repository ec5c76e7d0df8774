"""What is written in two places says the same, and tests see the modules that they should."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from PIL import Image

import adt_core
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
    assert all(re.fullmatch(r"[a-z]+(>=[\d.]+)?", line) for line in PROJECT["dependencies"]), "nothing is pinned"


def test_version():
    assert VERSION == PROJECT["version"]
    assert f'VERSION = "{VERSION}"' in (ROOT / "js" / "preferences.js").read_text(encoding="utf-8")


def test_the_public_names():
    """The docstring says what each is for; the command line's page names those that a program begins with."""
    said = set(re.findall(r"``(\w+)``", adt_core.__doc__)) - {"encode_prompt"}
    assert said == set(adt_core.__all__) and all(hasattr(adt_core, name) for name in said)
    (page,) = re.findall(
        r"`adt_core` exports ([^;]*);", (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    )
    assert set(re.findall(r"`(\w+)`", page)) <= said


def test_changes_are_told_of_this_version():
    assert f"\n## {VERSION} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_registry_gets_what_it_asks_for():
    name, comfy = PROJECT["name"], PYPROJECT["tool"]["comfy"]
    assert name.isascii() and len(name) < 100 and name[0].isalpha() and "comfyui" not in name.lower()
    assert re.fullmatch(r"\d+\.\d+\.\d+", PROJECT["version"]) and PROJECT["description"]
    assert (ROOT / PROJECT["license"]["file"]).is_file()
    assert comfy["PublisherId"] and comfy["DisplayName"] and comfy["requires-comfyui"]
    with Image.open(ROOT / "assets" / "icon.png") as icon, Image.open(ROOT / "assets" / "banner.png") as banner:
        assert icon.width == icon.height <= 400 and banner.width * 9 == banner.height * 21


def test_what_users_get_is_whole():
    """.comfyignore leaves out files of the root, and none that the nodes, their help or their workflows need."""
    lines = (ROOT / ".comfyignore").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    left_out = {line.strip("/") for line in lines if line.startswith("/")}
    needed = "__init__.py adt_core adt_lab nodes js locales subgraphs workflows requirements.txt pyproject.toml".split()
    assert left_out.isdisjoint([*needed, "README.md", "LICENSE"])
    assert {line for line in lines if not line.startswith("/")} == {".*", "__pycache__/", "*.pyc"}


def test_our_nodes_are_not_comfyuis():
    spec = importlib.util.find_spec("nodes")
    assert spec is None or not Path(spec.origin).is_relative_to(ROOT / "nodes")
    assert all(map(importlib.util.find_spec, ("adt_core", "adt_lab", "model_making")))


def test_the_laboratory_takes_the_core_that_is_beside_it():
    """In a pack that is the pack's own, and not one that happens to be installed."""
    for pack in ("adt_tree_pack.", ""):
        job = importlib.import_module(f"{pack}adt_lab.benchmark").core.Job
        assert job is importlib.import_module(f"{pack}adt_core.app.jobs").Job


@pytest.fixture
def ran(dev, tmp_path, monkeypatch):
    """The Python commands that are run, in order, without their Python. Those in which ``ran.fail`` stands fail."""

    class Commands(list):
        fail = "nothing of that kind"

        def popen(self, command, **how):
            self.append(" ".join(map(str, command[1:])))
            dev.PYTHON.parent.mkdir(parents=True, exist_ok=True)
            process = MagicMock(stdout=["a line\n"], returncode=int(self.fail in command))
            process.wait.return_value = process.returncode
            process.__enter__.return_value = process
            return process

    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(dev, "READY", tmp_path / ".venv" / "ready")
    monkeypatch.setattr(dev, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    commands = Commands()
    monkeypatch.setattr(dev.subprocess, "Popen", commands.popen)
    return commands


@pytest.mark.parametrize("bundled_pip", [True, False])
def test_the_environment_is_set_up_once(dev, ran, monkeypatch, bundled_pip):
    """pip comes from Python, or from outside where Debian has taken ``ensurepip`` away. Later runs do nothing."""
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: bundled_pip or None)
    dev.environment(["numpy", "pytest"])
    assert ("--without-pip" in ran[0]) is not bundled_pip and any("--python" in line for line in ran) is not bundled_pip
    assert all(package in ran[-1] for package in (dev.TORCH, "numpy", "pytest")), "so that nothing replaces torch"
    dev.PYTHON.touch()
    done = len(ran)
    dev.environment(["numpy"])
    dev.environment(["numpy", "pytest"])
    assert len(ran) == done
    dev.environment(["numpy", "scipy"])
    assert len(ran) > done


@pytest.fixture
def steps(dev, ran, monkeypatch):
    """What the test command runs, once there is an environment."""
    monkeypatch.setattr(dev, "environment", lambda packages: None)
    return ran


@pytest.mark.parametrize("fail", ["format", "check", "mypy", "not alone and not long", "alone and not long"])
def test_every_check_and_test_runs_whatever_fails(dev, steps, fail, capsys):
    steps.fail = fail
    assert dev.main(["test"]) == 1
    assert sorted(line.split()[1] for line in steps) == ["import", "mypy", "pytest", "pytest", "ruff", "ruff"]
    assert "-m not alone" not in steps[-1] and "-m alone" in steps[-1], "nothing runs beside those that are timed"
    said = capsys.readouterr()
    assert said.out.count("passed: ") == 4 and said.out.count("FAILED: ") == 1 and said.err.startswith("Failed: ")


@pytest.mark.parametrize("options, left_out", [([], " and not long"), (["--all"], "")])
def test_long_tests_run_when_all_are_asked_for(dev, steps, options, left_out):
    assert dev.main(["test", *options]) == 0
    tests = [line for line in steps if line.startswith("-m pytest")]
    assert [line.split(" --")[0] for line in tests] == [
        f"-m pytest -m {kind}{left_out}" for kind in ("not alone", "alone")
    ]
    assert all("--durations=50" in line for line in tests)


def test_options_go_to_pytest_alone(dev, steps):
    assert dev.main(["test", "-k", "tree"]) == 0
    assert steps == ["-m pytest -k tree"]


def test_a_failed_set_up_is_one_sentence(dev, monkeypatch, capsys):
    def fail(packages):
        raise dev.SetUpError("No space left on device.")

    monkeypatch.setattr(dev, "environment", fail)
    assert dev.main(["demo"]) == 1
    assert capsys.readouterr().err == "No space left on device.\n"
    assert dev.main(["paint"]) == 2


LIMITS = {PYPROJECT["tool"]["comfy"]["requires-comfyui"].strip(">="): 55, "nodes2": 45}
"""Of the tests that run while somebody waits: so many are run once more, on the oldest ComfyUI or in Nodes 2.0."""


def test_few_tests_run_twice_while_somebody_waits(dev):
    """Mark what rests on neither the version nor the mode neither ``contract`` nor ``both_modes``."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        dev.NORMAL,
        "tests/workflow",
        "tests/browser",
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    for name, most in LIMITS.items():
        assert most / 2 < sum(name in line for line in found.stdout.splitlines()) <= most, name
