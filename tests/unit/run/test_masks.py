"""Tests of masks: rounding to cells, hostile masks, the option `--mask`, the library, and the PNG."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from adt_core import Pipeline, cli
from adt_core.run.masks import generated_cells, kept_of, upper_part_kept
from tests.raising import raises_key

HOLE = (slice(4, 10), slice(5, 12))


@pytest.fixture(scope="module")
def pipeline():
    return Pipeline.load("bundled", device="cpu")


@pytest.fixture(scope="module")
def picture(pipeline, tmp_path_factory):
    """Return the result of a first image, its file, and a mask file with a hole."""
    folder = tmp_path_factory.mktemp("masks")
    result = pipeline.generate("a red house", seed=1)
    result.save(folder / "house.png")
    rows, columns = pipeline.target.grid
    mask = np.zeros((rows, columns), np.uint8)
    mask[HOLE] = 255
    side = pipeline.target.downsample
    Image.fromarray(mask).resize((columns * side, rows * side), Image.Resampling.NEAREST).save(folder / "mask.png")
    return result, folder / "house.png", folder / "mask.png"


@pytest.mark.parametrize(
    "shape", [(8, 12), (1, 8, 12), (1, 1, 8, 12), (64, 96), (5, 3), (1, 1), (2, 1, 160, 7)], ids=str
)
def test_full_masks_of_any_size(shape):
    generated = generated_cells(torch.ones(shape), (8, 12), "mask")
    assert generated.all() and generated.shape[1:] == (8, 12) and len(generated) == (2 if shape[0] == 2 else 1)


def test_masks_are_rounded_to_whole_cells():
    mask = torch.zeros(16, 16)
    mask[:8, :4] = 1  # half of cell 0 (columns 0 to 7), none of cell 1
    mask[8:, :3] = 1  # less than half of the lower cells
    mask[8:, 8:] = 0.6
    assert generated_cells(mask, (2, 2), "mask").tolist() == [[[True, False], [False, True]]]


def test_values_are_limited():
    mask = torch.full((4, 4), -9.0)
    mask[0, 0] = 255.0
    assert generated_cells(mask, (4, 4), "mask").sum() == 1


@pytest.mark.parametrize(
    "mask, key",
    [
        (torch.full((8, 8), float("nan")), "mask.not_finite"),
        (torch.full((8, 8), float("inf")), "mask.not_finite"),
        (torch.ones(8), "mask.shape"),
        (torch.ones(1, 3, 8, 8), "mask.shape"),
        (torch.ones(0, 8, 8), "mask.shape"),
        (torch.ones(1, 1, 1, 8, 8), "mask.shape"),
    ],
)
def test_hostile_masks(mask, key):
    values = {"shape": str(list(mask.shape))} if key == "mask.shape" else {}
    with raises_key(key, **values):
        generated_cells(mask, (4, 4), "mask")


def test_empty_masks_and_several_masks_for_one_image_are_refused(pipeline, picture):
    assert not generated_cells(torch.zeros(8, 8), (4, 4), "mask").any()
    with raises_key("mask.empty_input"):
        pipeline.keep(picture[1], torch.zeros(8, 8))
    with raises_key("mask.several", count=2):
        pipeline.keep(picture[1], torch.ones(2, 8, 8))


def test_the_upper_part_is_a_mask():
    assert upper_part_kept((2, 3), 4).tolist() == [[[False, False, False], [False, True, True]]]


def test_only_the_hole_is_generated(pipeline, picture):
    first, image, mask = picture
    kept = pipeline.keep(image, mask)
    codes = torch.tensor(kept)
    inside = torch.zeros(pipeline.target.grid, dtype=torch.bool)
    inside[HOLE] = True
    assert (codes < 0).equal(inside.flatten()[: len(codes)])
    assert kept == pipeline.keep(image, inside.float()), "a tensor must give the same as a file"
    result = pipeline.generate("a green tree", seed=2, kept=kept)
    plain = pipeline.generate("a green tree", seed=2, kept=kept, method="no-drafting")
    assert result.tokens.equal(plain.tokens), "drafting must not change the image"
    assert not result.tokens[HOLE].equal(first.tokens[HOLE])
    assert result.tokens.flatten()[: len(codes)][codes >= 0].equal(codes[codes >= 0])
    report = result.trace.report()
    assert report["tokens"] == int(inside.sum()) and report["target_forwards"] < int(inside.sum())
    assert (torch.tensor(result.trace.acceptance_map()) > 0).equal(inside)


def test_every_row_of_a_hole_costs_one_pass_for_its_kept_tokens(pipeline, picture):
    _, image, mask = picture
    trace = pipeline.generate("a tree", seed=2, kept=pipeline.keep(image, mask), method="no-drafting").trace
    runs = [record.kept for round in trace.rounds for record in round.images if record.kept]
    columns = pipeline.target.grid[1]
    assert runs == [columns - 7] * 5 and len(trace.rounds) == 6 * 7 - 1


def test_the_command_and_its_png(pipeline, picture, tmp_path, capsys):
    _, image, mask = picture
    given = ["generate", "--prompt", "a green tree", "--seed", "2", "--device", "cpu"]
    out = tmp_path / "out.png"
    assert cli.main([*given, "--continue-from", str(image), "--mask", str(mask), "--output", str(out)]) == 0
    result = pipeline.generate("a green tree", seed=2, kept=pipeline.keep(image, mask))
    pixels = np.asarray(Image.open(out))
    assert np.array_equal(pixels, np.asarray(result.image))
    saved = json.loads(Image.open(out).text["adt_tree"])
    assert tuple(saved["kept"]) == pipeline.keep(image, mask)
    again = tmp_path / "again.png"
    assert cli.main(["generate", "--from-png", str(out), "--device", "cpu", "--output", str(again)]) == 0
    assert np.array_equal(np.asarray(Image.open(again)), pixels)


@pytest.mark.parametrize(
    "options, code, words",
    [
        (["--mask", "{mask}"], 2, "need an image to continue"),
        (["--continue-from", "{image}", "--mask", "{mask}", "--keep", "0.5"], 2, "leave out"),
        (["--continue-from", "{image}", "--mask", "{missing}"], 2, "mask: "),
        (["--continue-from", "{image}", "--mask", "{black}"], 1, "mask is empty"),
        (["--continue-from", "{image}", "--mask", "{mask}", "--output", "{mask}"], 2, "which would be overwritten"),
    ],
)
def test_refused_commands(picture, tmp_path, capsys, options, code, words):
    _, image, mask = picture
    Image.new("L", (64, 64)).save(tmp_path / "black.png")
    paths = {"image": image, "mask": mask, "missing": tmp_path / "missing.png", "black": tmp_path / "black.png"}
    given = [option.format(**paths) for option in options]
    command = ["generate", "--prompt", "x", "--device", "cpu", "--output", str(tmp_path / "o.png")]
    assert cli.main([*command, *given]) == code
    assert words in capsys.readouterr().err


def test_a_model_with_a_small_image_keeps_a_part_of_it_too():
    """GLM-Image generates a small image first, whose tokens are those of the image at its size."""
    encoded = []

    def encode(pixels):
        encoded.append(tuple(pixels.shape[2:]))
        return torch.full((1, pixels.shape[2] // 8, pixels.shape[3] // 8), len(encoded))

    def kept(cells, generated, small):
        return torch.cat([small.flatten(1), torch.where(generated, -1, cells).flatten(1)], 1)

    target = SimpleNamespace(downsample=8, lead=(1, 2), grid=(2, 4), kept=kept, codec=SimpleNamespace(encode=encode))
    generated = torch.zeros(1, 2, 4, dtype=torch.bool)
    generated[0, 1, 2:] = True
    codes = kept_of(Image.new("RGB", (32, 16)), generated, target)
    assert encoded == [(8, 16), (16, 32)] and codes == (1, 1, 2, 2, 2, 2, 2, 2)
