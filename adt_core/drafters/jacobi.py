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
from torch import Tensor

from ..errors import AdtError
from ..models.rows import Rows, Step
from ..models.target import Target
from ..policies.shape import AUTO_WIDTH, Drafting, TreeShape, spine
from ..rules.sampling import Sampling
from ..rules.tree import DraftTree, chain
from .base import Verified
from .window import NEVER, Calibration, Forecast, Window, best_size, branch_scores, spine_and_branches


class JacobiDrafter:
    """Needs no weights: the target's own forwards are the drafter. width: what ``auto`` may try at a slot; 1 makes chains, which take less to build."""

    # A window that is too short is never read twice, so its guesses stay poor: ADT-Tree's depth has a floor here.
    default = Drafting(
        method="eagle2",
        depth=16,
        width=3,
        nodes=24,
        beta=0.25,
        depth_step=4,
        depth_min=8,
        depth_max=20,
        width_min=2,
        width_max=4,
    )

    def __init__(self, width: int = AUTO_WIDTH):
        self.width = width

    def proposer(
        self, target: Target, rows: Rows, images: int, sampling: Sampling, drafting: Drafting, noise: Tensor | None
    ) -> JacobiProposer:
        self.check(drafting)
        return JacobiProposer(
            target, images, drafting, noise, self.width if drafting.method == "auto" else drafting.largest.width
        )

    def check(self, drafting: Drafting) -> None:
        """AdtError for a method that the window can't draft."""
        if drafting.static:
            raise AdtError(
                f"method {drafting.method!r} needs a drafter network; choose 'eagle2' or 'adt-tree' with the drafter 'jacobi'."
            )

    def cache_bytes(self, rows: int, slots: int, itemsize: int) -> int:
        return 0


class JacobiProposer:
    """The window of every image of a batch.

    All state is kept by raster position, with a spare column behind the last for writes that must come to nothing:
    ``codes`` [B, T + 1] the emitted or guessed token, ``candidates`` and ``scores`` [B, T + 1, K] the best codes of a slot and
    their perturbed logits, ``distance`` [B, T + 1] its staleness. A tree's ``depth`` is the spine's length, ``width`` how many
    candidates a slot may try, ``nodes`` the budget of spine and branches together.
    """

    forwards = 0
    _BY_IMAGE = ("_codes", "_candidates", "_scores", "_distance", "_above")

    def __init__(self, target: Target, images: int, drafting: Drafting, noise: Tensor | None, width: int):
        """width: candidates that are kept for a slot."""
        self._noise, self._columns = noise, target.columns
        self._coupled, self._most = drafting.proposal == "coupled", drafting.budget
        self.length = target.length
        self.width = min(width, target.num_codes)
        device = target.decoder.embedding.device
        self._codes = torch.zeros(images, self.length + 1, dtype=torch.long, device=device)
        self._candidates = self._codes[..., None].repeat(1, 1, self.width)
        self._scores = torch.zeros(self._candidates.shape, dtype=target.decoder.wide_dtype, device=device)
        self._distance = torch.full_like(self._codes, NEVER)
        self.calibration = Calibration(self._scores)
        self.forecasts: list[Forecast] = []  # of the round's slots
        self._images = torch.arange(images, device=device)[:, None]
        self._filled = [0] * images  # last position that has a guess

    def __len__(self) -> int:
        """Images of the batch."""
        return len(self._images)

    # ---- what a forward taught ---------------------------------------------------------------

    def begin(self, features: Tensor, ids: Tensor, step: Step, z: Tensor, position: int) -> None:
        """Where nothing is decided above, the first drawn token's distribution stands in for it."""
        self._above = z[:, -1:].repeat(
            1, self._columns + 1, 1
        )  # [B, columns + spare, V]: logits z of a column's last decided cell
        self._above[:, torch.arange(position - z.shape[1] + 1, position + 1, device=z.device) % self._columns] = z

    def keep(self, images: Tensor, rows: Rows, noise: Tensor | None) -> None:
        for name in self._BY_IMAGE:
            setattr(self, name, getattr(self, name)[images])
        self._images = self._images[: len(images)]
        self._filled = [self._filled[i] for i in images.tolist()]
        self._noise = noise

    def admit(self, images: Tensor, others: JacobiProposer, rows: Rows) -> None:
        for name in self._BY_IMAGE:
            getattr(self, name)[images] = getattr(others, name)
        for image, filled in zip(images.tolist(), others._filled):
            self._filled[image] = filled

    def _unperturbed(self, perturbed: Tensor, at: Tensor) -> Tensor:
        """z of the raster positions ``at`` [B, m], whose z + g is ``perturbed`` [B, m, V]."""
        return (
            perturbed if self._noise is None else perturbed - self._noise[self._images, at.clamp_max(self.length - 1)]
        )

    def _best(self, perturbed: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and codes [B, m, K] that go into the slots ``at``."""
        if not self._coupled:
            perturbed = self._unperturbed(perturbed, at)
        return perturbed.max(-1, keepdim=True) if self.width == 1 else perturbed.topk(self.width, -1)

    def observe(self, verified: Verified) -> tuple[Tensor, Tensor]:
        """Enter the decided tokens, and refresh every later slot from the node that has the best context for it.

        Returns the raster positions of the slots (the spare column for what is not refreshed) and the node of each, [B, m].
        """
        tree, accepted = verified.tree, verified.verdict.accepted[:, None]
        root = torch.tensor(verified.positions, device=tree.tokens.device)[:, None]
        for forecast in self.forecasts:
            self.calibration.learn(forecast, verified)
        self._decide(verified, root)
        slots = torch.arange(
            verified.verdict.path.shape[1] + 1, device=root.device
        )  # the root and every slot that some node speaks of
        at = root + slots
        # For every slot: the node before it whose path has agreed longest with the tokens that are now known or guessed.
        last_change = self._last_change(tree, at)
        rank = torch.where(
            tree.valid, last_change * tree.size + torch.arange(tree.size, device=root.device), tree.size**2
        )
        best = torch.full_like(at, tree.size**2).scatter_reduce_(1, tree.depths + 1, rank, "amin")
        refreshed = (best < tree.size**2) & (slots > accepted + 1)
        at_or_spare = torch.where(refreshed & (at < self.length), at, self.length)
        best = best % tree.size
        scores, candidates = self._best(verified.perturbed, root + tree.depths + 1)
        self._write(at_or_spare, best, scores, candidates)
        if self.width > 1:
            distance = slots - self._last_change(tree, at).gather(1, best)
            self._distance.scatter_(1, at_or_spare, torch.where(distance == slots, 0, distance))
        return at_or_spare, best

    def _write(self, at: Tensor, best: Tensor, scores: Tensor, candidates: Tensor) -> None:
        index = best[..., None].expand(-1, -1, self.width)
        candidates, scores = candidates.gather(1, index), scores.gather(1, index)
        self._codes.scatter_(1, at, candidates[..., 0])
        spread = at[..., None].expand_as(index)
        self._candidates.scatter_(1, spread, candidates)
        self._scores.scatter_(1, spread, scores)

    def _decide(self, verified: Verified, root: Tensor) -> None:
        """Write the emitted tokens over the guesses, and remember their logits for the row below."""
        emitted = verified.following()
        steps = torch.arange(1, emitted.shape[1] + 1, device=root.device)
        at = torch.where(steps <= verified.verdict.accepted[:, None] + 1, root + steps, self.length).clamp_max(
            self.length
        )
        self._codes.scatter_(1, at, emitted)
        index = verified.verdict.path[:, : emitted.shape[1], None]
        perturbed = verified.perturbed.gather(1, index.expand(-1, -1, verified.perturbed.shape[-1]))
        column = torch.where(at < self.length, at % self._columns, self._columns)
        self._above[self._images, column] = self._unperturbed(perturbed, at)

    def _last_change(self, tree: DraftTree, at: Tensor) -> Tensor:
        """Depth of the deepest node on every node's path whose token isn't the one now at its position; 0 if all are. [B, N + 1]"""
        current = self._codes.gather(1, at.clamp_max(self.length)).gather(1, tree.depths)
        changed = tree.depths * (tree.tokens != current)
        changed[:, 0] = 0
        return (tree.ancestors * changed[:, None]).amax(-1)

    # ---- drafting ----------------------------------------------------------------------------

    def propose(self, root: Tensor, starts: list[int], positions: list[int], shapes: list[TreeShape]) -> DraftTree:
        return self.close(self.open(root, positions, shapes), shapes)

    def open(self, root: Tensor, positions: list[int], shapes: list[TreeShape]) -> Window:
        """The slots that the trees of this round may reach."""
        depth = min(max(shape.depth for shape in shapes), self._most)
        self._fill(positions, [min(shape.depth, depth) for shape in shapes])
        slots = torch.arange(depth, device=root.device)
        at = (torch.tensor(positions, device=root.device)[:, None] + 1 + slots).clamp_max(self.length)
        spread = at[..., None].expand(-1, -1, self.width)
        live = slots < torch.tensor([shape.depth for shape in shapes], device=root.device)[:, None]
        return Window(
            at,
            torch.cat([root[:, None], self._codes.gather(1, at)], 1),
            self._candidates.gather(1, spread),
            self._scores.gather(1, spread),
            self._distance.gather(1, at),
            torch.zeros_like(live),
            live,
        )

    def close(self, window: Window, shapes: list[TreeShape]) -> DraftTree:
        """The tree of the window: its spine, and branches as far as the budget goes."""
        if self.width == 1:
            return chain(window.tokens, torch.where(window.live, 0.0, -math.inf))
        forecast, log_p = self.calibration.expect(window.classes(), window.candidates, window.scores)
        self.forecasts = [forecast]
        log_p = self._allowed(log_p, window, shapes)
        width = log_p.shape[-1]
        menu = shapes[0].menu
        nodes, depth, branches = self._most, window.depth, None
        if menu:
            branches = branch_scores(log_p)
            nodes = best_size(log_p, branches, menu)
            depth = min(depth, spine(nodes))
        tokens, log_p = window.tokens[:, : depth + 1], log_p[:, :depth]
        if width == 1 or depth >= nodes:
            return chain(tokens, log_p[..., 0].cumsum(1))
        return spine_and_branches(tokens, window.candidates[:, :depth, 1:width], log_p, nodes, branches)

    def _allowed(self, log_p: Tensor, window: Window, shapes: list[TreeShape]) -> Tensor:
        """Log-probabilities [B, M, width] with -inf for what an image's own shape leaves out."""
        width = min(max(shape.width for shape in shapes), self.width)
        widths = torch.tensor([shape.width for shape in shapes], device=log_p.device)[:, None, None]
        out = ~window.live[..., None] | (torch.arange(self.width, device=log_p.device) >= widths)
        return log_p.masked_fill(out, -math.inf)[..., :width]

    def enter(self, window: Window) -> None:
        """Take over a spine that somebody else has changed."""
        self._codes.scatter_(1, window.at, window.tokens[:, 1:])

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
            logits = logits + self._noise[self._images, at.clamp_max(self.length - 1)]
        at_or_spare = torch.where((at <= ends) & (at < self.length), at, self.length)
        scores, candidates = self._best(logits, at)
        self._write(at_or_spare, torch.arange(count, device=at.device).expand_as(at), scores, candidates)
        self._distance.scatter_(1, at_or_spare, NEVER)
        self._filled = [max(filled, end) for filled, end in zip(self._filled, last)]
