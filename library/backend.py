"""Build backend of the library: a wheel and an sdist with `adt_core` only.

The project file in the root describes the node pack as ComfyUI's registry wants it: without torch, and with ComfyUI's
frontend. The library needs torch and no frontend. This backend therefore writes a project file for the library, and
lets setuptools build a copy of the package next to it. So a build also leaves no files in the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch>=2.6"  # the oldest version that was tested; see docs/security.md
FRONTEND = "comfyui-frontend-package"
FILES = "README.md", "LICENSE"


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
