"""Keyed noise depends on nothing but its key, and what is made as images advance is the same noise."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core.rules import noise
from adt_core.rules.noise import Noise, keyed_gumbel

LENGTH, CODES, SEED = 57, 6, 9
LIKE = torch.empty(0)


# ---- the bits ------------------------------------------------------------------------------------


def test_noise_format_is_frozen():
    """A change here changes every image that a seed names: raise NOISE_VERSION with it."""
    expected = [-1.49545161, -0.35113712, -0.78590678, 0.55867546]
    assert np.allclose(keyed_gumbel(0, 0, range(1), 4)[0], expected, atol=1e-6)


def test_bits_are_those_of_a_generator_of_each_position():
    """By the definition, with nothing shared between positions."""
    for row, position in zip(keyed_gumbel(2**64 - 1, 3, range(5, 9), 70), range(5, 9)):
        key = np.array([2**64 - 1, 3], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=[0, position, 0, 0]).random_raw(70)
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        assert np.array_equal(row, -np.log(-np.log(uniform)))


# ---- made as images advance ----------------------------------------------------------------------


def table(indices, seed=SEED, length=LENGTH, codes=CODES) -> torch.Tensor:
    """The whole noise of these images, [B, length, codes] in float32."""
    whole = [keyed_gumbel(seed, index, range(length), codes) for index in indices]
    return torch.from_numpy(np.stack(whole)).float()


def in_chunks_of(rows, monkeypatch) -> None:
    monkeypatch.setattr(noise, "_CHUNK_NUMBERS", rows * CODES)


def made(indices, ahead, seed=SEED, check=None) -> Noise:
    return Noise([(seed, index) for index in indices], LENGTH, CODES, ahead, LIKE, check)


def holds(made: Noise, roots, whole: torch.Tensor, ahead=None) -> bool:
    """Is all there that a reader may ask for, from the images' roots on, the end of the image included?"""
    ahead = made.ahead if ahead is None else ahead
    positions = torch.tensor(roots)[:, None] + torch.arange(ahead + 1)
    expected = whole[torch.arange(len(roots))[:, None], positions.clamp_max(LENGTH - 1)]
    return torch.equal(made.at(positions), expected)


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 12), st.integers(0, 40), st.integers(0, 2**32))
def test_images_that_walk_on_by_random_steps_find_the_noise_of_the_whole_image(ahead, chunk, stride, start, seed):
    steps = random.Random(seed)
    indices = (0, 3, 1)
    with pytest.MonkeyPatch.context() as patch:
        in_chunks_of(chunk, patch)
        walked = made(indices, ahead)
        whole = table(indices)
        roots = [start] * len(indices)
        memory = walked.ring.data_ptr()
        walked.prepare([start - 1] * len(indices), ahead=1)
        assert holds(walked, roots, whole, ahead=0), "the first token's"
        while min(roots) < LENGTH - 1:
            walked.prepare(roots)
            assert holds(walked, roots, whole)
            roots = [min(root + steps.randint(0, min(stride, ahead)), LENGTH - 1) for root in roots]
            assert holds(walked, roots, whole, ahead=0), "what was made for the round before reaches the new roots"
        assert walked.ring.data_ptr() == memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_have_the_dtype_that_was_asked_for(dtype):
    walked = Noise([(SEED, 0)], LENGTH, CODES, 8, torch.empty(0, dtype=dtype))
    walked.prepare([-1])
    expected = torch.from_numpy(keyed_gumbel(SEED, 0, range(8), CODES)).to(dtype)
    assert torch.equal(walked.at(torch.arange(8)[None])[0], expected)


def test_the_ring_is_shorter_than_an_image_and_chunks_are_made_as_they_are_needed(monkeypatch):
    in_chunks_of(4, monkeypatch)
    calls = []
    walked = made([0], ahead=6, check=lambda: calls.append(len(calls)))
    assert walked.ring.shape == (1, 12, CODES)
    walked.prepare([-1], ahead=1)
    assert len(calls) == 1
    for root in range(LENGTH):
        walked.prepare([root])
    assert len(calls) == -(-LENGTH // 4), "every chunk once"
    assert made([0], ahead=200).ring.shape[1] == LENGTH


def test_the_memory_serves_the_next_images_and_their_check(monkeypatch):
    in_chunks_of(2, monkeypatch)
    calls = []
    walked = made([0, 1], ahead=3, check=lambda: calls.append("old"))
    memory = walked.ring.data_ptr()
    walked.prepare([40, 41])
    calls.clear()
    walked.admit(torch.arange(2), made([2, 0], ahead=3, seed=1, check=lambda: calls.append("new")))
    walked.prepare([0, 0])
    assert holds(walked, [0, 0], table([2, 0], seed=1)) and walked.ring.data_ptr() == memory
    assert set(calls) == {"new"}


def test_making_noise_can_be_cancelled_and_gone_on_with(monkeypatch):
    in_chunks_of(1, monkeypatch)
    calls = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt

    walked = made([0, 1], ahead=4, check=check)
    with pytest.raises(KeyboardInterrupt):
        walked.prepare([0, 0])
    assert holds(walked, [0, 0], table([0, 1]) * torch.tensor([1.0, 0.0])[:, None, None], ahead=1), "two rows so far"
    walked.prepare([0, 0])
    assert holds(walked, [0, 0], table([0, 1]))


def test_what_was_not_made_is_finite_and_positions_behind_the_image_get_its_last_row():
    walked = made([0, 1], ahead=LENGTH)
    last = torch.tensor([[LENGTH - 1, LENGTH, 10**6]] * 2)
    assert walked.at(last).isfinite().all()
    walked.prepare([0, 0])
    assert torch.equal(walked.at(last), table([0, 1])[:, -1:].expand(-1, 3, -1))


def test_memory_for_emu3_at_720_pixels_is_far_below_the_whole_noise():
    """90 rows of 90 codes and an end of row, 32,768 codes and that end; the deepest tree that settings allow, twice."""
    length = 90 * 91
    codes = 32769
    ahead = 2 * 257
    needed = Noise.num_bytes(1, length, codes, ahead)
    assert needed == (ahead + 1) * codes * 4 < 256 * 2**20 < length * codes * 4
    assert Noise.num_bytes(3, length, codes, ahead) == 3 * needed
    small = Noise([(0, 0), (0, 0)], 300, codes, 7, LIKE)
    assert small.ring.numel() * 4 == Noise.num_bytes(2, 300, codes, 7)


def test_global_generators_are_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()
    walked = made([0, 1], ahead=8)
    walked.prepare([0, 0])
    walked.at(torch.zeros(2, 1, dtype=torch.long))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])
