"""Training-free drafter: Jacobi decoding with shared noise and scored branches.

The target's forward pass over a tree also gives the token that it would emit after each node, including rejected ones.
These tokens are the drafts of the next round. The noise at each position stays the same in all rounds, so the image is
the only fixed point of this iteration, and most drafts are correct long before they are verified. (Jacobi decoding:
Santilli et al., arXiv 2305.10427; for images SJD, arXiv 2410.01699; noise shared between iterations: SCD,
arXiv 2510.24211.)

The :class:`Window` holds drafts for the next positions of each image. Its *spine* is the most probable token at each
position. A *branch* leaves the spine at one position with another candidate and continues with the spine's tokens.

Drafts become stale when a token before them changes; :mod:`.calibration` learns how reliable they are then.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode, check_fit
from ..policies.costs import CostEstimate
from ..rules.noise import Noise
from ..rules.tree import DraftTree, ancestor_matrix, chain, keep_best
from .base import Drafter, Prefill, Proposer, Shapes, Verified
from .calibration import CLASSES, NEVER, Calibration, Forecast, staleness_after, staleness_classes

LEFT_WEIGHT = 0.25
"""Weight of the logits of the position before, for a draft directly after a changed token."""
# The GPU costs here and in merged.py approximate an H100 (docs/gpu.md): there, rounds with 24 drafts take 1.15 plain
# steps in the mode `window` and 1.38 in `both`; 64 drafts take 1.96. The measured cost rises in steps, one for each
# tile of batch-invariant mode; the estimate is a straight line.
CHAIN = DraftMode(
    "chain",
    width=1,
    limit=4.8,
    half=13.0,
    cpu_cost=CostEstimate(1.1, 0.15, 0.05),
    gpu_cost=CostEstimate(1.02, 0.0, 0.006),
)
"""Chains from the window, which are cheap to build."""
WINDOW = DraftMode(
    "window",
    limit=6.4,
    half=18.0,
    cpu_cost=CostEstimate(1.15, 0.4, 0.07),
    gpu_cost=CostEstimate(1.03, 0.0, 0.007),
)
"""Trees from the window."""
LONGEST_RETURN = 4
"""Maximum number of spine tokens of a branch after the position at which it leaves the spine."""


class JacobiDrafter(Drafter):
    """Drafter without weights, which drafts from the target's own forward passes."""

    # In a short window a draft is verified before the target has read it again, so ADT-Tree has a minimum depth here.
    defaults = {
        "depth": 20, "width": 4, "nodes": 24, "beta": 0.25, "depth_step": 4,
        "depth_min": 8, "depth_max": 24, "width_min": 2, "width_max": 4,
    }  # fmt: skip
    # With guidance 32 nodes fill one tile of a GPU's matrix product, which takes as long as one node (docs/gpu.md).
    gpu_defaults = {"depth": 26, "nodes": 31, "depth_min": 12, "depth_max": 31, "width_max": 6}
    modes = CHAIN, WINDOW

    @property
    def kind(self) -> Hashable:
        return "jacobi"

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> JacobiProposer:
        return JacobiProposer(context, rows, noise, context.largest.width)


@dataclass
class Window:
    """Drafts for the next M positions of each image.

    Attributes:
        at: [B, M], raster positions.
        tokens: [B, M + 1], the root, then the spine.
        candidates: [B, M, K], most probable codes of each position, the spine's first.
        scores: [B, M, K], their perturbed logits.
        staleness: [B, M], as in :mod:`.calibration`.
        from_network: [B, M] bool, whether a drafter network has made the candidates.
        live: [B, M] bool, positions within the image's own shape.
    """

    at: Tensor
    tokens: Tensor
    candidates: Tensor
    scores: Tensor
    staleness: Tensor
    from_network: Tensor
    live: Tensor

    @property
    def depth(self) -> int:
        return self.at.shape[1]

    def classes(self) -> Tensor:
        """Return the staleness class of each position, [B, M]."""
        return staleness_classes(self.staleness)

    def has_poor_features(self) -> Tensor:
        """Return whether the target's features are of little use at each position, [B, M] bool.

        This is so directly after a change, and where the target has not read the position.
        """
        return (self.staleness == 1) | (self.staleness == NEVER)

    def replace(self, use: Tensor, candidates: Tensor, scores: Tensor) -> None:
        """Replace candidates by a drafter network's candidates.

        Where this changes the spine, later positions become stale.

        Args:
            use: [B, m] bool, which of the first m positions to replace.
            candidates: [B, m, K] codes.
            scores: [B, m, K], their perturbed logits.
        """
        first = slice(use.shape[1])
        for own, others in ((self.candidates, candidates), (self.scores, scores)):
            torch.where(use[..., None], others, own[:, first], out=own[:, first])
        self.from_network[:, first].logical_or_(use)
        spine = self.candidates[..., 0]
        changed = self.tokens[:, 1:] != spine
        self.tokens[:, 1:] = spine
        step = torch.arange(self.depth, device=spine.device)
        # Index of the last change before each position, e.g. changes at 1 and 3 of 5: [-NEVER, -NEVER, 1, 1, 3].
        last = F.pad(torch.where(changed, step, -NEVER).cummax(1).values, (1, -1), value=-NEVER)
        stale = staleness_after(self.staleness, step - last)
        self.staleness = torch.where((last >= 0) & ~self.from_network, stale, self.staleness)


class JacobiProposer(Proposer):
    """Window of each active image, stored by raster position.

    For this drafter, a shape's `depth` is the length of the spine, `width` the number of candidates at a position, and
    `nodes` the number of drafts of spine and branches together.

    State, for T tokens of an image; the last column is spare and takes writes that must have no effect:
        _codes: [B, T + 1], decided tokens, and drafts after them.
        _candidates: [B, T + 1, K], most probable codes of each position.
        _scores: [B, T + 1, K], their perturbed logits.
        _staleness: [B, T + 1].
        _filled: [B, 1], last position that has had drafts.
        _furthest: [B, 1, V], processed logits z of the furthest position that the target has given so far.
    """

    by_image = ("_codes", "_candidates", "_scores", "_staleness", "_filled", "_furthest", "calibration")
    supports_plain_steps = True

    def __init__(self, context: Context, rows: BatchRows, noise: Noise | None, width: int):
        """Make empty windows.

        Args:
            context: The request.
            rows: Rows of the images.
            noise: Noise that the target samples with; None at temperature 0.
            width: Number of candidates to store for each position.

        Raises:
            AdtError: If the method is a published tree.
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
        self._staleness = torch.full_like(self._codes, NEVER)
        self._filled = self._codes.new_zeros(images, 1)
        self._furthest: Tensor
        self.calibration = Calibration(images, self._scores)
        self.forecasts: list[Forecast] = []  # of the current round's spine

    # ---- update from the target's forward passes ----------------------------------------------

    def begin(self, prefill: Prefill) -> None:
        self._furthest = prefill.z.clone()

    def on_verified(self, verified: Verified) -> None:
        self.refresh(verified)

    def on_plain_step(self, roots: Roots, codes: Tensor, z: Tensor) -> None:
        at = (roots.at + 1).clamp_max(self.length)
        self._codes.scatter_(1, at, codes[:, None])
        self._update_furthest(at, z)

    def refresh(self, verified: Verified) -> tuple[Tensor, Tensor]:
        """Store the decided tokens, and draft all later positions that the tree reaches again.

        Args:
            verified: The verified tree.

        Returns:
            Raster positions [B, m] for which the tree has logits, decided ones included, with the spare column for
            positions that no node reaches; and the node [B, m] whose logits were used for each.
        """
        tree = verified.tree
        root = verified.roots.at
        self.calibration.learn(self.forecasts, verified)
        self.forecasts = []
        self._store_decided(verified)
        steps = torch.arange(tree.height + 2, device=root.device)
        at = root + steps  # positions of the root and after each level of the tree
        last_change = self._last_change(tree, at)
        has_node, best, second = _best_nodes(tree, last_change, at)
        reached = torch.where(has_node & (at < self.length), at, self.length)
        staleness = steps - last_change.gather(1, best)
        perturbed = self._expected(verified.perturbed, best, second, at, staleness)
        last = torch.where(reached < self.length, steps, 0).amax(1, keepdim=True)
        self._update_furthest(root + last, self._unperturbed(_gather_nodes(perturbed, last), root + last))
        undecided = steps > verified.acceptance.accepted[:, None] + 1
        at_or_spare = torch.where(undecided, reached, self.length)
        self._store_candidates(at_or_spare, *self._best(perturbed, at))
        # Drafts have changed, so measure again. A path without any change has the staleness `steps`, counted as 0.
        staleness = steps - self._last_change(tree, at).gather(1, best)
        self._staleness.scatter_(1, at_or_spare, torch.where(staleness == steps, 0, staleness))
        return reached, best

    def codes(self, at: Tensor) -> Tensor:
        """Return the tokens at the raster positions `at` [B, m], decided or drafted."""
        return self._codes.gather(1, at.clamp_max(self.length))

    def _perturbed(self, z: Tensor, at: Tensor) -> Tensor:
        """Return z + g [B, m, V] at raster positions `at` [B, m]."""
        return z if self.noise is None else z + self.noise.at(at)

    def _unperturbed(self, perturbed: Tensor, at: Tensor) -> Tensor:
        """Return z [B, m, V] for z + g at raster positions `at` [B, m]."""
        return perturbed if self.noise is None else perturbed - self.noise.at(at)

    def _best(self, perturbed: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and codes [B, m, K] of the best candidates at positions `at`."""
        if not self._coupled:
            perturbed = self._unperturbed(perturbed, at)
        return perturbed.max(-1, keepdim=True) if self.width == 1 else perturbed.topk(self.width, -1)

    def _update_furthest(self, at: Tensor, z: Tensor) -> None:
        """Store the logits z [B, 1, V] of positions `at` [B, 1] that are further ahead than all drafts."""
        self._furthest.copy_(torch.where((at > self._filled)[..., None], z, self._furthest))

    def _expected(self, perturbed: Tensor, best: Tensor, second: Tensor, at: Tensor, staleness: Tensor) -> Tensor:
        """Estimate z + g [B, m, V] of positions from the two nodes that have the best context for each.

        After a token that differs from the decided one, the average of two estimates is more accurate than either, and
        adding a share of the position before improves it further.

        Args:
            perturbed: [B, N + 1, V], as in :class:`Verified`.
            best: [B, m], nodes with the best context.
            second: [B, m], the next best nodes.
            at: [B, m], raster positions.
            staleness: [B, m], of the best nodes' logits.
        """
        expected = _blend(_gather_nodes(perturbed, best), _gather_nodes(perturbed, second), 0.5)
        shift_right = (0, 0, 1, 0)
        if self.noise is None:
            left = F.pad(expected, shift_right)[:, :-1]
        else:
            noise = self.noise.at(at)
            left = F.pad(expected - noise, shift_right)[:, :-1] + noise
        return torch.where((staleness == 1)[..., None], _blend(expected, left, LEFT_WEIGHT), expected)

    def _store_candidates(self, at: Tensor, scores: Tensor, candidates: Tensor) -> None:
        """Store scores and candidates [B, m, K] at positions `at` [B, m]."""
        self._codes.scatter_(1, at, candidates[..., 0])
        index = at[..., None].expand_as(candidates)
        self._candidates.scatter_(1, index, candidates)
        self._scores.scatter_(1, index, scores)

    def _store_decided(self, verified: Verified) -> None:
        """Replace drafts by the decided tokens."""
        emitted = verified.following
        root = verified.roots.at
        self._codes.scatter_(1, root, verified.roots.codes[:, None])
        steps = torch.arange(1, emitted.shape[1] + 1, device=root.device)
        decided = steps <= verified.acceptance.accepted[:, None] + 1
        self._codes.scatter_(1, torch.where(decided, root + steps, self.length).clamp_max(self.length), emitted)

    def _last_change(self, tree: DraftTree, at: Tensor) -> Tensor:
        """Return the depth of the last token on each node's path that differs from the current one at its position.

        Args:
            tree: The tree.
            at: [B, m], raster positions from the root on.

        Returns:
            [B, N + 1] depths; 0 if no token differs.
        """
        changed = tree.depths * (tree.tokens != self.codes(at).gather(1, tree.depths))
        return (tree.ancestors * changed[:, None]).amax(-1)

    # ---- drafting ----------------------------------------------------------------------------

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        return self.build_tree(self.open_window(roots, shapes), shapes)

    def open_window(self, roots: Roots, shapes: Shapes) -> Window:
        """Return the drafts of the positions that this round's trees can reach."""
        depth = min(shapes.depth, shapes.nodes)
        lengths = shapes.lengths
        self._fill(roots, lengths, depth)
        steps = torch.arange(depth, device=roots.at.device)
        at = (roots.at + 1 + steps).clamp_max(self.length)
        index = at[..., None].expand(-1, -1, self.width)
        live = steps < lengths
        return Window(
            at=at,
            tokens=torch.cat([roots.codes[:, None], self._codes.gather(1, at)], 1),
            candidates=self._candidates.gather(1, index),
            scores=self._scores.gather(1, index),
            staleness=self._staleness.gather(1, at),
            from_network=torch.zeros_like(live),
            live=live,
        )

    def build_tree(self, window: Window, shapes: Shapes) -> DraftTree:
        """Return the tree of a window: its spine, and as many branches as the shape allows."""
        forecast, log_p = self._expect(window)
        self.forecasts = [forecast]
        beyond = torch.arange(self.width, device=log_p.device) >= shapes.widths[..., None]
        log_p = log_p.masked_fill(beyond, -math.inf)[..., : shapes.width]
        # Each image gets its own number of branches even if another one has a longer spine, as far as memory allows.
        nodes = min(window.depth + shapes.branches, self.context.largest.nodes)
        if log_p.shape[-1] == 1 or window.depth >= nodes:
            return chain(window.tokens, log_p[..., 0].cumsum(1))
        others = window.candidates[..., 1 : log_p.shape[-1]]
        return spine_and_branches(window.tokens, others, log_p, nodes, shapes.budgets)

    def store_spine(self, window: Window) -> None:
        """Store a window's spine as the drafts of its positions."""
        self._codes.scatter_(1, window.at, window.tokens[:, 1:])

    def _expect(self, window: Window) -> tuple[Forecast, Tensor]:
        """Return the forecast of a window's spine, and the log-probabilities of all candidates."""
        classes = window.classes() + CLASSES * window.from_network
        forecast, log_p = self.calibration.expect(classes, window.candidates, window.scores)
        return forecast, log_p.masked_fill(~window.live[..., None], -math.inf)

    def _fill(self, roots: Roots, lengths: Tensor, longest: int) -> None:
        """Draft the positions that are new in the windows, from the furthest logits and each position's noise.

        The logits belong to the first of these positions or to one before it. Neighbours in a row are similar.

        Args:
            roots: Roots of the round.
            lengths: [B, 1], lengths of the windows.
            longest: Maximum of all lengths.
        """
        ends = roots.at + lengths
        firsts = torch.maximum(self._filled, roots.at) + 1
        count = self.context.size(lambda: ends - firsts + 1, longest)
        if count <= 0:
            return
        at = firsts + torch.arange(count, device=firsts.device)
        perturbed = self._perturbed(self._furthest.expand(-1, count, -1), at)
        at_or_spare = torch.where((at <= ends) & (at < self.length), at, self.length)
        self._store_candidates(at_or_spare, *self._best(perturbed, at))
        self._staleness.scatter_(1, at_or_spare, NEVER)
        torch.maximum(self._filled, ends, out=self._filled)


def _best_nodes(tree: DraftTree, last_change: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each position, the two nodes with the best context for it.

    The logits of a node at depth d belong to the position d + 1 after the root. Of several nodes at that depth, the
    best is the one whose path has agreed longest with the current tokens, so the one with the earliest last change.

    Args:
        tree: The tree.
        last_change: [B, N + 1], depth of the last changed token on each node's path.
        at: [B, m], raster positions from the root on.

    Returns:
        Three tensors [B, m]: whether any node has logits for the position; the best node; and the second-best node if
        its last change is at the same depth, else the best node again.
    """
    # Example: token 7 is the root, and the current tokens after it are 1, 2, 3.
    #
    #     node         0  1  2  3  4  5
    #     token        7  1  9  3  2  3
    #     parent       0  0  1  2  1  4
    #     depth        0  1  2  3  2  3
    #     last_change  0  0  2  2  0  0      9 differs from 2, so 3 after it has stale context
    #     rank         0  1 14 15  4  5      last_change * 6 + node
    #
    # The lowest rank at each depth, moved to the position after it: best = [none, 0, 1, 4, 5]. Node 2 is the second of
    # depth 2, but node 4 has an earlier last change (14 // 6 = 2, 4 // 6 = 0), so second = best.
    none = torch.full_like(at, tree.size**2)
    nodes = torch.arange(tree.size, device=at.device)
    rank = torch.where(tree.valid, last_change * tree.size + nodes, tree.size**2)
    best = none.scatter_reduce(1, tree.depths + 1, rank, "amin")
    others = torch.where(rank == best.gather(1, tree.depths + 1), tree.size**2, rank)
    second = none.scatter_reduce(1, tree.depths + 1, others, "amin")
    second = torch.where(second // tree.size == best // tree.size, second, best)
    return best < none, best % tree.size, second % tree.size


def _gather_nodes(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows `index` [B, m] of values [B, n, V], [B, m, V]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def _blend(logits: Tensor, others: Tensor, weight: float) -> Tensor:
    """Return the weighted average of two logits; codes that either of them excludes keep the first one's logit."""
    blended = logits + weight * (others - logits)
    return torch.where(blended.isfinite(), blended, logits)


def branch_scores(log_p: Tensor) -> Tensor:
    """Return the log-probability of each possible branch.

    Branch (i, r, m) follows the spine up to position i, takes candidate r there and continues with m spine tokens. Its
    score is the sum of the log-probabilities of all its tokens from the root on.

    Args:
        log_p: [B, M, k], log-probabilities of the candidates at each position, the spine's first.

    Returns:
        [B, M, k - 1, LONGEST_RETURN + 1] scores by i, r - 1 and m; -inf for branches beyond the window.
    """
    # Example, as probabilities instead of logarithms, so sums are products: the spine's tokens have 0.9, 0.5 and 0.8,
    # and another candidate at position 1 has 0.4.
    #
    #     cumulative = [0.9, 0.45, 0.36]
    #     before     = [1, 0.9, 0.45]              cumulative of the position before
    #     ends[1]    = [0.45, 0.36, 0, 0, 0]       cumulative from position 1 on, 0 beyond the window
    #     carried[1] = ends[1] / 0.45 = [1, 0.8, 0, 0, 0]
    #     scores[1]  = before[1] * 0.4 * carried[1] = [0.36, 0.288, 0, 0, 0]
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
    """Return the tree of a spine and its best branches.

    Args:
        tokens: [B, M + 1], root and spine.
        others: [B, M, k - 1], the other candidates at each position.
        log_p: [B, M, k], log-probabilities of all candidates, the spine's first.
        nodes: Number of drafts of spine and branches together.
        budgets: [B, 1], number of drafts of each image, if some have fewer.
    """
    batch, length, _ = log_p.shape
    cumulative = log_p[..., 0].cumsum(1)  # [B, M]
    branch_budgets = None if budgets is None else budgets - cumulative.isfinite().sum(1, keepdim=True)
    branches = _best_branches(log_p, nodes - length, branch_budgets)
    scores = torch.cat([F.pad(cumulative, (1, 0)), branches.scores], 1)
    valid = scores.isfinite()
    spine = torch.arange(length + 1, device=tokens.device).expand(batch, -1)
    branch_parents, branch_tokens = branches.nodes(tokens, others)
    parents = torch.cat([(spine - 1).clamp_min(0), branch_parents], 1) * valid
    return DraftTree(
        tokens=torch.cat([tokens, branch_tokens], 1),
        parents=parents,
        depths=torch.cat([spine, branches.position + branches.m + 1], 1) * valid,
        ranks=torch.cat([torch.zeros_like(spine), torch.where(branches.m == 0, branches.rank, 0)], 1),
        scores=scores,
        valid=valid,
        ancestors=ancestor_matrix(parents, length + 1),
        height=length,
    )


class _Branches(NamedTuple):
    """Last nodes of the chosen branches (i, r, m), each tensor [B, n].

    Attributes:
        scores: Log-probabilities.
        candidate: Flat index of (i, r - 1).
        position: Position i.
        rank: Rank r of the candidate.
        m: Number of spine tokens after the candidate.
    """

    scores: Tensor
    candidate: Tensor
    position: Tensor
    rank: Tensor
    m: Tensor

    def nodes(self, tokens: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parents and tokens [B, n] of the nodes, which are numbered after the spine's nodes.

        Args:
            tokens: [B, M + 1], root and spine.
            others: [B, M, k - 1], the other candidates at each position.
        """
        # Example: root 0, spine 10, 20, 30. The branch nodes are 21 instead of 20 (position 1, rank 1, m = 0), 30 after
        # it (1, 1, 1), and 22 instead of 20 (1, 2, 0). A node with m = 0 at position i has node i as its parent, the
        # spine's node before that position. The parent of any other branch node is the node before it.
        #
        #     node      0   1   2   3   4   5   6
        #     token     0  10  20  30  21  30  22
        #     parent    0   0   1   2   1   4   1
        length = others.shape[1]
        count = self.position.shape[1]
        node_before = torch.arange(length, length + count, device=tokens.device)
        other = others.flatten(1).gather(1, self.candidate)
        carried = tokens.gather(1, (self.position + self.m + 1).clamp_max(length))
        is_first = self.m == 0
        return torch.where(is_first, self.position, node_before), torch.where(is_first, other, carried)


def _best_branches(log_p: Tensor, count: int, budgets: Tensor | None) -> _Branches:
    """Return the `count` best branch nodes in the order of (i, r, m).

    Scores fall with m, and ties go to the smaller m, so all ancestors of a chosen node are chosen too.

    Args:
        log_p: [B, M, k], log-probabilities of all candidates, the spine's first.
        count: Number of nodes.
        budgets: [B, 1], number of nodes of each image, if some have fewer.
    """
    scores = keep_best(branch_scores(log_p).flatten(1), budgets)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values
    # A flat index is candidate * (LONGEST_RETURN + 1) + m, and a candidate's is position * (k - 1) + rank - 1.
    candidate = best // (LONGEST_RETURN + 1)
    others = log_p.shape[2] - 1
    return _Branches(
        scores=scores.gather(1, best),
        candidate=candidate,
        position=candidate // others,
        rank=candidate % others + 1,
        m=best % (LONGEST_RETURN + 1),
    )
