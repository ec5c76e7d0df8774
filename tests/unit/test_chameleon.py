"""Anole's layout: what is wrong with a checkpoint is named before anything is loaded."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import AdtError, load_target
from adt_core.app.inspect import inspect
from tests.tiny import write_tiny_checkpoint


@pytest.fixture
def folder(tmp_path):
    return write_tiny_checkpoint(tmp_path / "anole")


def configure(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def retensor(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_vocabulary_whose_codes_do_not_follow_each_other(folder):
    """Code = id - 4 is what the tables and drafters of the family rely on."""

    def swap(config):
        vocabulary = config["vocabulary_map"]
        vocabulary["IMGIMGCZ"], vocabulary["IMGIMGDZ"] = vocabulary["IMGIMGDZ"], vocabulary["IMGIMGCZ"]

    configure(folder, swap)
    with pytest.raises(AdtError, match=r"vocabulary_map gives code 2 the id \d+, but code 0 has \d+"):
        load_target(folder)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("vq_config", "no vq_config.*own config.json"),
        ("vocabulary_map", "vocabulary_map lacks <s>"),
        ("hidden_size", "hidden_size is None"),
    ],
)
def test_a_configuration_without_a_part(folder, name, sentence):
    configure(folder, lambda config: config.pop(name))
    with pytest.raises(AdtError, match=sentence):
        load_target(folder)


def test_the_30b_model(folder):
    configure(folder, lambda config: config.update(swin_norm=True))
    with pytest.raises(AdtError, match="swin_norm.*7B"):
        load_target(folder)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(folder):
    name = "model.layers.1.mlp.down_proj.weight"
    retensor(folder, lambda tensors: tensors.update({name: torch.zeros(64, 95)}))
    with pytest.raises(
        AdtError, match=r"model.layers.1.mlp.down_proj.weight has shape \(64, 95\), but \(64, 96\) was expected"
    ):
        load_target(folder)
    (found,) = inspect(str(folder))
    assert found["wrong_shape"] == [f"{name} (64, 95), expected (64, 96)"]


def test_missing_tensors_are_counted_and_strangers_listed(folder):
    def lose(tensors):
        tensors["stranger"] = tensors.pop("model.layers.0.self_attn.q_norm.bias")
        del tensors["model.norm.weight"]

    retensor(folder, lose)
    with pytest.raises(AdtError, match="lacks the tensor '.*' and 1 more"):
        load_target(folder)
    (found,) = inspect(str(folder))
    assert found["missing"] == ["model.layers.0.self_attn.q_norm.bias", "model.norm.weight"] and found["left_over"] == [
        "stranger"
    ]


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(AdtError, match="no tokenizer.json; download it"):
        load_target(folder)


@pytest.mark.parametrize("place", ["beside/vqgan.ckpt", "vqgan.ckpt", "anole/vqgan.ckpt"])
def test_the_image_decoder_may_come_from_metas_file(folder, tmp_path, place):
    """Conversions of Chameleon have no decoder: Meta's file has it.

    The file is found in the folder of the checkpoint or in the one above, and nowhere else.
    """
    whole, tensors = load_target(folder), load_file(folder / "model.safetensors")
    codec = {
        name.removeprefix("model.vqmodel."): value
        for name, value in tensors.items()
        if name.startswith("model.vqmodel.")
    }
    retensor(
        folder,
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("model.vqmodel.decoder.")],
    )
    (tmp_path / place).parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {**codec, "loss.logvar": torch.zeros(())}}, tmp_path / place)
    if place.startswith("beside"):
        with pytest.raises(AdtError, match="put vqgan.ckpt of Chameleon"):
            load_target(folder)
        return
    codes = torch.arange(16).view(1, 4, 4)
    assert torch.equal(load_target(folder).codec.decode(codes), whole.codec.decode(codes))
