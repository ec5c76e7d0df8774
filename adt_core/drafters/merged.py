"""Two sources in one tree: a Jacobi window whose stalest guesses a drafter network makes anew.

Right behind a token that has changed, the window's guess was computed from a token that is no longer there. The network
reads the new one. The target's feature of the token before it is at hand at most positions, because the target has read
the whole window, so *one* call of the network covers the window. Where the network has been wrong before, at the same
position with the old token, part of its error is known, since the target's own feature is there to compare with: it is
taken off. Measured hit rates decide which positions take the network's candidates. Each of them is a change itself, so
further calls read the window that the one before made. Right behind a change, and where the target has read nothing,
they go on over what the network expects there, in place of the target's feature. Everything else (spine, branches,
verification) is the window's.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode
from ..rules.noise import Noise
from ..rules.tree import DraftTree
from .base import Drafter, Prefill, Proposer, Shapes, Verified
from .eagle import EagleDrafter
from .jacobi import CHAIN, JacobiDrafter, JacobiProposer
from .window import CLASSES, Window

LEAST_CANDIDATES = 3
"""Candidates at a position: a favourite alone has no probability to calibrate."""
BOTH = DraftMode("both", limit=13.7, half=22.5)
"""Trees from window and network."""
BOTH_CHAIN = DraftMode("both chain", width=1, limit=11.3, half=16.0)
"""Chains from window and network."""
CORRECTION = (1.0, 0.6, 0.9, 1.0, 1.0, 1.0, 1.0, 0.0)
"""Share of the network's former error that is taken off, by staleness class. The further back the change is, the more
of the error is still there; where the target has read nothing yet, no error is known."""
LEAST_CALLS, SPINE_PER_CALL = 2, 9
"""The network makes the whole window's guesses anew in at least two calls, and in one for every nine spine tokens: what
one call puts right, the next can build on."""


def calls(depth: int) -> int:
    """Calls of the network for a spine of so many tokens. The first of them is guessed without a call."""
    return max(LEAST_CALLS, math.ceil(depth / SPINE_PER_CALL)) if depth > 1 else 0


class MergedDrafter(Drafter):
    """A network and the window."""

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
        features = (
            2 * rows * cache_length * self.eagle.config.hidden_size * max(itemsize, 4)
        )  # ``_read`` and ``_drafted``
        return self.eagle.cache_bytes(rows, cache_length, itemsize) + features


class MergedProposer(Proposer):
    """Opens the window, lets the network refine it, closes it.

    For every position, ``_read`` [R, T + 1, h] holds the target's feature from which it was computed, and ``_drafted``
    [R, T + 1, h] the feature that the network had expected there. From the raster position ``_late`` [B, 1] on, the
    network has not read the decided tokens yet.
    """

    by_image = ("_window", "_network", "_late")
    by_row = ("_read", "_drafted")

    def __init__(self, eagle: EagleDrafter, context: Context, rows: BatchRows, noise: Noise | None):
        super().__init__(context, rows, noise)
        self._window = JacobiProposer(context, rows, noise, max(context.largest.width, LEAST_CANDIDATES))
        self._network = eagle.proposer(context, rows, noise)
        self._room = context.largest.nodes + 1  # for tokens that are late
        self._is_late = False  # are there any?
        self._asks = False  # is the network asked in this round?
        decoder = context.target.decoder
        self._correction = torch.tensor(CORRECTION, dtype=decoder.wide_dtype, device=decoder.embedding.device)
        self._late: Tensor
        self._read: Tensor
        self._drafted: Tensor

    @property
    def forwards(self) -> int:  # type: ignore[override]
        return self._network.forwards

    def begin(self, prefill: Prefill) -> None:
        self._window.begin(prefill)
        self._network.begin(prefill)
        features = prefill.features
        self._late = torch.full_like(prefill.ids[: self.rows.images, :1], prefill.position)
        self._read = features.new_zeros(len(features), self._window.length + 1, features.shape[-1])
        self._drafted = torch.zeros_like(self._read)

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        window = self._window.open(roots, shapes)
        self._asks = window.depth > 0 and shapes.mode in ("", BOTH.name, BOTH_CHAIN.name)
        if not self._asks:
            return self._window.close(window, shapes)
        if self._is_late:
            self._catch_up(roots)
        own = window.candidates.clone(), window.scores.clone()
        staleness, *guesses = self._guess(window, roots)
        self._window.enter(window)
        tree = self._window.close(window, shapes)
        expect = self._window.calibration.expect
        self._window.forecasts = [expect(staleness, *own)[0], expect(staleness + CLASSES, *guesses)[0]]
        return tree

    def _guess(self, window: Window, roots: Roots) -> tuple[Tensor, Tensor, Tensor]:
        """Let the network guess the window's positions, again and again with what it has guessed before.

        Returns the staleness classes [B, M], codes and scores [B, M, K] of the last call.
        """
        noise = self._network.noise_ahead(roots, window.depth)
        step = self._network.step_ahead(roots, max(window.depth - 1, 1))  # of all calls
        by_target, by_network = self._window.calibration.hit_rates().chunk(2, 1)
        better = by_network > by_target
        read = self.rows.gather(self._read, window.at)
        error = read - self.rows.gather(self._drafted, window.at)
        root, staleness = self._network.root_feature, window.staleness()
        out = torch.cat([self._mended(root, error, staleness), read[:, 1:]], 1)
        guesses = self._refine(window, out[:, :1], noise, better.gather(1, staleness[:, :1]))
        for _ in range(calls(window.depth)):
            before = torch.where(self.rows.spread(window.unread())[..., None], out, read)[:, 1:-1]
            staleness = window.staleness()
            out = self._network.read_ahead(window.tokens[:, :-1], torch.cat([root, before], 1), step)
            out = self._mended(torch.cat([root, out], 1), error, staleness)
            guesses = self._refine(window, out, noise, better.gather(1, staleness))
        return staleness, *guesses

    def _catch_up(self, roots: Roots) -> None:
        """Let the network read the decided tokens before these roots."""
        counts = roots.at - self._late
        size = self.context.size(lambda: counts, self._room)
        self._is_late = False
        if size == 0:  # of the images that were behind, none is at work any more
            return
        at = self._late + torch.arange(size + 1, device=counts.device)
        features = self.rows.gather(self._read, at[:, 1:].clamp_max(self._window.length))
        self._network.catch_up(self._window.codes(at), features, replace(roots, at=self._late), counts)
        self._late.copy_(roots.at)

    def _mended(self, out: Tensor, error: Tensor, staleness: Tensor) -> Tensor:
        """The network's features [R, m, h] of the first m positions, with a share of its former error taken off.

        error: [R, M, h] of all positions, as the target's feature less the one that the network had expected.
        staleness: [B, M], their classes.
        """
        m = out.shape[1]
        return out + self.rows.spread(self._correction[staleness[:, :m]])[..., None] * error[:, :m]

    def _refine(self, window: Window, out: Tensor, noise: Tensor | None, use: Tensor) -> tuple[Tensor, Tensor]:
        """Let the network's features [R, m, h] speak of those of the first m positions that ``use`` [B, m] marks.

        noise: [B, depth, V] of all positions. Returns the codes and scores [B, m, K] that it expects.
        """
        noise = None if noise is None else noise[:, : out.shape[1]]
        scores, codes = self._network.children(out, noise, self._window.width)
        window.replace(use, codes, scores)
        return codes, scores

    def on_verified(self, verified: Verified) -> None:
        roots, steps = verified.roots, verified.acceptance.accepted[:, None] + 1
        expected = verified.features  # as if the network had known them, where it was not asked
        if self._asks:
            expected = self._network.read_tree(verified).to(self._drafted.dtype)
            self._late.copy_(roots.at + steps)
        at, node = (self.rows.spread(values) for values in self._window.refresh(verified))
        for table, features in ((self._read, verified.features), (self._drafted, expected)):
            index = node[..., None].expand(-1, -1, features.shape[-1])
            table.scatter_(1, at[..., None].expand_as(index), features.gather(1, index))
        if not self._asks:
            self._is_late = True
            roots = replace(roots, codes=verified.acceptance.next_root, at=roots.at + steps)
            longest = min(self.context.largest.depth, self.context.largest.nodes) + 1  # tokens of a round
            if self.context.size(lambda: roots.at - self._late, self._room) + longest > self._room:
                self._catch_up(roots)
