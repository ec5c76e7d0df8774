"""What reaches users: the archive that the registry hands on, what it depends on, and what publishes it."""

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
"""What some commands and families need besides; their licences are checked where they are installed."""
MEGABYTES = 28
"""The archive's files at most, of which the bundled weights are 25."""
PERMISSIVE = ("0BSD", "Apache", "BSD", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MPL-2.0", "PSF-2.0")
PERMISSIVE += ("3-Clause BSD", "Historical Permission Notice", "Mozilla Public License 2.0")
PERMISSIVE += ("Python Software Foundation", "Zlib")
"""How the names begin of licences that ask nothing of those who use a library as it is."""


def tracked(*options: str) -> set[str]:
    """The files of this repository that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, check=True).stdout
    return set(listed.decode().split("\0")) - {""}


@pytest.fixture(scope="module")
def archive():
    """The files that comfy-cli packs for the registry: what git tracks, without what .comfyignore names."""
    if not (ROOT / ".git").exists():
        pytest.skip("git packs the archive, and this is no checkout")
    return tracked() - tracked("--cached", "--ignored", "--exclude-from=.comfyignore")


def test_the_archive_holds_what_users_need_and_nothing_else(archive):
    folders = {"adt_core", "docs", "js", "locales", "nodes", "subgraphs", "workflows"}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "model_making/README.md"}
    assert archive == tracked(*folders) | pages | {"__init__.py", "adt.py", "pyproject.toml", "requirements.txt"}


def test_the_archive_holds_the_bundled_model_and_no_other_data(archive):
    kinds = {".py", ".md", ".js", ".css", ".json", ".png", ".jpg", ".webp", ".toml", ".txt", ""}
    others = {name for name in archive if PurePosixPath(name).suffix not in kinds}
    assert others == {f"adt_core/bundled/{model}/model.safetensors" for model in ("target", "drafter")}
    assert {f"adt_core/bundled/target/{name}.json" for name in ("config", "tokenizer")} < archive


def test_the_archive_is_small(archive):
    assert sum((ROOT / name).stat().st_size for name in archive) < MEGABYTES * 1e6


def test_the_archive_has_names_that_git_lists_as_they_are(archive):
    """comfy-cli leaves out a file whose name git puts in quotes."""
    assert all(re.fullmatch(r"[\w./ ()-]+", name, re.ASCII) for name in archive)


def test_what_pages_of_the_archive_link_to_is_in_it(archive):
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
        "for name in modules: name.endswith('__main__') or importlib.import_module(name)\n"
        "print(len(modules), adt_core.__file__)\n"
        "sys.exit(adt_core.cli.main(['inspect', 'bundled']))\n"
    )
    command = [sys.executable, "-c", every_module]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    count, file = ran.stdout.split("\n")[0].split(" ", 1)
    assert int(count) > 50 and Path(file).is_relative_to(tmp_path), "these are the archive's modules"


def licences(package: metadata.Distribution) -> list[str]:
    """The names of a package's licences, from where it says them most clearly."""
    about = package.metadata
    kinds = [line.split(" :: ")[-1] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    said = about.get("License-Expression") or " AND ".join(kinds) or about.get("License") or "nothing"
    return [part.strip("() ") for part in re.split(r" AND | OR ", said)]


def installed(name: str) -> bool:
    try:
        return bool(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return False


def everything_behind(names: list[str]) -> dict[str, metadata.Distribution]:
    """These packages and all that they need here, without NVIDIA's."""
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


def test_what_is_depended_on_asks_nothing_of_users():
    """torch's CUDA builds need NVIDIA's libraries, which have terms of their own: those are ComfyUI's, as torch is."""
    names = [*OURS, "torch", *filter(installed, EXTRAS)]
    found = {name: licences(package) for name, package in everything_behind(names).items()}
    assert len(found) > 20 and {"huggingface-hub", "regex", *names} <= found.keys()
    strict = {name: said for name, said in found.items() if not all(part.startswith(PERMISSIVE) for part in said)}
    assert not strict


def test_the_docs_name_what_is_depended_on():
    page = (
        (ROOT / "docs" / "security.md")
        .read_text(encoding="utf-8")
        .split("## Dependencies")[1]
        .split("|---|---|---|")[1]
    )
    rows = re.findall(r"^\| ([\w, -]+) \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    assert sorted(name for names, _ in rows for name in names.split(", ")) == sorted([*OURS, "torch", *EXTRAS])
    assert all(licence.startswith(PERMISSIVE) for _, licence in rows)


def test_actions_are_named_by_commit():
    """A tag or a branch may be moved to other code, which would then hold the registry's key."""
    uses = [
        (path.name, line)
        for path in (ROOT / ".github" / "workflows").iterdir()
        for line in re.findall(r"\buses:(.*)", path.read_text(encoding="utf-8"))
    ]
    assert uses
    by_commit = r" \./\.github/workflows/\w+\.yml| [\w.-]+/[\w./-]+@[0-9a-f]{40} # .+"
    loose = [use for use in uses if not re.fullmatch(by_commit, use[1])]
    assert not loose
