"""Tests of the files of GLM-Image's second stage.

Parts that don't fit together must be reported before large files are read.
"""

import pytest

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
