"""Drafter that combines the Jacobi window with a drafter network in one tree.

Directly after a token that has changed, the window's draft was computed from the old token. The network reads the new
one. The target has read the entire window, so its feature of the token before is known at most positions, and *one*
forward pass of the network covers the window.

The network's error at a position is known from the last round, by comparing its prediction with the target's feature;
a share of it is subtracted (`CORRECTION`). Measured hit rates decide which positions take the network's candidates.

These candidates are changes themselves, so further passes read the window that the last pass has made. Where the
target's features are of little use, they continue from the network's own predictions. Everything else (spine,
branches, verification) is the window's.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode
from ..policies.costs import CostEstimate
from ..rules.noise import Noise
from ..rules.tree import DraftTree
from .base import Drafter, Prefill, Proposer, Shapes, Verified
from .calibration import CLASSES
from .eagle import EagleDrafter
from .jacobi import CHAIN, JacobiDrafter, JacobiProposer, Window

MIN_CANDIDATES = 3
"""Minimum number of candidates at a position: the probability of a single one can't be calibrated."""
BOTH = DraftMode(
    "both",
    limit=13.7,
    half=22.5,
    cpu_cost=CostEstimate(1.05, 1.3, 0.05),
    gpu_cost=CostEstimate(1.05, 0.12, 0.01),
)
"""Trees from window and network."""
BOTH_CHAIN = DraftMode(
    "both chain",
    width=1,
    limit=11.3,
    half=16.0,
    cpu_cost=CostEstimate(1.05, 1.2, 0.05),
    gpu_cost=CostEstimate(1.05, 0.1, 0.01),
)
"""Chains from window and network."""
CORRECTION = (1.0, 0.6, 0.9, 1.0, 1.0, 1.0, 1.0, 0.0)
"""Share of the network's last error to subtract, by staleness class.

The further back the change, the more of the error remains. Where the target has read nothing yet, no error is known.
"""
MIN_PASSES = 2
"""Minimum number of passes of the network over the window: each pass builds on the corrections of the one before."""
SPINE_PER_PASS = 9
"""Spine tokens per pass of the network."""


def num_passes(depth: int) -> int:
    """Return the number of network passes for a spine of `depth` tokens; the first token needs none."""
    return max(MIN_PASSES, math.ceil(depth / SPINE_PER_PASS)) if depth > 1 else 0


class MergedDrafter(Drafter):
    """Drafter network combined with the Jacobi window.

    Attributes:
        eagle: The network.
    """

    defaults = JacobiDrafter.defaults
    gpu_defaults = JacobiDrafter.gpu_defaults
    modes = CHAIN, BOTH_CHAIN, BOTH

    def __init__(self, eagle: EagleDrafter):
        self.eagle = eagle

    @property
    def network(self) -> nn.Module:
        return self.eagle

    @property
    def kind(self) -> Hashable:
        return type(self), self.eagle

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> MergedProposer:
        return MergedProposer(self.eagle, context, rows, noise)

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        # `_read` and `_drafted`, which are float32 or wider
        features = 2 * rows * cache_length * self.eagle.config.hidden_size * max(itemsize, 4)
        return self.eagle.cache_bytes(rows, cache_length, itemsize) + features


class MergedProposer(Proposer):
    """Opens the window, lets the network refine it, and builds its tree.

    The mode `chain` leaves the network out; it reads the tokens of such rounds later.

    State:
        _window: Proposer of the window.
        _network: Proposer of the network.
        _unread_from: [B, 1], raster position of the first decided token that the network has not read.
        _read: [R, T + 1, h], target's feature that each position's draft was computed from.
        _drafted: [R, T + 1, h], network's prediction of that feature.
    """

    by_image = ("_window", "_network", "_unread_from")
    by_row = ("_read", "_drafted")

    def __init__(self, eagle: EagleDrafter, context: Context, rows: BatchRows, noise: Noise | None):
        super().__init__(context, rows, noise)
        self._window = JacobiProposer(context, rows, noise, max(context.largest.width, MIN_CANDIDATES))
        self._network = eagle.proposer(context, rows, noise)
        self._max_unread = context.largest.nodes + 1
        self._has_unread = False
        self._uses_network = False  # in the current round
        decoder = context.target.decoder
        self._correction = torch.tensor(CORRECTION, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        self._unread_from: Tensor
        self._read: Tensor
        self._drafted: Tensor

    @property
    def forwards(self) -> int:  # type: ignore[override]
        return self._network.forwards

    def begin(self, prefill: Prefill) -> None:
        self._window.begin(prefill)
        self._network.begin(prefill)
        features = prefill.features
        self._unread_from = torch.full_like(prefill.ids[: self.rows.images, :1], prefill.position)
        self._read = features.new_zeros(len(features), self._window.length + 1, features.shape[-1])
        self._drafted = torch.zeros_like(self._read)

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        window = self._window.open_window(roots, shapes)
        self._uses_network = window.depth > 0 and shapes.mode in ("", BOTH.name, BOTH_CHAIN.name)
        if not self._uses_network:
            return self._window.build_tree(window, shapes)
        if self._has_unread:
            self._catch_up(roots)
        own = window.candidates.clone(), window.scores.clone()
        classes, *guesses = self._refine_window(window, roots)
        self._window.store_spine(window)
        tree = self._window.build_tree(window, shapes)
        # Learn how reliable both are at every position, whichever of them was used.
        expect = self._window.calibration.expect
        self._window.forecasts = [expect(classes, *own)[0], expect(classes + CLASSES, *guesses)[0]]
        return tree

    def _refine_window(self, window: Window, roots: Roots) -> tuple[Tensor, Tensor, Tensor]:
        """Replace candidates of the window by the network's, in several passes.

        Args:
            window: The window, which is changed.
            roots: Roots of the round.

        Returns:
            Of the last pass: staleness classes [B, M], and the network's codes and scores [B, M, K].
        """
        bias = self._network.logit_bias(roots, window.depth)
        step = self._network.step_ahead(roots, max(window.depth - 1, 1))  # shared by all passes
        by_target, by_network = self._window.calibration.hit_rates().chunk(2, 1)
        is_better = by_network > by_target
        read = self.rows.gather(self._read, window.at)
        error = read - self.rows.gather(self._drafted, window.at)
        root = self._network.root_feature
        classes = window.classes()
        out = torch.cat([self._corrected(root, error, classes), read[:, 1:]], 1)
        guesses = self._replace_candidates(window, out[:, :1], bias, is_better.gather(1, classes[:, :1]))
        for _ in range(num_passes(window.depth)):
            is_poor = self.rows.spread(window.has_poor_features())[..., None]
            before = torch.where(is_poor, out, read)[:, 1:-1]
            classes = window.classes()
            out = self._network.read_ahead(window.tokens[:, :-1], torch.cat([root, before], 1), step)
            out = self._corrected(torch.cat([root, out], 1), error, classes)
            guesses = self._replace_candidates(window, out, bias, is_better.gather(1, classes))
        return classes, *guesses

    def _corrected(self, out: Tensor, error: Tensor, classes: Tensor) -> Tensor:
        """Subtract a share of the network's last error from its predictions.

        Args:
            out: [R, m, h], predictions for the first m positions.
            error: [R, M, h], target's feature minus the network's prediction of it, at all positions.
            classes: [B, M], staleness classes.
        """
        m = out.shape[1]
        return out + self.rows.spread(self._correction[classes[:, :m]])[..., None] * error[:, :m]

    def _replace_candidates(
        self, window: Window, out: Tensor, bias: Tensor | None, use: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Replace candidates of the first m positions by the network's.

        Args:
            window: The window, which is changed.
            out: [R, m, h], the network's predictions.
            bias: [B, M, V], noise and grammar of all positions.
            use: [B, m] bool, which positions to replace.

        Returns:
            The network's codes and scores [B, m, K].
        """
        bias = None if bias is None else bias[:, : out.shape[1]]
        scores, codes = self._network.children(out, bias, self._window.width)
        window.replace(use, codes, scores)
        return codes, scores

    def _catch_up(self, roots: Roots) -> None:
        """Let the network read the decided tokens before these roots."""
        counts = roots.at - self._unread_from
        size = self.context.size(lambda: counts, self._max_unread)
        self._has_unread = False
        if size == 0:  # the images with unread tokens have left
            return
        at = self._unread_from + torch.arange(size + 1, device=counts.device)
        features = self.rows.gather(self._read, at[:, 1:].clamp_max(self._window.length))
        self._network.catch_up(self._window.codes(at), features, replace(roots, at=self._unread_from), counts)
        self._unread_from.copy_(roots.at)

    def on_verified(self, verified: Verified) -> None:
        roots = verified.roots
        steps = verified.acceptance.accepted[:, None] + 1
        expected = verified.features  # without the network its error counts as 0
        if self._uses_network:
            expected = self._network.read_tree(verified).to(self._drafted.dtype)
            self._unread_from.copy_(roots.at + steps)
        at, node = (self.rows.spread(values) for values in self._window.refresh(verified))
        for table, features in ((self._read, verified.features), (self._drafted, expected)):
            index = node[..., None].expand(-1, -1, features.shape[-1])
            table.scatter_(1, at[..., None].expand_as(index), features.gather(1, index))
        if not self._uses_network:
            self._has_unread = True
            next_roots = replace(roots, codes=verified.acceptance.next_root, at=roots.at + steps)
            longest_round = min(self.context.largest.depth, self.context.largest.nodes) + 1
            unread = self.context.size(lambda: next_roots.at - self._unread_from, self._max_unread)
            if unread + longest_round > self._max_unread:
                self._catch_up(next_roots)
