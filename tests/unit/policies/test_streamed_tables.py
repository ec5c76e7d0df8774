"""Tests of the computed tables of streamed weights in docs/models.md."""

import pytest

from adt_core.drafters.merged import MergedDrafter
from benchmarks import streamed

WEIGHTS = streamed.weights_of(streamed.MODEL, "bfloat16")
COUNT = WEIGHTS.streamed(streamed.AVAILABLE)


def test_the_document_has_the_tables_of_the_program():
    document = streamed.DOCUMENT.read_text(encoding="utf-8")
    assert streamed.written(document) == document, "run python -m benchmarks.streamed --write"


def test_the_sizes_of_layers_are_those_of_the_published_configuration():
    """Janus-Pro-7B: hidden size 4096, intermediate size 11008."""
    assert WEIGHTS.parameters == pytest.approx(4 * 4096**2 + 3 * 4096 * 11008, rel=0.05)


@pytest.mark.parametrize("gpu", streamed.GPUS)
@pytest.mark.parametrize("nodes", [1, 64])
def test_copies_and_computations_overlap(gpu, nodes):
    times = streamed.pass_of(WEIGHTS, COUNT, streamed.GPUS[gpu], nodes)
    assert times.overlap >= 0.9
    assert times.seconds == pytest.approx(max(times.copying, times.computing), rel=0.05)


@pytest.mark.parametrize("gpu", streamed.GPUS)
def test_auto_chooses_the_largest_trees_and_saves_more_than_with_weights_that_fit(gpu):
    card = streamed.GPUS[gpu]
    speeds = {}
    for count in (COUNT, 0):
        plain, best = streamed.choice_of(WEIGHTS, count, card, MergedDrafter.modes, temperature=1.0)
        speeds[count] = plain * best.tokens / best.seconds
        assert best.drafts == 95 if count else best.drafts <= 63
    assert speeds[COUNT] > 1.4 * speeds[0]


def test_two_buffers_need_the_memory_of_two_layers():
    layers = WEIGHTS.layers
    for count in (3, 10, layers):
        needed = WEIGHTS.total - (count - 2) * WEIGHTS.layer
        assert WEIGHTS.streamed(needed + 1e-9) == count
    assert WEIGHTS.streamed(needed - 1e-3) is None and WEIGHTS.streamed(WEIGHTS.total) == 0
