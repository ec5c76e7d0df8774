"""Tests of weights with NaN or infinity, or with numbers that are too large for the dtype of the loaded model."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import load_drafter, load_target
from adt_core.models.reading.checkpoint import Checkpoint, with_scales
from tests.layouts.edits import edit_tensors
from tests.layouts.llamagen import write_hugging_face
from tests.raising import raises_key
from tests.tiny import write_tiny_drafter

# imported before the tests run, because the import needs seconds
pytest.importorskip("transformers.models.t5.modeling_t5")
WEIGHTS = "model.safetensors"
UP = "model.layers.1.mlp.up_proj.weight"


def spoil(file: Path, name: str, value: float, dtype: torch.dtype | None = None) -> None:
    """Overwrite the last number of a tensor."""
    tensors = load_file(file)
    tensors[name] = tensors[name].to(dtype or tensors[name].dtype)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, file)


DECODER = (UP, "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
CODEC = ("quantize.embedding.weight", "decoder.conv_out.bias", "encoder.conv_in.weight")
FOUND = {math.nan: "NaN", math.inf: "infinity", -math.inf: "infinity"}


@pytest.mark.parametrize(
    "name, value, weights",
    [
        *((name, value, None) for name in DECODER for value in FOUND),
        *((f"model.vqmodel.{name}", math.nan, None) for name in CODEC),
        *((UP, math.nan, weights) for weights in ("int8", "fp8", "int4")),
    ],
)
def test_damaged_numbers_of_decoder_and_codec(target, name, value, weights):
    """The last row of the head belongs to a text token, which isn't used. It shows that the file is damaged, too."""
    spoil(target / WEIGHTS, name, value)
    with raises_key("tensor.not_finite", file=WEIGHTS, name=name, found=FOUND[value]):
        load_target(target, weights=weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_damaged_numbers_in_every_dtype(target, dtype):
    spoil(target / WEIGHTS, UP, 1.0, dtype)
    load_target(target)
    spoil(target / WEIGHTS, UP, math.nan)
    with raises_key("tensor.not_finite", found="NaN"):
        load_target(target)


@pytest.mark.parametrize("name", ["fc.weight", "embed_tokens.weight", "layers.0.self_attn.q_proj.weight"])
def test_damaged_numbers_of_a_drafter(target, tmp_path, name):
    drafter = write_tiny_drafter(tmp_path / "drafter", target)
    spoil(drafter / WEIGHTS, name, math.inf)
    with raises_key("tensor.not_finite", file=WEIGHTS, name=name, found="infinity"):
        load_drafter(drafter, load_target(target))


def test_damaged_numbers_of_a_text_encoder(tmp_path):
    folder = write_hugging_face(tmp_path)
    file = next(tmp_path.rglob(f"flan-t5-xl/{WEIGHTS}"))
    spoil(file, "shared.weight", math.nan)
    with raises_key("tensor.not_finite", file=file, name="shared.weight", found="NaN"):
        load_target(folder)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_damaged_scale(target, value):
    scale = UP.replace("weight", "weight_scale")

    def change(tensors):
        tensors[UP] = tensors[UP].to(torch.float8_e4m3fn)
        tensors[scale] = torch.tensor(value)

    edit_tensors(target, change)
    with raises_key("tensor.not_finite", name=scale):
        load_target(target)


def test_a_damaged_pickle(target):
    tensors = load_file(target / WEIGHTS)
    tensors[UP][0, 0] = math.nan
    torch.save(tensors, target / "pytorch_model.bin")
    (target / WEIGHTS).unlink()
    with raises_key("tensor.not_finite", file="pytorch_model.bin", name=UP, found="NaN"):
        load_target(target)


# ---- numbers that are finite only in the file ------------------------------------------------------


def test_numbers_that_do_not_fit_float16(target):
    spoil(target / WEIGHTS, UP, 65504.0)
    load_target(target, dtype=torch.float16)
    spoil(target / WEIGHTS, UP, 70000.0)
    load_target(target)
    load_target(target, dtype=torch.bfloat16)
    for given in (torch.float32, torch.bfloat16):
        spoil(target / WEIGHTS, UP, 70000.0, given)
        with raises_key("tensor.too_large", name=UP, dtype="float16", most="65504", wider="bfloat16 or float32"):
            load_target(target, dtype=torch.float16)


def test_the_error_names_the_joined_tensor_with_the_large_number(target):
    name = "model.layers.0.self_attn.v_proj.weight"
    spoil(target / WEIGHTS, name, -1e5)
    with raises_key("tensor.too_large", file=WEIGHTS, name=name, dtype="float16"):
        load_target(target, dtype=torch.float16)


def test_numbers_that_do_not_fit_bfloat16_or_float32(target):
    spoil(target / WEIGHTS, UP, 3.4e38)
    with raises_key("tensor.too_large", dtype="bfloat16", wider="float32"):
        load_target(target, dtype=torch.bfloat16)
    spoil(target / WEIGHTS, UP, 1e300, torch.float64)
    with raises_key("tensor.too_large", dtype="float32", wider="float64"):
        load_target(target)


def test_numbers_of_a_drafter_that_do_not_fit_its_targets_dtype(target, tmp_path):
    drafter = write_tiny_drafter(tmp_path / "drafter", target)
    spoil(drafter / WEIGHTS, "fc.bias", 1e6)
    with raises_key("tensor.too_large", name="fc.bias", dtype="float16"):
        load_drafter(drafter, load_target(target, dtype=torch.float16))


# ---- the check itself ------------------------------------------------------------------------------


def test_empty_tensors_and_integers_are_finite(tmp_path):
    tensors = {"empty": torch.zeros(0, 3), "integers": torch.arange(3), "large": torch.full((99,), 3e38)}
    save_file(tensors, tmp_path / WEIGHTS)
    checkpoint = Checkpoint(tmp_path)
    for name, value in tensors.items():
        assert torch.equal(checkpoint[name].read_finite(), value)


def test_each_tensor_is_read_once(target, monkeypatch):
    """Numbers must be checked while they are read, so that a large file isn't read twice."""
    seen = []
    usual = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda tensor: seen.append(tensor.numel()) or usual(tensor))
    load_target(target)
    assert sum(seen) == sum(value.numel() for value in load_file(target / WEIGHTS).values())


def test_supported_scales_keep_their_order(tmp_path):
    save_file({"a.weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(1)}, tmp_path / "a")
    stored = Checkpoint(tmp_path / "a")["a.weight"]
    assert (stored.file, stored.name, stored.dtype) == (tmp_path / "a", "a.weight", "F32")
    assert with_scales({}) == {}
