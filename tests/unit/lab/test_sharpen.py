"""Tests for the fine-tuning of the codec's decoder."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adt_core import load_target
from model_making.sharpen import BATCH, TRAINED_PREFIXES, SharpeningModel, image_batch, write_decoder

BUNDLED = Path(__file__).parents[3] / "adt_core" / "bundled" / "target"


@pytest.fixture(scope="module")
def batch():
    return image_batch(step=0)[:1]


@pytest.mark.parametrize("adversarial", [False, True])
def test_only_decoder_and_discriminator_are_trained(batch, adversarial):
    learner = SharpeningModel(load_target().codec)
    learner.loss(batch, adversarial).backward()
    learned = {name for name, parameter in learner.named_parameters() if parameter.grad is not None}
    discriminator = {name for name in learned if name.startswith("discriminator.")}
    assert bool(discriminator) == adversarial
    prefixes = tuple(f"codec.{part}" for part in TRAINED_PREFIXES)
    assert learned - discriminator == {name for name, _ in learner.named_parameters() if name.startswith(prefixes)}


def test_write_decoder_changes_decoding_but_not_encoding(batch, tmp_path):
    shutil.copytree(BUNDLED, tmp_path / "target")
    before = load_target().codec
    codec = load_target().codec
    with torch.no_grad():
        for parameter in codec.parameters():
            parameter.mul_(1.5)  # also changes encoder and codebook, which must not be written
    write_decoder(codec.state_dict(), tmp_path / "target")
    after = load_target(tmp_path / "target").codec
    codes = before.encode(batch)
    assert torch.equal(after.encode(batch), codes)
    assert not torch.allclose(after.decode(codes), before.decode(codes), atol=0.1)
    old, new = (load_file(folder / "model.safetensors") for folder in (BUNDLED, tmp_path / "target"))
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed
    assert all(name.removeprefix("model.vqmodel.").startswith(TRAINED_PREFIXES) for name in changed)


def test_image_batches_differ():
    second = image_batch(step=1)
    assert len(second) == BATCH
    assert not torch.equal(image_batch(step=0)[-1], second[0])
