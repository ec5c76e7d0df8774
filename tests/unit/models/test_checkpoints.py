"""Tests with checkpoints of every family: output of ``inspect``, and errors for missing or wrong parts."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from adt_core import load_target
from adt_core.app.inspect import inspect
from tests.layouts import janus, llamagen
from tests.layouts.edits import edit_config, edit_tensors
from tests.raising import raises_key


@pytest.mark.parametrize(
    "layout, grid, pixels, codebook",
    [
        ("chameleon", 6, 48, [40, 6]),
        ("lumina", 48, 768, [40, 6]),
        ("lumina-mgpt-2", 96, 768, [40, 4]),
        ("emu3", 90, 720, [40, 4]),
        ("glm-image", 32, 1024, [40, 24]),
        ("janus", 6, 96, [40, 8]),
        ("janus, deepseek", 4, 64, [40, 8]),
        ("liquid", 8, 512, [40, 6]),
        ("llamagen", 6, 96, [40, 8]),
        ("llamagen, authors'", 16, 256, [40, 8]),
    ],
)
def test_inspect_describes_a_complete_checkpoint(written, layout, grid, pixels, codebook):
    """Tensors that only image understanding needs must not be reported as unused."""
    (found,) = inspect(str(written(layout)))
    assert found["family"].startswith(layout.split(",")[0]) and found["codebook"] == codebook
    assert (found["grid"], found["pixels"]) == ([grid, grid], [pixels, pixels])
    assert found["missing"] == found["wrong_shape"] == found["left_over"] == found["to_do"] == []
    assert found["memory"]["bfloat16"] > found["memory"]["int8"] > 0 and found["memory"]["int4"] > 0


def test_inspect_lists_missing_misshapen_and_unused_tensors(copied):
    path = copied("chameleon")
    norms = "model.layers.0.self_attn.q_norm.bias"
    misshapen = "model.layers.1.mlp.down_proj"

    def spoil(tensors):
        tensors["unknown"] = tensors.pop(norms)
        del tensors["model.norm.weight"]
        tensors[f"{misshapen}.weight"] = torch.zeros(64, 95)

    edit_tensors(path, spoil)
    (found,) = inspect(str(path))
    assert (found["missing"], found["left_over"]) == ([norms, "model.norm.weight"], ["unknown"])
    assert found["wrong_shape"] == [f"{misshapen}.weight (64, 95), expected (64, 96)"]


def without(name):
    """Return a function that deletes a file or folder. Its path is relative to the folder of the checkpoint."""

    def change(path):
        gone = (path if path.is_dir() else path.parent) / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    return change


@pytest.mark.parametrize(
    "layout, name, tensors, remedy",
    [
        ("lumina", "../vqgan.ckpt", "model.vqmodel.decoder.", "put vqgan.ckpt"),
        ("llamagen", "../vq_ds16_t2i.pt", "codec.", "download vq_ds16_t2i.pt"),
        ("llamagen, authors'", "t5-ckpt", "t5.", "download google/flan-t5-xl"),
        ("lumina-mgpt-2", "../movqgan_270M.ckpt", "codec.", "download movqgan_270M.ckpt"),
        ("liquid", "../vqgan.ckpt", "model.vqmodel.", "put vqgan.ckpt"),
        ("janus", "tokenizer.json", "", "has no tokenizer.json"),
        ("glm-image", "processor/tokenizer.json", "", "has no tokenizer.json"),
    ],
)
def test_error_for_a_missing_companion_states_the_remedy(copied, layout, name, tensors, remedy):
    path = copied(layout)
    without(name)(path)
    values = {"name": tensors, "remedy": remedy} if tensors else {}
    with raises_key("tensors.missing" if tensors else "tokenizer.missing", **values):
        load_target(path)
    (found,) = inspect(str(path))
    assert len(found["to_do"]) == 1 and remedy in found["to_do"][0] and found["left_over"] == []
    assert all(name.startswith(tensors) for name in found["missing"]) and bool(found["missing"]) is bool(tensors)


def config(change):
    return lambda path: edit_config(path, change)


def without_field(name):
    return config(lambda c: c.pop(name))


def without_token(name):
    return config(lambda c: c["vocabulary_map"].pop(name))


def stage(change):
    """Return a function that changes the configuration of GLM-Image's first stage."""
    return lambda path: edit_config(path / "vision_language_encoder", change)


def tensors(change):
    return lambda path: edit_tensors(path, change)


def swap_codes(config):
    """Break the rule that a code is its token id minus 4. Tables and drafters of the family rely on this rule."""
    names = config["vocabulary_map"]
    names["IMGIMGCZ"], names["IMGIMGDZ"] = names["IMGIMGDZ"], names["IMGIMGCZ"]


def lose_two(tensors):
    del tensors["model.layers.0.self_attn.q_norm.bias"], tensors["model.norm.weight"]


def rename(token, name):
    """Return a function that renames a token of the tokenizer."""

    def change(path):
        file = path / "tokenizer.json"
        file.write_text(file.read_text(encoding="utf-8").replace(token, name), encoding="utf-8")

    return change


def keep_only_one_shard(path):
    for name in ("model.safetensors.index.json", "model-00002-of-00002.safetensors"):
        (path / name).unlink()
    (path / "model-00001-of-00002.safetensors").rename(path / "model.safetensors")


def cut_an_attention(path):
    stored = llamagen.transformer()
    stored["layers.1.attention.wqkv.weight"] = stored["layers.1.attention.wqkv.weight"][:-1]
    torch.save({"model": stored}, path)


def empty_codec(path):
    file = path.parent / "movqgan_270M.ckpt"
    torch.save(torch.load(file) | {"encoder.conv_in.weight": torch.zeros(0, 3, 3, 3)}, file)


DOWN = "model.layers.1.mlp.down_proj.weight"
WRONG = {
    "chameleon": {
        "codes whose ids are not consecutive": (config(swap_codes), "vocabulary.wrong_id", {"code": 2}),
        "no codec": (without_field("vq_config"), "config_json.no_field", {"name": "vq_config"}),
        "no vocabulary": (without_field("vocabulary_map"), "tokens.missing", {"missing": "<s>"}),
        "no width": (without_field("hidden_size"), "config_json.wrong_value", {"problem": "hidden_size is None"}),
        "a wrong shape": (
            tensors(lambda t: t.update({DOWN: torch.zeros(64, 95)})),
            "tensor.wrong_shape",
            {"name": DOWN, "stored": (64, 95), "shape": (64, 96)},
        ),
        "two missing tensors": (tensors(lose_two), "tensors.missing", {"more": "and 1 more"}),
        "no tokenizer": (without("tokenizer.json"), "tokenizer.missing", {}),
    },
    "lumina-mgpt-2": {
        "no first token": (
            lambda path: (path / "tokenizer_config.json").write_text("{}", encoding="utf-8"),
            "lumina2.no_tokens",
            {},
        ),
        "too small a vocabulary": (
            config(lambda c: c.update(vocab_size=155010)),
            "config_json.vocabulary",
            {"vocab_size": 155010, "codes": 40},
        ),
        "a codec without channels": (empty_codec, "codec.shapes", {}),
    },
    "liquid": {
        "the tokenizer of Gemma": (rename("<boi>", "<unused0>"), "tokenizer.lacks", {"missing": "<boi>"}),
        "too small a vocabulary": (
            config(lambda c: c.update(vocab_size=256010)),
            "config_json.vocabulary",
            {"vocab_size": 256010, "codes": 40},
        ),
    },
    "glm-image": {
        "too small a head": (
            stage(lambda c: c["text_config"].update(vision_vocab_size=30)),
            "config_json.vocabulary",
            {"field": "vision_vocab_size", "vocab_size": 30, "codes": 40},
        ),
        "too small a vocabulary": (
            stage(lambda c: c["text_config"].update(vocab_size=20)),
            "config_json.vocabulary",
            {"field": "vocab_size", "vocab_size": 20, "codes": 40},
        ),
    },
    "emu3": {
        "only one shard": (keep_only_one_shard, "tensors.missing", {"more": "remark.more"}),
        "no end-of-row token": (without_token("<|extra_200|>"), "tokens.missing", {"missing": "<|extra_200|>"}),
        "a missing code": (without_token("<|visual token 000007|>"), "vocabulary.names", {}),
        "more codes": (
            config(lambda c: c["vq_config"].update(codebook_size=50)),
            "emu3.other_codes",
            {"count": 40, "codes": 50},
        ),
        "no decoder": (without_field("text_config"), "config_json.no_field", {"name": "text_config"}),
        "no codec": (without_field("vq_config"), "config_json.no_field", {"name": "vq_config"}),
    },
    "janus": {
        "another tokenizer": (rename(janus.BEGIN_IMAGE, "<other>"), "tokenizer.lacks", {"missing": janus.BEGIN_IMAGE}),
        "no codec": (without_field("vq_config"), "config_json.no_field", {"name": "vq_config"}),
    },
    "janus, deepseek": {"no shard": (without("pytorch_model-00002-of-00002.bin"), "model.incomplete", {})},
    "llamagen, authors'": {
        "a wrong shape": (
            cut_an_attention,
            "tensor.wrong_shape",
            {"name": "layers.1.attention.wqkv.weight", "stored": (383, 128), "shape": (384, 128)},
        )
    },
}
"""(layout, problem) -> function that changes the files, key of the expected error, and some of its values."""


@pytest.mark.parametrize("layout, wrong", [(layout, wrong) for layout in WRONG for wrong in WRONG[layout]])
def test_errors_name_the_problem_of_a_checkpoint(copied, layout, wrong):
    path = copied(layout)
    change, key, values = WRONG[layout][wrong]
    change(path)
    with raises_key(key, **values):
        load_target(path)


def test_lumina_requires_its_size_token(copied):
    """The name of the folder selects images of 1024 x 1024 pixels, so the loader requires the token for this size."""
    path = copied("lumina")
    with raises_key("tokens.missing", missing="reserved08832"):
        load_target(path.rename(path.with_name("Lumina-mGPT-7B-1024")))


@pytest.mark.parametrize("place", ["", "Anole-7b-v0.1-hf", "beside"])
def test_chameleon_reads_the_image_decoder_from_metas_file(copied, place):
    """Conversions of Chameleon lack the image decoder. The loader must find it in this folder and in the one above."""
    path = copied("chameleon")
    reference = load_target(path)
    stored = load_file(path / "model.safetensors")
    codec = {name[len("model.vqmodel.") :]: value for name, value in stored.items() if ".vqmodel." in name}
    edit_tensors(path, lambda tensors: [tensors.pop(name) for name in stored if ".vqmodel.decoder." in name])
    file = path.parent / place / "vqgan.ckpt"
    file.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {**codec, "loss.logvar": torch.zeros(())}}, file)
    if place == "beside":
        with raises_key("tensors.missing", remedy="remedy.chameleon_codec"):
            load_target(path)
        return
    codes = torch.arange(36).view(1, 6, 6)
    assert torch.equal(load_target(path).codec.decode(codes), reference.codec.decode(codes))
