"""Tests that versions, requirements and documents are consistent, and tests of the commands that dev.py runs."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from PIL import Image

import adt_core
from adt_core.app import demo
from adt_core.version import VERSION, WORKFLOW_FORMAT

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
FRONTEND = "comfyui-frontend-package>=1.39.19"
"""Frontend of the oldest supported ComfyUI. The registry reads it from the dependencies."""


@pytest.fixture
def dev():
    """Import dev.py as a module."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_requirements(dev):
    assert [*dev.REQUIREMENTS.read_text(encoding="utf-8").splitlines(), FRONTEND] == PROJECT["dependencies"]
    assert not any(name.startswith("torch") for name in PROJECT["dependencies"]), "ComfyUI chooses the version of torch"
    assert all(re.fullmatch(r"[a-z0-9-]+(>=[\d.]+)?", line) for line in PROJECT["dependencies"]), (
        "versions must not be pinned"
    )


def test_version():
    assert VERSION == PROJECT["version"]
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'VERSION = "{VERSION}"' in (ROOT / "js" / "preferences.js").read_text(encoding="utf-8")
    assert f"const FORMAT = {WORKFLOW_FORMAT};" in (ROOT / "js" / "format.js").read_text(encoding="utf-8")


def test_the_public_names():
    """The docstring of the package must describe every public name. Type checkers read the imports of the package."""
    documented = set(re.findall(r"`(\w+)`", adt_core.__doc__)) - {"encode_prompt"}
    assert documented == set(adt_core.__all__) and all(hasattr(adt_core, name) for name in documented)
    parsed = ast.parse(Path(adt_core.__file__).read_text(encoding="utf-8"))
    imported = {part.name for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom) for part in node.names}
    assert documented <= imported and (ROOT / "adt_core" / "py.typed").exists()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["adt_core"]


def test_the_changelog_contains_this_version():
    assert f"\n## {VERSION} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_metadata_for_the_registry():
    name = PROJECT["name"]
    comfy = PYPROJECT["tool"]["comfy"]
    assert name.isascii() and len(name) < 100 and name[0].isalpha() and "comfyui" not in name.lower()
    assert re.fullmatch(r"\d+\.\d+\.\d+", PROJECT["version"]) and PROJECT["description"]
    assert (ROOT / PROJECT["license"]["file"]).is_file()
    assert comfy["PublisherId"] and comfy["DisplayName"] and comfy["requires-comfyui"]
    with (
        Image.open(ROOT / "docs" / "assets" / "icon.png") as icon,
        Image.open(ROOT / "docs" / "assets" / "banner.png") as banner,
    ):
        assert icon.width == icon.height <= 400 and banner.width * 9 == banner.height * 21


def test_comfyignore_excludes_no_required_files():
    """The nodes, their help pages and their workflows need these files."""
    lines = (ROOT / ".comfyignore").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    excluded = {line.strip("/") for line in lines if line.startswith("/")}
    needed = "__init__.py adt_core nodes js locales subgraphs workflows requirements.txt pyproject.toml".split()
    assert excluded.isdisjoint([*needed, "README.md", "LICENSE"])
    assert {line for line in lines if not line.startswith("/")} == {".*", "__pycache__/", "*.pyc"}


def test_the_nodes_folder_does_not_shadow_comfyuis_nodes():
    spec = importlib.util.find_spec("nodes")
    assert spec is None or not Path(spec.origin).is_relative_to(ROOT / "nodes")
    assert all(map(importlib.util.find_spec, ("adt_core", "model_making")))


@pytest.fixture
def ran(dev, tmp_path, monkeypatch):
    """Record the commands of dev.py instead of running them.

    Commands that contain the word ``ran.fail`` fail. A command of pytest writes the counts ``ran.counts``.
    """

    class Commands(list):
        fail = "no such command"
        counts = {"passed": 2031, "failed": 0}

        def run(self, command, **how):
            words = [str(word) for word in command[1:]]
            self.append(" ".join(words))
            if "--counts" in words:
                file = Path(words.pop(words.index("--counts") + 1))
                file.write_text(json.dumps(self.counts), encoding="utf-8")
            code = int(self.fail in words)
            return MagicMock(returncode=code, **{"wait.return_value": code})

    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(dev, "READY", tmp_path / ".venv" / "ready")
    monkeypatch.setattr(dev, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    commands = Commands()
    monkeypatch.setattr(dev.subprocess, "Popen", commands.run)
    monkeypatch.setattr(dev.subprocess, "run", commands.run)
    return commands


def test_the_environment_is_set_up_once(dev, ran, tmp_path):
    """Later runs must install packages only if the requirements have changed."""
    first = tmp_path / "first.txt"
    more = tmp_path / "more.txt"
    first.write_text("numpy\n", encoding="utf-8")
    more.write_text("pytest\n", encoding="utf-8")
    dev.VENV.mkdir()
    assert dev.environment(first, more)
    assert ran[0].startswith("-m venv") and ran[1].startswith("-m pip install") and len(ran) == 2
    assert all(word in ran[1].split() for word in (dev.TORCH, str(first), str(more))), "no package may replace torch"
    dev.PYTHON.parent.mkdir()
    dev.PYTHON.touch()
    assert not dev.environment(first) and not dev.environment(first, more) and len(ran) == 2
    more.write_text("pytest\nscipy\n", encoding="utf-8")
    assert dev.environment(first, more) and len(ran) == 3 and ran[2].startswith("-m pip install")


@pytest.mark.parametrize("step", ["venv", "pip"])
def test_a_failed_set_up_is_repeated(dev, ran, step, capsys):
    dev.VENV.mkdir()
    ran.fail = step
    for attempt in (1, 2):
        assert dev.main(["demo"]) == 1
        assert capsys.readouterr().err.startswith("The set-up failed: ")
        assert sum(line.startswith("-m venv") for line in ran) == attempt and not dev.READY.exists()


@pytest.fixture
def steps(dev, ran, monkeypatch):
    """Return the commands of ``dev.py test``, with a complete environment on a machine without npm."""
    monkeypatch.setattr(dev, "environment", lambda *files: False)
    monkeypatch.setattr(dev.shutil, "which", lambda program: None)
    return ran


def test_the_demo_runs_the_command_of_the_library(dev, steps):
    assert dev.main(["demo"]) == 0 and steps == ["-m adt_core demo"]
    steps.fail = "demo"
    assert dev.main(["demo"]) == 1


def test_the_demo_explains_the_speed_up():
    assert demo.explanation({"tau": 8.4, "speedup": 2.1}).startswith(
        "Why 2.10x: with drafts, a pass gave 8.4 tokens and took 4.0 times as long on this machine."
    )


@pytest.mark.parametrize("fail", ["format", "check", "mypy", "pytest"])
def test_all_checks_and_tests_run_after_a_failure(dev, steps, fail, capsys):
    steps.fail = fail
    assert dev.main(["test"]) == 1
    assert [line.split()[1] for line in steps] == ["ruff", "ruff", "pytest", "mypy"]
    output = capsys.readouterr()
    assert output.out.count("passed: ") == 3 and output.out.count("FAILED: ") == 1 and output.err.startswith("Failed: ")


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_all_runs_long_tests_and_then_timed_tests_in_one_process(dev, steps, options):
    assert dev.main(["test", *options]) == 0
    tests = [line.split() for line in steps if line.startswith("-m pytest")]
    assert len(tests) == (2 if options else 1) and all(("--all" in words) is bool(options) for words in tests)
    assert all(("-n" in words) is (number == 0) for number, words in enumerate(tests))


def test_javascript_is_checked_if_npm_is_installed(dev, steps, tmp_path, monkeypatch, capsys):
    """The tools must be installed only once for each version of the lock file."""
    monkeypatch.setattr(dev.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(dev, "NODE_MODULES", tmp_path / "node_modules")
    assert dev.main(["test"]) == 0
    assert [line.split()[0] for line in steps][-2:] == ["ci", "run"]
    assert dev.NO_NPM not in capsys.readouterr().out
    steps.clear()
    steps.fail = "run"
    assert dev.main(["test"]) == 1
    assert [line.split()[0] for line in steps][-1] == "run" and not any(line.startswith("ci") for line in steps)
    steps.clear()
    monkeypatch.setattr(dev, "LOCK", tmp_path / "package-lock.json")
    dev.LOCK.write_text("{}", encoding="utf-8")
    dev.main(["test"])
    assert any(line.startswith("ci") for line in steps)


def test_options_are_passed_to_pytest_only(dev, steps):
    assert dev.main(["test", "-k", "tree"]) == 0
    (line,) = steps
    assert line.startswith("-m pytest ") and line.endswith(" -k tree")


def test_the_last_line_counts_tests_that_ran_and_did_not_run(dev, steps, capsys):
    reason = "browser tests not run: no Chromium (apt install chromium)"
    steps.counts = {"passed": 2031, "failed": 0, reason: 38}
    assert dev.main(["test"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"2,031 passed; 1 {dev.NO_NPM}; 38 {reason}"
    steps.counts = {"passed": 7, "failed": 2}
    assert dev.main(["test", "tests/unit"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "7 passed; 2 FAILED"


def test_exceeding_the_time_budget_is_a_warning(dev):
    assert dev.total(301, "default").startswith("WARNING: 301 s") and not dev.total(299, "default").startswith("W")
    assert "5100 s" in dev.total(10, "--all") and dev.BUDGET["first run"] == 480


def test_set_up_errors_are_printed_as_one_line(dev, monkeypatch, capsys):
    def fail(*files):
        raise dev.SetUpError("No space left on device.")

    monkeypatch.setattr(dev, "environment", fail)
    assert dev.main(["demo"]) == 1
    assert capsys.readouterr().err == "No space left on device.\n"
    assert dev.main(["paint"]) == 2


BADGE = 20  # height in pixels of the name of a pack, which ComfyUI draws above each of its nodes on the canvas
TITLE = 30  # height in pixels of a node's title, which is above its position


@pytest.mark.parametrize("path", sorted((ROOT / "workflows").glob("*.json")), ids=lambda path: path.stem)
def test_templates_leave_room_for_the_badges_of_nodes(path):
    nodes = json.loads(path.read_text(encoding="utf-8"))["nodes"]
    boxes = [(node, *node["pos"], *node["size"]) for node in nodes]
    for node, x, y, w, _ in boxes:
        if node["type"].startswith("ADTTree"):
            above = [Y + H for _, X, Y, W, H in boxes if X < x + w and x < X + W and Y + H <= y - TITLE]
            assert max(above, default=0) + BADGE <= y - TITLE, node["type"]


def test_images_of_the_readme():
    """Every image must exist. The first image must be an animation that loads quickly."""
    images = re.findall(r"!\[.+\]\((.+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert all((ROOT / image).is_file() for image in images)
    with Image.open(ROOT / images[0]) as animation:
        assert animation.n_frames > 20 and animation.info["loop"] == 0
    assert (ROOT / images[0]).stat().st_size <= 1_500_000


@pytest.mark.parametrize("option, printed", [("--help", "usage: adt-tree [-h]"), ("--version", PROJECT["version"])])
def test_the_script_adt_tree_runs_the_command_line(monkeypatch, capsys, option, printed):
    module, name = PROJECT["scripts"]["adt-tree"].split(":")
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/adt-tree", option])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), name)()
    assert not ended.value.code and printed in capsys.readouterr().out
