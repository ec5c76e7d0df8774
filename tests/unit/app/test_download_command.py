"""Tests of the names of published models, and of the command `python adt.py download`."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adt_core import cli
from adt_core.app.download import DownloadPart, download_terms, find_parts, progress_message
from adt_core.models.load import find_published, published
from adt_core.models.repositories import in_gigabytes
from adt_core.run import model_files
from tests.raising import raises_key

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = random.Random(1).randbytes(1_000_000)


def test_only_published_models_can_be_downloaded(tmp_path):
    odd = "someone/model", "../x", "https://huggingface.co/x/y", "bundled", "", "deepseek-community/Janus-Pro-1B"
    for name in odd:
        with raises_key("download.unknown_model", names="Janus-Pro-1B"):
            find_parts(name, tmp_path)


@pytest.mark.parametrize("row", [row for row in published() if row.downloads], ids=lambda row: row.name)
def test_parts_of_a_model_include_its_drafter(row, tmp_path):
    found = find_parts(row.name.upper(), tmp_path / "ar_image")
    assert [place.download for place in found[: len(row.downloads)]] == list(row.downloads)
    rest = [(place.download, place.home) for place in found[len(row.downloads) :]]
    assert rest == ([(row.drafter, tmp_path / "ar_image_drafters")] if row.drafter else [])
    for place in found:
        by_name = find_parts(place.download.name, tmp_path)[0].download
        assert by_name == place.download or place.download.folder == row.name


def test_progress_is_one_line():
    lines = {
        (120_000_000, 4_100_000_000, 0.0): "Downloading: 0.12 of 4.10 GB",
        (120_000_000, 4_100_000_000, 85.3e6): "Downloading: 0.12 of 4.10 GB, 85.3 MB/s, 0:47 left",
        (1_000_000, 2_500_000, 0.0): "Downloading: 1.00 of 2.50 MB",
    }
    assert [progress_message(*numbers) for numbers in lines] == list(lines.values())


def test_formatted_sizes():
    assert [in_gigabytes(x) for x in (0.006, 0.3, 1, 4.1, 14.4)] == ["6 MB", "0.3 GB", "1 GB", "4.1 GB", "14 GB"]


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def janus(local_hub):
    """Add a published model to the local Hub."""
    local_hub.repositories["deepseek-community/Janus-Pro-1B"] = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    return local_hub


def test_the_command_shows_a_bar_and_prints_the_path(janus, tmp_path, capsys):
    assert cli.main(["download", "Janus-Pro-1B", "--to", str(tmp_path / "m")]) == 0
    output = capsys.readouterr()
    assert output.out.strip() == f"Janus-Pro-1B is complete: {tmp_path / 'm' / 'Janus-Pro-1B'}"
    arrived = {path.name for path in (tmp_path / "m" / "Janus-Pro-1B").iterdir()}
    assert "Downloading" in output.err and arrived == {"config.json", "model.safetensors"}


def test_the_command_shows_the_licence_before_the_download(janus, tmp_path, capsys):
    janus.gated.add("deepseek-community/Janus-Pro-1B")
    assert cli.main(["download", "Janus-Pro-1B", "--to", str(tmp_path / "m")]) == 1
    licence = "Janus-Pro-1B: licence: DeepSeek's model licence (https://huggingface.co/deepseek-community/Janus-Pro-1B)"
    assert licence in capsys.readouterr().err and janus.fetched() == []


@pytest.mark.parametrize("row", [row for row in published() if row.downloads], ids=lambda row: row.name)
def test_terms_name_all_licences(row, tmp_path):
    parts = find_parts(row.name, tmp_path)
    text = download_terms(parts)
    assert all(part.download.licence in text for part in parts)
    assert f"https://huggingface.co/{row.downloads[0].repository}" in text


def test_names_in_small_letters_complete_folders_in_small_letters(janus, tmp_path, capsys):
    folder = tmp_path / "m" / "janus-pro-1b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    assert cli.main(["download", "janus-pro-1b", "--to", str(tmp_path / "m")]) == 0
    assert capsys.readouterr().out.strip() == f"Janus-Pro-1B is complete: {folder}"
    assert DownloadPart(find_published("Janus-Pro-1B").downloads[0], tmp_path / "m").is_complete


def test_list_of_published_models(capsys):
    assert cli.main(["download", "--list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [row.name for row in published() if row.downloads]
    janus = find_published("Janus-Pro-7B")
    assert any("15 GB" in row and "14.5 / 8.9 / 6.6 GiB" in row and janus.licences in row for row in rows)


@pytest.mark.parametrize("wrong", [[], ["Janus-Pro-1B", "--list"]])
def test_a_name_or_list_is_required(wrong, capsys):
    assert cli.main(["download", *wrong]) == 2
    assert "give the name of a published model, or --list" in capsys.readouterr().err


def test_default_folder_is_in_comfyui(monkeypatch, tmp_path):
    monkeypatch.setattr(model_files, "ROOT", tmp_path / "ComfyUI" / "custom_nodes" / "ADT-Tree")
    assert model_files.default_folder() == tmp_path / "ComfyUI" / "models" / "ar_image"
    monkeypatch.setattr(model_files, "ROOT", tmp_path / "src" / "ADT-Tree")
    assert model_files.default_folder() == Path("models/ar_image")


def test_portable_python(tmp_path):
    """Run in a folder whose path has a space and Chinese characters, without the current folder on the module path."""
    pack = tmp_path / "my pack 雪"
    shutil.copytree(ROOT / "adt_core", pack / "adt_core", ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    shutil.copy2(ROOT / "adt.py", pack)
    done = subprocess.run(
        [sys.executable, "-I", str(pack / "adt.py"), "--version"], cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0 and done.stdout.startswith("ADT-Tree "), done.stderr


def test_portable_python_downloads(janus, tmp_path):
    command = [sys.executable, "-I", str(ROOT / "adt.py"), "download", "Janus-Pro-1B", "--to", str(tmp_path / "m")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m" / "Janus-Pro-1B" / "model.safetensors").read_bytes() == WEIGHTS
