"""Tests of policies and drafters of other installed packages, with the example classes of docs/architecture.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adt_core.policies import POLICIES
from adt_core.run import extensions
from tests.command import read_grids, words
from tests.documents import blocks

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = """
[adt_tree.policies]
streak = my_package.streak:Streak
auto = my_package.streak:Streak
no-policy = my_package.streak:StreakSettings
missing = my_package.nowhere:Streak

[adt_tree.drafters]
last-token = my_package.last_token:LastToken
"""


@pytest.fixture
def site(tmp_path):
    """Write a package as pip installs it. Return the folder that contains it."""
    site = tmp_path / "site"
    package = site / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .streak import Streak\n", encoding="utf-8")
    texts = [block.text for block in blocks(ROOT / "docs" / "architecture.md")]
    for name, inside in (("policies/streak", "policies"), ("drafters/last_token", "drafters")):
        (text,) = [text for text in texts if text.startswith(f"# adt_core/{name}.py\n")]
        text = text.replace("from ..", "from adt_core.").replace("from .base", f"from adt_core.{inside}.base")
        (package / f"{Path(name).name}.py").write_text(text, encoding="utf-8")
    metadata = site / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    return site


@pytest.fixture
def run(site, tiny, tmp_path):
    """Return a function that runs Python with the package, and returns its standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}

    def run(*command: str) -> str:
        command = sys.executable, *command
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stderr

    return run


@pytest.mark.long
def test_the_command_line_uses_the_classes_of_other_packages(run, tiny, tmp_path):
    """They must not change the image. Classes that can't be used are named, and nothing else is affected."""
    given = {"model": tiny / "target", "prompt": "a cat", "device": "cpu", "dtype": "float64"}
    run("-m", "adt_core", *words("generate", **given, output="a.png", tokens="a.jsonl", method="no-drafting"))
    own = {"method": "streak", "longest": 3, "drafter": "last-token"}
    warned = run("-m", "adt_core", *words("generate", **given, output="b.png", tokens="b.jsonl", **own))
    assert read_grids(tmp_path / "a.jsonl") == read_grids(tmp_path / "b.jsonl")
    problems = {"auto": "the name is taken", "no-policy": "it is no Policy", "missing": "ModuleNotFound"}
    for name, problem in problems.items():
        assert f"adt_tree.policies '{name}'" in warned and problem in warned


@pytest.mark.long
def test_a_program_may_import_its_own_package_first(run, tiny):
    program = (
        "from my_package import Streak\n"
        "from adt_core import Pipeline\n"
        f"pipe = Pipeline.load({str(tiny / 'target')!r}, device='cpu', drafter='last-token')\n"
        "result = pipe.generate('a cat', method='streak', longest=2)\n"
        "assert result.record['longest'] == 2 and result.record['drafter'] == 'last-token'\n"
        "assert pipe.recipe.drafter == 'last-token'\n"
    )
    assert "streak' (my_package.streak:Streak) is ignored" not in run("-c", program)


def test_entry_points_are_added_to_the_table(site, monkeypatch, caplog):
    monkeypatch.syspath_prepend(site)
    before = dict(POLICIES)
    monkeypatch.setattr(extensions, "POLICIES", POLICIES)
    try:
        extensions.add_installed.__wrapped__()
        assert list(POLICIES) == [*before, "streak"] and POLICIES["auto"] is before["auto"]
        assert sum("is ignored" in message for message in caplog.messages) == 3
    finally:
        POLICIES.pop("streak", None)
        from adt_core.drafters import DRAFTERS

        DRAFTERS.pop("last-token", None)
