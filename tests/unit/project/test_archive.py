"""Tests of the registry's archive: its files, the findings of a scan, and that it works without the rest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

from tests import archive
from tests.command import words

ROOT = Path(__file__).resolve().parents[3]
MEGABYTES = 29  # maximum size of the files in the archive, including 25 MB of bundled weights
FIRST = "workflows/ADT-Tree text to image (start here).json"
READING = ("unpickling", "adt_core/models/reading/checkpoint.py")
EXCEPTIONS = {
    ("environment", "adt_core/environment.py"): "reads the variables that docs/security.md lists; writes none",
    ("network", "js/comfy.js"): "links two nodes on ComfyUI's page; no network",
    READING: "published .pt and .bin checkpoints, with weights_only=True",
}
"""Findings that remain, one for each entry, and the reason for the reviewer. At most eight."""


@pytest.fixture(scope="module")
def checkout():
    if not (ROOT / ".git").exists():
        pytest.skip("listing the files requires a git checkout")


@pytest.fixture(scope="module")
def packed(checkout):
    """Return the names of the files in the archive."""
    return archive.names()


@pytest.fixture(scope="module")
def unpacked(checkout, tmp_path_factory):
    """Return a folder with the archive's files and nothing else."""
    return archive.build(tmp_path_factory.mktemp("archive") / "ADT-Tree")


# ---- findings of the registry's checks ------------------------------------------


def test_the_archive_has_only_the_findings_that_are_explained(unpacked):
    findings = archive.scan(unpacked)
    assert sorted((finding.rule, finding.file) for finding in findings) == sorted(EXCEPTIONS), findings
    assert len(EXCEPTIONS) <= 8
    assert [finding for finding in findings if finding.is_banned and finding[:2] != READING] == []


def test_pickles_are_read_as_weights_only(unpacked):
    (call,) = re.findall(r"torch\.load\(.*", (unpacked / "adt_core/models/reading/checkpoint.py").read_text("utf-8"))
    assert "weights_only=True" in call


def test_the_page_for_reviewers_lists_the_exceptions(unpacked):
    _, page = (unpacked / "docs" / "security.md").read_text(encoding="utf-8").split("## For reviewers")
    assert all(f"`{file}`" in page for _, file in EXCEPTIONS)


@pytest.mark.parametrize(
    ("name", "text", "rules"),
    [
        ("a.py", "import subprocess", ["process"]),
        ("a.py", "x = 1  # subprocess.run", []),
        ("a.py", "os . system ('ls')", []),
        ("a.py", "os.system ('ls')", ["process"]),
        ("a.py", "key = '#'; os.environ['A'] = '1'", ["environment"]),
        ("a.py", "model.bind (x)", ["network"]),
        ("a.py", "re.compile('a'); model.eval()", []),
        ("a.py", "eval(text)", ["execution"]),
        ("a.py", "torch.load(path)", ["unpickling"]),
        ("a.js", "// a.connect(b)", []),
        ("a.js", "x; /* a.connect(b)\n */ a.connect(b) // c", ["network"]),
        ("a.js", "const address = 'http://x'; f.bind(this)", ["network"]),
        ("a.json", '{"note": "ws.send(1)"}', ["network"]),
    ],
)
def test_the_scan_finds_code_and_no_comments(name, text, rules, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [finding.rule for finding in archive.scan(tmp_path)] == rules


# ---- files -----------------------------------------------------------------


def test_the_archive_contains_exactly_the_required_files(packed):
    folders = {"adt_core", "docs", "js", "locales", "nodes", "subgraphs", "workflows"}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "model_making/README.md"}
    data = archive.tracked("docs/*.json")  # measured values, from which benchmarks write the documents
    left_out = {*data, "docs/notebook.ipynb", *archive.tracked("docs/assets"), "adt_core/app/distributed.py"}
    others = {"__init__.py", "adt.py", "pyproject.toml", "requirements.txt"}
    assert packed == (archive.tracked(*folders) - left_out) | pages | others


def test_the_archive_contains_no_data_but_the_bundled_model(packed):
    kinds = {".py", ".typed", ".md", ".js", ".css", ".json", ".png", ".jpg", ".webp", ".toml", ".txt", ""}
    others = {name for name in packed if PurePosixPath(name).suffix not in kinds}
    assert others == {f"adt_core/bundled/{model}/model.safetensors" for model in ("target", "drafter")}
    assert {f"adt_core/bundled/target/{name}.json" for name in ("config", "tokenizer")} < packed


def test_the_archive_is_small(packed):
    assert sum((ROOT / name).stat().st_size for name in packed) < MEGABYTES * 1e6


def test_names_in_the_archive_are_not_quoted_by_git(packed):
    """comfy-cli skips files whose names git quotes."""
    assert all(re.fullmatch(r"[\w./ ()-]+", name, re.ASCII) for name in packed)


def test_links_in_the_archive_are_valid(packed):
    missing = [
        f"{page}: {link}"
        for page in packed
        if page.endswith(".md")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
        if os.path.normpath(PurePosixPath(page).parent / link).replace(os.sep, "/") not in packed
    ]
    assert not missing, "\n".join(missing)


# ---- without the rest of the repository ------------------------------------


def run(unpacked: Path, folder: Path, *command: str) -> str:
    """Run a command in an empty folder with the archive's code only, and return its output."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how = {"cwd": folder, "env": variables, "capture_output": True, "text": True, "timeout": 240}
    ran = subprocess.run([sys.executable, *command], **how)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.long
def test_the_archive_draws_the_first_template(unpacked, tmp_path):
    """Plain decoding and decoding with drafts must give the same image."""
    nodes = json.loads((unpacked / FIRST).read_text(encoding="utf-8"))["nodes"]
    (prompt,) = (node["widgets_values"][0] for node in nodes if node["type"] == "CLIPTextEncode")
    (seed,) = (str(node["widgets_values"][0]) for node in nodes if node["type"] == "ADTTreeSampler")
    draw = [str(unpacked / "adt.py"), "generate", "--prompt", prompt, "--seed", seed, "--device", "cpu"]
    run(unpacked, tmp_path, *draw, "--output", "drafts.png")
    run(unpacked, tmp_path, *draw, "--method", "no-drafting", "--output", "plain.png")
    with Image.open(tmp_path / "drafts.png") as drafts, Image.open(tmp_path / "plain.png") as plain:
        assert drafts.size == (128, 128) and np.asarray(drafts).std() > 20
        assert np.array_equal(drafts, plain)


@pytest.mark.long
def test_every_module_of_the_archive_can_be_imported(unpacked, tmp_path):
    every_module = (
        "import importlib, pkgutil, sys\n"
        f"sys.path.insert(0, {str(unpacked)!r})\n"
        "import adt_core\n"
        "modules = [module.name for module in pkgutil.walk_packages(adt_core.__path__, 'adt_core.')]\n"
        "for name in modules: name.endswith(('__main__', '_triton')) or importlib.import_module(name)\n"
        "print(len(modules), adt_core.__file__)\n"
    )
    count, file = run(unpacked, tmp_path, "-c", every_module).strip().split(" ", 1)
    assert int(count) > 50 and Path(file).is_relative_to(unpacked), "modules outside of the archive were imported"


@pytest.mark.parametrize("options", [["--workers", "2"], ["--ray-address", "auto"]])
def test_what_the_archive_leaves_out_is_explained(unpacked, tmp_path, options):
    (tmp_path / "list.txt").write_text("a cat\na dog\n", encoding="utf-8")
    command = [sys.executable, unpacked / "adt.py", *words("generate", prompts="list.txt", output="a.png"), *options]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 2 and "clone this pack's repository" in ran.stderr, ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr


def test_only_one_folder_has_a_name_for_templates():
    """ComfyUI serves the first folder with such a name, and then answers 404 for the templates in the others."""
    named = {"example_workflows", "example", "examples", "workflow", "workflows"}
    assert {folder.name for folder in ROOT.iterdir() if folder.name in named} == {"workflows"}
