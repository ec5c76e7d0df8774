"""Tests of keyed noise.

The noise of a token must depend only on its key (seed, index of the image, and position). The ring buffer must contain
the same values as the complete noise of an image.
"""

import random
from itertools import chain, repeat
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core.rules import noise
from adt_core.rules.noise import Noise, keyed_gumbel

LENGTH = 57
CODES = 6
SEED = 9
LIKE = torch.empty(0)


# ---- values --------------------------------------------------------------------------------------


def test_noise_format_is_frozen():
    """A change of these values changes the image of every seed. If you change them, increase version.FORMAT."""
    expected = [-1.49545161, -0.35113712, -0.78590678, 0.55867546]
    assert np.allclose(keyed_gumbel(0, 0, range(1), 4)[0], expected, atol=1e-6)


def test_each_position_has_the_values_of_its_own_generator():
    for row, position in zip(keyed_gumbel(2**64 - 1, 3, range(5, 9), 70), range(5, 9)):
        key = np.array([2**64 - 1, 3], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=[0, position, 0, 0]).random_raw(70)
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        assert np.array_equal(row, -np.log(-np.log(uniform)))


# ---- ring buffer ---------------------------------------------------------------------------------


def table(indices, seed=SEED, length=LENGTH, codes=CODES) -> torch.Tensor:
    """Return the complete noise of images, [B, length, codes] float32."""
    rows = [keyed_gumbel(seed, index, range(length), codes) for index in indices]
    return torch.from_numpy(np.stack(rows)).float()


def set_chunk_size(rows, monkeypatch) -> None:
    monkeypatch.setattr(noise, "_CHUNK_NUMBERS", rows * CODES)


def new_noise(indices, ahead, seed=SEED, check=None) -> Noise:
    return Noise([(seed, index) for index in indices], LENGTH, CODES, ahead, LIKE, check)


def has_rows(noise: Noise, roots, expected: torch.Tensor, ahead=None) -> bool:
    """Return whether the ring buffer has all rows that may be read from the roots on, also at the end of the image."""
    ahead = noise.ahead if ahead is None else ahead
    positions = torch.tensor(roots)[:, None] + torch.arange(ahead + 1)
    rows = expected[torch.arange(len(roots))[:, None], positions.clamp_max(LENGTH - 1)]
    return torch.equal(noise.at(positions), rows)


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 12), st.integers(0, 40), st.integers(0, 2**32))
def test_images_that_advance_by_random_steps_get_the_complete_noise(ahead, chunk, stride, start, seed):
    random_steps = random.Random(seed)
    indices = (0, 3, 1)
    with pytest.MonkeyPatch.context() as patch:
        set_chunk_size(chunk, patch)
        buffer = new_noise(indices, ahead)
        expected = table(indices)
        roots = [start] * len(indices)
        memory = buffer.ring.data_ptr()
        buffer.prepare([start - 1] * len(indices), ahead=1)
        assert has_rows(buffer, roots, expected, ahead=0), "the buffer lacks the row of the first token"
        while min(roots) < LENGTH - 1:
            buffer.prepare(roots)
            assert has_rows(buffer, roots, expected)
            roots = [min(root + random_steps.randint(0, min(stride, ahead)), LENGTH - 1) for root in roots]
            assert has_rows(buffer, roots, expected, ahead=0), "rows of the previous round include the new roots"
        assert buffer.ring.data_ptr() == memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_have_the_given_dtype(dtype):
    buffer = Noise([(SEED, 0)], LENGTH, CODES, 8, torch.empty(0, dtype=dtype))
    buffer.prepare([-1])
    expected = torch.from_numpy(keyed_gumbel(SEED, 0, range(8), CODES)).to(dtype)
    assert torch.equal(buffer.at(torch.arange(8)[None])[0], expected)


def test_the_ring_is_shorter_than_an_image_and_each_chunk_is_made_once(monkeypatch):
    set_chunk_size(4, monkeypatch)
    calls = []
    buffer = new_noise([0], ahead=6, check=lambda: calls.append(len(calls)))
    assert buffer.ring.shape == (1, 12, CODES)
    buffer.prepare([-1], ahead=1)
    assert len(calls) == 1
    for root in range(LENGTH):
        buffer.prepare([root])
    assert len(calls) == -(-LENGTH // 4), "each chunk must be made only once"
    assert new_noise([0], ahead=200).ring.shape[1] == LENGTH


def test_new_images_use_the_same_memory_and_their_own_check(monkeypatch):
    set_chunk_size(2, monkeypatch)
    calls = []
    buffer = new_noise([0, 1], ahead=3, check=lambda: calls.append("old"))
    memory = buffer.ring.data_ptr()
    buffer.prepare([40, 41])
    calls.clear()
    buffer.admit(torch.arange(2), new_noise([2, 0], ahead=3, seed=1, check=lambda: calls.append("new")))
    buffer.prepare([0, 0])
    assert has_rows(buffer, [0, 0], table([2, 0], seed=1)) and buffer.ring.data_ptr() == memory
    assert set(calls) == {"new"}


def test_making_noise_can_be_cancelled_and_resumed(monkeypatch):
    set_chunk_size(1, monkeypatch)
    check = Mock(side_effect=chain([None, None, KeyboardInterrupt], repeat(None)))
    buffer = new_noise([0, 1], ahead=4, check=check)
    with pytest.raises(KeyboardInterrupt):
        buffer.prepare([0, 0])
    only_first = table([0, 1]) * torch.tensor([1.0, 0.0])[:, None, None]
    assert has_rows(buffer, [0, 0], only_first, ahead=1), "two rows of the first image were made"
    buffer.prepare([0, 0])
    assert has_rows(buffer, [0, 0], table([0, 1]))


def test_missing_rows_are_finite_and_positions_after_the_image_get_its_last_row():
    buffer = new_noise([0, 1], ahead=LENGTH)
    last = torch.tensor([[LENGTH - 1, LENGTH, 10**6]] * 2)
    assert buffer.at(last).isfinite().all()
    buffer.prepare([0, 0])
    assert torch.equal(buffer.at(last), table([0, 1])[:, -1:].expand(-1, 3, -1))


def test_memory_for_emu3_at_720_pixels_is_far_below_the_complete_noise():
    """Images have 90 rows of 90 of 32,768 codes and an end token. The buffer has twice the maximum depth of a tree."""
    length = 90 * 91
    codes = 32769
    ahead = 2 * 257
    needed = Noise.num_bytes(1, length, codes, ahead)
    assert needed == (ahead + 1) * codes * 4 < 256 * 2**20 < length * codes * 4
    assert Noise.num_bytes(3, length, codes, ahead) == 3 * needed
    small = Noise([(0, 0), (0, 0)], 300, codes, 7, LIKE)
    assert small.ring.numel() * 4 == Noise.num_bytes(2, 300, codes, 7)


def test_global_generators_are_not_changed():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()
    buffer = new_noise([0, 1], ahead=8)
    buffer.prepare([0, 0])
    buffer.at(torch.zeros(2, 1, dtype=torch.long))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])
