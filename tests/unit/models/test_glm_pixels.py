"""Tests of the files of GLM-Image's second stage.

Parts that don't fit together must be reported before large files are read.
"""

import pytest
import torch

from adt_core.models import glm_pixels
from tests.layouts.edits import edit_config
from tests.layouts.glm_pixels import write_pixels
from tests.raising import raises_key


@pytest.fixture
def folder(tmp_path):
    return write_pixels(tmp_path / "GLM-Image", codes=8)


@pytest.mark.parametrize(
    "part, fields, key",
    [
        ("vae", {"latents_mean": None}, "glm_image.other_vae"),
        ("vae", {"latent_channels": 8}, "glm_image.other_vae"),
        ("vae", {"down_block_types": ["Odd"] * 4}, "glm_image.unreadable_part"),
        ("text_encoder", {"d_model": 64}, "glm_image.other_text_encoder"),
        ("transformer", {"num_layers": 10**9}, "config_json.wrong_value"),
        ("transformer", {"num_layers": 3}, "tensors.missing"),
        ("transformer", {"time_embed_dim": 32}, "tensor.wrong_shape"),
    ],
)
def test_invalid_configurations(folder, part, fields, key):
    edit_config(folder / part, lambda config: config.update(fields))
    with raises_key(key) as refused:
        glm_pixels.load(folder / "transformer")
    assert str(folder / part) in str(refused.value)


def test_loading_is_cancelled_between_tensors(folder):
    class Cancelled(BaseException):
        pass

    def check():
        raise Cancelled

    with pytest.raises(Cancelled):
        glm_pixels.load(folder / "transformer", check=check)


def test_pixels_do_not_depend_on_the_number_of_threads(tmp_path):
    """oneDNN divides the sum of a convolution of single positions among threads, if it has many channels."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        block_out_channels=[32, 64, 256, 512],
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        latent_channels=4,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    folder = write_pixels(tmp_path / "GLM-Image", codes=8)
    vae.save_pretrained(folder / "vae")
    pipeline = glm_pixels.load(folder / "transformer", dtype=torch.float32)
    latents = torch.randn(1, 4, 16, 16)
    before = torch.get_num_threads()
    decoded = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            decoded.append(glm_pixels.pixels(pipeline, latents))
    finally:
        torch.set_num_threads(before)
    expected = vae.decode(latents, return_dict=False)[0]
    torch.testing.assert_close(decoded[0], expected, rtol=1e-3, atol=1e-4)
    assert all(pixels.equal(decoded[0]) for pixels in decoded)
