"""The training-free drafter: a coupled Jacobi window with scored side branches.

Every verified node also says what the target would emit *after* it, rejected nodes included. Those tokens are the next
round's drafts. The target's own noise is held fixed at every position, so an image is the only fixed point of "read the
window again and put in what the target emits", and most of a window is right long before it is reached. (Jacobi
decoding: Santilli et al., arXiv 2305.10427; for images SJD, arXiv 2410.01699; noise shared between iterations: SCD,
arXiv 2510.24211.)

The window is a *spine*, one token for each of the next positions. *Branches* leave it where a token is likely to
change: another candidate at one position, then the spine's own tokens again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode, check_fit
from ..rules.noise import Noise
from ..rules.tree import DraftTree, chain
from .base import Drafter, Prefill, Proposer, Shapes, Verified
from .window import CLASSES, NEVER, Calibration, Forecast, Window, spine_and_branches

LEFT = 0.25
"""Share that the logits of the position before have in a guess right behind a changed token."""
CHAIN = DraftMode("chain", width=1, limit=4.8, half=13.0)
"""Chains from the window, which are cheap to build."""
WINDOW = DraftMode("window", limit=6.4, half=18.0)
"""Trees from the window."""


class JacobiDrafter(Drafter):
    """Needs no weights: the target's own forwards are the drafter."""

    # A window that is too short is never read twice, so its guesses stay poor: ADT-Tree's depth has a floor here.
    defaults = {
        "depth": 20, "width": 4, "nodes": 24, "beta": 0.25, "depth_step": 4,
        "depth_min": 8, "depth_max": 24, "width_min": 2, "width_max": 4,
    }  # fmt: skip
    # With guidance 32 nodes are one tile of a GPU's products, and cost what one node costs (docs/gpu.md).
    gpu_defaults = {"depth": 26, "nodes": 31, "depth_min": 12, "depth_max": 31, "width_max": 6}

    modes = CHAIN, WINDOW

    @property
    def kind(self) -> Hashable:
        return "jacobi"

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> JacobiProposer:
        return JacobiProposer(context, rows, noise, context.largest.width)


class JacobiProposer(Proposer):
    """The window of every image at work, by raster position. A spare column behind the last takes void writes.

    ``_codes`` [B, T + 1] are the emitted or guessed tokens; ``_candidates`` and ``_scores`` [B, T + 1, K] the best
    codes of a position and their perturbed logits; ``_distance`` [B, T + 1] is its staleness; ``_filled`` [B, 1] the
    last position of the windows so far; ``_furthest`` [B, 1, V] the logits z that the target gave furthest ahead. Of a
    shape, ``depth`` is the spine's length, ``width`` how many candidates a position may try, and ``nodes`` the budget
    of spine and branches together.
    """

    by_image = ("_codes", "_candidates", "_scores", "_distance", "_filled", "_furthest", "calibration")
    supports_plain_steps = True

    def __init__(self, context: Context, rows: BatchRows, noise: Noise | None, width: int):
        """width: candidates that are kept for a position. AdtError for a published tree."""
        if context.largest.tree:
            check_fit(f"static:{context.largest.tree}", network=False)
        super().__init__(context, rows, noise)
        target = context.target
        self.length = target.length
        self._coupled = context.settings.proposal == "coupled"
        self.width = min(width, target.num_codes)
        images, device = self.rows.images, target.decoder.embedding.device
        self._codes = torch.zeros(images, self.length + 1, dtype=torch.long, device=device)
        self._candidates = self._codes[..., None].repeat(1, 1, self.width)
        self._scores = torch.zeros(self._candidates.shape, dtype=target.decoder.wide_dtype, device=device)
        self._distance = torch.full_like(self._codes, NEVER)
        self._filled = self._codes.new_zeros(images, 1)
        self._furthest: Tensor
        self.calibration = Calibration(images, self._scores)
        self.forecasts: list[Forecast] = []  # of the round's positions

    # ---- what a forward taught ---------------------------------------------------------------

    def begin(self, prefill: Prefill) -> None:
        self._furthest = prefill.z.clone()

    def _perturbed(self, z: Tensor, at: Tensor) -> Tensor:
        """z + g of the raster positions ``at`` [B, m], whose logits are z [B, m, V]."""
        return z if self.noise is None else z + self.noise.at(at)

    def _unperturbed(self, perturbed: Tensor, at: Tensor) -> Tensor:
        """z of the raster positions ``at`` [B, m], whose z + g is ``perturbed`` [B, m, V]."""
        return perturbed if self.noise is None else perturbed - self.noise.at(at)

    def _best(self, perturbed: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and codes [B, m, K] that go to the positions ``at``."""
        if not self._coupled:
            perturbed = self._unperturbed(perturbed, at)
        return perturbed.max(-1, keepdim=True) if self.width == 1 else perturbed.topk(self.width, -1)

    def on_verified(self, verified: Verified) -> None:
        self.refresh(verified)

    def on_plain_step(self, roots: Roots, codes: Tensor, z: Tensor) -> None:
        at = (roots.at + 1).clamp_max(self.length)
        self._codes.scatter_(1, at, codes[:, None])
        self._hear(at, z)

    def _hear(self, at: Tensor, z: Tensor) -> None:
        """The target gave the logits z [B, 1, V] for the raster positions ``at`` [B, 1]."""
        self._furthest.copy_(torch.where((at > self._filled)[..., None], z, self._furthest))

    def refresh(self, verified: Verified) -> tuple[Tensor, Tensor]:
        """Enter the decided tokens, and refresh every later position from the nodes that have the best context for it.

        Returns the raster positions that the nodes speak of (the spare column for those that no node reaches), decided
        ones included, and the best node of each, [B, m].
        """
        tree, root = verified.tree, verified.roots.at
        self.calibration.learn(self.forecasts, verified)
        self.forecasts = []
        self._decide(verified)
        steps = torch.arange(tree.height + 2, device=root.device)
        at = root + steps  # the root's position, and those that the nodes speak of
        last_change = self._last_change(tree, at)
        reached, best, second = _best_nodes(tree, last_change, at)
        spoken_of = torch.where(reached & (at < self.length), at, self.length)
        distance = steps - last_change.gather(1, best)
        perturbed = self._expected(verified.perturbed, best, second, at, distance)
        last = torch.where(spoken_of < self.length, steps, 0).amax(1, keepdim=True)
        self._hear(root + last, self._unperturbed(_pick(perturbed, last), root + last))
        undecided = steps > verified.acceptance.accepted[:, None] + 1
        at_or_spare = torch.where(undecided, spoken_of, self.length)
        self._write(at_or_spare, *self._best(perturbed, at))
        distance = steps - self._last_change(tree, at).gather(1, best)  # of now
        self._distance.scatter_(1, at_or_spare, torch.where(distance == steps, 0, distance))
        return spoken_of, best

    def _expected(self, perturbed: Tensor, best: Tensor, second: Tensor, at: Tensor, distance: Tensor) -> Tensor:
        """z + g [B, m, V] of the raster positions ``at`` [B, m], by the two nodes [B, m] that speak of each.

        perturbed: as in :class:`Verified`. distance: [B, m], staleness. Behind another token than the one that came,
        the mean of two readings is a better guess than one of them. A share of the position before makes it better
        still.
        """
        expected = _towards(_pick(perturbed, best), _pick(perturbed, second), 0.5)
        one_on = (0, 0, 1, 0)
        if self.noise is None:
            left = F.pad(expected, one_on)[:, :-1]
        else:
            noise = self.noise.at(at)
            left = F.pad(expected - noise, one_on)[:, :-1] + noise
        return torch.where((distance == 1)[..., None], _towards(expected, left, LEFT), expected)

    def codes(self, at: Tensor) -> Tensor:
        """The tokens at the raster positions ``at`` [B, m], decided or guessed."""
        return self._codes.gather(1, at.clamp_max(self.length))

    def _write(self, at: Tensor, scores: Tensor, candidates: Tensor) -> None:
        """Put the scores and candidates [B, m, K] to the positions ``at`` [B, m]."""
        self._codes.scatter_(1, at, candidates[..., 0])
        spread = at[..., None].expand_as(candidates)
        self._candidates.scatter_(1, spread, candidates)
        self._scores.scatter_(1, spread, scores)

    def _decide(self, verified: Verified) -> None:
        """Write the emitted tokens over the guesses."""
        emitted, root = verified.following, verified.roots.at
        self._codes.scatter_(1, root, verified.roots.codes[:, None])
        steps = torch.arange(1, emitted.shape[1] + 1, device=root.device)
        decided = steps <= verified.acceptance.accepted[:, None] + 1
        self._codes.scatter_(1, torch.where(decided, root + steps, self.length).clamp_max(self.length), emitted)

    def _last_change(self, tree: DraftTree, at: Tensor) -> Tensor:
        """For each node: depth of the last token on its path that differs from the one now at its position, [B, N + 1].

        0 if none does. at: [B, m] raster positions from the root on.
        """
        changed = tree.depths * (tree.tokens != self.codes(at).gather(1, tree.depths))
        return (tree.ancestors * changed[:, None]).amax(-1)

    # ---- drafting ----------------------------------------------------------------------------

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        return self.close(self.open(roots, shapes), shapes)

    def open(self, roots: Roots, shapes: Shapes) -> Window:
        """The positions that the trees of this round may reach."""
        depth, lengths = min(shapes.depth, shapes.nodes), shapes.lengths
        self._fill(roots, lengths, depth)
        steps = torch.arange(depth, device=roots.at.device)
        at = (roots.at + 1 + steps).clamp_max(self.length)
        spread = at[..., None].expand(-1, -1, self.width)
        tokens = torch.cat([roots.codes[:, None], self._codes.gather(1, at)], 1)
        candidates, scores = self._candidates.gather(1, spread), self._scores.gather(1, spread)
        live = steps < lengths
        return Window(at, tokens, candidates, scores, self._distance.gather(1, at), torch.zeros_like(live), live)

    def close(self, window: Window, shapes: Shapes) -> DraftTree:
        """The tree of the window: its spine, and branches as far as the budget goes."""
        forecast, log_p = self._expect(window)
        self.forecasts = [forecast]
        beyond = torch.arange(self.width, device=log_p.device) >= shapes.widths[..., None]
        log_p = log_p.masked_fill(beyond, -math.inf)[..., : shapes.width]
        # As many branches as an image asks for, whatever the others' spines take, so far as memory was set aside.
        nodes = min(window.depth + shapes.branches, self.context.largest.nodes)
        if log_p.shape[-1] == 1 or window.depth >= nodes:
            return chain(window.tokens, log_p[..., 0].cumsum(1))
        others = window.candidates[..., 1 : log_p.shape[-1]]
        return spine_and_branches(window.tokens, others, log_p, nodes, shapes.budgets)

    def _expect(self, window: Window) -> tuple[Forecast, Tensor]:
        """What to expect of a window's positions, and the log-probabilities of all candidates."""
        classes = window.staleness() + CLASSES * window.network
        forecast, log_p = self.calibration.expect(classes, window.candidates, window.scores)
        return forecast, log_p.masked_fill(~window.live[..., None], -math.inf)

    def enter(self, window: Window) -> None:
        """Take over a spine that somebody else has changed."""
        self._codes.scatter_(1, window.at, window.tokens[:, 1:])

    def _fill(self, roots: Roots, lengths: Tensor, longest: int) -> None:
        """Guess the positions that are new in the windows, by the furthest logits and by their own noise.

        The logits belong to the first of them, or to one before. Neighbours in a row are alike.
        lengths: of the windows, [B, 1]. longest: of all.
        """
        ends, firsts = roots.at + lengths, torch.maximum(self._filled, roots.at) + 1
        count = self.context.size(lambda: ends - firsts + 1, longest)
        if count <= 0:
            return
        at = firsts + torch.arange(count, device=firsts.device)
        perturbed = self._perturbed(self._furthest.expand(-1, count, -1), at)
        at_or_spare = torch.where((at <= ends) & (at < self.length), at, self.length)
        self._write(at_or_spare, *self._best(perturbed, at))
        self._distance.scatter_(1, at_or_spare, NEVER)
        torch.maximum(self._filled, ends, out=self._filled)


def _best_nodes(tree: DraftTree, last_change: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every position ``at`` [B, m], the two nodes that have the best context for it.

    Returns, each [B, m]: whether any node speaks of the position; the node whose path has agreed longest with the
    tokens of now; and the next one that has agreed as long, or the same node again. last_change: [B, N + 1].
    """
    nobody = torch.full_like(at, tree.size**2)
    nodes = torch.arange(tree.size, device=at.device)
    rank = torch.where(tree.valid, last_change * tree.size + nodes, tree.size**2)
    best = nobody.scatter_reduce(1, tree.depths + 1, rank, "amin")
    others = torch.where(rank == best.gather(1, tree.depths + 1), tree.size**2, rank)
    second = nobody.scatter_reduce(1, tree.depths + 1, others, "amin")
    second = torch.where(second // tree.size == best // tree.size, second, best)
    return best < nobody, best % tree.size, second % tree.size


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values [B, n, V], index [B, m] -> [B, m, V]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def _towards(logits: Tensor, others: Tensor, share: float) -> Tensor:
    """A mixture of both. Codes that either of them excludes stay as they are."""
    mixture = logits + share * (others - logits)
    return torch.where(mixture.isfinite(), mixture, logits)
