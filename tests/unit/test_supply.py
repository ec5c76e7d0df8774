"""Tests of the supply chain: archive for the registry, licences of dependencies, and pinned CI actions."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path, PurePosixPath
from shutil import copy2

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OURS = [Requirement(line).name for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()]
EXTRAS = ["diffusers", "ray", "torch-fidelity", "matplotlib"]
"""Optional packages of some commands and families. If they are installed, their licences are checked."""
MEGABYTES = 28
"""Maximum size of the files in the archive, including 25 MB of bundled weights."""
PERMISSIVE = ("0BSD", "Apache", "BSD", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MPL-2.0", "PSF-2.0")
PERMISSIVE += ("3-Clause BSD", "Historical Permission Notice", "Mozilla Public License 2.0")
PERMISSIVE += ("Python Software Foundation", "Zlib")
"""Prefixes of the names of permissive licences. Such a licence sets no conditions for using an unmodified library."""


def tracked(*options: str) -> set[str]:
    """Return the files that ``git ls-files`` lists with these options."""
    listed = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, check=True).stdout
    return set(listed.decode().split("\0")) - {""}


@pytest.fixture(scope="module")
def archive():
    """Return the files that comfy-cli packs for the registry: all tracked files that .comfyignore doesn't exclude."""
    if not (ROOT / ".git").exists():
        pytest.skip("listing the files requires a git checkout")
    return tracked() - tracked("--cached", "--ignored", "--exclude-from=.comfyignore")


def test_the_archive_contains_exactly_the_required_files(archive):
    folders = {"adt_core", "docs", "js", "locales", "nodes", "subgraphs", "workflows"}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "model_making/README.md"}
    data = tracked("docs/*.json")  # measured values, from which benchmarks write the documents
    assert archive == (tracked(*folders) - data) | pages | {
        "__init__.py",
        "adt.py",
        "pyproject.toml",
        "requirements.txt",
    }


def test_the_archive_contains_no_data_but_the_bundled_model(archive):
    kinds = {".py", ".md", ".js", ".css", ".json", ".png", ".jpg", ".webp", ".toml", ".txt", ""}
    others = {name for name in archive if PurePosixPath(name).suffix not in kinds}
    assert others == {f"adt_core/bundled/{model}/model.safetensors" for model in ("target", "drafter")}
    assert {f"adt_core/bundled/target/{name}.json" for name in ("config", "tokenizer")} < archive


def test_the_archive_is_small(archive):
    assert sum((ROOT / name).stat().st_size for name in archive) < MEGABYTES * 1e6


def test_names_in_the_archive_are_not_quoted_by_git(archive):
    """comfy-cli skips files whose names git quotes."""
    assert all(re.fullmatch(r"[\w./ ()-]+", name, re.ASCII) for name in archive)


def test_links_in_the_archive_are_valid(archive):
    missing = [
        f"{page}: {link}"
        for page in archive
        if page.endswith(".md")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
        if os.path.normpath(PurePosixPath(page).parent / link).replace(os.sep, "/") not in archive
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.long
def test_the_archive_works_without_the_rest_of_the_repository(archive, tmp_path):
    for name in archive:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy2(ROOT / name, tmp_path / name)
    every_module = (
        "import importlib, pkgutil, sys, adt_core, adt_core.cli\n"
        "packages = ((adt_core.__path__, 'adt_core.'),)\n"
        "modules = [module.name for package in packages for module in pkgutil.walk_packages(*package)]\n"
        "for name in modules: name.endswith(('__main__', '_triton')) or importlib.import_module(name)\n"
        "print(len(modules), adt_core.__file__)\n"
        "sys.exit(adt_core.cli.main(['inspect', 'bundled']))\n"
    )
    command = [sys.executable, "-c", every_module]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    count, file = ran.stdout.split("\n")[0].split(" ", 1)
    assert int(count) > 50 and Path(file).is_relative_to(tmp_path), "modules outside of the archive were imported"


def licences(package: metadata.Distribution) -> list[str]:
    """Return the names of a package's licences. They are read from the most precise field of the metadata."""
    about = package.metadata
    kinds = [line.split(" :: ")[-1] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    names = about.get("License-Expression") or " AND ".join(kinds) or about.get("License") or "nothing"
    return [part.strip("() ") for part in re.split(r" AND | OR ", names)]


def installed(name: str) -> bool:
    try:
        return bool(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return False


def with_dependencies(names: list[str]) -> dict[str, metadata.Distribution]:
    """Return these packages and their installed dependencies, without NVIDIA's packages."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        wanted = Requirement(waiting.pop())
        needed = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if not needed or wanted.name in found or wanted.name.startswith(("cuda", "nvidia")):
            continue
        found[wanted.name] = metadata.distribution(wanted.name)
        waiting += found[wanted.name].requires or []
    return found


def test_dependencies_have_permissive_licences():
    """NVIDIA's libraries have other terms.

    They are needed by CUDA builds of torch, which ComfyUI requires anyway.
    """
    names = [*OURS, "torch", *filter(installed, EXTRAS)]
    found = {name: licences(package) for name, package in with_dependencies(names).items()}
    assert len(found) > 20 and {"huggingface-hub", "regex", *names} <= found.keys()
    strict = {name: kinds for name, kinds in found.items() if not all(kind.startswith(PERMISSIVE) for kind in kinds)}
    assert not strict


def test_the_docs_list_all_dependencies():
    page = (
        (ROOT / "docs" / "security.md")
        .read_text(encoding="utf-8")
        .split("## Dependencies")[1]
        .split("|---|---|---|")[1]
    )
    rows = re.findall(r"^\| ([\w, -]+) \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    assert sorted(name for names, _ in rows for name in names.split(", ")) == sorted([*OURS, "torch", *EXTRAS])
    assert all(licence.startswith(PERMISSIVE) for _, licence in rows)


def test_actions_are_pinned_to_commits():
    """A tag or a branch can be moved to other code. This code could then read the registry's key."""
    uses = [
        (path.name, line)
        for path in (ROOT / ".github" / "workflows").iterdir()
        for line in re.findall(r"\buses:(.*)", path.read_text(encoding="utf-8"))
    ]
    assert uses
    by_commit = r" \./\.github/workflows/\w+\.yml| [\w.-]+/[\w./-]+@[0-9a-f]{40} # .+"
    loose = [use for use in uses if not re.fullmatch(by_commit, use[1])]
    assert not loose
