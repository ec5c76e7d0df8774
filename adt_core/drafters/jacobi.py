"""The training-free drafter: a coupled Jacobi window with scored side branches.

Every verified node also says what the target would emit *after* it, rejected nodes included. Those tokens are the next round's
drafts: with the target's own noise at every position, an image is the only fixed point of "re-read the window, put in what the
target emits", and most of a window is already right long before it is reached. (Jacobi decoding: Santilli et al.,
arXiv 2305.10427; for images SJD, arXiv 2410.01699; noise shared between iterations: SCD, arXiv 2510.24211.)

The window is a *spine*, one token for each of the next positions. *Branches* leave it where a token is likely to flip: another
candidate at one slot, then the spine's own tokens again.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import AdtError
from ..models.chameleon import Target
from ..models.decoder import Rows, Step
from ..sampling import Sampling
from ..shape import Drafting, TreeShape
from ..tree import DraftTree, ancestor_matrix, chain
from . import Verified

FOLLOW = 4
"""Spine tokens that a branch may carry on with after its deviation."""
STALE_AFTER = (1, 2, 3, 4, 5, 9)
"""Lower ends of the staleness classes 1, 2, ...: distance back to the nearest token that has changed since a slot was computed.
Class 0: nothing has changed, so the slot is certain. The class behind the last: never computed."""
NEVER = len(STALE_AFTER) + 1
RATE = 0.1


class JacobiDrafter:
    """Needs no weights: the target's own forwards are the drafter."""

    default = Drafting(method="eagle2", depth=16, width=3, nodes=24)

    def proposer(self, target: Target, rows: Rows, images: int, sampling: Sampling, drafting: Drafting, noise: Tensor | None) -> JacobiProposer:
        self.check(drafting)
        return JacobiProposer(target, images, drafting, noise)

    def check(self, drafting: Drafting) -> None:
        """AdtError for a method that the window can't draft."""
        if drafting.static:
            raise AdtError(f"method {drafting.method!r} needs a drafter network; choose 'eagle2' or 'adt-tree' with the drafter 'jacobi'.")

    def cache_bytes(self, rows: int, slots: int, itemsize: int) -> int:
        return 0


class JacobiProposer:
    """The window of every image of a batch.

    All state is kept by raster position, with a spare column behind the last for writes that must come to nothing:
    ``codes`` [B, T + 1] the emitted or guessed token, ``candidates`` and ``scores`` [B, T + 1, K] the best codes of a slot and
    their perturbed logits, ``stale`` [B, T + 1] its staleness class. ``depth`` is the spine's length, ``width`` how many
    candidates a slot may try, ``nodes`` the budget of spine and branches together.
    """

    def __init__(self, target: Target, images: int, drafting: Drafting, noise: Tensor | None):
        self.forwards = 0
        self._drafting, self._noise, self._columns = drafting, noise, target.grid[1]
        self._length = target.grid[0] * target.grid[1]
        self._width = min(drafting.largest.width, target.num_codes)
        device = target.decoder.embedding.device
        self._codes = torch.zeros(images, self._length + 1, dtype=torch.long, device=device)
        self._candidates = self._codes[..., None].repeat(1, 1, self._width)
        self._scores = torch.zeros(self._candidates.shape, dtype=target.decoder.wide_dtype, device=device)
        self._stale = torch.full_like(self._codes, NEVER)
        self._temperature = torch.tensor([0.05, *(distance**-0.5 for distance in STALE_AFTER), 1.0], dtype=self._scores.dtype, device=device)
        self._images = torch.arange(images, device=device)[:, None]
        self._filled = [0] * images  # last position that has a guess

    # ---- what a forward taught ---------------------------------------------------------------

    def begin(self, features: Tensor, ids: Tensor, step: Step, perturbed: Tensor) -> None:
        """The first token's distribution stands in for the row above the first."""
        self._above = self._unperturbed(perturbed, torch.zeros(len(perturbed), 1, dtype=torch.long, device=perturbed.device))
        self._above = self._above.repeat(1, self._columns + 1, 1)  # [B, columns + spare, V]: logits z of a column's last decided cell

    def _unperturbed(self, perturbed: Tensor, at: Tensor) -> Tensor:
        """z of the raster positions ``at`` [B, m], whose z + g is ``perturbed`` [B, m, V]."""
        return perturbed if self._noise is None else perturbed - self._noise[self._images, at.clamp_max(self._length - 1)]

    def _best(self, perturbed: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and codes [B, m, K] that go into the slots ``at``."""
        if self._drafting.proposal != "coupled":
            perturbed = self._unperturbed(perturbed, at)
        return perturbed.max(-1, keepdim=True) if self._width == 1 else perturbed.topk(self._width, -1)

    def observe(self, verified: Verified) -> None:
        """Enter the decided tokens, and refresh every later slot from the node that has the best context for it."""
        tree, verdict = verified.tree, verified.verdict
        root = torch.tensor(verified.positions, device=tree.tokens.device)[:, None]
        self._learn(root, verdict.accepted[:, None], self._decide(verified, root))
        slots = torch.arange(self._spine + 2, device=root.device)  # the root and every slot that some node speaks of
        at = root + slots
        # For every slot: the node before it whose path has agreed longest with the tokens that are now known or guessed.
        last_change = self._last_change(tree, at)
        rank = torch.where(tree.valid, last_change * tree.size + torch.arange(tree.size, device=root.device), tree.size**2)
        best = torch.full_like(at, tree.size**2).scatter_reduce_(1, tree.depths + 1, rank, "amin")
        refreshed = (best < tree.size**2) & (slots > verdict.accepted[:, None] + 1)
        at_or_spare = torch.where(refreshed & (at < self._length), at, self._length)
        best = best % tree.size
        child_at = (root + tree.depths + 1)
        scores, candidates = self._best(verified.perturbed, child_at)
        self._write(at_or_spare, best, scores, candidates)
        if self._width > 1:
            distance = slots - self._last_change(tree, at).gather(1, best)
            stale = torch.bucketize(distance, torch.tensor(STALE_AFTER, device=root.device), right=True)
            self._stale.scatter_(1, at_or_spare, torch.where(distance == slots, 0, stale))

    def _write(self, at: Tensor, best: Tensor, scores: Tensor, candidates: Tensor) -> None:
        index = best[..., None].expand(-1, -1, self._width)
        candidates, scores = candidates.gather(1, index), scores.gather(1, index)
        self._codes.scatter_(1, at, candidates[..., 0])
        spread = at[..., None].expand_as(index)
        self._candidates.scatter_(1, spread, candidates)
        self._scores.scatter_(1, spread, scores)

    def _decide(self, verified: Verified, root: Tensor) -> Tensor:
        """Write the emitted tokens over the guesses. Returns the former guesses there, [B, longest + 1]."""
        emitted, accepted = verified.following(), verified.verdict.accepted[:, None]
        steps = torch.arange(1, emitted.shape[1] + 1, device=root.device)
        at = torch.where(steps <= accepted + 1, root + steps, self._length).clamp_max(self._length)
        before = self._codes.gather(1, at)
        self._codes.scatter_(1, at, emitted)
        index = verified.verdict.path[:, : emitted.shape[1], None]
        perturbed = verified.perturbed.gather(1, index.expand(-1, -1, verified.perturbed.shape[-1]))
        column = torch.where(at < self._length, at % self._columns, self._columns)
        self._above[self._images, column] = self._unperturbed(perturbed, at)
        return before == emitted

    def _last_change(self, tree: DraftTree, at: Tensor) -> Tensor:
        """Depth of the deepest node on every node's path whose token isn't the one now at its position; 0 if all are. [B, N + 1]"""
        current = self._codes.gather(1, at.clamp_max(self._length)).gather(1, tree.depths)
        changed = tree.depths * (tree.tokens != current)
        changed[:, 0] = 0
        return (tree.ancestors * changed[:, None]).amax(-1)

    def _learn(self, root: Tensor, accepted: Tensor, hit: Tensor) -> None:
        """Sharpen or flatten a staleness class by how often its favourite turned out right."""
        if self._width == 1:
            return
        m = min(hit.shape[1], self._predicted.shape[1])
        error = (self._predicted[:, :m] - hit[:, :m].to(self._scores.dtype)) * (torch.arange(m, device=root.device) <= accepted)
        step = torch.zeros_like(self._temperature).index_add_(0, self._classes[:, :m].flatten(), error.flatten())
        self._temperature *= (RATE * step).exp()
        self._temperature.clamp_(1e-2, 1e2)

    # ---- drafting ----------------------------------------------------------------------------

    def propose(self, root: Tensor, starts: list[int], positions: list[int], shapes: list[TreeShape]) -> DraftTree:
        depth, width = min(max(s.depth for s in shapes), self._drafting.nodes), min(max(s.width for s in shapes), self._width)
        self._fill(positions, [min(s.depth, depth) for s in shapes])
        self._spine = depth
        slots = torch.arange(depth, device=root.device)
        at = (torch.tensor(positions, device=root.device)[:, None] + 1 + slots).clamp_max(self._length)
        tokens = torch.cat([root[:, None], self._codes.gather(1, at)], 1)
        limits = torch.tensor(shapes, device=root.device)
        live = slots < limits[:, :1]
        if self._width == 1:
            return chain(tokens, torch.where(live, 0.0, -math.inf))
        self._classes = self._stale.gather(1, at)
        spread = at[..., None].expand(-1, -1, self._width)
        log_p = (self._scores.gather(1, spread) / self._temperature[self._classes][..., None]).log_softmax(-1)
        self._predicted = log_p[..., 0].exp()
        log_p = log_p.masked_fill(~live[..., None], -math.inf)
        if width == 1 or depth >= self._drafting.nodes:
            return chain(tokens, log_p[..., 0].cumsum(1))
        log_p = log_p.masked_fill(torch.arange(self._width, device=root.device) >= limits[:, 1:, None], -math.inf)
        return self._with_branches(tokens, self._candidates.gather(1, spread)[..., 1:width], log_p[..., :width])

    def _fill(self, positions: list[int], depths: list[int]) -> None:
        """Guess the slots that have come into the windows: the cell above's distribution, with a slot's own noise."""
        last = [position + depth for position, depth in zip(positions, depths)]
        first = [max(filled, position) + 1 for filled, position in zip(self._filled, positions)]
        count = max(end - start for start, end in zip(first, last)) + 1
        if count <= 0:
            return
        at = torch.tensor(first, device=self._images.device)[:, None] + torch.arange(count, device=self._images.device)
        ends = torch.tensor(last, device=self._images.device)[:, None]
        logits = self._above[self._images, at % self._columns]
        if self._noise is not None:
            logits = logits + self._noise[self._images, at.clamp_max(self._length - 1)]
        at_or_spare = torch.where((at <= ends) & (at < self._length), at, self._length)
        scores, candidates = self._best(logits, at)
        self._write(at_or_spare, torch.arange(count, device=at.device).expand_as(at), scores, candidates)
        self._stale.scatter_(1, at_or_spare, NEVER)
        self._filled = [max(filled, end) for filled, end in zip(self._filled, last)]

    def _with_branches(self, tokens: Tensor, others: Tensor, log_p: Tensor) -> DraftTree:
        """Spine and the best single deviations from it.

        tokens [B, M + 1]: root and spine. others [B, M, k - 1], log_p [B, M, k]: candidates and their log-probabilities. Branch
        (i, r, m) follows the spine up to slot i, takes candidate r there and carries on with m spine tokens; its score is the
        log-probability of all its tokens. Scores fall with m and ties go to the smaller m, so what is kept is ancestor-closed.
        """
        batch, spine, width = log_p.shape
        cumulative = log_p[..., 0].cumsum(1)  # [B, M]
        before = F.pad(cumulative, (1, 0))[:, :-1]
        carried = F.pad(cumulative, (0, FOLLOW), value=-math.inf).unfold(1, FOLLOW + 1, 1) - cumulative[..., None]  # [B, M, m]
        scores = (before[..., None, None] + log_p[..., 1:, None] + carried[:, :, None]).nan_to_num(nan=-math.inf, neginf=-math.inf).flatten(1)
        budget = min(self._drafting.nodes - spine, scores.shape[1])
        kept = scores.sort(dim=1, descending=True, stable=True).indices[:, :budget].sort(1).values
        scores = torch.cat([F.pad(cumulative, (1, 0)), scores.gather(1, kept)], 1)
        slot, m = kept // ((width - 1) * (FOLLOW + 1)), kept % (FOLLOW + 1)
        number = torch.arange(spine, spine + budget, device=kept.device)  # the node before; a continued branch hangs on it
        line = torch.arange(spine + 1, device=kept.device).expand(batch, -1)
        valid = scores.isfinite()
        parents = torch.cat([(line - 1).clamp_min(0), torch.where(m == 0, slot, number)], 1) * valid
        deviation = others.flatten(1).gather(1, kept // (FOLLOW + 1))
        branch = torch.where(m == 0, deviation, tokens.gather(1, (slot + m + 1).clamp_max(spine)))
        rank = torch.where(m == 0, kept // (FOLLOW + 1) % (width - 1) + 1, 0)
        return DraftTree(
            tokens=torch.cat([tokens, branch], 1),
            parents=parents,
            depths=torch.cat([line, slot + m + 1], 1) * valid,
            ranks=torch.cat([torch.zeros_like(line), rank], 1),
            scores=scores,
            valid=valid,
            ancestors=ancestor_matrix(parents, spine + 1),
        )
