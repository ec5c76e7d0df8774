"""How much of a picture is kept, and how a picture becomes what a codec reads."""

import struct

import pytest
import torch
from PIL import Image

from adt_core import AdtError
from adt_core.app.continuation import open_picture, prefix_length, to_pixels


@pytest.mark.parametrize(
    "keep, left, tokens",
    [
        (0, 0, 0),
        (0.5, 0, 48),
        (0.5, 0.25, 51),
        (0, 0.5, 6),
        (1, 0, 96),
        (1, 1, 96),
        (0.07, 0, 12),
        (0.06, 0, 0),
        (0.5, 0.99, 60),
    ],
)
def test_shares_are_rounded_to_tokens(keep, left, tokens):
    assert prefix_length((8, 12), keep, left) == tokens


@pytest.mark.parametrize(
    "keep, left, words", [(float("nan"), 0, "keep is nan"), (1.1, 0, "keep is 1.1"), (0, -0.1, "keep_left is -0.1")]
)
def test_shares_that_are_none(keep, left, words):
    with pytest.raises(AdtError, match=words):
        prefix_length((8, 8), keep, left)


def test_a_picture_of_another_shape_is_cropped_evenly_and_resized(tmp_path):
    wide = Image.new("RGB", (60, 20), "red")
    wide.paste("blue", (20, 0, 40, 20))
    wide.save(tmp_path / "wide.png")
    pixels = to_pixels(open_picture(tmp_path / "wide.png", "x"), 8, 8)
    assert pixels.shape == (1, 3, 8, 8) and torch.equal(pixels[0, :, 4, 4], torch.tensor([-1.0, -1.0, 1.0]))
    assert (pixels[0, 2] > 0.5).all(), "the middle, which is blue"


def test_a_picture_of_the_right_size_is_taken_as_it_is(tmp_path):
    values = torch.arange(48).reshape(4, 4, 3).byte()
    Image.fromarray(values.numpy()).save(tmp_path / "small.png")
    pixels = to_pixels(open_picture(tmp_path / "small.png", "x"), 4, 4)
    assert torch.equal(((pixels[0] + 1) * 127.5).round().byte().permute(1, 2, 0), values)


def test_transparency_and_orientation(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert torch.equal(
        to_pixels(open_picture(tmp_path / "clear.png", "x"), 8, 8)[0, :, 0, 0], torch.tensor([1.0, -1.0, -1.0])
    )
    lying = Image.new("RGB", (8, 4))
    exif = lying.getexif()
    exif[0x0112] = 6  # to be turned a quarter
    lying.save(tmp_path / "lying.jpg", exif=exif)
    assert open_picture(tmp_path / "lying.jpg", "x").size == (4, 8)


def test_a_picture_whose_orientation_is_odd(tmp_path):
    """Pillow reads such an EXIF, and fails with errors of all kinds when it turns the picture and writes it anew."""
    entries = [(0x0112, 3, b"\0\x06\0\0"), (0x0100, 2, b"ab\0\0")]  # to be turned; a width that is a text
    content = b"".join(struct.pack(">HHI4s", tag, kind, 1, value) for tag, kind, value in entries)
    Image.new("RGB", (8, 6)).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + content + bytes(4))
    with pytest.raises(AdtError, match="images: '.*a.jpg' can't be read as a picture"):
        open_picture(tmp_path / "a.jpg", "images")
