"""What people point at in place of a model: either it is clear what they mean, or a sentence says what it is."""

import pytest

from adt_core import load_target
from adt_core.app.loading import default_drafter
from adt_core.models.checkpoint import home_of, name_of
from tests.layouts.lumina import write_lumina
from tests.unit.test_downloads import said

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
