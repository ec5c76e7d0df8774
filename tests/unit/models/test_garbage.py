"""Tests of checkpoints that could be loaded, but would then fail or generate garbage.

The loader must refuse each of these checkpoints with an error.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import load_drafter, load_target
from adt_core.models.families.emu3 import Emu3Codec
from adt_core.models.reading import checkpoint as files
from adt_core.models.reading.checkpoint import Checkpoint
from adt_core.models.reading.fields import check_supported
from tests.layouts.edits import edit_config, edit_tensors
from tests.layouts.llamagen import write_hugging_face
from tests.layouts.lumina import write_lumina
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "target")


@pytest.mark.parametrize("write, name", [(write_tiny_checkpoint, "Anole"), (write_lumina, "Lumina-mGPT-34B-512")])
def test_swin_norm(tmp_path, write, name):
    folder = write(tmp_path / name)
    edit_config(folder, lambda config: config.update(swin_norm=True))
    with raises_key("chameleon.swin_norm"):
        load_target(folder)


UP = "model.layers.0.mlp.up_proj"
SCALES = (
    *("scale_weight", "weight_scale_inv", "weight_scale", "input_scale", "comfy_quant", "qweight", "scales", "SCB"),
    *("weight.absmax", "weight.quant_state.bitsandbytes__nf4", "weight_packed", "weight._scale"),
)


@pytest.mark.parametrize(
    "name", [*(f"{UP}.{scale}" for scale in SCALES), "scaled_fp8", "model.layers.0.mlp.gate_up_proj_blocks"]
)
def test_weights_with_separate_scales(tmp_path, name):
    """If the scales were ignored, the model would generate entirely different codes."""
    save_file({f"{UP}.weight": torch.zeros(2, 2), name: torch.ones(1)}, tmp_path / WEIGHTS)
    with raises_key("model.quantised", sign="it has the tensor"):
        Checkpoint(tmp_path)


def test_similar_names_that_are_not_scales(tmp_path):
    names = ("quantize.embedding.weight", "quantize.codebook_used", "norm.scale", "loss.scaling_layer.scale", "a.bias")
    save_file({name: torch.ones(1) for name in names}, tmp_path / WEIGHTS)
    assert set(Checkpoint(tmp_path).names) == set(names)


def test_scales_in_every_part_of_a_model(tmp_path, tiny):
    drafter = write_tiny_drafter(tmp_path / "drafter", tiny)
    edit_tensors(drafter, lambda tensors: tensors.update({"layers.0.mlp.up_proj.weight_scale": torch.ones(1)}))
    with raises_key("model.quantised"):
        load_drafter(drafter, load_target(tiny))
    folder = write_hugging_face(tmp_path)
    edit_tensors(next(tmp_path.rglob("flan-t5-xl")), lambda tensors: tensors.update(scaled_fp8=torch.ones(1)))
    with raises_key("model.quantised"):
        load_target(folder)


@pytest.mark.parametrize("kind", ["F4", "F6_E2M3", "F8_E8M0", "C64", "I8"])
def test_dtypes_that_are_not_weights(target, kind):
    name = f"{UP}.weight"
    bits = {"F4": 4, "F6_E2M3": 6, "C64": 64}.get(kind, 8)
    header = {}
    content = b""
    for key, value in load_file(target / WEIGHTS).items():
        numbers = bytes(value.numel() * bits // 8) if key == name else value.numpy().tobytes()
        place = [len(content), len(content) + len(numbers)]
        header[key] = {"dtype": kind if key == name else "F32", "shape": list(value.shape), "data_offsets": place}
        content += numbers
    text = json.dumps(header).encode()
    (target / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + content)
    with raises_key("tensor.quantised", name=name, dtype=kind):
        load_target(target)


@pytest.mark.parametrize("scale", ["scale", "wscale", "weight.scale_2", "act_scale"])
def test_fp8_with_scales_of_any_name(target, scale):
    tensors = load_file(target / WEIGHTS)
    tensors[f"{UP}.weight"] = tensors[f"{UP}.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, target / WEIGHTS)
    load_target(target)  # fp8 without scales: the numbers are the weights
    save_file({**tensors, f"{UP}.{scale}": torch.ones(1)}, target / WEIGHTS)
    with raises_key("tensor.scaled", name=f"{UP}.weight", dtype="F8_E4M3"):
        load_target(target)


@pytest.mark.parametrize(
    "name, value",
    [("hidden_act", "gelu"), ("rope_scaling", {"type": "linear", "factor": 2.0}), ("attention_bias", True)]
    + [("rope_scaling", {"rope_type": "llama3"}), ("rope_parameters", {"rope_type": "yarn"}), ("mlp_bias", True)]
    + [("sliding_window", 4096), ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)]
    + [("logit_scale", 0.06), ("partial_rotary_factor", 0.5), ("num_local_experts", 8), ("tie_word_embeddings", True)],
)
def test_fields_that_change_the_computation(target, name, value):
    edit_config(target, lambda config: config.update({name: value}))
    key, values = ("config_json.tied", {}) if "tie" in name else ("config_json.unsupported", {"name": name})
    with raises_key(key, **values):
        load_target(target)


def test_fields_with_their_default_meaning():
    usual = {"hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "sliding_window": None}
    check_supported({**usual, "head_dim": 16, "hidden_size": 64, "num_attention_heads": 4}, "it")
    for rope in ({"rope_type": "default"}, {"rope_type": "default", "type": "default", "rope_theta": 1e6}, {}):
        check_supported({"rope_scaling": rope, "rope_parameters": rope}, "it")
    check_supported({"sliding_window": 4096, "use_sliding_window": False, "logit_scale": 1.0}, "it")


def test_a_bias_that_would_be_ignored(target):
    edit_tensors(target, lambda tensors: tensors.update({"model.layers.1.self_attn.k_proj.bias": torch.ones(64)}))
    with raises_key("model.bias", biased="model.layers.1.self_attn.k_proj.weight"):
        load_target(target)


@pytest.mark.parametrize(
    "fields, key, values",
    [
        ({"in_channels": 32, "base_channels": 3}, "codec.image_channels", {"image_channels": 32}),
        ({"base_channels": 3}, "codec.channels", {"count": 3}),
        ({"in_channels": 4}, "codec.image_channels", {"image_channels": 4}),
        ({"base_channels": 2**20}, "codec.channels", {"count": 1048576}),
    ],
)
def test_swapped_channels_of_a_codec(target, fields, key, values):
    edit_config(target, lambda config: config["vq_config"].update(fields))
    with raises_key(key, **values):
        load_target(target)


def test_a_file_is_rarely_opened_again(monkeypatch, tiny):
    """Opening a file whose header lists 200,000 tensors takes a second, so the loader must open a file rarely."""
    opened = []
    usual = files.safe_open
    monkeypatch.setattr(files, "safe_open", lambda *given: opened.append(given) or usual(*given))
    load_target(tiny)
    assert len(opened) == 2, "the file must be opened once for the header and once for all tensors"
    opened.clear()
    monkeypatch.setattr(files, "MOST_MAPPED", 10_000)
    load_target(tiny)
    assert len(opened) > 10, "a large file must be opened again for each part"


@pytest.mark.parametrize(
    "fields, key, values",
    [
        ({"in_channels": 64}, "codec.image_channels", {"image_channels": 64}),
        ({"out_channels": 4}, "codec.image_channels", {"image_channels": 4}),
        ({"base_channels": 3}, "codec.channels", {"count": 3}),
        ({"hidden_size": 64, "num_attention_heads": 3}, "emu3.heads", {"hidden_size": 64}),
    ],
)
def test_swapped_channels_of_the_codec_of_emu3(fields, key, values):
    with torch.device("meta"), raises_key(key, **values):
        Emu3Codec({"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, **fields}, "it")
