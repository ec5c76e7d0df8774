"""Tests of the table of families: recognition of checkpoints, and lists that are generated from the table."""

from pathlib import Path

import pytest

from adt_core.models import load
from adt_core.models.repositories import Download, Published
from adt_core.run import model_files
from tests import model_tables

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "config, family",
    [
        ({"model_type": "chameleon"}, "chameleon"),
        ({"model_type": "chameleon", "z_loss_weight": 0.0}, "lumina-mgpt"),
        ({"model_type": "chameleon", "architectures": ["ChameleonXLLMXForConditionalGeneration"]}, "lumina-mgpt"),
        ({"model_type": "chameleon", "vocab_size": 171385, "mask_image_logits": False}, "lumina-mgpt-2"),
        ({"cls_token_num": 120}, "llamagen"),
        ({"model_type": "janus"}, "janus"),
        ({"model_type": "multi_modality"}, "janus"),
        ({"model_type": "Emu3"}, "emu3"),
        ({"model_type": "gemma", "vocab_size": 264192}, "liquid"),
        ({"model_type": "gemma", "vocab_size": 256000}, None),
        ({"model_type": "chameleon_vqgan"}, None),
        ({"model_type": "llama"}, None),
        ({}, None),
    ],
)
def test_families_are_recognised_by_their_configuration(config, family):
    found = [one.name for one in load.FAMILIES if one.recognises(config, ())]
    assert found[-1:] == ([family] if family else []) and model_files.is_target_config(config) is bool(family)


@pytest.mark.parametrize(
    "name, expected", [("t2i_XL_stage1_256.pt", True), ("vq_ds16_t2i.pt", False), ("t2i.bin", False)]
)
def test_single_files_that_are_models(name, expected):
    assert model_files.is_target_file(name) is expected


def test_a_new_family_is_one_row(monkeypatch):
    """If several families recognise a checkpoint, the last of them in the table must be used."""
    row = Published("New-1B", (Download("somebody/New-1B", 2, "MIT", "New-1B"),), "256", (2.0, 1.0, 0.7))
    new = load.FAMILIES[0]._replace(name="new", recognises=lambda config, names: "new" in config, published=(row,))
    assert not model_files.is_target_config({"new": 1})
    for module in (load, model_files):
        monkeypatch.setattr(module, "FAMILIES", [*load.FAMILIES, new])
    assert model_files.is_target_config({"new": 1}) and load.published()[-1] == row
    assert model_tables.models_table().endswith(
        "| `New-1B` | `somebody/New-1B` | 2 GB | MIT | 256 | 2.0 GiB / 1.0 GiB / 0.7 GiB |"
    )


def test_every_family_has_a_title_and_search_words():
    assert all(family.title and family.search and family.published for family in load.FAMILIES)
    assert len({family.name for family in load.FAMILIES}) == len(load.FAMILIES)


@pytest.mark.parametrize("table", ["models_table", "sampling_table"])
def test_the_docs_contain_the_tables_of_families(table):
    """If this fails after a change of the families, copy the result of ``model_tables.<table>()`` to docs/models.md."""
    assert getattr(model_tables, table)() in (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
