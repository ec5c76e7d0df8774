"""Tests of layers that each pass reads again from the files of the model."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from adt_core import Pipeline, load_target
from adt_core.memory_limit import MemoryLimit
from adt_core.models import allocation, streamed
from adt_core.run.store import Identity
from tests.drafted import run
from tests.layouts.families import LAYOUTS, load_small
from tests.raising import raises_key
from tests.tiny import write_tiny_checkpoint

LAYERS = 6


@pytest.fixture
def streamed_layers(monkeypatch):
    """Return a function that sets the number of layers for which there is no memory."""

    def choose(count):
        monkeypatch.setattr(allocation, "needed_count", lambda *_, **__: count)

    return choose


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("disk") / "target", layers=LAYERS, scale=3.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_are_those_of_a_model_that_fits(written, layout, streamed_layers):
    family = layout.split(",")[0]
    expected = run(load_small(family, written(layout), dtype=torch.float64)).codes
    streamed_layers(2)
    target = load_small(family, written(layout), dtype=torch.float64, memory="disk")
    assert len(target.decoder.stream) == 2
    assert run(target).codes.equal(expected)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_layers_are_quantised_again(folder, weights, streamed_layers):
    expected = run(load_target(folder, weights=weights)).codes
    streamed_layers(3)
    target = load_target(folder, weights=weights, memory="disk")
    assert len(target.decoder.stream) == 3 and run(target).codes.equal(expected)


def test_layers_on_disk_need_no_memory_but_two_buffers(folder, streamed_layers):
    whole = streamed.held_bytes(load_target(folder).decoder)
    for count in (3, LAYERS):
        streamed_layers(count)
        decoder = load_target(folder, memory="disk").decoder
        assert streamed.held_bytes(decoder) == whole - (count - 2) * streamed.layer_bytes(decoder)
        assert sum(part.is_meta for part in decoder.parameters()) == count * len(list(decoder.layers[0].parameters()))


def test_as_many_layers_stay_as_the_usable_main_memory_holds(folder, monkeypatch):
    whole = load_target(folder)
    size = streamed.layer_bytes(whole.decoder)
    work = allocation.image_bytes(whole, on_cpu=True) + allocation.companion_bytes(whole) + 2 * size
    for count in (0, 3, LAYERS):
        usable = work + streamed.device_bytes(whole.decoder, count)
        monkeypatch.setattr(allocation, "usable_bytes", lambda limit, usable=usable: usable)
        target = load_target(folder, memory="disk")
        assert (0 if target.decoder.stream is None else len(target.decoder.stream)) == count
    monkeypatch.setattr(allocation, "usable_bytes", lambda limit: usable - 1)
    with raises_key("memory.device_too_small"):
        load_target(folder, memory="disk")


def test_too_little_main_memory_is_refused_before_loading_with_both_numbers(folder, monkeypatch):
    """ComfyUI moves the weights to a GPU later, so only the complete memory is a limit."""
    monkeypatch.setattr(allocation, "memory_limit", lambda: MemoryLimit(500_000, "this machine"))
    monkeypatch.setattr(torch.nn.Module, "to_empty", lambda *_, **__: pytest.fail("weights were allocated"))
    for options, key in (({}, "weights_need_disk"), ({"device_memory": math.inf}, "weights_too_large")):
        with raises_key(f"memory.{key}", model="target", needed="0.0 GiB", most="0.0 GiB"):
            load_target(folder, **options)


def test_the_identity_of_the_images_is_that_of_a_model_that_fits(folder, streamed_layers):
    expected = Pipeline.load(folder, device="cpu")
    streamed_layers(4)
    pipe = Pipeline.load(folder, device="cpu", memory="disk")
    assert Identity.of(pipe).key == Identity.of(expected).key and pipe.recipe == expected.recipe
    options = {"seed": 1, "method": "no-drafting"}  # with drafts, the PNG contains the costs of this memory
    assert pipe.generate("a cat", **options).png == expected.generate("a cat", **options).png


def test_damaged_numbers_of_layers_on_disk_are_refused_before_the_first_image(folder, tmp_path, streamed_layers):
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.{LAYERS - 1}.mlp.down_proj.weight"
    tensors[name][0, 0] = math.nan
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    streamed_layers(2)
    with raises_key("tensor.not_finite", name=name, found="NaN"):
        load_target(tmp_path, memory="disk")


def test_reading_the_layers_for_the_first_time_can_be_cancelled(folder, streamed_layers):
    streamed_layers(LAYERS)
    calls = []

    def cancel():
        calls.append(0)
        if len(calls) == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_target(folder, memory="disk", check=cancel)
