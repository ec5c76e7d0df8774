"""Tests that Liquid equals transformers' Gemma in logits.

test_script_noise.py compares complete images with images of the published script.
"""

import pytest
import torch
from transformers import GemmaForCausalLM

from adt_core import load_target
from adt_core.models.vq import VQModel
from tests.layouts.liquid import CODEC, CODES, FIRST_CODE, MARKS, write_liquid
from tests.layouts.reference import image_logits
from tests.reading import Reader, guided_rows

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=[4, 2], ids="{} key heads".format)
def folder(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("liquid")
    return write_liquid(home / "Liquid_V1_7B", kv_heads=request.param)


@pytest.fixture(scope="module")
def target(folder):
    return load_target(folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def model(folder):
    return GemmaForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def test_prompt_is_the_published_sentence(target):
    prompt = target.encode_prompt(" a cat\n")
    bos, boi, unconditional = map(MARKS.index, ("<bos>", "<boi>", MARKS[-1]))
    assert prompt[0] == bos and prompt[-1] == boi and target.unconditional(prompt) == [bos, unconditional, boi]
    text = bytes(int(target.prompter.tokenizer.id_to_token(token)[1:-1], 16) for token in prompt[1:-1]).decode()
    assert text == "a cat Generate an image based on this description.".replace(" ", "▁")


def test_logits_of_prompt_and_codes(target, model):
    """Compare the logits of the conditional row and of the unconditional row."""
    codes = torch.randint(CODES, (30,), generator=torch.Generator().manual_seed(1))
    rows = [[*row, *(FIRST_CODE + codes).tolist()] for row in guided_rows(target, ["a cat"], 7.0)]
    found = target.decoder.logits(Reader(target.decoder, rows).features)
    for ours, row in zip(found[:, -31:], rows):
        assert (ours - image_logits(model, row, FIRST_CODE, CODES)[-31:]).abs().max() < TOLERANCE


def test_half_precision_embedding_scale_is_rounded_like_gemmas(folder, model):
    embedding = load_target(folder, dtype=torch.bfloat16).decoder.embedding
    expected = model.to(torch.bfloat16).model.embed_tokens(torch.arange(FIRST_CODE, FIRST_CODE + CODES))
    assert embedding[FIRST_CODE : FIRST_CODE + CODES].equal(expected)


@torch.no_grad()
def test_pixels_equal_the_stored_codecs(target, folder):
    stored = torch.load(folder.parent / "vqgan.ckpt")["state_dict"]
    codec = VQModel(CODEC)
    codec.load_state_dict({name: value for name, value in stored.items() if not name.startswith("loss.")})
    codes = torch.arange(4).view(1, 2, 2)
    assert target.codec.decode(codes).equal(codec.eval().decode(codes))
