"""Two sources in one tree: a Jacobi window whose stalest guesses a drafter network makes anew.

Right behind a token that has changed, the window's guess was computed from a token that is no longer there. The network reads the new
one; the target's feature of the token before it is at hand in most slots, because the target has read the whole window, so that
*one* call of the network covers all slots at once. Where the network has been wrong before, at the same slot with
the old token, part of its error is known, since the target's own feature is there to compare with; half of it is taken off. Which slots take the network's
candidates is decided by measured hit rates, and everything else (spine, branches, verification) is the window's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.rows import Rows, Step
from ..models.target import Target
from ..policies.shape import AUTO_WIDTH, Drafting, TreeShape
from ..rules.sampling import Sampling
from ..rules.tree import DraftTree
from .base import Verified
from .eagle import EagleDrafter, EagleProposer
from .jacobi import JacobiDrafter, JacobiProposer
from .window import CLASSES, NEVER, Forecast, Window

CANDIDATES = 3
"""Candidates of a slot at least: a favourite alone has no probability to calibrate."""
CORRECTION = 0.5
"""Share of the network's former error that is taken off."""


class MergedDrafter:
    """A network and the window."""

    default, width = JacobiDrafter.default, AUTO_WIDTH

    def __init__(self, network: EagleDrafter):
        self.network = network

    def proposer(
        self, target: Target, rows: Rows, images: int, sampling: Sampling, drafting: Drafting, noise: Tensor | None
    ) -> MergedProposer:
        JacobiDrafter().check(drafting)
        return MergedProposer(
            JacobiProposer(target, images, drafting, noise, max(drafting.largest.width, CANDIDATES)),
            self.network.proposer(target, rows, images, sampling, drafting, noise),
            rows,
        )

    def cache_bytes(self, rows: int, slots: int, itemsize: int) -> int:
        features = (
            2 * rows * slots * self.network.config.hidden_size * max(itemsize, 4)
        )  # what was read and what had been expected
        return self.network.cache_bytes(rows, slots, itemsize) + features


class MergedProposer:
    """Opens the window, lets the network refine it, closes it.

    By raster position, as in the window: ``read`` [R, T + 1, h], the target's feature from which a slot was computed, and ``drafted``, what the
    network had expected it to be.
    """

    def __init__(self, window: JacobiProposer, network: EagleProposer, rows: Rows):
        self._window, self._network, self._rows = window, network, rows

    @property
    def forwards(self) -> int:
        return self._network.forwards

    def begin(self, features: Tensor, ids: Tensor, step: Step, z: Tensor, position: int) -> None:
        self._window.begin(features, ids, step, z, position)
        self._network.begin(features, ids, step, z, position)
        self._root = self._network.catch_up().to(
            features.dtype
        )  # [R, 1, h]: the feature that the network expects of the root
        self._read = features.new_zeros(len(features), self._window.length + 1, features.shape[-1])
        self._drafted = torch.zeros_like(self._read)

    def keep(self, images: Tensor, rows: Rows, noise: Tensor | None) -> None:
        numbers = self._rows.of(images, len(self._window))
        self._root, self._read, self._drafted = (values[numbers] for values in (self._root, self._read, self._drafted))
        self._rows = rows
        self._window.keep(images, rows, noise)
        self._network.keep(images, rows, noise)

    def admit(self, images: Tensor, others: MergedProposer, rows: Rows) -> None:
        numbers = rows.of(images, len(self._window))
        for mine, theirs in ((self._root, others._root), (self._read, others._read), (self._drafted, others._drafted)):
            mine[numbers] = theirs
        self._rows = rows
        self._window.admit(images, others._window, rows)
        self._network.admit(images, others._network, rows)

    def propose(self, root: Tensor, starts: list[int], positions: list[int], shapes: list[TreeShape]) -> DraftTree:
        window = self._window.open(root, positions, shapes)
        noise = self._network.noise_ahead(positions, window.depth)
        forecasts = self._refine(window, 0, self._root, noise)
        if window.depth > 1:
            before = torch.cat([self._root, self._at(self._read, window.at[:, 1:-1])], 1)
            out = self._network.read_ahead(window.tokens[:, :-1], before, starts)
            behind = self._refine(window, 1, out, noise)
            forecasts = [Forecast(*(torch.cat(pair, 1) for pair in zip(*both))) for both in zip(forecasts, behind)]
        self._window.enter(window)
        tree = self._window.close(window, shapes)
        self._window.forecasts = forecasts
        return tree

    def _at(self, table: Tensor, at: Tensor) -> Tensor:
        """Rows of ``read`` or ``drafted`` at the raster positions ``at`` [B, m]: [R, m, h]."""
        return table.gather(1, self._rows.spread(at)[..., None].expand(-1, -1, table.shape[-1]))

    def _refine(self, window: Window, first: int, out: Tensor, noise: Tensor | None) -> list[Forecast]:
        """Let the network's features [R, m, h] speak of the slots from ``first`` on. Returns what either source expects of them."""
        slots = slice(first, first + out.shape[1])
        at, staleness = window.at[:, slots], window.staleness()[:, slots]
        seen = self._rows.spread(window.distance[:, slots] != NEVER)[..., None]
        out = out + CORRECTION * seen * (self._at(self._read, at) - self._at(self._drafted, at))
        scores, codes = self._network.children(out, None if noise is None else noise[:, slots], self._window.width)
        classes, calibration = staleness + CLASSES, self._window.calibration
        expected = [
            calibration.expect(staleness, window.candidates[:, slots], window.scores[:, slots])[0],
            calibration.expect(classes, codes, scores)[0],
        ]
        window.replace(first, calibration.hit_rate(classes) > calibration.hit_rate(staleness), codes, scores)
        return expected

    def observe(self, verified: Verified) -> None:
        drafted = torch.cat([self._root, self._network.read_tree(verified).to(self._root.dtype)], 1)
        at, node = (self._rows.spread(values) for values in self._window.observe(verified))
        for table, features in ((self._read, verified.features), (self._drafted, drafted)):
            index = node[..., None].expand(-1, -1, features.shape[-1])
            table.scatter_(1, at[..., None].expand_as(index), features.gather(1, index))
        self._root = drafted[:, -1:]
