"""Tests of input images: images of which some tokens are kept, conversion to pixels, and source images for editing."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from adt_core import cli
from adt_core.app.args import ImageToImageArgs
from adt_core.app.continuation import check_args, open_rgb, prefix_length, source_codes, to_pixels
from adt_core.run.images import to_rgb
from adt_core.run.pipeline import with_sources
from tests.raising import raises_key


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
    "keep, left, name, value",
    [(float("nan"), 0, "keep", "nan"), (1.1, 0, "keep", "1.1"), (0, -0.1, "keep_left", "-0.1")],
)
def test_invalid_shares(keep, left, name, value):
    with raises_key("keep.not_a_share", input=name, value=value):
        prefix_length((8, 8), keep, left)


def test_other_shapes_are_cropped_and_resized(tmp_path):
    wide = Image.new("RGB", (60, 20), "red")
    wide.paste("blue", (20, 0, 40, 20))
    wide.save(tmp_path / "wide.png")
    pixels = to_pixels(open_rgb(tmp_path / "wide.png", "x"), 8, 8)
    assert pixels.shape == (1, 3, 8, 8) and torch.equal(pixels[0, :, 4, 4], torch.tensor([-1.0, -1.0, 1.0]))
    assert (pixels[0, 2] > 0.5).all(), "the result must be the blue centre of the image"


def test_an_image_of_the_right_size_is_not_changed(tmp_path):
    values = torch.arange(48).reshape(4, 4, 3).byte()
    Image.fromarray(values.numpy()).save(tmp_path / "small.png")
    pixels = to_pixels(open_rgb(tmp_path / "small.png", "x"), 4, 4)
    assert torch.equal(((pixels[0] + 1) * 127.5).round().byte().permute(1, 2, 0), values)


def test_transparency_is_dropped(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    pixels = to_pixels(open_rgb(tmp_path / "clear.png", "x"), 8, 8)
    assert pixels[0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]


PIXELS = {"a.jpg": np.full((4, 8, 3), 78, np.uint8), "a.png": np.full((4, 8), 20000, np.uint16)}


@pytest.mark.parametrize("name, pixels", PIXELS.items(), ids=["8 bits", "16 bits"])
def test_images_of_8_and_16_bits_are_rotated(tmp_path, name, pixels):
    lying = Image.fromarray(pixels)
    exif = lying.getexif()
    exif[0x0112] = 6  # orientation 6: rotate by 90 degrees
    lying.save(tmp_path / name, exif=exif)
    opened = open_rgb(tmp_path / name, "x")
    assert opened.size == (4, 8) and opened.getpixel((0, 0)) == (78, 78, 78)


def test_invalid_exif_data(tmp_path):
    """Pillow reads the data, but raises various exceptions when it rotates the image."""
    entries = [(0x0112, 3, b"\0\x06\0\0"), (0x0100, 2, b"ab\0\0")]  # orientation, and a width that is a string
    content = b"".join(struct.pack(">HHI4s", tag, kind, 1, value) for tag, kind, value in entries)
    Image.new("RGB", (8, 6)).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + content + bytes(4))
    with raises_key("image.unreadable", input="images", path="a.jpg"):
        open_rgb(tmp_path / "a.jpg", "images")


# ---- more than 8 bits ------------------------------------------------------------------------------


def grey(tmp_path, name, values):
    """Write a uniform grayscale image, open it, and return its 8-bit value."""
    Image.fromarray(values).save(tmp_path / name)
    ((_, (red, *others)),) = open_rgb(tmp_path / name, "images").getcolors()
    assert others == [red, red]
    return red


@pytest.mark.parametrize("value, byte", [(0, 0), (20000, 78), (65535, 255), (128, 0), (129, 1)])
@pytest.mark.parametrize(
    "name, kind", [("a.png", "<u2"), ("a.tif", "<u2"), ("a.tif", ">u2"), ("a.tif", "<i4")], ids=str
)
def test_16_bit_grayscale_is_scaled(tmp_path, name, kind, value, byte):
    """Pillow's conversion would turn values above 255 into white."""
    assert grey(tmp_path, name, np.full((4, 6), value, kind)) == byte


@pytest.mark.parametrize("value, byte", [(0.0, 0), (0.5, 128), (1.0, 255), (1.0005, 255)])
def test_floating_point_is_scaled(tmp_path, value, byte):
    """Pillow's conversion would turn 0.5 into black. Values slightly out of range are accepted as rounding errors."""
    assert grey(tmp_path, "a.tif", np.full((4, 6), value, np.float32)) == byte


@pytest.mark.parametrize(
    "values, found",
    [
        (np.array([[0.0, 255.0]], np.float32), "from 0 to 255, but 0 to 1 was expected"),
        (np.array([[-3.5, 1.0]], np.float32), "from -3.5 to 1, but 0 to 1 was expected"),
        (np.array([[float("nan"), 1.0]], np.float32), "from nan to nan, but 0 to 1 was expected"),
        (np.array([[0.0, float("inf")]], np.float32), "from 0 to inf, but 0 to 1 was expected"),
        (np.array([[0, 65700]], np.int32), "from 0 to 65700, but 0 to 65535 was expected"),
        (np.array([[-200, 0]], np.int32), "from -200 to 0, but 0 to 65535 was expected"),
    ],
)
def test_values_out_of_range_are_reported(tmp_path, values, found):
    Image.fromarray(values).save(tmp_path / "a.tif")
    with raises_key("image.unreadable", input="continue_from", path=tmp_path / "a.tif", reason=found):
        open_rgb(tmp_path / "a.tif", "continue_from")


@pytest.mark.parametrize(
    "colour_type, channels, colour",
    [(0, [20000], (78, 78, 78)), (2, [20000, 40000, 60000], (78, 156, 234)), (4, [20000, 3], (78, 78, 78))],
)
def test_pngs_of_16_bits(tmp_path, colour_type, channels, colour):
    """Test grayscale, RGB, and grayscale with alpha. Alpha is dropped, as in images of 8 bits."""
    write_png16(tmp_path / "a.png", colour_type, channels)
    assert open_rgb(tmp_path / "a.png", "x").getcolors() == [(16, colour)]


def write_png16(path, colour_type, channels):
    """Write a PNG of 4 x 4 pixels with 16 bits per channel. Pillow can write such files only in grayscale."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = b"\0" + struct.pack(f">{len(channels)}H", *channels) * 4
    header = struct.pack(">IIBBBBB", 4, 4, 16, colour_type, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 4)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "RGBA", "CMYK", "YCbCr"])
def test_other_modes_are_converted_as_pillow_does(mode):
    image = Image.linear_gradient("L").convert(mode)
    assert to_rgb(image).tobytes() == image.convert("RGB").tobytes()


# ---- source images ---------------------------------------------------------------------------------


class BrightnessTarget:
    """Stand-in for a target that supports source images. The code of a cell is its brightness, from 0 to 8."""

    downsample = 128
    num_codes = 9
    codec = None

    def __init__(self):
        self.codec = self

    def encode(self, pixels):
        return ((pixels[:, 0, ::128, ::128] + 1) * 4).round().long()

    def with_sources(self, sources):
        return [codes.tolist() for codes in sources]


def test_all_source_images_are_read_in_order(tmp_path):
    given = []
    for name, size, grey in (("a.png", (512, 512), 0), ("b.png", (1024, 512), 255), ("a.png", (512, 512), 0)):
        Image.new("L", size, grey).save(tmp_path / name)
        given += ["--source", str(tmp_path / name)]
    _, options = cli.parse(["generate", "--prompt", "a cat", "--output", "o.png", *given])
    order = ImageToImageArgs.of(options)
    assert [path.name for path in order.source] == ["a.png", "b.png", "a.png"]
    flat = source_codes(order, BrightnessTarget())
    assert flat == (4, 4, *[0] * 16, 4, 8, *[8] * 32, 4, 4, *[0] * 16), "layout of a PNG's settings"
    assert with_sources(BrightnessTarget(), flat) == [[[0] * 4] * 4, [[8] * 8] * 4, [[0] * 4] * 4]
    assert with_sources(BrightnessTarget(), (1, 2, 3, 4)) == [[[3, 4]]], "layout of earlier versions"
    assert ImageToImageArgs.of({}).source == () == source_codes(ImageToImageArgs(), BrightnessTarget())


@pytest.mark.parametrize(
    "flat", [(0,), (1, 1), (0, 5), (5, 0), (1, 1, 9), (1, 1, 3, 1), (1, 1, 3, 1, 2, 4), (1, 1, 3, 0, 0), (2, 2, 1, 1)]
)
def test_invalid_sources_are_rejected(flat):
    with raises_key("sources.none"):
        with_sources(BrightnessTarget(), flat)


def test_unreadable_source_images_are_reported(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    with raises_key("image.unreadable", input="source", path="b.png"):
        check_args(ImageToImageArgs(source=(tmp_path / "a.png", tmp_path / "b.png")))
    with raises_key("setting.kind", input="source", value="'a.png'"):
        ImageToImageArgs(source="a.png")


def test_outputs_do_not_replace_source_images(tmp_path, capsys):
    names = [str(tmp_path / name) for name in ("a.png", "b.png")]
    for name in names:
        Image.new("L", (8, 8)).save(name)
    given = ["generate", "--prompt", "a cat", "--source", names[0], "--source", names[1]]
    for name in names:
        assert cli.main([*given, "--output", name]) == 2
        assert "which would be overwritten" in capsys.readouterr().err
