"""Tests of the files of GLM-Image's second stage.

Parts that don't fit together must be reported before large files are read.
"""

import pytest

from adt_core.errors import AdtError
from adt_core.models import glm_pixels
from tests.layouts.edits import edit_config
from tests.layouts.glm_pixels import write_pixels


@pytest.fixture
def folder(tmp_path):
    return write_pixels(tmp_path / "GLM-Image", codes=8)


@pytest.mark.parametrize(
    "part, fields, words",
    [
        ("vae", {"latents_mean": None}, "does not fit"),
        ("vae", {"latent_channels": 8}, "does not fit"),
        ("vae", {"down_block_types": ["Odd"] * 4}, "loaded as AutoencoderKL"),
        ("text_encoder", {"d_model": 64}, "does not fit"),
        ("transformer", {"num_layers": 10**9}, "num_layers is 1000000000, but a whole number"),
        ("transformer", {"num_layers": 3}, "lacks the tensor"),
        ("transformer", {"time_embed_dim": 32}, "belongs to another model"),
    ],
)
def test_invalid_configurations(folder, part, fields, words):
    edit_config(folder / part, lambda config: config.update(fields))
    with pytest.raises(AdtError, match=words) as refused:
        glm_pixels.load(folder / "transformer")
    assert str(folder / part) in str(refused.value)


def test_loading_is_cancelled_between_tensors(folder):
    class Cancelled(BaseException):
        pass

    def check():
        raise Cancelled

    with pytest.raises(Cancelled):
        glm_pixels.load(folder / "transformer", check=check)
