"""Tests of layers that are fetched during each pass."""

from dataclasses import replace

import pytest
import torch

from adt_core import AdtError
from adt_core.models import streamed
from adt_core.models.layers import Decoder
from tests.drafted import run
from tests.layouts.families import WRITERS, load_small

CPU = torch.device("cpu")


class LastMoment:
    """Lane that fetches a layer as late as possible: when the caller waits for it."""

    def __init__(self):
        self.asked = {}

    def fetch(self, slot, fetch):
        assert slot not in self.asked, "a buffer was filled twice without a use"
        self.asked[slot] = fetch

    def wait(self, slot):
        self.asked.pop(slot)(slot)


class AtOnce(LastMoment):
    """Lane that fetches a layer as early as possible."""

    def fetch(self, slot, fetch):
        fetch(slot)

    def wait(self, slot):
        pass


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_tokens_are_those_of_a_model_that_fits(written, family, weights):
    dtype = torch.float64 if weights is None else torch.float32
    target = load_small(family, written(family), dtype=dtype, weights=weights)
    expected = run(target).codes
    for lane in (LastMoment, AtOnce, streamed.ThreadLane):
        for count in (1, len(target.decoder.layers)):
            streamed.place(target.decoder, CPU, count)
            target.decoder.stream._lane = lane()
            assert run(target).codes.equal(expected), (lane, count)
    streamed.place(target.decoder, CPU)
    assert target.decoder.stream is None
    assert run(target).codes.equal(expected)


def test_each_streamed_layer_is_fetched_once_per_pass_into_two_buffers(models):
    decoder = models[0].decoder
    count = len(decoder.layers)
    streamed.place(decoder, CPU, count)
    fetched = []
    decoder.stream._fetches = {layer: lambda slot: fetched.append(slot) for layer in decoder.layers}
    decoder.stream._lane = AtOnce()
    assert len(list(decoder.running_layers())) == count
    assert fetched == [number % 2 for number in range(count)]
    assert decoder.stream.fetched_bytes == count * streamed.layer_bytes(decoder)
    streamed.place(decoder, CPU)


def test_as_many_layers_stay_as_fit_beside_two_buffers(models):
    with torch.device("meta"):
        decoder = Decoder(replace(models[0].decoder.config, num_layers=6), torch.arange(9))
    size, others, count = streamed.layer_bytes(decoder), streamed.other_bytes(decoder), len(decoder.layers)
    assert streamed.streamed_count(decoder, others + count * size) == 0
    assert streamed.streamed_count(decoder, others + 2 * size) == count
    assert streamed.streamed_count(decoder, others + 2 * size - 1) is None
    assert streamed.streamed_count(decoder, others + 3 * size) == count - 1


@pytest.mark.parametrize("count, chosen, expected", [(8, 3, [1, 4, 7]), (4, 4, [0, 1, 2, 3]), (32, 1, [31])])
def test_streamed_layers_are_spread_and_include_the_last(count, chosen, expected):
    assert streamed.spread(count, chosen) == expected


def test_too_little_main_memory_is_refused_with_both_numbers():
    with pytest.raises(AdtError, match=r"8\.0 GiB .* 4\.0 GiB"):
        streamed.check_main_memory("model", 2**33, 2**32)
