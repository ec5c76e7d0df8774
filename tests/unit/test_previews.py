"""Tests of previews: when a run makes them, and which rows of unfinished images they show."""

import numpy as np
import pytest
import torch

from adt_core import Pipeline, Recipe
from adt_core.app.previews import BLANK, Previews, PreviewSchedule, preview
from tests.layouts.families import WRITERS, load_small
from tests.tiny import write_tiny_checkpoint


class Clock:
    """Clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def schedule(clock):
    return PreviewSchedule(clock)


def make(schedule, clock, done: float, seconds: float) -> None:
    with schedule.measured(done):
        clock.now += seconds


def test_row_a_preview_shows_at_least_one_more_complete_row(schedule, clock):
    clock.now += 5
    assert not schedule.is_due(0)
    assert schedule.is_due(1 / 16)
    make(schedule, clock, 1 / 16, 0.001)
    clock.now += 60
    assert not schedule.is_due(1 / 16)
    assert schedule.is_due(2 / 16)


def test_second_previews_are_a_second_apart(schedule, clock):
    """The first one need not wait, because it is cheap and gives the time of the others."""
    clock.now += 0.1
    assert schedule.is_due(0.1)
    make(schedule, clock, 0.1, 0.001)
    clock.now += 0.9
    assert not schedule.is_due(0.2)
    clock.now += 0.2
    assert schedule.is_due(0.2)


def test_budget_an_expensive_preview_delays_the_next(schedule, clock):
    """2 s are 4 % of 50 s."""
    clock.now += 8
    make(schedule, clock, 0.01, 2)
    clock.now += 39
    assert not schedule.is_due(0.02), "49 s have passed"
    clock.now += 1
    assert schedule.is_due(0.02)


def test_budget_a_preview_is_left_out_if_the_run_is_too_short_for_it(schedule, clock):
    """0.4 s of 12.5 s are used, for 1/8 of the rows. With 3/8, a preview takes twice as long: 1.2 s would be used."""
    make(schedule, clock, 1 / 8, 0.4)
    clock.now += 12.1
    assert schedule.is_due(3 / 8), "4 % of 33 s are 1.3 s"
    assert not schedule.is_due(4 / 8), "4 % of 25 s are 1 s, and a preview now takes 1 s"


@pytest.mark.parametrize("codec, previews", [(0.02, 9), (0.1, 8), (0.3, 4), (1.0, 1), (2.0, 1)])
def test_run_of_ten_seconds_spends_at_most_a_twentieth_on_previews(schedule, clock, codec, previews):
    """An image of 16 rows, of which the codec needs `codec` seconds for a complete pass. Two rows are a fixed cost."""
    worked = 0.0
    spent = []
    while worked < 10:
        rows = int(1.6 * worked)
        if schedule.is_due(rows / 16):
            spent.append(codec * (rows + 2) / 18)
            make(schedule, clock, rows / 16, spent[-1])
        worked += 0.1
        clock.now += 0.1
    assert sum(spent) <= 0.05 * 10.5
    assert len(spent) == previews


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("target"), resolution=64, max_positions=300)
    return Pipeline.load(folder, device="cpu", dtype="float64").with_options(method="no-drafting")


@pytest.fixture
def decoding(pipe):
    return pipe.decoding(["a boat", "a lamp", "a dog"]).run()


def keep(decoding, image: int, tokens: int) -> None:
    """Remove the tokens of an image after the first ones."""
    decoding.codes[image, tokens:] = -1


def shown(picture, side: int) -> int:
    """Return the number of rows of tokens that a picture shows. All other rows must be blank."""
    is_blank = (np.asarray(picture).reshape(-1, side, picture.width, 3) == BLANK).all((1, 2, 3))
    rows = int((~is_blank).sum())
    assert is_blank[rows:].all()
    return rows


def test_only_complete_rows_are_shown(pipe, decoding):
    rows, columns = pipe.target.grid
    side = pipe.target.downsample
    whole = np.asarray(preview(decoding, 0))
    np.testing.assert_array_equal(whole, np.asarray(pipe.result(decoding, 0, "a boat").image))
    for tokens in (columns * (rows - 1), 3 * columns + 2, columns, columns - 1, 0):
        keep(decoding, 0, tokens)
        picture = preview(decoding, 0)
        assert picture.size == (columns * side, rows * side) and shown(picture, side) == tokens // columns


def test_sheet_shows_the_rows_of_each_image_of_a_batch(pipe, decoding):
    rows, columns = pipe.target.grid
    side = pipe.target.downsample
    keep(decoding, 1, 2 * columns + 1)
    keep(decoding, 2, 5 * columns)
    previews = Previews([decoding], 512)
    assert previews.done() == (rows + 2 + 5) / (3 * rows)
    sheet = previews.sheet()
    width, height = 64, 64
    assert sheet.size == (2 * width, 2 * height)
    corners = [(0, 0), (width, 0), (0, height)]
    tiles = [sheet.crop((x, y, x + width, y + height)) for x, y in corners]
    assert [shown(tile, side) for tile in tiles] == [rows, 2, 5]
    small = Previews([decoding], 64).sheet()
    assert small.size == (64, 64), "a sheet is as large as a single preview"


def test_image_is_decoded_again_only_after_another_row(pipe, decoding, monkeypatch):
    columns = pipe.target.grid[1]
    passes = []
    decode = type(pipe.target).pixels
    monkeypatch.setattr(type(pipe.target), "pixels", lambda *given: passes.append(1) or decode(*given))
    full = decoding.codes.clone()
    for image in range(3):
        keep(decoding, image, columns)
    previews = Previews([decoding], 512)
    previews.sheet()
    decoding.codes[0, : columns + 3] = full[0, : columns + 3]
    decoding.codes[1, : 2 * columns] = full[1, : 2 * columns]
    before = len(passes)
    previews.sheet()
    assert len(passes) == before + 1
    previews.picture(2)
    assert len(passes) == before + 1


@pytest.mark.parametrize("family", WRITERS)
def test_codec_of_each_family_decodes_some_rows(family, tmp_path):
    """GLM-Image's small image, which precedes the image, is shown until a row of the image is complete."""
    target = load_small(family, WRITERS[family](tmp_path))
    decoding = Pipeline(target, Recipe()).with_options(method="no-drafting").decoding(["a red house"])
    decoding.codes = torch.randint(target.num_codes, decoding.codes.shape)
    rows, columns = target.grid
    row = columns + target.row_end
    lead = target.length - rows * row
    for complete in (rows, 2, 1):
        keep(decoding, 0, lead + complete * row + columns - 1)
        picture = preview(decoding, 0)
        assert picture.size == (columns * target.downsample, rows * target.downsample)
        assert shown(picture, target.downsample) == complete
    if lead:
        small_rows, small_columns = target.lead
        keep(decoding, 0, lead + columns - 1)
        assert shown(preview(decoding, 0), target.downsample) == small_rows
        keep(decoding, 0, lead - 1)
        picture = preview(decoding, 0)
        assert picture.size == (small_columns * target.downsample, small_rows * target.downsample)
        assert shown(picture, target.downsample) == small_rows - 1
