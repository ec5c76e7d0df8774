"""Training the decoder alone leaves every code of the bundled codec as it is."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adt_core import load_target
from model_making.sharpen import BATCH, LEARNS, Sharpening, pictures, write_decoder

BUNDLED = Path(__file__).parents[2] / "adt_core" / "bundled" / "target"


@pytest.fixture(scope="module")
def batch():
    return pictures(step=0)[:1]


@pytest.mark.parametrize("adversarial", [False, True])
def test_the_decoder_learns_and_nothing_that_makes_codes(batch, adversarial):
    learner = Sharpening(load_target().codec)
    learner.loss(batch, adversarial).backward()
    learned = {name for name, parameter in learner.named_parameters() if parameter.grad is not None}
    judges = {name for name in learned if name.startswith("discriminator.")}
    assert bool(judges) == adversarial
    assert learned - judges == {
        name for name, _ in learner.named_parameters() if name.startswith(tuple(f"codec.{part}" for part in LEARNS))
    }


def test_what_is_written_decodes_otherwise_and_encodes_the_same(batch, tmp_path):
    shutil.copytree(BUNDLED, tmp_path / "target")
    before, codec = load_target().codec, load_target().codec
    with torch.no_grad():
        for parameter in codec.parameters():
            parameter.mul_(1.5)  # of the encoder and the codebook, too: these must not be written
    write_decoder(codec.state_dict(), tmp_path / "target")
    after = load_target(tmp_path / "target").codec
    codes = before.encode(batch)
    assert torch.equal(after.encode(batch), codes)
    assert not torch.allclose(after.decode(codes), before.decode(codes), atol=0.1)
    old, new = (load_file(folder / "model.safetensors") for folder in (BUNDLED, tmp_path / "target"))
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed and all(name.startswith(tuple(f"model.vqmodel.{part}" for part in LEARNS)) for name in changed)


def test_no_picture_is_drawn_twice():
    assert not torch.equal(pictures(step=0)[-1], pictures(step=1)[0]) and len(pictures(step=1)) == BATCH
