"""Drafter that combines the Jacobi window (:mod:`.jacobi`) with a drafter network (:mod:`.eagle`) in one tree.

The window has a weakness. When a token changes, the draft directly after it is still the draft that was computed from
the old token. The network can read the new token, and so improve this draft. To predict the token at a position, the
network needs the target's feature at the position before. The target has read most positions of the window in the
previous round, so these features are known. Therefore *one* forward pass of the network makes predictions for all
positions of the window.

- Correction: after a round, the network's error at each position is known. The error is the target's feature minus the
  network's prediction of this feature. A share (`CORRECTION`) of the error is added to the network's new prediction.
- Choice: the hit rates of the window's and of the network's candidates are measured (:mod:`.calibration`). The
  network's candidates replace the window's candidates at positions where the network has the higher hit rate.
- Passes: a replaced candidate is a changed token too. So the network reads the changed window again, in several passes.
  At positions where the target's feature is of little use, a pass reads the feature that the network predicted in the
  previous pass.

After the passes, the tree is built from the window as in :mod:`.jacobi`.

Dimensions: B images; R batch rows (2 * B with guidance, else B); M positions of a window; K candidates per position;
T tokens of an image; h: length of a feature; V codes. m is a number of positions at the beginning of a window, m <= M.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode
from ..policies.cost_profile import CostEstimate
from ..rules.noise import Noise
from ..rules.tree import DraftTree
from .base import Drafter, PlainRead, Prefill, Proposer, TreeSizes, Verified
from .calibration import CLASSES, Forecast, has_poor_feature
from .eagle import EagleDrafter
from .jacobi import CHAIN, JacobiDrafter, JacobiProposer, Window

MIN_CANDIDATES = 3
"""Minimum number of candidates at a position. With a single candidate, softmax always gives the probability 1."""
MERGED = DraftMode(
    "merged",
    accepted=((0, 0.0), (4, 2.65), (8, 3.9), (12, 4.84), (16, 5.65), (24, 7.3), (31, 8.04), (63, 10.29), (95, 11.7)),
    cpu_cost=CostEstimate(1.0, 0.025),
    gpu_cost=CostEstimate(0.2, 0.003),
    hot_gain=0.73,
)
"""Draft mode that makes trees from the window and the network."""
CORRECTION = (0.0, 0.6, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0)
"""For each freshness class of :mod:`.calibration`, the share of the network's last error that is added. If the nearest
changed token is far before a position, the error stays nearly the same, so the share is 1. The first class contains
positions that the target has not read, so no error is known."""
MIN_PASSES = 2
"""Minimum number of passes of the network over the window. Each pass reads the result of the previous pass."""
SPINE_PER_PASS = 9
"""Number of spine tokens for each pass of the network: a spine of 20 tokens needs 3 passes."""


def num_passes(depth: int) -> int:
    """Return the number of network passes for a spine of `depth` tokens; 0 for a single token."""
    return max(MIN_PASSES, math.ceil(depth / SPINE_PER_PASS)) if depth > 1 else 0


class MergedDrafter(Drafter):
    """Drafter network (`eagle`) combined with the Jacobi window."""

    defaults = JacobiDrafter.defaults
    gpu_defaults = JacobiDrafter.gpu_defaults
    modes = CHAIN, MERGED

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
        # The tables `_read` and `_drafted` of the proposer. Their numbers have 4 bytes or more.
        features = 2 * rows * cache_length * self.eagle.config.hidden_size * max(itemsize, 4)
        return self.eagle.cache_bytes(rows, cache_length, itemsize) + features


class MergedProposer(Proposer):
    """Proposer that opens the window, improves it with the network, and builds the tree from it.

    Rounds in the draft mode `chain` do not use the network. The network reads the tokens of these rounds later, before
    the next round that uses it. If rounds are captured, it reads them at the end of each round.

    State:
        _window: Proposer of the window.
        _network: Proposer of the network.
        _unread_from: [B, 1], raster position of the first decided token that the network has not read.
        _read: [R, T + 1, h], the target's feature from which the draft at each raster position was computed: the
            feature of the token before the draft.
        _drafted: [R, T + 1, h], the network's prediction of each feature in `_read`.
    """

    by_image = ("_window", "_network", "_unread_from")
    by_row = ("_read", "_drafted")

    def __init__(self, eagle: EagleDrafter, context: Context, rows: BatchRows, noise: Noise | None):
        super().__init__(context, rows, noise)
        self._window = JacobiProposer(context, rows, noise, max(context.largest.width, MIN_CANDIDATES))
        self._network = eagle.proposer(context, rows, noise)
        self._chunk = context.largest.drafts + 1  # maximum number of tokens that the network reads in one pass
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

    def propose(self, roots: Roots, sizes: TreeSizes) -> DraftTree:
        window = self._window.open_window(roots, sizes)
        self._uses_network = window.depth > 0 and sizes.mode in ("", MERGED.name)
        if not self._uses_network:
            return self._window.build_tree(window, sizes)
        if self._has_unread:
            self._catch_up(roots, self._window.length)
        own_codes = window.candidates[..., 0].clone()
        own_scores = window.scores.clone()
        classes, codes, scores = self._refine_window(window, roots)
        self._window.store_spine(window)
        # The forecast makes `Calibration.learn` compare both kinds of candidates with the decided tokens at every
        # position, no matter which kind the tree uses.
        calibration = self._window.calibration
        own = calibration.log_probabilities(classes, own_scores)
        log_p = torch.stack([own, calibration.log_probabilities(classes + CLASSES, scores)], 1)
        kinds = len(codes), 2, codes.shape[1]
        first = torch.cat([own_codes, codes[..., 0]], 1).view(kinds)  # `stack` is three operations more
        return self._window.build_tree(window, sizes, Forecast(classes, first, log_p[..., 0].exp()))

    def _refine_window(self, window: Window, roots: Roots) -> tuple[Tensor, Tensor, Tensor]:
        """Replace candidates of the window by the network's candidates, in several passes.

        Returns:
            Three results of the last pass: the freshness class of each position [B, M], the codes of the network's
            candidates [B, M, K], and their scores [B, M, K].
        """
        bias = self._network.logit_bias(roots, window.depth)
        context = self._network.context_ahead(roots, max(window.depth - 1, 1))  # shared by all passes
        hit_rates = self._window.calibration.hit_rates()
        is_better = hit_rates[:, CLASSES:] > hit_rates[:, :CLASSES]
        at = self.rows.feature_index(window.at, self._read)
        read = self._read.gather(1, at)
        error = read - self._drafted.gather(1, at)
        root = self._network.root_feature
        classes = window.classes()
        first = classes[:, :1]
        out = self._corrected(root, error[:, :1], first)
        guesses = self._replace_candidates(window, out, bias, is_better.gather(1, first))
        out = read = read[:, :-1]
        # Views: `Window.replace` changes the window in place.
        codes = self._network.paired_codes(window.tokens[:, :-1])
        freshness = window.freshness[:, :-1, None]
        for _ in range(num_passes(window.depth)):
            is_poor = self.rows.broadcast(has_poor_feature(freshness))
            features = torch.where(is_poor, out, read)
            features[:, :1].copy_(root)
            classes = window.classes()
            out = self._network.read_ahead(codes, features, context)
            out = self._corrected(torch.cat([root, out], 1), error, classes)
            guesses = self._replace_candidates(window, out, bias, is_better.gather(1, classes))
            out = out[:, :-1]
        return classes, *guesses

    def _corrected(self, out: Tensor, error: Tensor, classes: Tensor) -> Tensor:
        """Add a share of the network's last error to its new predictions, [R, m, h].

        Args:
            out: [R, m, h], predictions for the first m positions.
            error: [R, m, h], the target's feature minus the network's prediction of it.
            classes: [B, m], freshness class of each position.
        """
        return torch.addcmul(out, self.rows.broadcast(self._correction.take(classes)[..., None]), error)

    def _replace_candidates(
        self, window: Window, out: Tensor, bias: Tensor | None, use: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Replace a window's candidates at some of the first m positions by the network's candidates.

        Args:
            out: [R, m, h], the network's predictions for the first m positions.
            bias: [B, M, V], noise plus grammar at all positions; None if there is neither.
            use: [B, m] bool, whether to replace the candidates at each position.

        Returns:
            Codes and scores of the network's candidates, [B, m, K] each.
        """
        bias = None if bias is None else bias[:, : out.shape[1]]
        scores, codes = self._network.children(out, bias, self._window.width)
        window.replace(use, codes, scores)
        return codes, scores

    def on_plain_round(self, read: PlainRead) -> None:
        self._window.on_plain_round(read)
        # `_read` has the feature of a token at the position of the next token.
        steps = self.rows.columns[1 : read.tokens.shape[1] + 1]
        at = torch.where(steps <= read.runs + 1, read.roots.at + steps, self._window.length)
        at = self.rows.feature_index(at.clamp_max(self._window.length), self._read)
        self._read.scatter_(1, at, read.features)
        self._drafted.scatter_(1, at, read.features)
        torch.minimum(self._unread_from, read.roots.at, out=self._unread_from)  # an image may have waited
        self._has_unread = True
        if self.context.replayed:
            self._catch_up(replace(read.roots, codes=read.next_roots, at=read.roots.at + read.runs + 1), len(steps))

    def _catch_up(self, roots: Roots, unread: int) -> None:
        """Let the network read at most `unread` decided tokens from `_unread_from` to the given roots, in chunks."""
        self._has_unread = False
        unread = self.context.size(lambda: roots.at - self._unread_from, unread)
        # There are no chunks if all images that had unread tokens have left the batch.
        for start in range(0, unread, self._chunk):
            size = min(unread - start, self._chunk)
            counts = (roots.at - self._unread_from).clamp_max(size)
            at = self._unread_from + self.rows.columns[: size + 1]
            features = self.rows.gather(self._read, at[:, 1:].clamp_max(self._window.length))
            self._network.catch_up(self._window.codes(at), features, replace(roots, at=self._unread_from), counts)
            self._unread_from.add_(counts)

    def on_verified(self, verified: Verified) -> None:
        roots = verified.roots
        steps = verified.acceptance.accepted + 1
        # Without the network there is no prediction. Then the target's features are stored, so that the error is 0.
        expected = verified.features
        if self._uses_network:
            expected = self._network.read_tree(verified).to(self._drafted.dtype)
            self._unread_from.copy_(roots.at + steps)
        at, node = (self.rows.feature_index(values, self._read) for values in self._window.refresh(verified))
        self._read.scatter_(1, at, verified.features.gather(1, node))
        self._drafted.scatter_(1, at, expected.gather(1, node))
        if not self._uses_network:
            self._has_unread = True
            if self.context.replayed:  # the number of chunks is fixed: one
                decided = replace(roots, codes=verified.acceptance.next_root[:, 0], at=roots.at + steps)
                self._catch_up(decided, self._chunk)
