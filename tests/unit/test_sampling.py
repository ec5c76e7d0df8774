"""Keyed noise is an exact sample of the softmax, and depends on nothing but its key."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from adt_core import AdtError, Sampling
from adt_core.rules.sampling import guide, keyed_gumbel, noise_table, process_logits


def test_noise_of_a_position_does_not_depend_on_what_else_is_drawn():
    whole = keyed_gumbel(7, 2, range(50), 33)
    assert np.array_equal(keyed_gumbel(7, 2, range(31, 32), 33)[0], whole[31])
    assert np.array_equal(keyed_gumbel(7, 2, range(50), 12), whole[:, :12])


def test_noise_differs_between_seeds_images_and_positions():
    rows = [
        keyed_gumbel(seed, image, range(at, at + 1), 64)[0]
        for seed, image, at in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))
    ]
    assert len({row.tobytes() for row in rows}) == 4


def test_64_bit_seeds_are_all_different():
    high = [keyed_gumbel(seed, 0, range(1), 8).tobytes() for seed in (0, 2**32, 2**63, 2**64 - 1)]
    assert len(set(high)) == 4


def test_noise_format_is_frozen():
    """A change here changes every image that a seed names: raise NOISE_VERSION with it."""
    expected = [-1.49545161, -0.35113712, -0.78590678, 0.55867546]
    assert np.allclose(keyed_gumbel(0, 0, range(1), 4)[0], expected, atol=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6), Sampling(top_k=3), Sampling(top_p=0.7)])
def test_keyed_sampling_follows_the_processed_softmax(sampling):
    """Chi-square over 20,000 positions on a vocabulary of 6."""
    logits = torch.tensor([0.3, 1.1, -0.7, 0.0, 2.0, -3.0], dtype=torch.float64)
    z = process_logits(logits, sampling)
    draws = (z + torch.from_numpy(keyed_gumbel(11, 0, range(20000), 6))).argmax(-1)
    counts = torch.bincount(draws, minlength=6)
    probability = z.softmax(-1)
    assert (counts[probability == 0] == 0).all()
    live = probability > 0
    assert chisquare(counts[live].numpy(), (probability[live] * counts.sum()).numpy()).pvalue > 1e-3


def test_two_positions_are_independent():
    noise = keyed_gumbel(3, 0, range(30000), 3).reshape(-1, 2, 3)
    pairs = noise.argmax(-1) @ np.array([3, 1])
    assert chisquare(np.bincount(pairs, minlength=9)).pvalue > 1e-3


def test_pipeline_order_is_temperature_top_k_top_p():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0])
    z = process_logits(logits, Sampling(temperature=2.0, top_k=3, top_p=0.6))
    assert torch.isfinite(z).tolist() == [True, True, False, False]
    assert z[0] == 1.5


def test_top_p_always_keeps_the_best_and_top_k_keeps_ties():
    assert torch.isfinite(process_logits(torch.tensor([9.0, 0.0]), Sampling(top_p=0.01))).tolist() == [True, False]
    assert torch.isfinite(process_logits(torch.tensor([1.0, 1.0, 0.0]), Sampling(top_k=1))).tolist() == [
        True,
        True,
        False,
    ]


def test_guiding_features_is_guiding_logits():
    torch_generator = torch.Generator().manual_seed(0)
    features, head = (
        torch.randn(*size, dtype=torch.float64, generator=torch_generator) for size in ((4, 2, 8), (5, 8))
    )
    c, u = (features @ head.T).chunk(2)
    assert torch.allclose(guide(features, 3.0) @ head.T, u + 3.0 * (c - u), atol=1e-12)
    assert guide(features, 1.0) is features


def test_temperature_zero_has_no_noise():
    assert noise_table(Sampling(temperature=0.0), [0], 4, 4, torch.empty(0)) is None


def test_global_generators_are_left_alone():
    torch.manual_seed(1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    noise_table(Sampling(seed=5), [0, 1], 16, 16, torch.empty(0))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])


@pytest.mark.parametrize(
    "field, value",
    [
        ("seed", -1),
        ("seed", 2**64),
        ("temperature", math.nan),
        ("temperature", -1.0),
        ("guidance", math.nan),
        ("guidance", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
    ],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(AdtError, match=f"^{field} is "):
        Sampling(**{field: value})
