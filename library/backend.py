"""Build backend of the library: a wheel and an sdist with `adt_core` only.

The project file in the root describes the node pack as ComfyUI's registry wants it: without torch, and with ComfyUI's
frontend. The library needs torch and no frontend. This backend therefore writes a project file for the library, and
lets setuptools build a copy of the package next to it. So a build also leaves no files in the checkout.

An editable install (`pip install -e`) imports `adt_core`, and nothing else, from the checkout.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch>=2.6"  # the oldest version that was tested; see docs/security.md
FRONTEND = "comfyui-frontend-package"
FILES = "README.md", "LICENSE"
FINDER = """import sys
from importlib.machinery import PathFinder


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{root!r}]) if name == "adt_core" else None


sys.meta_path.append(_Finder)
"""
"""Module of an editable install. The root is not on the path of modules, because it also contains `nodes`, for example.
"""


def project_file(pack: str) -> str:
    """Return the text of the library's pyproject.toml.

    Args:
        pack: Text of the pack's pyproject.toml.
    """
    listed = re.search(r"^dependencies = \[(.*)\]$", pack, re.MULTILINE)
    assert listed is not None, "pyproject.toml must list the dependencies in one line"
    dependencies = [f'"{TORCH}"', *(name for name in listed[1].split(", ") if FRONTEND not in name)]
    text = pack.replace(listed[0], f"dependencies = [{', '.join(dependencies)}]")
    text = re.sub(r"^backend-path = .*\n", "", text, flags=re.MULTILINE)
    return text.replace('build-backend = "backend"', 'build-backend = "setuptools.build_meta"')


@contextmanager
def _library() -> Iterator[None]:
    """Work in a temporary folder that contains the project of the library."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "adt_core", Path(folder, "adt_core"), ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        text = project_file((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        Path(folder, "pyproject.toml").write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings=None) -> str:
    """Write the metadata of the wheel. Without this hook, pip would build the wheel twice."""
    with _library():
        return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings=None, metadata_directory: str | None = None) -> str:
    """Build the wheel, and return its name."""
    with _library():
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings=None) -> str:
    """Build the sdist, whose project file is that of the library, and return its name."""
    with _library():
        return build_meta.build_sdist(sdist_directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_editable(wheel_directory: str, config_settings=None, metadata_directory: str | None = None) -> str:
    """Build the wheel of an editable install, and return its name."""
    with _library():
        name = build_meta.build_wheel(str(Path.cwd()), config_settings)
        with zipfile.ZipFile(name) as built:
            kept = {item: built.read(item) for item in built.namelist() if ".dist-info/" in item}
    kept["_adt_tree_editable.py"] = FINDER.format(root=str(ROOT)).encode()
    kept["_adt_tree_editable.pth"] = b"import _adt_tree_editable\n"
    record = next(item for item in kept if item.endswith("/RECORD"))
    del kept[record]
    listed = [f"{item},sha256={_digest(content)},{len(content)}" for item, content in kept.items()]
    kept[record] = "\n".join([*listed, f"{record},,", ""]).encode()
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as wheel:
        for item, content in kept.items():
            wheel.writestr(item, content)
    return name


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
