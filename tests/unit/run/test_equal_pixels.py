"""Tests that the pixels of an image do not depend on the number of CPU threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from adt_core import load_target
from adt_core.models.movq import MoVQ
from adt_core.models.vq import VQConfig, VQModel
from tests.command import words

ROOT = Path(__file__).resolve().parents[3]
THREADS = 1, 2, 4
PROMPTS = ["a red house", "a boat on a lake", "a lamp"]
SHAPE = VQConfig(embed_dim=8, latent_channels=64, channel_multiplier=(1, 2, 4), base_channels=64, num_res_blocks=1)
CODECS = {
    "bundled": lambda: load_target("bundled").codec,
    "VQ-16": lambda: VQModel(VQConfig(**{**vars(SHAPE), "attention": True, "normalised": True})),
    "MoVQ": lambda: MoVQ(VQConfig(**{**vars(SHAPE), "attention": True})),
}


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("kind", CODECS)
def test_a_codec_has_the_same_bits_with_any_number_of_threads(kind):
    torch.manual_seed(0)
    codec = CODECS[kind]().eval()
    codes = torch.randint(0, len(codec.codebook), (1, 8, 8))
    decoded = []
    encoded = []
    for count in THREADS:
        torch.set_num_threads(count)
        with torch.inference_mode():
            decoded.append(codec.decode(codes))
            encoded.append(codec.encode(decoded[0]))
    assert all(pixels.equal(decoded[0]) for pixels in decoded), "the pixels depend on the number of threads"
    assert all(codes.equal(encoded[0]) for codes in encoded)


@pytest.mark.parametrize("kind", ["VQ-16", "MoVQ"])
def test_a_codec_has_no_usual_convolution_of_single_positions(kind):
    """Such a convolution gives other bits with another number of threads."""
    layers = [layer for layer in CODECS[kind]().modules() if isinstance(layer, nn.Conv2d)]
    points = [layer for layer in layers if layer.kernel_size == (1, 1)]
    assert points and all(type(layer).forward is not nn.Conv2d.forward for layer in points)
    for layer in points:
        x = torch.randn(2, layer.in_channels, 5, 3)
        torch.testing.assert_close(layer(x), nn.Conv2d.forward(layer, x), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def generate(tmp_path_factory):
    """Return a function that runs `generate` with a number of threads, and returns the pixels of all its images."""
    folder = tmp_path_factory.mktemp("pixels")
    (folder / "list.txt").write_text("\n".join(PROMPTS), encoding="utf-8")

    def run(name: str, threads: int, *more: str, **options) -> dict[str, bytes]:
        given = {"output": name, "device": "cpu", "dtype": "float64"} | options
        line = [sys.executable, str(ROOT / "adt.py"), *words("generate", **given), *more]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        assert ran.returncode == 0, ran.stderr
        path = folder / name
        return {file.name: _pixels(file) for file in ([path] if path.is_file() else sorted(path.glob("*.png")))}

    return run


def _pixels(path: Path) -> bytes:
    with Image.open(path) as image:
        return image.tobytes()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_lists_shards_and_workers_with_other_numbers_of_threads_write_equal_pixels(generate):
    pytest.importorskip("ray")
    expected = generate("one", 1, prompts="list.txt")
    assert len(expected) == len(PROMPTS)
    assert generate("two", 2, prompts="list.txt") == expected
    for number in (1, 2, 3):
        shards = generate("shards", number, prompts="list.txt", shard=f"{number}/3")
    assert shards == expected
    assert generate("workers", 2, prompts="list.txt", workers=2) == expected
    (png,) = generate("4.png", 4, prompt=PROMPTS[1], image_index=1).values()
    assert png == expected["000002.png"]
    (again,) = generate("again.png", 1, from_png="4.png").values()
    assert again == png
