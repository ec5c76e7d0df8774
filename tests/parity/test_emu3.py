"""Tests that Emu3-Gen equals transformers' ``Emu3ForConditionalGeneration`` in prompts, logits, codes and pixels.

test_script_noise.py compares complete images.
"""

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import Emu3ForConditionalGeneration

from adt_core import load_target
from tests.layouts.emu3 import CODES, write_emu3
from tests.reading import logits_after

TOLERANCE = 1e-4
GUIDANCE = 3.0
TEXTS = ("a cat", "three small dogs")

OLD = Version(transformers.__version__) < Version("5")
PRESENT = pytest.param("present", marks=pytest.mark.skipif(OLD, reason="transformers 5 introduced these names"))


@pytest.fixture(scope="module", params=["first", PRESENT])
def models(request, tmp_path_factory):
    """Return our model, for images of 4 rows with 5 tokens each, and the transformers model, both in float64."""
    home = tmp_path_factory.mktemp("emu3")
    folder = write_emu3(home / "Emu3-Gen-hf", names=request.param, layers=3, scale=3.0, rope_theta=5e5)
    theirs = Emu3ForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").double().eval()
    return load_target(folder, dtype=torch.float64).sized(40, 32), theirs


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
def test_logits_of_prompt_and_rows(models, guidance):
    """The second forward pass is over two rows of the image. Each row has 5 codes and an end-of-row token."""
    target, model = models
    decoder = target.decoder
    assert decoder.config.num_kv_heads == 2 and decoder.config.rope_theta == 5e5
    codes = torch.randint(CODES, (12,), generator=torch.Generator().manual_seed(1))
    codes[5::6] = CODES
    ids = decoder.image_ids[codes].tolist()
    for found, prompt in zip(logits_after(target, TEXTS, codes, guidance), map(target.encode_prompt, TEXTS)):
        logits = [
            model(input_ids=torch.tensor([[*row, *ids]])).logits[0, -13:, decoder.image_ids[:CODES]]
            for row in (prompt, target.unconditional(prompt))
        ]
        assert (found - (logits[1] + guidance * (logits[0] - logits[1]))).abs().max() < TOLERANCE


@torch.no_grad()
def test_pixels(models):
    target, model = models
    codes = torch.randint(CODES, (2, 4, 5), generator=torch.Generator().manual_seed(2))
    expected = model.model.vqmodel.float().decode(codes)
    assert (target.codec.decode(codes) - expected.clamp(-1, 1)).abs().max() < TOLERANCE and expected.std() > 0.05
    model.double()


@torch.no_grad()
def test_codes(models):
    """The codebook consists of the 2 x 4 x 5 vectors of two images, so their codes are 0 to 39 in order."""
    target, model = models
    reference = model.model.vqmodel.float()
    codec = target.codec
    pixels = torch.rand(2, 3, 32, 40, generator=torch.Generator().manual_seed(3)) * 2 - 1
    frames = pixels[:, None].expand(-1, reference.config.temporal_downsample_factor, -1, -1, -1)
    vectors = reference.quant_conv(reference.encoder(frames).transpose(1, 2))
    own = torch.arange(CODES).view(2, 4, 5)
    for codebook in (reference.quantize.embedding.weight, codec.quantize.embedding.weight):
        codebook.copy_(vectors[:, :, 0].permute(0, 2, 3, 1).reshape(CODES, 4))
    assert torch.equal(reference.quantize(vectors.transpose(1, 2))[:, 0], own)
    assert torch.equal(codec.encode(pixels), own)
    model.double()


def test_image_ids_equal_the_references_vocabulary_map(models):
    target, model = models
    mapping = model.model.vocabulary_mapping
    expected = [*(mapping.img2bpe[code] for code in range(CODES)), mapping.eol_token_id]
    assert target.decoder.image_ids.tolist() == expected
