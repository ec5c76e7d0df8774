"""Reliability of drafts, learned while an image is decoded. The reliability of a draft depends on its freshness.

At each position there are several *candidates* for the draft. They were computed from the tokens before the position.
Later, some of these tokens may have changed. The *freshness* of a position is its distance to the nearest changed token
before it; `UNCHANGED` if no token has changed, and `UNREAD` if the target has not read the position yet. Positions with
similar freshness form a *class*. Example: the candidates at position 10 were computed, then the tokens at positions 4
and 7 changed. The freshness of position 10 is 3. The *spine* is the sequence of the most probable candidates
(:mod:`.jacobi`).

Dimensions: B images, m positions, K candidates per position. There are k *kinds* of candidates: those from the target's
logits, and with a drafter network (:mod:`.merged`) also those from the network. A *score* is a logit plus noise.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .base import Verified

UNREAD = 0
"""Freshness of a position that the target has not read yet. Being smaller than every distance, it stays the same when
tokens before the position change."""
UNCHANGED = 10**6
"""Freshness of a position before which no token has changed, larger than every distance."""
FRESH_FROM = (1, 2, 3, 4, 5, 9, UNCHANGED)
"""Smallest freshness of the classes 1, 2, ..., 7. Class 5 has the freshness 5 to 8, and class 6 the freshness 9 or
more. Class 0 has the freshness `UNREAD`. In class 7, no token before the position has changed, so its first candidate
is almost always correct."""
CLASSES = len(FRESH_FROM) + 1
"""Number of freshness classes."""
INITIAL_TEMPERATURES = (1.0, *(distance**-0.5 for distance in FRESH_FROM[:-1]), 0.05)
"""Initial temperature of each class's candidate distribution."""
INITIAL_HIT_RATES = (0.2, 0.4, 0.7, 0.8, 0.85, 0.9, 0.9, 0.95)
"""Initial hit rate of each class: the estimated share of positions whose most probable candidate is correct."""
INITIAL_NETWORK_HIT_RATES = (0.5,) * CLASSES
"""Initial hit rates of candidates from a drafter network. A position with candidates from the network has the class
`CLASSES + c`, where c is the class for its freshness."""
LEARNING_RATE = 0.1
"""Learning rate of the temperatures."""
PRIOR = 4.0
"""Weight of an initial hit rate, as a number of observed positions."""


class Forecast(NamedTuple):
    """Predictions for some positions, later compared with the tokens that were decided there.

    Attributes:
        classes: [B, m], class c for the freshness of each position, less than `CLASSES`. Candidates of kind j have the
            class c + j * CLASSES.
        codes: [B, k, m], code of the most probable candidate of each kind at each position.
        predicted: [B, k, m], estimated probability that this candidate is correct.
    """

    classes: Tensor
    codes: Tensor
    predicted: Tensor


class Calibration:
    """Temperature and hit rate of each class, learned for each image separately.

    The temperature of a class divides the scores of its candidates, so that their softmax gives correct probabilities.
    Images share no state, so an image gets the same trees in every batch.
    """

    def __init__(self, images: int, like: Tensor):
        """Start from the initial estimates, with the dtype and the device of `like`."""
        self._temperature = like.new_tensor(INITIAL_TEMPERATURES + (1.0,) * CLASSES).repeat(images, 1)
        rates = like.new_tensor(INITIAL_HIT_RATES + INITIAL_NETWORK_HIT_RATES)
        self._counts = (torch.stack([rates, torch.ones_like(rates)]) * PRIOR).repeat(images, 1, 1)
        self._classes = torch.arange(CLASSES, device=like.device)[:, None]
        self._zero = like.new_zeros(())

    def state(self) -> list[Tensor]:
        """Return the tensors of the state: temperatures [B, 2 * CLASSES], hits and observations [B, 2, 2 * CLASSES]."""
        return [self._temperature, self._counts]

    def select(self, slots: Tensor) -> None:
        """Keep only the images of the given slots."""
        self._temperature, self._counts = (part[slots] for part in self.state())

    def admit(self, slots: Tensor, others: Calibration) -> None:
        """Replace the values of the images in the given slots by the values of the images of `others`."""
        for part, new in zip(self.state(), others.state()):
            part[slots] = new

    def log_probabilities(self, classes: Tensor, scores: Tensor) -> Tensor:
        """Estimate the log-probabilities of the candidates at some positions, [B, m, K].

        Args:
            classes: [B, m], class of each position.
            scores: [B, m, K], scores of the candidates.
        """
        return (scores / self._temperature.gather(1, classes)[..., None]).log_softmax(-1)

    def hit_rates(self) -> Tensor:
        """Return the hit rate of each class, [B, 2 * CLASSES]."""
        hits, seen = self._counts.unbind(1)
        return hits / seen

    def learn(self, forecast: Forecast | None, verified: Verified, is_decided: Tensor) -> None:
        """Update temperatures and hit rates from a verified tree.

        Only positions up to the first wrong token of the spine are used; later drafts were computed from the wrong
        token.

        Args:
            is_decided: [B, n] bool, whether each of the first n codes after the root is decided.
        """
        if forecast is None:
            return
        m = min(verified.following.shape[1], forecast.codes.shape[2], verified.tree.height)
        emitted = verified.following[:, :m]
        wrong = (verified.tree.tokens[:, 1 : m + 1] != emitted).long()
        # Example: the second and the third token are wrong. `wrong` is [0, 1, 1], and its sum up to each position is
        # [0, 1, 2]. The first two positions are used. There, the sum contains only the position's own error.
        counts = (wrong.cumsum(1) <= wrong) & is_decided[:, :m]
        counts &= verified.tree.valid[:, 1 : m + 1]  # an image's window can be shorter than the longest window
        classes, codes, predicted = (part[..., :m] for part in forecast)
        of_class = (classes[:, None] == self._classes) & counts[:, None]  # [B, classes, m]
        self._add(of_class, (codes == emitted[:, None]).to(predicted.dtype), predicted)

    def _add(self, of_class: Tensor, hit: Tensor, predicted: Tensor) -> None:
        """Update temperatures and hit rates with observations at some positions.

        Args:
            of_class: [B, CLASSES, m] bool, whether the observation at a position is used for a class.
            hit: [B, k, m], 1 if the most probable candidate was correct, else 0.
            predicted: [B, k, m], estimated probability that it is correct.
        """
        images, kinds, m = hit.shape
        values = torch.cat([predicted - hit, hit, torch.ones_like(hit)], 1).view(images, 3, kinds, 1, m)
        # Sum over a mask, because index_add is not deterministic for floating-point numbers on a GPU.
        sums = torch.where(of_class[:, None, None], values, self._zero).sum(-1).flatten(2)  # [B, 3, k * CLASSES]
        learned = slice(sums.shape[2])
        self._temperature[:, learned].mul_((LEARNING_RATE * sums[:, 0]).exp()).clamp_(1e-2, 1e2)
        self._counts[..., learned].add_(sums[:, 1:])


@cache
def _class_bounds(device: torch.device) -> Tensor:
    return torch.tensor(FRESH_FROM, device=device)


def freshness_classes(freshness: Tensor) -> Tensor:
    """Return the class for each freshness. Example: UNREAD, 1, 6 and UNCHANGED give 0, 1, 5, 7."""
    return torch.bucketize(freshness, _class_bounds(freshness.device), right=True)


def has_poor_feature(freshness: Tensor) -> Tensor:
    """Return whether the target's feature is of little use, a bool for each freshness.

    This holds for positions directly after a changed token, and for positions that the target has not read yet.
    """
    return freshness <= 1  # 1 or UNREAD
