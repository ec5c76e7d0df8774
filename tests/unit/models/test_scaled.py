"""Tests of fp8 files with scales. The loaded weights must equal the stored numbers times their scales."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import load_target
from adt_core.app.inspect import inspect
from tests.layouts.edits import edit_config, edit_tensors
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

SHAPES = {
    "one number": lambda n, m: (),
    "a list of one": lambda n, m: (1,),
    "for each output": lambda n, m: (n,),
    "in a column": lambda n, m: (n, 1),
    "for each block": lambda n, m: (-(-n // 128), -(-m // 128)),
}


def by_hand(weight, scale):
    """Return the product of weight and scale. It is computed number by number."""
    made = torch.empty(weight.shape)
    (n, m) = weight.shape
    for row in range(n):
        for column in range(m):
            places = {(): (), (1,): (0,), (n,): (row,), (n, 1): (row, 0)}
            at = places.get(tuple(scale.shape), (row // 128, column // 128))
            made[row, column] = float(weight[row, column]) * float(scale[at])
    return made


@pytest.fixture
def model(tmp_path):
    """Return a checkpoint whose matrices have more than one block."""
    return write_tiny_checkpoint(tmp_path / "target", hidden=160, intermediate=136)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "name",
    ["weight_scale", *(pytest.param(name, marks=pytest.mark.long) for name in ("scale_weight", "weight_scale_inv"))],
)
def test_loaded_weights_are_the_product(model, tmp_path, name, shape):
    tensors = load_file(model / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    true = dict(tensors)
    scaled = dict(tensors)
    for part in ("mlp.down_proj", "self_attn.k_proj"):
        key = f"model.layers.1.{part}.weight"
        scale = torch.rand(SHAPES[shape](*tensors[key].shape), generator=generator) + 0.5
        scaled[key] = tensors[key].to(torch.float8_e4m3fn)
        scaled[key.replace("weight", name)] = scale
        scaled[key.replace("weight", "input_scale")] = torch.ones(())
        true[key] = by_hand(scaled[key].float(), scale)
    scaled["scaled_fp8"] = torch.zeros(0, dtype=torch.float8_e4m3fn)
    save_file(scaled, model / "model.safetensors")
    found = load_target(model).decoder.state_dict()
    assert inspect(str(model))[0]["left_over"] == []
    save_file(true, model / "model.safetensors")
    expected = load_target(model).decoder.state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_configuration_may_declare_the_scales(model):
    """transformers writes this configuration for blocks of 128 x 128."""
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    edit_config(model, lambda config: config.update(quantization_config=block))
    load_target(model)
    edit_config(model, lambda config: config["quantization_config"].update(weight_block_size=[64, 64]))
    with raises_key("model.quantised", sign="by 'fp8'"):
        load_target(model)


@pytest.mark.parametrize("shape, dtype", [((3,), torch.float32), ((2, 1), torch.float32), ((), torch.uint8)])
def test_unsupported_scales(model, shape, dtype):
    """The scales belong to blocks of another size, or have another dtype, such as the powers of two in MXFP8."""

    def quantise(tensors):
        key = "model.layers.0.mlp.up_proj.weight"
        tensors[key] = tensors[key].to(torch.float8_e4m3fn)
        tensors[key.replace("weight", "weight_scale")] = torch.ones(shape, dtype=dtype)

    edit_tensors(model, quantise)
    with raises_key("model.quantised", sign="it has the tensor"):
        load_target(model)
