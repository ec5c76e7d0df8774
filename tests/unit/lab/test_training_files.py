"""Tests of training files: damaged and foreign files are reported, and exported weights equal the trained ones."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from adt_core.drafters.eagle import EagleDrafter
from adt_core.drafters.eagle_files import config_fields, load_eagle
from adt_core.lab.training import training_state
from adt_core.lab.training.dataset import TrainingImages
from adt_core.lab.training.features import Features
from adt_core.lab.training.run import Run, initialise
from adt_core.lab.training.save import drafter_tensors, write_checkpoint
from adt_core.models.config import DecoderConfig
from tests.raising import raises_key

SHAPE = (2, 4)
NUM_CODES = 8
CODES = {
    "one dimension": np.zeros(5, np.int32),
    "none": np.int32(5),
    "texts": np.full(SHAPE, "abc"),
    "fields": np.zeros(SHAPE, [("a", "i4")]),
    "fractions": np.full(SHAPE, np.nan),
    "invalid tokens": np.full(SHAPE, NUM_CODES, np.int32),
}


@pytest.mark.parametrize("name", CODES)
def test_codes_of_images(tmp_path, name):
    path = tmp_path / "codes.npy"
    np.save(path, CODES[name])
    with raises_key("tokens.unknown" if name == "invalid tokens" else "tokens.other_shape"):
        TrainingImages(path, ["a cat", "a dog"], SHAPE[1], NUM_CODES)
    np.save(path, np.full(SHAPE, NUM_CODES - 1, np.int32))
    assert (TrainingImages(path, ["a cat", "a dog"], SHAPE[1], NUM_CODES).codes([0, 1]) == NUM_CODES - 1).all()


def new_run(path) -> Run:
    model = nn.Linear(2, 3)
    return Run(path, model, [torch.optim.AdamW(model.parameters())], minutes=None, decay=0.9, steps=4)


@pytest.mark.parametrize(
    "odd",
    [b"", b"x" * 99, [1], {}, {"model": {}}, {"average": {}}, {"optimisers": []}, {"step": "x"}, {"elapsed": None}],
)
def test_damaged_checkpoints(tmp_path, odd):
    path = tmp_path / "checkpoint.safetensors"
    new_run(path).save()
    valid = training_state.read(path)
    assert new_run(path).step == 0
    if isinstance(odd, bytes):
        path.write_bytes(odd)
    else:
        path.write_bytes(training_state.to_bytes({**valid, **odd} if odd and isinstance(odd, dict) else odd))
    with raises_key("checkpoint.other_run", path="checkpoint.safetensors"):
        new_run(path)


def test_cached_features(tmp_path):
    save_file({"0": torch.zeros(4, 8, dtype=torch.float16)}, tmp_path / "0.safetensors")
    (tmp_path / "1.safetensors").write_bytes(b"x" * 99)
    features = Features(tmp_path, 0)
    assert features.get([0], [0], torch.device("cpu")).shape == (1, 4, 8)
    for numbers, pads in (([1], [0]), ([0], [0, 0])):
        with raises_key("features.damaged", folder=tmp_path):
            features.get(numbers, pads, torch.device("cpu"))


@pytest.mark.parametrize("grid", [None, (119, 16)])
def test_exported_weights_equal_the_trained_ones(tmp_path, grid):
    """This must also hold with another layout of rotary pairs."""
    config = DecoderConfig(40, 128, 96, 1, 2, 2, 1e-5, 1e4, 400, qk_norm=False, grid_rope=grid)
    drafter = EagleDrafter(config, input_norm=True)
    initialise(drafter, torch.Generator().manual_seed(1), 1)
    fields = config_fields(drafter.config)
    tmp_path.joinpath("drafter").mkdir()
    write_checkpoint(tmp_path / "drafter", drafter_tensors(drafter), fields, torch.float32)
    target_config = replace(config, grid_rope=grid and (grid[0] + 1, grid[1]))
    decoder = SimpleNamespace(config=target_config, dtype=torch.float32, embedding=drafter.embedding)
    loaded = load_eagle(tmp_path / "drafter", SimpleNamespace(name="a target", decoder=decoder))
    assert all(torch.equal(a, b) for a, b in zip(drafter.state_dict().values(), loaded.state_dict().values()))
