"""Tests of the previews that samplers send to ComfyUI, with a stub clock."""

from types import SimpleNamespace

import numpy as np
import pytest
from comfy.cli_args import LatentPreviewMethod, args

ROWS = 8  # rows and columns of tokens of the small model's image. A plain round generates one token of each image.
SIDE = 64 // ROWS
BLANK = 22, 24, 29


@pytest.fixture
def clock(pack, monkeypatch):
    """Clock of previews. It advances by `round` seconds per round, and by `codec` seconds per decoded image."""
    clock = SimpleNamespace(now=0.0, round=1.0, codec=0.0, passes=0)
    clock.monotonic = lambda: clock.now
    core = pack.package(".adt_core.run.previews")
    monkeypatch.setattr(pack.package(".nodes.comfy_runtime"), "time", clock)
    schedule = core.PreviewSchedule
    monkeypatch.setattr(pack.package(".nodes.comfy_runtime"), "PreviewSchedule", lambda: schedule(lambda: clock.now))
    target = pack.package(".adt_core.models.target").Target
    decode = target.pixels

    def pixels(*given):
        clock.passes += 1
        clock.now += clock.codec
        return decode(*given)

    monkeypatch.setattr(target, "pixels", pixels)
    live_map = pack.package(".nodes.live_map").LiveMap

    def update(self):
        clock.now += clock.round

    monkeypatch.setattr(live_map, "update", update)
    return clock


@pytest.fixture
def sent(monkeypatch):
    import comfy.utils

    previews = []

    def hook(value, total, preview, node_id=None):
        if preview is not None:
            previews.append(preview)

    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", hook)
    monkeypatch.setattr(args, "preview_method", LatentPreviewMethod.Auto)
    return previews


def rows_of(tile) -> int:
    is_blank = (np.asarray(tile).reshape(ROWS, -1, tile.width, 3) == BLANK).all((1, 2, 3))
    return int((~is_blank).sum())


def sample(small, count: int = 1):
    return small.sample(batch_size=count, drafter=None, settings={"method": "no-drafting"})


def test_each_row_is_shown_if_it_takes_more_than_a_second(small, clock, sent):
    sample(small)
    kinds, pictures, sizes = zip(*sent)
    assert set(kinds) == {"JPEG"} and set(sizes) == {args.preview_size}
    assert {picture.size for picture in pictures} == {(64, 64)}
    assert [rows_of(picture) for picture in pictures] == list(range(1, ROWS + 1))


def test_rows_are_shown_once_per_second_if_they_take_less(small, clock, sent):
    clock.round = 0.5 / ROWS
    sample(small)
    assert [rows_of(picture) for _, picture, _ in sent] == [1, 3, 5, 7, 8]


def test_slow_codec_gives_fewer_previews(small, clock, sent):
    """A row takes 8 s, and a preview 1 s. Two previews and the complete image need 3 s of 66 s."""
    clock.codec = 1.0
    sample(small)
    assert [rows_of(picture) for _, picture, _ in sent] == [1, 3, ROWS]


def test_batch_is_shown_as_a_sheet(small, clock, sent):
    """All images of a batch have the same rows here. The first preview decodes one image, to measure the time."""
    clock.codec = 0.01
    sample(small, 3)
    assert [picture.size for _, picture, _ in sent] == [(128, 128)] * ROWS
    rows = [[rows_of(sheet.crop((x, y, x + 64, y + 64))) for y in (0, 64) for x in (0, 64)] for _, sheet, _ in sent]
    assert rows == [[1, 0, 0, 0], *([number, number, number, 0] for number in range(2, ROWS + 1))]


def test_batch_with_a_slow_codec_shows_the_first_image_more_often(small, clock, sent):
    clock.codec = 0.4
    sample(small, 3)
    first, second = ([rows_of(sheet.crop((x, 0, x + 64, 64))) for _, sheet, _ in sent] for x in (0, 64))
    assert first == sorted(set(first)) and first[-1] == ROWS and len(first) > 3
    assert len(set(second)) < len(first)
    assert clock.passes * clock.codec < 0.05 * clock.now


def test_preview_method_none_makes_no_previews(pack, small, clock, sent, monkeypatch):
    """On the command line, none is the default, so it counts for a browser tab only if the user has chosen it."""
    monkeypatch.setattr(args, "preview_method", LatentPreviewMethod.NoPreviews)
    sample(small)
    assert sent == [] and clock.passes == 0
    runtime = pack.package(".nodes.comfy_runtime")
    monkeypatch.setattr(runtime, "watched", lambda: "tab")
    queue = SimpleNamespace(currently_running={0: (0, "id", {}, {"preview_method": "default"}, [])})
    monkeypatch.setattr(runtime.PromptServer.instance, "prompt_queue", queue, raising=False)
    assert runtime.wants_previews()
    monkeypatch.setattr("sys.argv", ["main.py", "--preview-method", "none"])
    assert not runtime.wants_previews()
