"""Tests of the supply chain: licences of dependencies, and pinned CI actions."""

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
OURS = [Requirement(line).name for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()]
EXTRAS = ["diffusers", "ray", "torch-fidelity", "matplotlib", "tensorboard"]
"""Optional packages of some commands and families. If they are installed, their licences are checked."""
PERMISSIVE = ("0BSD", "Apache", "BSD", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MPL-2.0", "PSF-2.0")
PERMISSIVE += ("3-Clause BSD", "Historical Permission Notice", "Mozilla Public License 2.0")
PERMISSIVE += ("Python Software Foundation", "Zlib")
"""Prefixes of the names of permissive licences. Such a licence sets no conditions for using an unmodified library."""


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
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    page = page.split("## Dependencies")[1].split("|---|---|---|")[1]
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
