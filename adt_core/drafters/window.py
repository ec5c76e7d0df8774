"""The next positions of a Jacobi window in a round, how far their candidates can be trusted, and their tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rules.tree import DraftTree, ancestor_matrix, best_only
from .base import Verified

LONGEST_RETURN = 4
"""Spine tokens with which a branch may carry on after its deviation."""
NEVER = 10**6
"""Staleness of a position that was never computed."""
STALE_AFTER = (1, 2, 3, 4, 5, 9, NEVER)
"""Lower ends of the staleness classes 1, 2, ... Staleness is the distance back to the nearest token that has changed
since the position was computed. In class 0 nothing has changed, so its candidates are certain."""
CLASSES = len(STALE_AFTER) + 1
TEMPERATURES = (0.05, *(distance**-0.5 for distance in STALE_AFTER[:-1]), 1.0)
"""Of the classes' distributions, before anything was seen."""
HIT_RATES = (0.95, 0.4, 0.7, 0.8, 0.85, 0.9, 0.9, 0.2)
"""How often the classes' favourites are right, before anything was seen."""
NETWORK_HIT_RATES = (0.5,) * CLASSES
"""The same for a drafter network's guesses at such positions, which are classes of their own behind the others."""
LEARNING_RATE = 0.1
"""Of the temperatures."""
PRIOR = 4.0
"""Observations that an assumed hit rate counts for."""


class Forecast(NamedTuple):
    """What a source of candidates expected of some positions, [B, m] each: class, favourite code, its probability."""

    classes: Tensor
    codes: Tensor
    predicted: Tensor


class Calibration:
    """Temperature and hit rate of every class of positions, [B, classes]: what every image taught of itself.

    Images of a batch share nothing, so each has the trees that it would have alone.
    """

    def __init__(self, images: int, like: Tensor):
        """like: gives dtype and device."""
        self._temperature = like.new_tensor(TEMPERATURES + (1.0,) * CLASSES).repeat(images, 1)
        self._hits = (like.new_tensor(HIT_RATES + NETWORK_HIT_RATES) * PRIOR).repeat(images, 1)
        self._seen = torch.full_like(self._hits, PRIOR)
        self._classes = torch.arange(self._hits.shape[1], device=like.device)

    def state(self) -> list[Tensor]:
        return [self._temperature, self._hits, self._seen]

    def select(self, slots: Tensor) -> None:
        """Go on with these images alone."""
        self._temperature, self._hits, self._seen = (part[slots] for part in self.state())

    def admit(self, slots: Tensor, others: Calibration) -> None:
        """Put the images of ``others`` into these slots."""
        for part, new in zip(self.state(), others.state()):
            part[slots] = new

    def expect(self, classes: Tensor, candidates: Tensor, scores: Tensor) -> tuple[Forecast, Tensor]:
        """What to expect of positions of ``classes`` [B, m] with these candidates and perturbed logits [B, m, K].

        Also returns the log-probabilities [B, m, K] of all candidates.
        """
        log_p = (scores / self._temperature.gather(1, classes)[..., None]).log_softmax(-1)
        return Forecast(classes, candidates[..., 0], log_p[..., 0].exp()), log_p

    def hit_rates(self) -> Tensor:
        """How often the favourites of each class were right, [B, classes]."""
        return self._hits / self._seen

    def learn(self, forecasts: Sequence[Forecast], verified: Verified) -> None:
        """Sharpen or flatten a class by how often its favourite turned out right. forecasts: of the same positions.

        Only positions up to the spine's first miss count. Those behind it were guessed after another token.
        """
        if not forecasts:
            return
        m = min(verified.following.shape[1], forecasts[0].codes.shape[1], verified.tree.height)
        emitted = verified.following[:, :m]
        missed = (verified.tree.tokens[:, 1 : m + 1] != emitted).cumsum(1)
        counts = F.pad(missed, (1, 0))[:, :-1] == 0
        counts &= torch.arange(m, device=counts.device) <= verified.acceptance.accepted[:, None]
        counts &= verified.tree.valid[:, 1 : m + 1]  # an image whose window is shorter than the longest
        for forecast in forecasts:
            classes, codes, predicted = (values[:, :m] for values in forecast)
            self._count(classes, (codes == emitted).to(predicted.dtype), predicted, counts)

    def _count(self, classes: Tensor, hit: Tensor, predicted: Tensor, counts: Tensor) -> None:
        """Enter what positions [B, m] taught into their ``classes``.

        hit: 1 where the favourite was right, 0 elsewhere. counts: which positions do.
        """
        values = torch.stack([predicted - hit, hit, torch.ones_like(hit)])  # [3, B, m]
        of_class = (classes[:, None] == self._classes[:, None]) & counts[:, None]  # [B, classes, m]
        # Sums, since an index_add of floats would not repeat on a GPU.
        error, hits, seen = torch.where(of_class, values[:, :, None], 0.0).sum(-1)
        self._temperature.mul_((LEARNING_RATE * error).exp()).clamp_(1e-2, 1e2)
        self._hits += hits
        self._seen += seen


@cache
def _bounds(device: torch.device) -> Tensor:
    return torch.tensor(STALE_AFTER, device=device)


def staleness_after(distance: Tensor, since: Tensor) -> Tensor:
    """Staleness of positions of this staleness, after a change ``since`` positions before them."""
    return torch.where(distance == NEVER, distance, torch.where(distance == 0, since, torch.minimum(distance, since)))


@dataclass
class Window:
    """The next M positions of every image.

    at: [B, M] raster positions. tokens: [B, M + 1], the root and the spine. candidates, scores: [B, M, K], the best
    codes at a position, the spine's first, and their perturbed logits. distance: [B, M], staleness. network: [B, M],
    where a network's guess stands. live: [B, M], which positions the image's own shape allows.
    """

    at: Tensor
    tokens: Tensor
    candidates: Tensor
    scores: Tensor
    distance: Tensor
    network: Tensor
    live: Tensor

    @property
    def depth(self) -> int:
        return self.at.shape[1]

    def staleness(self) -> Tensor:
        """Staleness class of every position, [B, M]."""
        return torch.bucketize(self.distance, _bounds(self.distance.device), right=True)

    def unread(self) -> Tensor:
        """Positions, [B, M], of which the target's last reading says little: right behind a change, or never read."""
        return (self.distance == 1) | (self.distance == NEVER)

    def replace(self, use: Tensor, candidates: Tensor, scores: Tensor) -> None:
        """Put a network's candidates and scores [B, m, K] to those of the first m positions that ``use`` [B, m] marks.

        Where that changes the spine, the positions behind it were computed from another token.
        """
        first = slice(use.shape[1])
        for own, others in ((self.candidates, candidates), (self.scores, scores)):
            torch.where(use[..., None], others, own[:, first], out=own[:, first])
        self.network[:, first].logical_or_(use)
        spine = self.candidates[..., 0]
        changed = self.tokens[:, 1:] != spine
        self.tokens[:, 1:] = spine
        step = torch.arange(self.depth, device=spine.device)
        last = F.pad(torch.where(changed, step, -NEVER).cummax(1).values, (1, -1), value=-NEVER)  # change before each
        stale = staleness_after(self.distance, step - last)
        self.distance = torch.where((last >= 0) & ~self.network, stale, self.distance)


def branch_scores(log_p: Tensor) -> Tensor:
    """log_p [B, M, k] -> log-probability of all tokens of every branch (i, r, m), [B, M, k - 1, LONGEST_RETURN + 1].

    Branch (i, r, m) follows the spine up to position i, takes candidate r there and carries on with m spine tokens.
    """
    cumulative = log_p[..., 0].cumsum(1)
    before = F.pad(cumulative, (1, 0))[:, :-1]
    ends = F.pad(cumulative, (0, LONGEST_RETURN), value=-math.inf).unfold(1, LONGEST_RETURN + 1, 1)
    carried = ends - cumulative[..., None]
    scores = before[..., None, None] + log_p[..., 1:, None] + carried[:, :, None]
    return scores.nan_to_num(nan=-math.inf, neginf=-math.inf)


def spine_and_branches(
    tokens: Tensor,
    others: Tensor,
    log_p: Tensor,
    nodes: int,
    budgets: Tensor | None = None,
) -> DraftTree:
    """A spine and the best branches, ``nodes`` drafts in all.

    tokens: [B, M + 1], root and spine. others: [B, M, k - 1] and log_p: [B, M, k], the other candidates, and the
    log-probabilities of all. budgets: [B, 1], where images may have fewer than ``nodes`` drafts. Scores fall with a
    branch's length and ties go to the shorter one, so the ancestors of a chosen branch are chosen, too.
    """
    batch, length, width = log_p.shape
    cumulative = log_p[..., 0].cumsum(1)  # [B, M]
    scores = branch_scores(log_p).flatten(1)
    if budgets is not None:
        scores = best_only(scores, budgets - cumulative.isfinite().sum(1, keepdim=True))
    count = min(nodes - length, scores.shape[1])
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values
    scores = torch.cat([F.pad(cumulative, (1, 0)), scores.gather(1, best)], 1)
    branch, m = best // (LONGEST_RETURN + 1), best % (LONGEST_RETURN + 1)
    position, ranks = branch // (width - 1), branch % (width - 1) + 1
    before = torch.arange(length, length + count, device=best.device)  # the node before; a longer branch hangs on it
    line = torch.arange(length + 1, device=best.device).expand(batch, -1)
    valid = scores.isfinite()
    parents = torch.cat([(line - 1).clamp_min(0), torch.where(m == 0, position, before)], 1) * valid
    carried = tokens.gather(1, (position + m + 1).clamp_max(length))
    return DraftTree(
        tokens=torch.cat([tokens, torch.where(m == 0, others.flatten(1).gather(1, branch), carried)], 1),
        parents=parents,
        depths=torch.cat([line, position + m + 1], 1) * valid,
        ranks=torch.cat([torch.zeros_like(line), torch.where(m == 0, ranks, 0)], 1),
        scores=scores,
        valid=valid,
        ancestors=ancestor_matrix(parents, length + 1),
        height=length,
    )
