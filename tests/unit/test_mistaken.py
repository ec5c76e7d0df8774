"""What people point at in place of a model: either it is clear what they mean, or a sentence says what it is."""

import json
import re
from pathlib import Path

import pytest

from adt_core import load_target
from adt_core.app.checkpoints import published
from adt_core.app.loading import default_drafter
from adt_core.models.checkpoint import home_of, name_of
from tests.layouts.lumina import write_lumina
from tests.unit.test_downloads import said

ROOT = Path(__file__).parents[2]

# ---- a part of a checkpoint in place of all of it --------------------------------------------------


@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"])
def test_a_file_of_a_whole_folder_stands_for_the_folder(tmp_path, file):
    folder = write_lumina(tmp_path / "models" / "Lumina-mGPT-7B-768")
    target = load_target(folder / file)
    assert target.name == "Lumina-mGPT-7B-768" == name_of(folder / file) and home_of(folder / file) == folder.parent
    drafter = tmp_path / "models" / "LANTERN-Lumina-mGPT-7B-768"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}")
    assert default_drafter(str(folder / file)) == str(drafter)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "lacks model-00002-of-00002.safetensors, named in its index" in said(folder / "config.json")


def test_of_thousands_of_shards_that_are_missing_a_few_are_named(tmp_path):
    folder = write_lumina(tmp_path / "Lumina-mGPT-7B-768")
    names = {f"tensor {i}": f"model-{i:05}-of-09999.safetensors" for i in range(9999)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    message = said(folder)
    assert "model-00003-of-09999.safetensors and 9995 more, named in its index; download the missing files" in message
    assert message.endswith(
        f"--local-dir {(tmp_path / 'Anole-7b-v0.1-vqvae-hf').as_posix()}` (0.3 GB; licence: Chameleon's, for research)."
    )


@pytest.mark.parametrize("marks", ['""', "''"])
def test_a_path_in_quotation_marks(tmp_path, marks):
    """As Windows copies paths."""
    message = said(f"{marks[0]}{tmp_path}{marks[1]}")
    assert message.endswith("does not exist; leave the quotation marks away.")


@pytest.mark.parametrize("name", ["cat.png", "cat.JPG"])
def test_a_picture(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x89PNG")
    assert "is a picture and no model; give the model's folder" in said(tmp_path / name)


# ---- how large a download is -----------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in published() if row.downloads], ids=lambda row: row.name)
def test_the_templates_say_how_much_is_downloaded(row):
    """Emu3-Gen-hf is published in float32, which is twice of what it takes in memory."""
    total = sum(float(re.search(r"[\d.]+", one.size)[0]) for one in row.downloads)
    notes = (file.read_text(encoding="utf-8") for file in (ROOT / "workflows").glob("*.json"))
    shown = [note for note in notes if f"--local-dir models/ar_image/{row.name}\\n" in note]
    assert all(f"Not installed ({total:.0f} GB" in note and f"（{total:.0f} GB" in note for note in shown)
    assert row.name != "Emu3-Gen-hf" or shown and total == 35
