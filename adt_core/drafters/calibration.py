"""Reliability of drafts by their staleness, learned while an image is decoded.

The staleness of a position is its distance to the nearest token before it that has changed since its candidates were
computed; 0 if none has changed. Positions are grouped into classes of similar staleness.
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
"""Staleness of a position that the target has not read yet."""
STALE_AFTER = (1, 2, 3, 4, 5, 9, NEVER)
"""Lower bounds of the staleness classes 1, 2, ... In class 0 nothing has changed, so the candidates are certain."""
CLASSES = len(STALE_AFTER) + 1
"""Number of staleness classes."""
INITIAL_TEMPERATURES = (0.05, *(distance**-0.5 for distance in STALE_AFTER[:-1]), 1.0)
"""Initial temperature of each class's candidate distribution."""
INITIAL_HIT_RATES = (0.95, 0.4, 0.7, 0.8, 0.85, 0.9, 0.9, 0.2)
"""Initial estimate, by class, of how often the most probable candidate is correct."""
INITIAL_NETWORK_HIT_RATES = (0.5,) * CLASSES
"""The same for candidates from a drafter network, which have `CLASSES` further classes."""
LEARNING_RATE = 0.1
"""Learning rate of the temperatures."""
PRIOR = 4.0
"""Weight of an initial hit rate, in observations."""


class Forecast(NamedTuple):
    """Predictions for some positions, to be compared with the tokens that are decided there.

    Attributes:
        classes: [B, m], staleness classes.
        codes: [B, m], most probable candidates.
        predicted: [B, m], their estimated probabilities.
    """

    classes: Tensor
    codes: Tensor
    predicted: Tensor


class Calibration:
    """Temperature and hit rate of each staleness class, learned for each image separately.

    Images share nothing, so each gets the same trees in any batch.
    """

    def __init__(self, images: int, like: Tensor):
        """Start from the initial estimates.

        Args:
            images: Number of images.
            like: Tensor that sets dtype and device.
        """
        self._temperature = like.new_tensor(INITIAL_TEMPERATURES + (1.0,) * CLASSES).repeat(images, 1)
        self._hits = (like.new_tensor(INITIAL_HIT_RATES + INITIAL_NETWORK_HIT_RATES) * PRIOR).repeat(images, 1)
        self._seen = torch.full_like(self._hits, PRIOR)
        self._classes = torch.arange(self._hits.shape[1], device=like.device)

    def state(self) -> list[Tensor]:
        """Return the tensors of the state, each [B, 2 * CLASSES]."""
        return [self._temperature, self._hits, self._seen]

    def select(self, slots: Tensor) -> None:
        """Drop the images of all other slots."""
        self._temperature, self._hits, self._seen = (part[slots] for part in self.state())

    def admit(self, slots: Tensor, others: Calibration) -> None:
        """Replace the images of these slots by the images of `others`."""
        for part, new in zip(self.state(), others.state()):
            part[slots] = new

    def expect(self, classes: Tensor, candidates: Tensor, scores: Tensor) -> tuple[Forecast, Tensor]:
        """Predict the tokens of some positions.

        Args:
            classes: [B, m], staleness classes.
            candidates: [B, m, K] codes, best first.
            scores: [B, m, K], their perturbed logits.

        Returns:
            The forecast, and the log-probabilities [B, m, K] of all candidates.
        """
        log_p = (scores / self._temperature.gather(1, classes)[..., None]).log_softmax(-1)
        return Forecast(classes, candidates[..., 0], log_p[..., 0].exp()), log_p

    def hit_rates(self) -> Tensor:
        """Return the share of correct most probable candidates of each class, [B, 2 * CLASSES]."""
        return self._hits / self._seen

    def learn(self, forecasts: Sequence[Forecast], verified: Verified) -> None:
        """Update temperatures and hit rates from a verified tree.

        Only positions up to the first wrong token of the spine count: later drafts depend on that token.

        Args:
            forecasts: Predictions for the positions of the spine.
            verified: The verified tree.
        """
        if not forecasts:
            return
        m = min(verified.following.shape[1], forecasts[0].codes.shape[1], verified.tree.height)
        emitted = verified.following[:, :m]
        missed = (verified.tree.tokens[:, 1 : m + 1] != emitted).cumsum(1)
        counts = F.pad(missed, (1, 0))[:, :-1] == 0
        counts &= torch.arange(m, device=counts.device) <= verified.acceptance.accepted[:, None]
        counts &= verified.tree.valid[:, 1 : m + 1]  # windows can be shorter than the longest one
        for forecast in forecasts:
            classes, codes, predicted = (values[:, :m] for values in forecast)
            self._add(classes, (codes == emitted).to(predicted.dtype), predicted, counts)

    def _add(self, classes: Tensor, hit: Tensor, predicted: Tensor, counts: Tensor) -> None:
        """Add observations at positions [B, m].

        Args:
            classes: Class of each position.
            hit: 1 where the most probable candidate was correct, else 0.
            predicted: Estimated probability of that candidate.
            counts: Whether the position counts.
        """
        values = torch.stack([predicted - hit, hit, torch.ones_like(hit)])  # [3, B, m]
        of_class = (classes[:, None] == self._classes[:, None]) & counts[:, None]  # [B, classes, m]
        # Sums instead of index_add, which is not deterministic for floats on a GPU.
        error, hits, seen = torch.where(of_class, values[:, :, None], 0.0).sum(-1)
        self._temperature.mul_((LEARNING_RATE * error).exp()).clamp_(1e-2, 1e2)
        self._hits += hits
        self._seen += seen


@cache
def _class_bounds(device: torch.device) -> Tensor:
    return torch.tensor(STALE_AFTER, device=device)


def staleness_classes(staleness: Tensor) -> Tensor:
    """Return the class of each staleness."""
    return torch.bucketize(staleness, _class_bounds(staleness.device), right=True)


def staleness_after(staleness: Tensor, since: Tensor) -> Tensor:
    """Return the staleness of positions after another token has changed.

    Args:
        staleness: Staleness before the change.
        since: Distance from the changed token to the position.
    """
    nearest = torch.where(staleness == 0, since, torch.minimum(staleness, since))
    return torch.where(staleness == NEVER, staleness, nearest)
