"""Tests of previews: when a run makes them, and which rows of unfinished images they show."""

import numpy as np
import pytest
import torch

from adt_core import Pipeline, Recipe
from adt_core.run.previews import BLANK, Previews, PreviewSchedule, preview
from tests.layouts.families import WRITERS, load_small
from tests.tiny import write_tiny_checkpoint


class Clock:
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
    assert not schedule.images(0)
    assert schedule.images(1 / 16)
    make(schedule, clock, 1 / 16, 0.001)
    clock.now += 60
    assert not schedule.images(1 / 16)
    assert schedule.images(2 / 16)


def test_second_previews_are_a_second_apart(schedule, clock):
    """The first one need not wait, because it is cheap and gives the time of the others."""
    clock.now += 0.1
    assert schedule.images(0.1)
    make(schedule, clock, 0.1, 0.001)
    clock.now += 0.9
    assert not schedule.images(0.2)
    clock.now += 0.2
    assert schedule.images(0.2)


def test_budget_an_expensive_preview_delays_the_next(schedule, clock):
    """2 s are 4 % of 50 s."""
    clock.now += 8
    make(schedule, clock, 0.01, 2)
    clock.now += 39
    assert not schedule.images(0.02), "49 s have passed"
    clock.now += 1
    assert schedule.images(0.02)


def test_budget_a_preview_is_left_out_if_the_run_is_too_short_for_it(schedule, clock):
    """0.4 s of 12.5 s are used, for 1/8 of the rows. With 3/8, a preview takes twice as long: 1.2 s would be used."""
    make(schedule, clock, 1 / 8, 0.4)
    clock.now += 12.1
    assert schedule.images(3 / 8), "4 % of 33 s are 1.3 s"
    assert not schedule.images(4 / 8), "4 % of 25 s are 1 s, and a preview now takes 1 s"


def test_budget_limits_the_images_of_a_batch_that_are_decoded(schedule, clock):
    """An image takes 0.1 s with 1/8 of the rows, and 0.2 s with 3/8. After 20 s, 0.8 s may be used in total."""
    assert schedule.images(1 / 8) == 1, "the time is unknown"
    make(schedule, clock, 1 / 8, 0.1)
    clock.now += 19.9
    assert schedule.images(3 / 8) == 3
    with schedule.measured(3 / 8, images=3):
        clock.now += 0.6
    clock.now += 20
    assert schedule.images(3 / 8 + 0.01) == 4
    assert schedule.images(1, is_over=True) == 2, "an image takes 0.45 s, and 0.92 s are left"


def test_end_of_a_run_is_shown_in_any_case(schedule, clock):
    make(schedule, clock, 1 / 8, 10)
    assert schedule.images(1) == 0
    assert schedule.images(1, is_over=True) == 1


@pytest.mark.parametrize("codec, previews", [(0.02, 9), (0.1, 8), (0.3, 4), (1.0, 1), (2.0, 1)])
def test_run_of_ten_seconds_spends_at_most_a_twentieth_on_previews(schedule, clock, codec, previews):
    """An image of 16 rows, of which the codec needs `codec` seconds for a complete pass. Two rows are a fixed cost."""
    worked = 0.0
    spent = []
    while worked < 10:
        rows = int(1.6 * worked)
        if schedule.images(rows / 16):
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
    sheet = previews.sheet(3)
    assert sheet.size == (128, 128)
    assert tiles(sheet, side) == [rows, 2, 5]
    assert Previews([decoding], 64).sheet(3).size == (64, 64), "a sheet is as large as a single preview"


def tiles(sheet, side: int) -> list[int]:
    """Return the number of rows of tokens that each image of a sheet shows."""
    corners = [(0, 0), (64, 0), (0, 64)]
    return [shown(sheet.crop((x, y, x + 64, y + 64)), side) for x, y in corners]


def test_images_that_are_not_decoded_keep_their_rows(pipe, decoding, monkeypatch):
    """The first image comes first, then those that show the fewest rows. An image without new rows is left out."""
    columns = pipe.target.grid[1]
    side = pipe.target.downsample
    passes = []
    decode = type(pipe.target).pixels
    monkeypatch.setattr(type(pipe.target), "pixels", lambda *given: passes.append(1) or decode(*given))
    full = decoding.codes.clone()
    previews = Previews([decoding], 512)

    def after(tokens: list[int], count: int) -> list[int]:
        decoding.codes[:] = -1
        for image, kept in enumerate(tokens):
            decoding.codes[image, :kept] = full[image, :kept]
        passes.clear()
        found = tiles(previews.sheet(count), side)
        assert len(passes) <= count
        return found

    assert after([columns, columns, columns], 1) == [1, 0, 0]
    assert after([2 * columns, 2 * columns, 2 * columns], 2) == [2, 2, 0]
    assert after([2 * columns, 3 * columns, 3 * columns], 1) == [2, 2, 3]
    assert after([2 * columns + 1, 3 * columns, 3 * columns], 3) == [2, 3, 3] and len(passes) == 1
    previews.picture(2)
    assert len(passes) == 1


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
