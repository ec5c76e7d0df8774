"""Tests that settings of torch by another pack change no image."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from adt_core import Pipeline, load_target
from tests.raising import raises_key


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def approximate_attention():
    return patch.object(F, "scaled_dot_product_attention", lambda q, k, v, *_, **__: v * 0)


SETTINGS = {
    "default dtype": default_dtype,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "attention": approximate_attention,
}
FOREIGN = pytest.mark.parametrize("foreign", SETTINGS.values(), ids=SETTINGS)


@FOREIGN
@torch.inference_mode()
def test_the_codec_computes_in_float32(tiny, foreign):
    expected = load_target(tiny / "target").codec
    codes = torch.arange(16).view(1, 4, 4)
    pixels = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    with foreign():
        codec = load_target(tiny / "target").codec
        found = codec.decode(codes), codec.encode(pixels), codec.nearest(codec.lookup(codes))
    assert {parameter.dtype for parameter in codec.parameters()} == {torch.float32}
    assert torch.equal(found[0], expected.decode(codes)) and torch.equal(found[1], expected.encode(pixels))
    assert torch.equal(found[2], codes)


@FOREIGN
def test_images_and_their_tokens_stay_the_same(tiny, foreign):
    files = {"model": str(tiny / "target"), "drafter": str(tiny / "drafter"), "device": "cpu"}
    expected = Pipeline.load(**files).generate("a cat", seed=3)
    with foreign():
        found = Pipeline.load(**files).generate("a cat", seed=3)
    assert torch.equal(found.tokens, expected.tokens)
    assert found.image.tobytes() == expected.image.tobytes()


@torch.inference_mode()
def test_nan_in_an_image_or_a_latent_names_the_input(tiny):
    codec = load_target(tiny / "target").codec
    pixels = torch.zeros(1, 3, 32, 32)
    pixels[0, 0, 0, 0] = torch.nan
    with raises_key("values.not_finite", input="pixels", wrong=1, count=3072):
        codec.encode(pixels)
    vectors = codec.lookup(torch.zeros(1, 4, 4, dtype=torch.int64))
    vectors[0, 0] = torch.inf
    with raises_key("values.not_finite", input="samples", wrong=16):
        codec.nearest(vectors)
