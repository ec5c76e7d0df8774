"""Training-free drafter: Jacobi decoding with shared noise and scored branches.

When the target reads a tree, it emits a token after each node, also after rejected nodes. These tokens become the
drafts of the next round. The noise at a position is the same in all rounds. Therefore this iteration has only one fixed
point: the image that plain decoding generates. Most drafts become correct many rounds before they are verified. (Jacobi
decoding: Santilli et al., arXiv 2305.10427. For images: SJD, arXiv 2410.01699. The same noise in all iterations: SCD,
arXiv 2510.24211.)

The :class:`Window` contains drafts for the next positions of each image. At each position there are several
*candidates*. The *spine* is the sequence of the most probable candidates. A *branch* leaves the spine at one position,
takes another candidate there, and continues with the spine's tokens.

A draft becomes less fresh when a token before it changes. :mod:`.calibration` learns how reliable such drafts are. A
token is *decided* when it is part of the image; positions after the root have only drafts.

Dimensions: B images; R batch rows (2 * B with guidance, else B); M positions of a window; K candidates per position; N
drafts per tree; T tokens of an image; V codes; n and m are numbers of nodes or positions. `z` are processed logits, and
`g` is the noise of an image. The *score* of a token is z + g, also called its perturbed logit.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode, check_fit
from ..policies.cost_profile import CostEstimate
from ..rules.noise import Noise
from ..rules.sampling import is_finite
from ..rules.tree import DraftTree, chain
from .base import Drafter, PlainRead, Prefill, Proposer, TreeSizes, Verified
from .branches import spine_and_branches
from .calibration import CLASSES, UNCHANGED, UNREAD, Calibration, Forecast, freshness_classes

LEFT_WEIGHT = 0.25
"""Weight of the previous position's logits in the estimate for a draft directly after a changed token."""
# The GPU costs here and in merged.py approximate an H100 (docs/gpu.md). There, a round with 24 drafts takes as long as
# 1.15 plain rounds in the mode `window`, and 1.38 plain rounds in the mode `merged`. A round with 64 drafts takes 1.96
# plain rounds.
CHAIN = DraftMode(
    "chain",
    width=1,
    accepted=((0, 0.0), (4, 1.33), (8, 1.95), (16, 2.67), (31, 3.41)),
    cpu_cost=CostEstimate(0.25, 0.004),
    gpu_cost=CostEstimate(0.03, 0.001),
    hot_gain=0.86,
)
"""Draft mode that makes chains (trees of width 1) from the window. Chains are cheap to build."""
WINDOW = DraftMode(
    "window",
    accepted=((0, 0.0), (4, 1.35), (8, 2.1), (16, 2.96), (31, 4.0), (63, 5.0), (95, 5.7)),
    cpu_cost=CostEstimate(0.35, 0.01),
    gpu_cost=CostEstimate(0.05, 0.0015),
    hot_gain=0.86,
)
"""Draft mode that makes trees from the window."""


class JacobiDrafter(Drafter):
    """Drafter without weights. It reads its drafts from the target's own forward passes."""

    # A draft gets better each time the target reads it. In a short window, the target reads a draft only a few times
    # before the draft is verified. So the method ADT-Tree, which adapts the depth, has a larger minimum depth here.
    defaults = {
        "depth": 20, "width": 4, "drafts": 24, "beta": 0.25, "depth_step": 4,
        "depth_min": 8, "depth_max": 24, "width_min": 2, "width_max": 4,
    }  # fmt: skip
    # With guidance, 32 nodes fill one tile (64 rows) of a GPU's matrix products. A full tile costs as much as one node
    # (docs/gpu.md).
    gpu_defaults = {"depth": 26, "drafts": 31, "depth_min": 12, "depth_max": 31, "width_max": 6}
    modes = CHAIN, WINDOW

    @property
    def kind(self) -> Hashable:
        return "jacobi"

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> JacobiProposer:
        return JacobiProposer(context, rows, noise, context.largest.width)


class _Views(NamedTuple):
    """Parts of a window. They share memory with the window, whose tensors are changed in place.

    Attributes:
        spine: [B, M], most probable candidate at each position.
        codes: [B, M], codes of the spine. After a replacement, they are equal to `spine`.
        spine_before: [B, M - 1], `spine` at all positions but the last.
        codes_before: [B, M - 1], `codes` at all positions but the last.
        distances: [M - 1, M - 1], `Window.distances` from all positions but the first to all positions but the last.
        freshness: [B, M - 1], freshness of all positions but the first.
        from_network: [B, M - 1], `Window.from_network` of all positions but the first.
    """

    spine: Tensor
    codes: Tensor
    spine_before: Tensor
    codes_before: Tensor
    distances: Tensor
    freshness: Tensor
    from_network: Tensor


@dataclass
class Window:
    """Drafts for the next M positions of each image.

    Attributes:
        at: [B, M], raster position of each draft.
        tokens: [B, M + 1], codes of the root and of the spine.
        candidates: [B, M, K], most probable codes at each position. The first one is the spine's.
        scores: [B, M, K], scores of the candidates.
        freshness: [B, M], freshness of each position, as defined in :mod:`.calibration`.
        from_network: [B, M] bool, whether a drafter network has made the candidates.
        live: [B, M] bool, False for positions that are too deep for the image's tree. Images may have different depths.
        distances: [at least M, at least M]. Element [i, j] is i - j for j < i: the distance from position i to an
            earlier position j. It is UNCHANGED for other j.
        unchanged: The number UNCHANGED, a tensor without dimensions.
    """

    at: Tensor
    tokens: Tensor
    candidates: Tensor
    scores: Tensor
    freshness: Tensor
    from_network: Tensor
    live: Tensor
    distances: Tensor
    unchanged: Tensor

    @property
    def depth(self) -> int:
        return self.at.shape[1]

    def classes(self) -> Tensor:
        """Return the class for the freshness of each position, [B, M]."""
        return freshness_classes(self.freshness)

    def replace(self, use: Tensor, candidates: Tensor, scores: Tensor) -> None:
        """Replace candidates at some positions by the candidates of a drafter network.

        If this changes the spine at a position, later positions become less fresh.

        Args:
            use: [B, m] bool, whether to replace the candidates at each of the first m positions.
            candidates: [B, m, K], codes of the network's candidates.
            scores: [B, m, K], scores of the network's candidates.
        """
        own = self.from_network, self.candidates, self.scores
        if use.shape[1] < self.depth:
            own = tuple(part[:, : use.shape[1]] for part in own)  # type: ignore[assignment]
        own[0].bitwise_or_(use)
        use = use[..., None]
        torch.where(use, candidates, own[1], out=own[1])
        torch.where(use, scores, own[2], out=own[2])
        views = self._views
        changed = views.codes_before != views.spine_before
        views.codes.copy_(views.spine)
        if self.depth == 1:
            return
        # For all positions but the first: the distance to the last change before the position. Example: of 5 positions,
        # the positions 1 and 3 have changed. The distances of the positions 1 to 4 are [UNCHANGED, 1, 2, 1].
        distance = torch.where(changed[:, None], views.distances, self.unchanged).amin(-1)
        nearest = torch.minimum(views.freshness, distance)
        torch.where(views.from_network, views.freshness, nearest, out=views.freshness)

    @cached_property
    def _views(self) -> _Views:
        spine = self.candidates[..., 0]
        codes = self.tokens[:, 1:]
        return _Views(
            spine=spine,
            codes=codes,
            spine_before=spine[:, :-1],
            codes_before=codes[:, :-1],
            distances=self.distances[1 : self.depth, : self.depth - 1],
            freshness=self.freshness[:, 1:],
            from_network=self.from_network[:, 1:],
        )


class JacobiProposer(Proposer):
    """Proposer that stores the drafts of each image by raster position.

    A shape (:class:`~adt_core.policies.Shape`) means the following here. `depth` is the length of the spine. `width` is
    the number of candidates at a position. `drafts` is the number of drafts in spine and branches together.

    State. Column T, the last one, is spare: values that must not be stored are written there.
        _codes: [B, T + 1], decided codes, then drafted codes.
        _candidates: [B, T + 1, K], most probable codes at each position.
        _scores: [B, T + 1, K], scores of the candidates.
        _freshness: [B, T + 1], freshness of each position.
        _filled: [B, 1], last raster position for which a draft was made so far.
        _furthest: [B, 1, V], logits z at the last raster position for which the target has computed logits so far.
    """

    by_image = ("_codes", "_candidates", "_scores", "_freshness", "_filled", "_furthest", "calibration")
    supports_plain_rounds = True

    def __init__(self, context: Context, rows: BatchRows, noise: Noise | None, width: int):
        """Make empty windows.

        Args:
            width: Number of candidates to store for each position.

        Raises:
            AdtError: If the method is a fixed tree from a paper, because such a tree needs a drafter network.
        """
        if context.largest.tree:
            check_fit(f"static:{context.largest.tree}", network=False)
        super().__init__(context, rows, noise)
        target = context.target
        self.length = target.length
        self._coupled = context.settings.proposal == "coupled"
        self.width = min(width, target.num_codes)
        images = self.rows.images
        device = target.decoder.embedding.device
        self._codes = torch.zeros(images, self.length + 1, dtype=torch.long, device=device)
        self._candidates = self._codes[..., None].repeat(1, 1, self.width)
        self._scores = torch.zeros(self._candidates.shape, dtype=target.decoder.wide_dtype, device=device)
        self._freshness = torch.full_like(self._codes, UNREAD)
        # Numbers as tensors, because `torch.where` makes a new tensor from a number in each call.
        self._zero = self._codes.new_zeros(())
        self._unchanged = torch.full_like(self._zero, UNCHANGED)
        self._spare = torch.full_like(self._zero, self.length)  # number of the spare column
        self._excluded = self._scores.new_tensor(-math.inf)
        self._ranks = torch.arange(self.width, device=device)
        numbers = torch.arange(context.largest.depth, device=device)
        distances = numbers[:, None] - numbers
        self._distances = torch.where(distances > 0, distances, self._unchanged)
        self._filled = self._codes.new_zeros(images, 1)
        self._furthest: Tensor
        self.calibration = Calibration(images, self._scores)
        self.forecast: Forecast | None = None  # of the current round's spine

    # ---- update from the target's forward passes ----------------------------------------------

    def begin(self, prefill: Prefill) -> None:
        self._furthest = prefill.z.clone()

    def on_verified(self, verified: Verified) -> None:
        self.refresh(verified)

    def on_plain_round(self, read: PlainRead) -> None:
        steps = self.rows.columns[1 : read.tokens.shape[1] + 1]
        at = (read.roots.at + steps).clamp_max(self.length)
        self._codes.scatter_(1, torch.where(steps <= read.runs + 1, at, self._spare), read.tokens_and_next[:, 1:])
        self._update_furthest(read.roots.at + read.runs + 1, read.z)

    def refresh(self, verified: Verified) -> tuple[Tensor, Tensor]:
        """Store the decided tokens, and make new drafts for all later positions for which the tree has logits.

        Returns:
            Two tensors [B, m] for the m positions from the root on: the raster position, or T (the spare column) if no
            node has logits for it; and the node whose logits were used.
        """
        tree = verified.tree
        root = verified.roots.at
        steps = self.rows.columns[: tree.height + 2]
        # The root's position, then for each level of the tree the position after it. T is the spare column.
        at = (root + steps).clamp_max(self.length)
        is_decided = steps <= verified.acceptance.accepted + 1
        self.calibration.learn(self.forecast, verified, is_decided[:, 1:])
        self.forecast = None
        self._store_decided(verified.following, at, is_decided)
        node_at = at.gather(1, tree.depths)
        last_change = self._last_change(tree, node_at)
        has_node, best, second = _best_nodes(tree, last_change, at, self.rows.columns[: tree.size])
        reached = torch.where(has_node, at, self._spare)
        noise = self._noise(at)
        perturbed = _expected(verified.perturbed, best, second, noise, steps, steps - last_change.gather(1, best))
        last = torch.where(reached < self.length, steps, self._zero).amax(1, keepdim=True)
        index = last[..., None].expand(-1, -1, perturbed.shape[2])
        last_noise = None if noise is None else noise.gather(1, index)
        self._update_furthest(root + last, _without(perturbed.gather(1, index), last_noise))
        at_or_spare = torch.where(is_decided, self._spare, reached)
        self._store_candidates(at_or_spare, *self._best(perturbed, noise))
        # The drafts have changed, so compute the freshness again. If no token has changed, `_last_change` is 0.
        change = self._last_change(tree, node_at).gather(1, best)
        self._freshness.scatter_(1, at_or_spare, torch.where(change == 0, self._unchanged, steps - change))
        return reached, best

    def codes(self, at: Tensor) -> Tensor:
        """Return the codes at raster positions `at` [B, m]. Each code is decided or drafted."""
        return self._codes.gather(1, at.clamp_max(self.length))

    def _noise(self, at: Tensor) -> Tensor | None:
        return None if self.noise is None else self.noise.at(at)

    def _best(self, perturbed: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return scores and codes [B, m, K] of the K best candidates at some positions.

        Args:
            perturbed: [B, m, V], scores z + g at the positions.
            noise: [B, m, V], noise g at the positions; None at temperature 0.
        """
        if not self._coupled:
            perturbed = _without(perturbed, noise)
        return perturbed.max(-1, keepdim=True) if self.width == 1 else perturbed.topk(self.width, -1)

    def _update_furthest(self, at: Tensor, z: Tensor) -> None:
        """Store the logits z [B, 1, V] at positions `at` [B, 1], for each image whose position is after its drafts."""
        torch.where((at > self._filled)[..., None], z, self._furthest, out=self._furthest)

    def _store_candidates(self, at: Tensor, scores: Tensor, candidates: Tensor) -> None:
        """Store scores and candidates [B, m, K] at positions `at` [B, m]."""
        self._codes.scatter_(1, at, candidates[..., 0])
        index = at[..., None].expand_as(candidates)
        self._candidates.scatter_(1, index, candidates)
        self._scores.scatter_(1, index, scores)

    def _store_decided(self, following: Tensor, at: Tensor, is_decided: Tensor) -> None:
        """Replace drafts in `_codes` by the decided codes.

        Args:
            following: [B, n], codes after the root.
            at: [B, m], raster positions from the root on, m > n.
            is_decided: [B, m] bool, whether the code at each position is decided.
        """
        after = slice(1, following.shape[1] + 1)
        self._codes.scatter_(1, torch.where(is_decided[:, after], at[:, after], self._spare), following)

    def _last_change(self, tree: DraftTree, node_at: Tensor) -> Tensor:
        """Return for each node the depth of the last token on its path that differs from the current token, [B, N + 1].

        It is 0 if no token differs.

        Args:
            node_at: [B, N + 1], raster position of each node.
        """
        changed = torch.where(tree.tokens != self._codes.gather(1, node_at), tree.depths, self._zero)
        return torch.where(tree.ancestors, changed[:, None], self._zero).amax(-1)

    # ---- drafting ----------------------------------------------------------------------------

    def propose(self, roots: Roots, sizes: TreeSizes) -> DraftTree:
        return self.build_tree(self.open_window(roots, sizes), sizes)

    def open_window(self, roots: Roots, sizes: TreeSizes) -> Window:
        """Return the drafts for all positions that the trees of this round can reach."""
        depth = min(sizes.depth, sizes.drafts)
        lengths = sizes.lengths
        self._fill(roots, lengths, depth)
        self._codes.scatter_(1, roots.at, roots.codes[:, None])
        with_root = (roots.at + self.rows.columns[: depth + 1]).clamp_max(self.length)
        at = with_root[:, 1:]
        index = at[..., None].expand(-1, -1, self.width)
        steps = self.rows.columns[:depth]
        live = steps < lengths
        return Window(
            at=at,
            tokens=self._codes.gather(1, with_root),
            candidates=self._candidates.gather(1, index),
            scores=self._scores.gather(1, index),
            freshness=self._freshness.gather(1, at),
            from_network=torch.zeros_like(live),
            live=live,
            distances=self._distances,
            unchanged=self._unchanged,
        )

    def build_tree(self, window: Window, sizes: TreeSizes, forecast: Forecast | None = None) -> DraftTree:
        """Return the trees of a window: the spine, and as many branches as the shape allows.

        Args:
            forecast: Forecast to learn from. The default is a forecast for the spine, if it has no candidates from a
                drafter network.
        """
        classes = window.classes()
        classes = torch.where(window.from_network, classes + CLASSES, classes)
        log_p = self.calibration.log_probabilities(classes, window.scores)
        self.forecast = forecast or Forecast(classes, window.candidates[..., 0][:, None], log_p[..., 0][:, None].exp())
        allowed = window.live[..., None] & (self._ranks < sizes.widths[..., None])
        log_p = torch.where(allowed, log_p, self._excluded)[..., : sizes.width]
        # The trees of all images are stored with the same number of drafts. This number is large enough for the longest
        # spine plus the largest number of branch nodes, up to the limit of `largest`. So the branches of one image do
        # not become fewer because another image has a longer spine.
        drafts = min(window.depth + sizes.branches, self.context.largest.drafts)
        if log_p.shape[-1] == 1 or window.depth >= drafts:
            return chain(window.tokens, log_p[..., 0].cumsum(1))
        return spine_and_branches(window.tokens, window.candidates, log_p, drafts, sizes.budgets)

    def store_spine(self, window: Window) -> None:
        """Store a window's spine as the drafts of its positions."""
        self._codes.scatter_(1, window.at, window.tokens[:, 1:])

    def _fill(self, roots: Roots, lengths: Tensor, longest: int) -> None:
        """Make drafts for the positions that enter the windows in this round.

        For most of these positions, the target has not computed logits. So all use the logits `_furthest`, because
        logits at neighbouring positions of an image are similar. The noise of each position is added.

        Args:
            lengths: [B, 1], length of each image's window.
            longest: Upper bound of the lengths.
        """
        ends = (roots.at + lengths).clamp_max(self.length - 1)
        firsts = torch.maximum(self._filled, roots.at) + 1
        count = self.context.size(lambda: ends - firsts + 1, longest)
        if count <= 0:
            return
        at = firsts + self.rows.columns[:count]
        noise = self._noise(at)
        z = self._furthest.expand(-1, count, -1)
        at_or_spare = torch.where(at <= ends, at, self._spare)
        self._store_candidates(at_or_spare, *self._best(z if noise is None else z + noise, noise))
        self._freshness.scatter_(1, at_or_spare, UNREAD)
        torch.maximum(self._filled, ends, out=self._filled)


def _best_nodes(tree: DraftTree, last_change: Tensor, at: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each position, the two nodes whose paths agree best with the current tokens.

    A node at depth d has the logits for the position that is d + 1 after the root. The best of several nodes has the
    smallest `last_change`: after that depth, all tokens on the path to the node are equal to the current tokens.

    Args:
        last_change: [B, N + 1], result of :meth:`JacobiProposer._last_change`.
        at: [B, m], raster positions from the root on.
        nodes: [N + 1], the numbers 0, 1, 2, ...

    Returns:
        Three tensors [B, m]. The first is True if a node has logits for the position. The second is the best node. The
        third is the second-best node if it has the same `last_change` as the best node, else the best node again.
    """
    # Example: token 7 is the root, and the current tokens after it are 1, 2, 3.
    #
    #     node         0  1  2  3  4  5
    #     token        7  1  9  3  2  3
    #     parent       0  0  1  2  1  4
    #     depth        0  1  2  3  2  3
    #     last_change  0  0  2  2  0  0      node 2 has token 9, but the current token is 2; node 3 comes after node 2
    #     rank         0  1 14 15  4  5      last_change * 6 + node
    #
    # The node with the lowest rank at depth d is the best node for position d + 1: best = [none, 0, 1, 4, 5]. At depth
    # 2, node 2 is second-best. Its last_change is 2 (14 // 6), and the best node 4 has 0 (4 // 6). These differ,
    # so second = best there.
    none = torch.full_like(at, tree.size**2)
    steps = tree.depths + 1
    no_rank = none[:, :1]
    rank = torch.where(tree.valid, last_change * tree.size + nodes, no_rank)
    best = none.scatter_reduce(1, steps, rank, "amin")
    others = torch.where(rank == best.gather(1, steps), no_rank, rank)
    second = none.scatter_reduce(1, steps, others, "amin")
    second = torch.where(second // tree.size == best // tree.size, second, best)
    return best < none, best % tree.size, second % tree.size


def _gather_nodes(values: Tensor, index: Tensor) -> Tensor:
    """Return `values` [B, n, V] of the nodes `index` [B, m] as [B, m, V]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def _expected(
    perturbed: Tensor, best: Tensor, second: Tensor, noise: Tensor | None, steps: Tensor, distance: Tensor
) -> Tensor:
    """Estimate the scores z + g at some positions, given the current tokens before these positions, [B, m, V].

    The estimate is the average of the scores at two nodes. If the token before a position has changed, no node has read
    the current token. The logits of the previous position, with the weight `LEFT_WEIGHT`, then improve the estimate.

    Args:
        perturbed: [B, N + 1, V], as in :class:`Verified`.
        best: [B, m], best node for each position (:func:`_best_nodes`).
        second: [B, m], second-best node for each position.
        noise: [B, m, V], noise g at the positions; None at temperature 0.
        steps: [m], distance from the root to each position: 0, 1, 2, ...
        distance: [B, m], distance from each position to the nearest token before it that has changed.
    """
    expected = _blend(_gather_nodes(perturbed, best), _gather_nodes(perturbed, second), 0.5)
    # The logits of the previous position. The root's own position has none, but its distance is never 1.
    left = _without(expected, noise).index_select(1, (steps - 1).clamp_min(0))
    if noise is not None:
        left += noise
    return torch.where((distance == 1)[..., None], _blend(expected, left, LEFT_WEIGHT), expected)


def _blend(logits: Tensor, others: Tensor, weight: float) -> Tensor:
    """Return (1 - weight) * logits + weight * others; where this is not finite, return `logits`."""
    blended = torch.add(logits, others - logits, alpha=weight)
    return torch.where(is_finite(blended), blended, logits)


def _without(perturbed: Tensor, noise: Tensor | None) -> Tensor:
    """Subtract the noise g from scores z + g, and return z, all [B, m, V]. At temperature 0, there is no noise."""
    return perturbed if noise is None else perturbed - noise
