"""Tests of the library: the wheel and the sdist, their files and requirements, and a program in a fresh environment."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from tests import archive
from tests.documents import blocks

ROOT = Path(__file__).resolve().parents[3]
NO_INDEX = "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"


def run(*command: object, cwd: Path) -> str:
    """Run a command, and return its output."""
    ran = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def wheel_of(source: Path, folder: Path) -> Path:
    """Build the wheel of a folder or an sdist with pip, and return its path."""
    run(sys.executable, "-m", "pip", "wheel", *NO_INDEX, "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a copy of the files that a build reads."""
    if not (ROOT / ".git").exists():
        pytest.skip("listing the files requires a git checkout")
    folder = tmp_path_factory.mktemp("library") / "ADT-Tree"
    for name in archive.tracked("adt_core", "library", "*.toml", "*.cff", "README.md", "LICENSE"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


def files(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def test_the_library_needs_torch_and_no_frontend():
    spec = importlib.util.spec_from_file_location("backend", ROOT / "library" / "backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    pack = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    library = backend.project_file(pack)
    listed, of_pack = (re.search(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)[1] for text in (library, pack))
    assert listed == '"torch>=2.6", ' + of_pack.removesuffix(', "comfyui-frontend-package>=1.39.19"')
    assert 'build-backend = "setuptools.build_meta"\n' in library and "backend-path" not in library


@pytest.fixture
def scripts(tmp_path):
    """Make an environment without packages, and return the folder of its programs."""
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    return environment / ("Scripts" if sys.platform == "win32" else "bin")


@pytest.mark.long
def test_the_wheel_contains_the_core_only(source, wheel):
    assert files(wheel) == archive.tracked("adt_core")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith("METADATA"))
        needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", opened.read(name).decode(), re.MULTILINE)
    assert "torch" in needed and "transformers" in needed and not any("comfyui" in name for name in needed)
    copied = {"adt_core", "library", "pyproject.toml", "CITATION.cff", "README.md", "LICENSE"}
    assert {path.name for path in source.iterdir()} == copied, "a build must leave no files in the checkout"


@pytest.mark.long
def test_the_sdist_builds_the_same_wheel(source, wheel, tmp_path):
    build = "import sys; sys.path.insert(0, sys.argv[1]); import backend; backend.build_sdist(sys.argv[2])"
    run(sys.executable, "-c", build, source / "library", tmp_path, cwd=tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert packed >= archive.tracked("adt_core") | {"LICENSE", "README.md", "pyproject.toml"}
    assert not {name for name in packed if name.startswith(("nodes", "js", "library", "tests"))}
    assert files(wheel_of(sdist, tmp_path)) == files(wheel)


@pytest.mark.long
def test_a_fresh_environment_runs_the_demo_and_the_programs_of_the_readme(wheel, scripts, tmp_path):
    """The environment has no package but the wheel and, from a file of paths, what the wheel needs."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    installed, packages = (
        run(python, "-c", where, cwd=tmp_path).strip() for python in (sys.executable, scripts / "python")
    )
    Path(packages, "needed.pth").write_text(installed, encoding="utf-8")
    run(sys.executable, "-m", "pip", "--python", scripts / "python", "install", *NO_INDEX, wheel, cwd=tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    assert "Why " in run(scripts / "adt-tree", "demo", cwd=work)
    (program,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    printed = run(scripts / "python", "-c", program + "\nimport adt_core; print(adt_core.__file__)", cwd=work)
    assert "tokens per target pass" in printed and Path(printed.splitlines()[-1]).is_relative_to(packages)
    for name in ("output/demo.png", "house.png", "image-0.png"):
        with Image.open(work / name) as image:
            assert image.size == (128, 128)


@pytest.mark.long
def test_an_editable_install_imports_only_the_core_of_the_checkout(source, scripts, tmp_path):
    python = scripts / "python"
    before = sorted(source.rglob("*"))
    build = "import sys; sys.path.insert(0, sys.argv[1]); import backend; print(backend.build_editable(sys.argv[2]))"
    name = run(sys.executable, "-B", "-c", build, source / "library", tmp_path, cwd=tmp_path).splitlines()[-1]
    run(sys.executable, "-m", "pip", "--python", python, "install", *NO_INDEX, tmp_path / name, cwd=tmp_path)
    assert sorted(source.rglob("*")) == before, "an install must leave no files in the checkout"
    find = "from importlib.util import find_spec; print([getattr(find_spec(name), 'origin', None) for name in {}])"
    names = ["adt_core", "library", "nodes"]
    found = [str(source / "adt_core" / "__init__.py"), None, None]
    assert run(python, "-c", find.format(names), cwd=tmp_path).strip() == str(found)
    listed = run(sys.executable, "-m", "pip", "--python", python, "show", "-f", "adt-tree", cwd=tmp_path)
    assert "torch" in listed and "_adt_tree_editable.pth" in listed
    run(sys.executable, "-m", "pip", "--python", python, "uninstall", "-y", "adt-tree", cwd=tmp_path)
    assert run(python, "-c", find.format(["adt_core"]), cwd=tmp_path).strip() == "[None]"
