"""Tests of the token maps of a trace."""

from dataclasses import replace

import pytest

from adt_core.trace import ImageRound, Round, Trace


@pytest.fixture
def trace():
    """Return the trace of two images with 2 x 3 tokens. The second image has fewer accepted drafts."""
    trace = Trace({}, (2, 3), 2, {0: 0.2, 1: 0.3})
    first = ImageRound(0, 0, 3, 2, 3, 5, 2, (0, 1), width=2), ImageRound(1, 0, 3, 2, 2, 4, 0, (), width=3)
    second = ImageRound(0, 3, 2, 1, 2, 2, 1, (0,), width=1), ImageRound(1, 1, 4, 1, 4, 4, 3, (0, 0, 0), width=1)
    trace.rounds = [Round(0, 0.03, 0.01, 3, first), Round(1, 0.04, 0.01, 2, second)]
    return trace


@pytest.mark.parametrize(
    "figure, image, rows",
    [
        ("acceptance", 0, [[1, 3, 3], [3, 2, 2]]),
        ("acceptance", 1, [[1, 1, 4], [4, 4, 4]]),
        ("depth", 0, [[0, 3, 3], [3, 2, 2]]),
        ("width", 1, [[0, 3, 1], [1, 1, 1]]),
        ("time", 0, [[200, 10, 10], [10, 20, 20]]),
        ("time", 1, [[300, 30, 10], [10, 10, 10]]),
    ],
)
def test_each_token_has_the_figure_of_its_round(trace, figure, image, rows):
    """The first token belongs to no round, because the prefill samples it."""
    assert trace.token_map(figure, image) == [pytest.approx(row) for row in rows]


def test_the_tokens_of_the_small_image_are_first_and_not_on_the_map(trace):
    with_small = replace(trace, grid=(1, 3), lead=(1, 3))
    assert with_small.token_map("acceptance") == [trace.token_map("acceptance")[1]]
    assert with_small.report() == trace.report()


def test_only_rounds_with_preparation_are_marked(trace):
    trace.rounds[1] = replace(trace.rounds[1], prepared=True)
    first, second = trace.to_json()["rounds"]
    assert "prepared" not in first and second.pop("prepared") is True
    assert first.keys() == second.keys() and len(first["images"]) == 2
