"""Tests that the programs in README.md and docs/*.md run, and that their command lines are valid.

Other tests run docs/api.md (`tests/workflow/test_api.py`) and the examples of docs/distributed.md
(`test_shard_examples.py`).
"""

import re
import runpy
import shlex
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from adt_core import AdtError, Drafting, Pipeline, cli, load_target
from adt_core.drafters import DRAFTERS
from adt_core.models.load import FAMILIES
from adt_core.policies import POLICIES
from tests.documents import PAGES, ROOT, Block, blocks, commands, spans
from tests.drafted import run
from tests.layouts.edits import edit_config
from tests.layouts.families import WRITERS
from tests.tiny import write_tiny_checkpoint

BY_NAME = {path.name: path for path in PAGES}
RUN_ELSEWHERE = {"api.md"}  # pages whose Python blocks need a ComfyUI server
PLACES = {
    "$SLURM_ARRAY_TASK_ID": "1",
    "$SLURM_ARRAY_TASK_COUNT": "8",
    "$((JOB_COMPLETION_INDEX + 1))": "1",
    "{}": "1",
    "...": "a boat",
}
"""Parts of command lines that a shell or a reader replaces, with example values."""


def python_blocks(page: str) -> list[Block]:
    """Return the Python programs of a page. An indented block is one if it begins with an import."""
    return [block for block in blocks(BY_NAME[page]) if block.language == "python" or block.text.startswith("from ")]


def test_all_pages_with_programs_are_run():
    pages = {path.name for path in PAGES if python_blocks(path.name)}
    assert pages == RUN_ELSEWHERE | {"README.md", "architecture.md", "models.md", "python.md"}


# ---- programs with a pipeline ----------------------------------------------------------------------


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Write small models with the names that the pages use, and work in their folder. Return the bundled one's path."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "models" / "ar_image"
    for family in ("janus", "emu3"):
        WRITERS[family](home)
    (home / "Emu3-Gen-hf").rename(home / "Emu3-Gen")
    return write_tiny_checkpoint(tmp_path / "tiny")


def run_page(page: str, model: str) -> dict:
    """Run all blocks of a page as one program on the CPU, with another model instead of the bundled one.

    Returns:
        The variables of the program.
    """
    text = "\n".join(block.text for block in python_blocks(page))
    text = text.replace('"bundled"', repr(model)).replace('"cuda"', '"cpu"')
    if model != "bundled":  # a PNG that names another model is only repeated with that model
        text = text.replace('from_png("house.png")', f'from_png("house.png", model={model!r})')
    Path("program.py").write_text(text, encoding="utf-8")
    return runpy.run_path("program.py")


def test_the_program_of_the_readme_runs(models, capsys):
    run_page("README.md", str(models))
    assert "tokens per target pass" in capsys.readouterr().out and Path("image-1.png").is_file()


def test_the_program_of_the_python_page_runs(models):
    names = run_page("python.md", str(models))
    assert isinstance(names["pipe"], Pipeline) and tuple(names["codes"].shape[1:]) == names["pipe"].target.grid
    assert Path("boat.png").is_file() and Path("image-1.png").is_file()


@pytest.mark.long
def test_the_programs_run_with_the_bundled_model(models):
    run_page("README.md", "bundled")
    run_page("python.md", "bundled")


@pytest.mark.skipif("glm-image" not in WRITERS, reason="transformers has no GLM-Image")
def test_the_program_that_writes_one_file_makes_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    WRITERS["glm-image"](tmp_path / "models" / "ar_image")
    run_page("models.md", "bundled")
    assert load_target("models/ar_image/glm_image_ar.safetensors").family == "glm-image"


# ---- the recipes of docs/architecture.md -----------------------------------------------------------


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that runs the block of docs/architecture.md for a file, as a module of the package."""

    def make(path: str) -> ModuleType:
        (block,) = [block for block in python_blocks("architecture.md") if block.text.startswith(f"# {path}\n")]
        file = tmp_path / Path(path).name
        file.write_text(block.text, encoding="utf-8")
        spec = spec_from_file_location(path.removesuffix(".py").replace("/", "."), file)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return make


def test_every_program_of_the_architecture_page_is_a_file_of_a_recipe():
    firsts = [block.text.split("\n")[0] for block in python_blocks("architecture.md")]
    files = ("policies/streak.py", "drafters/last_token.py", "models/families/mini.py")
    assert firsts == [f"# adt_core/{file}" for file in files]


def test_the_recipe_of_a_policy(made, target, drafters, monkeypatch):
    monkeypatch.setitem(POLICIES, "streak", made("adt_core/policies/streak.py").Streak)
    decoding = run(target, drafters["network"], drafting=Drafting("streak", longest=8))
    assert torch.equal(decoding.codes, run(target).codes)
    depths = [image.depth_asked for round in decoding.trace.rounds for image in round.images]
    assert depths and max(depths) <= 8
    parsed = cli.parse(["generate", "--prompt", "a boat", "--method", "streak", "--longest", "8", "--output", "a.png"])
    assert parsed[1]["longest"] == 8


def test_the_recipe_of_a_drafter(made, target, monkeypatch):
    monkeypatch.setitem(DRAFTERS, "last-token", made("adt_core/drafters/last_token.py").LastToken)
    drafter = DRAFTERS["last-token"]()
    decoding = run(target, drafter, drafting=Drafting.of(drafter.defaults))
    assert torch.equal(decoding.codes, run(target).codes)
    assert any(image.depth for round in decoding.trace.rounds for image in round.images)


def test_the_recipe_of_a_family(made, tmp_path, monkeypatch):
    folder = write_tiny_checkpoint(tmp_path / "Mini-1B", scale=3.0)

    def rename(config: dict) -> None:
        digits = str.maketrans("ABCDEFGHIJ", "0123456789")
        codes = re.compile("IMGIMG([A-J]+)Z")
        names = {codes.sub(lambda match: f"<code {match[1].translate(digits)}>", name): name
                 for name in config["vocabulary_map"]}  # fmt: skip
        config["vocabulary_map"] = {new: config["vocabulary_map"][name] for new, name in names.items()}
        config["model_type"] = "mini"

    edit_config(folder, rename)
    monkeypatch.setattr("adt_core.models.load.FAMILIES", [*FAMILIES, made("adt_core/models/families/mini.py").FAMILY])
    target = load_target(folder)
    assert target.family == "mini" and run(target).codes.shape[1] == target.length


# ---- command lines ---------------------------------------------------------------------------------


def test_command_lines_are_valid():
    wrong = []
    for path in PAGES:
        texts = [*(block.text for block in blocks(path)), *(text for _, text in spans(path))]
        for command in [command for text in texts for command in commands(text)]:
            try:
                check_command(command)
            except (AssertionError, AdtError, OSError) as error:
                wrong.append(f"{path.name}: {command}: {error}")
    assert not wrong, "\n".join(wrong)


def check_command(command: str) -> None:
    """Check that a command line can be run: its program exists, and its arguments are valid."""
    for part, value in PLACES.items():
        command = command.replace(part, value)
    program, *given = shlex.split(command.removeprefix(".venv/bin/"))
    if program == "npm":
        *prefix, _, script = given
        assert f'"{script}":' in (ROOT / prefix[-1] / "package.json").read_text(encoding="utf-8")
    elif program == "adt-tree" or given[0] == "adt.py":
        check_arguments(given[program != "adt-tree" :])
    elif given[0] == "-m":
        check_module(*given[1:])
    else:
        source = (ROOT / given[0]).read_text(encoding="utf-8")
        assert given[0] == "dev.py" and all(Path(ROOT, word).exists() or f'"{word}"' in source for word in given[1:])


def check_arguments(given: list[str]) -> None:
    """Parse the arguments of adt.py. A command without arguments is only named; it need not be complete."""
    if len(given) > 1:
        cli.parse(["--prompt" if word == "--from-png" else word for word in given])  # the PNG does not exist here
    else:
        assert set(given) <= {command.__name__.replace("_", "-") for command in cli.COMMANDS}


def check_module(module: str = "pip", *given: str) -> None:
    """Check that a module can be run, and that its sources contain the options."""
    if module in ("pip", "pytest"):
        paths = [word for word in given if "/" in word or word.endswith(".txt")]
        assert all((ROOT / path).exists() for path in paths)
        return
    found = find_spec(module)
    assert found is not None, module
    folders = found.submodule_search_locations
    files = Path(folders[0]).glob("*.py") if folders else [Path(found.origin)]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert "__main__" in source or not folders
    assert [word for word in given if word.startswith("--") and f'"{word}"' not in source] == []
