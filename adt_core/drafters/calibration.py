"""Reliability of drafts, learned while an image is decoded. The reliability of a draft depends on its staleness.

At each position there are several *candidates* for the draft. They were computed from the tokens before the position.
Later, some of these tokens may have changed. The *staleness* of a position is its distance to the nearest changed token
before it, or 0 if no token has changed. Positions with similar staleness form a *class*. Example: the candidates at
position 10 were computed, then the tokens at positions 4 and 7 changed. The staleness of position 10 is 3. The *spine*
is the sequence of the most probable candidates (:mod:`.jacobi`).

Dimensions: B images, m positions, K candidates per position. A *score* is a logit plus noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Verified

NEVER = 10**6
"""Staleness of a position that the target has not read yet. It is larger than every distance between positions."""
STALE_AFTER = (1, 2, 3, 4, 5, 9, NEVER)
"""Smallest staleness of the classes 1, 2, ..., 7. Class 5 has the staleness 5 to 8, and class 6 the staleness 9 or
more.

Class 0 has the staleness 0: no token before the position has changed, so its first candidate is almost always correct.
"""
CLASSES = len(STALE_AFTER) + 1
"""Number of staleness classes."""
INITIAL_TEMPERATURES = (0.05, *(distance**-0.5 for distance in STALE_AFTER[:-1]), 1.0)
"""Initial temperature of each class's candidate distribution."""
INITIAL_HIT_RATES = (0.95, 0.4, 0.7, 0.8, 0.85, 0.9, 0.9, 0.2)
"""Initial hit rate of each class: the estimated share of positions whose most probable candidate is correct."""
INITIAL_NETWORK_HIT_RATES = (0.5,) * CLASSES
"""Initial hit rates of candidates from a drafter network.

A position with candidates from the network has the class `CLASSES + c`, where c is the class for its staleness.
"""
LEARNING_RATE = 0.1
"""Learning rate of the temperatures."""
PRIOR = 4.0
"""Weight of an initial hit rate: the initial rate counts as much as this number of observed positions."""


class Forecast(NamedTuple):
    """Predictions for some positions. They are later compared with the tokens that were decided at these positions.

    Attributes:
        classes: [B, m], class of each position.
        codes: [B, m], code of the most probable candidate at each position.
        predicted: [B, m], estimated probability that this candidate is correct.
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
        """Start from the initial estimates.

        Args:
            images: Number of images.
            like: Tensor whose dtype and device are used.
        """
        self._temperature = like.new_tensor(INITIAL_TEMPERATURES + (1.0,) * CLASSES).repeat(images, 1)
        self._hits = (like.new_tensor(INITIAL_HIT_RATES + INITIAL_NETWORK_HIT_RATES) * PRIOR).repeat(images, 1)
        self._seen = torch.full_like(self._hits, PRIOR)
        self._classes = torch.arange(self._hits.shape[1], device=like.device)

    def state(self) -> list[Tensor]:
        """Return the tensors of the state: temperatures, hits and observations, [B, 2 * CLASSES] each."""
        return [self._temperature, self._hits, self._seen]

    def select(self, slots: Tensor) -> None:
        """Keep only the images of the given slots."""
        self._temperature, self._hits, self._seen = (part[slots] for part in self.state())

    def admit(self, slots: Tensor, others: Calibration) -> None:
        """Replace the values of the images in the given slots by the values of the images of `others`."""
        for part, new in zip(self.state(), others.state()):
            part[slots] = new

    def expect(self, classes: Tensor, candidates: Tensor, scores: Tensor) -> tuple[Forecast, Tensor]:
        """Estimate how probable the candidates at some positions are.

        Args:
            classes: [B, m], class of each position.
            candidates: [B, m, K], codes of the candidates, the one with the largest score first.
            scores: [B, m, K], scores of the candidates.

        Returns:
            The forecast, and the log-probabilities [B, m, K] of all candidates.
        """
        log_p = (scores / self._temperature.gather(1, classes)[..., None]).log_softmax(-1)
        return Forecast(classes, candidates[..., 0], log_p[..., 0].exp()), log_p

    def hit_rates(self) -> Tensor:
        """Return the hit rate of each class, [B, 2 * CLASSES]."""
        return self._hits / self._seen

    def learn(self, forecasts: Sequence[Forecast], verified: Verified) -> None:
        """Update temperatures and hit rates from a verified tree.

        Only positions up to the first wrong token of the spine are used. The drafts after this position were computed
        from the wrong token.

        Args:
            forecasts: Predictions for the positions of the spine; several if several kinds of candidates are compared.
            verified: The verified tree.
        """
        if not forecasts:
            return
        m = min(verified.following.shape[1], forecasts[0].codes.shape[1], verified.tree.height)
        emitted = verified.following[:, :m]
        missed = (verified.tree.tokens[:, 1 : m + 1] != emitted).cumsum(1)
        counts = F.pad(missed, (1, 0))[:, :-1] == 0
        counts &= torch.arange(m, device=counts.device) <= verified.acceptance.accepted[:, None]
        counts &= verified.tree.valid[:, 1 : m + 1]  # an image's window can be shorter than the longest window
        for forecast in forecasts:
            classes, codes, predicted = (values[:, :m] for values in forecast)
            self._add(classes, (codes == emitted).to(predicted.dtype), predicted, counts)

    def _add(self, classes: Tensor, hit: Tensor, predicted: Tensor, counts: Tensor) -> None:
        """Update temperatures and hit rates with observations at some positions.

        Args:
            classes: [B, m], class of each position.
            hit: [B, m], 1 if the most probable candidate was correct, else 0.
            predicted: [B, m], estimated probability that this candidate is correct.
            counts: [B, m] bool, whether the position is used.
        """
        values = torch.stack([predicted - hit, hit, torch.ones_like(hit)])  # [3, B, m]
        of_class = (classes[:, None] == self._classes[:, None]) & counts[:, None]  # [B, classes, m]
        # Sum over a mask, because index_add is not deterministic for floating-point numbers on a GPU.
        error, hits, seen = torch.where(of_class, values[:, :, None], 0.0).sum(-1)
        self._temperature.mul_((LEARNING_RATE * error).exp()).clamp_(1e-2, 1e2)
        self._hits += hits
        self._seen += seen


@cache
def _class_bounds(device: torch.device) -> Tensor:
    return torch.tensor(STALE_AFTER, device=device)


def staleness_classes(staleness: Tensor) -> Tensor:
    """Return the class of each staleness, in the same shape. Example: 0, 1, 6 and NEVER give 0, 1, 5 and 7."""
    return torch.bucketize(staleness, _class_bounds(staleness.device), right=True)


def staleness_after(staleness: Tensor, since: Tensor) -> Tensor:
    """Update the staleness of positions after one more token has changed.

    Args:
        staleness: Staleness of each position before the change.
        since: Distance from the changed token to each position, in the same shape.

    Returns:
        New staleness. `NEVER` stays `NEVER`. Example: staleness 4 and distance 2 give 2.
    """
    nearest = torch.where(staleness == 0, since, torch.minimum(staleness, since))
    return torch.where(staleness == NEVER, staleness, nearest)
