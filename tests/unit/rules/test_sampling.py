"""Tests of processed logits, and of exact samples of their softmax with keyed noise."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from adt_core import Sampling
from adt_core.rules.noise import keyed_gumbel
from adt_core.rules.sampling import certainty, guide, noise_table, process_logits, top_probability_and_entropy


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6), Sampling(top_k=3), Sampling(top_p=0.7)])
def test_keyed_sampling_follows_the_processed_softmax(sampling):
    """The chi-square test has 20,000 positions and a vocabulary of 6."""
    logits = torch.tensor([0.3, 1.1, -0.7, 0.0, 2.0, -3.0], dtype=torch.float64)
    z = process_logits(logits, sampling)
    draws = (z + torch.from_numpy(keyed_gumbel(11, 0, range(20000), 6))).argmax(-1)
    counts = torch.bincount(draws, minlength=6)
    probability = z.softmax(-1)
    assert (counts[probability == 0] == 0).all()
    live = probability > 0
    assert chisquare(counts[live].numpy(), (probability[live] * counts.sum()).numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    "logits, sampling, kept",
    [
        ([3.0, 2.0, 1.0, 0.0], Sampling(temperature=2.0, top_k=3, top_p=0.6), [1.5, 1.0]),
        ([9.0, 0.0], Sampling(top_p=0.01), [9.0]),
        ([1.0, 1.0, 0.0], Sampling(top_k=1), [1.0, 1.0]),
        ([0.0, 0.0], Sampling(top_p=0.5), [0.0]),
    ],
    ids=["temperature, top-k, top-p", "top-p keeps the best", "top-k keeps ties", "top-p is reached exactly"],
)
def test_filters_keep_the_first_tokens(logits, sampling, kept):
    z = process_logits(torch.tensor(logits), sampling)
    assert z.tolist() == kept + [-math.inf] * (len(logits) - len(kept))


def test_guiding_features_is_guiding_logits():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 2, 8, dtype=torch.float64, generator=generator)
    head = torch.randn(5, 8, dtype=torch.float64, generator=generator)
    c, u = (features @ head.T).chunk(2)
    assert torch.allclose(guide(features, 3.0) @ head.T, u + 3.0 * (c - u), atol=1e-12)
    assert guide(features, 1.0) is features


def test_temperature_zero_has_no_noise():
    assert noise_table(Sampling(temperature=0.0), [0], 4, 4, torch.empty(0)) is None


@pytest.mark.parametrize("length, vocabulary", [(1, 4), (9, 4), (7, 2**14), (3, 2**15 + 1)])
def test_the_noise_table_equals_the_noise_of_each_image(length, vocabulary):
    """The table may be computed for several positions at a time."""
    table = noise_table(Sampling(seed=5), [2, 7], length, vocabulary, torch.empty(0, dtype=torch.float64))
    for noise, index in zip(table, (2, 7)):
        assert np.array_equal(noise.numpy(), keyed_gumbel(5, index, range(length), vocabulary))


def test_certainty_is_the_probability_of_the_best_token_and_the_entropy():
    z = torch.tensor([0.5, 0.25, 0.25, 0.0]).log()  # the last token is excluded
    uniform = torch.zeros(4)
    one = torch.tensor([0.0, -math.inf, -math.inf, -math.inf])
    large = torch.tensor([1000.0, 999.0, -5000.0, -math.inf])
    found = [top_probability_and_entropy(*pair) for pair in certainty(torch.stack([z, uniform, one, large])).tolist()]
    np.testing.assert_allclose(found, [(0.5, 1.0397), (0.25, 1.3863), (1, 0), (0.7311, 0.5822)], atol=2e-4)


@pytest.mark.parametrize("vocabulary", [5, 1330, 2**15 + 1])
def test_certainty_equals_its_definition(vocabulary):
    z = torch.randn(3, 2, vocabulary, generator=torch.Generator().manual_seed(0)) * 4
    z[..., 3] = -math.inf
    p = z.double().softmax(-1)
    expected = torch.stack([p.amax(-1), torch.special.entr(p).sum(-1)], -1).flatten(0, 1)
    found = [top_probability_and_entropy(*pair) for pair in certainty(z).flatten(0, 1).tolist()]
    np.testing.assert_allclose(found, expected, atol=3e-4)
