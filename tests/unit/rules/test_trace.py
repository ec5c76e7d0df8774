"""Tests of the token maps of a trace, and of the certainty that a decoding records, which drafts do not change."""

from dataclasses import replace

import pytest

from adt_core import Drafting, load_drafter
from adt_core.trace import ImageRound, Round, Trace, rank_correlation
from tests.drafted import METHODS, run


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


def test_both_counts_of_tau(trace):
    """Four records emit 3, 1, 2 and 4 tokens. One token of each is the target's own."""
    report = trace.report()
    assert report["tau"] == 10 / 4 and report["accepted_per_round"] == 6 / 4


def certain(record: ImageRound, *probabilities: float) -> ImageRound:
    return replace(record, probabilities=probabilities, entropies=(0.5,) * len(probabilities))


def test_certainty_differs_between_the_tokens_of_a_round(trace):
    first, second = trace.rounds
    rounds = [
        replace(first, images=(certain(first.images[0], 0.9, 0.8, 0.7), certain(first.images[1], 0.1))),
        replace(second, images=(certain(second.images[0], 0.5, 0.25), certain(second.images[1], 0.6, 0.7, 0.8, 0.9))),
    ]
    own = replace(trace, rounds=rounds)
    assert own.token_map("certainty", 0) == [[0, 0.9, 0.8], [0.7, 0.5, 0.25]]
    # Accepted drafts: 2, 0, 1, 3. Mean certainty: 0.8, 0.1, 0.375, 0.75. Only the two largest ranks are exchanged.
    assert own.certainty_correlation() == pytest.approx(0.8)
    assert own.subset([1]).token_map("certainty") == [[0, 0.1, 0.6], [0.7, 0.8, 0.9]]
    assert trace.certainty_correlation() is None, "an old trace has no certainty"


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ([1, 2, 3], [4, 5, 9], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 1], [2, 3], None),
        ([], [], None),
        ([1, 2, 2, 3], [1, 3, 2, 4], 4.5 / (4.5 * 5) ** 0.5),
    ],
)
def test_rank_correlation(first, second, expected):
    assert rank_correlation(first, second) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("name", ["jacobi", "auto, jacobi"])
def test_every_token_has_the_certainty_of_plain_decoding(target, name):
    source, options = METHODS[name]
    plain = run(target).trace
    drafted = run(target, load_drafter(source, target), drafting=Drafting(**options)).trace
    for image in range(plain.images):
        expected = [value for row in plain.token_map("certainty", image) for value in row]
        found = [value for row in drafted.token_map("certainty", image) for value in row]
        assert found == pytest.approx(expected, abs=2e-4) and all(0 < value <= 1 for value in found[1:])
    for record in (record for round in drafted.rounds for record in round.images):
        assert len(record.probabilities) == len(record.entropies) == record.accepted + 1
        assert all(entropy >= 0 for entropy in record.entropies)
