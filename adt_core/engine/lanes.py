"""The images at work, and the stages of a round: functions over their state.

A round waits for the device once: in :func:`read_results`, or in :func:`plain_round`. No other stage does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Proposer, Verified
from ..models.cache import KVCache
from ..models.rows import Roots, Rows, Step
from ..models.target import with_grammar
from ..policies import Shape
from ..rules.sampling import process_logits
from ..rules.trace import ImageRound
from ..rules.tree import DraftTree
from ..rules.verify import Verdict, exact_agreement, longest_path, relaxed_agreement
from .task import Task

WAIT_SHARE = 0.05
"""A plain image may wait for the others for this share of the way that it has left: forwards over images that are all
at one position are cheaper by about as much."""


@dataclass
class Lanes:
    """State of the images at work, by lane.

    images: number of each lane's image. rows, cache: of the target; read: its forward over them. noise: [B, T, V]; None
    at temperature 0. roots: the last decided tokens. proposer: what drafts; None for nothing.
    """

    task: Task
    images: list[int]
    rows: Rows
    read: Callable[..., Tensor]
    cache: KVCache
    noise: Tensor | None
    roots: Roots
    proposer: Proposer | None = None

    def __len__(self) -> int:
        return len(self.images)

    def keep(self, lanes: list[int]) -> None:
        """Go on with these lanes alone."""
        index = torch.tensor(lanes, device=self.rows.device)
        self.cache.keep(self.rows.of(index))
        self.rows = self.rows.select(index)
        self.noise = None if self.noise is None else self.noise[index]
        self.roots.keep(index)
        self.images = [self.images[lane] for lane in lanes]
        if self.proposer is not None:
            self.proposer.keep(index, self.rows, self.noise)

    def admit(self, lanes: list[int], others: Lanes) -> None:
        """Put the images of ``others``, whose first token is drawn, in the place of those of ``lanes``."""
        index = torch.tensor(lanes, device=self.rows.device)
        self.rows = self.rows.with_lanes(index, others.rows)
        self.cache.admit(self.rows.of(index), others.cache)
        if self.noise is not None and others.noise is not None:
            self.noise[index] = others.noise
        self.roots.admit(index, others.roots)
        for lane, image in zip(lanes, others.images, strict=True):
            self.images[lane] = image
        if self.proposer is not None:
            self.proposer.admit(index, others.proposer, self.rows)

    def go_on(self, next_roots: Tensor, steps: Tensor | int, counts: Sequence[int]) -> None:
        """Move on to the roots with the codes [B]. steps [B, 1] and counts: by so many tokens, on device and host."""
        positions = [position + count for position, count in zip(self.roots.positions, counts)]
        self.roots = Roots(next_roots, self.roots.at + steps, positions)


# ---- the target's forward ---------------------------------------------------------------------


def forward(lanes: Lanes, codes: Tensor, step: Step) -> Tensor:
    """Codes [B, n] through the target: features [R, n, h]."""
    task, ids = lanes.task, lanes.rows.spread(lanes.task.target.decoder.image_ids[codes])
    return lanes.read(ids, step=step, cache=lanes.cache, rope=task.rope, check=task.check)


def logits(lanes: Lanes, features: Tensor, depths: Tensor | int) -> Tensor:
    """Features [R, n, h] of nodes -> processed logits z [B, n, V] of the tokens after them.

    depths: [B, n], of the nodes below their roots, or one number for all.
    """
    task = lanes.task
    z = process_logits(task.target.decoder.logits(features, task.sampling.guidance), task.sampling)
    return z if task.grammar is None else with_grammar(z, task.grammar, lanes.roots.at + 1 + depths)


def perturbed(lanes: Lanes, z: Tensor, depths: Tensor | int) -> Tensor:
    """z + g of the tokens after nodes, [B, n, V]. depths: as for :func:`logits`."""
    noise, roots = lanes.noise, lanes.roots
    if noise is None:
        return z
    if roots.in_step and isinstance(depths, int):
        return z + noise[:, roots.positions[0] + 1 + depths, None]
    at = (roots.at + 1 + depths).clamp_max(noise.shape[1] - 1)
    return z + noise[torch.arange(len(at), device=z.device)[:, None], at]


# ---- stages -------------------------------------------------------------------------------------


def plain_step(lanes: Lanes) -> Tensor:
    """Read the roots alone. Returns the codes [B] that follow them."""
    features = forward(lanes, lanes.roots.codes[:, None], lanes.rows.step(lanes.roots, 0, 0, None))
    return perturbed(lanes, logits(lanes, features, 0), 0).argmax(-1)[:, 0]


class Result(NamedTuple):
    """What a round brought an image. path: accepted nodes, root first. codes: emitted, the new root at last."""

    share: ImageRound
    path: list[int]
    codes: list[int]


def plain_round(lanes: Lanes, shapes: Sequence[Shape]) -> list[Result]:
    """One token for every image, without drafts. Images that are a little ahead wait until all are at one position."""
    following, positions = plain_step(lanes), lanes.roots.positions
    first, last = min(positions), max(positions)
    way_left = lanes.task.target.length - last
    waits = lanes.proposer is None and 0 < last - first <= WAIT_SHARE * way_left
    moves = [int(not waits or position < last) for position in positions]
    steps: Tensor | int = 1
    if waits:
        steps = torch.tensor(moves, device=following.device)[:, None]
        following = torch.where(steps[:, 0] > 0, following, lanes.roots.codes)
    lanes.go_on(following, steps, moves)
    found = []
    for image, position, shape, code, moved in zip(lanes.images, positions, shapes, following.tolist(), moves):
        if moved:
            found.append(Result(ImageRound(image, position, shape.depth, shape.width, 0, 0, 0, ()), [0], [code]))
    return found


class Checked(NamedTuple):
    """A tree that the target has read. features: [R, N + 1, h]. perturbed: z + g after every node, [B, N + 1, V].

    substitutes: [B, N + 1] bool, nodes that LANTERN let pass; None without it.
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    verdict: Verdict
    substitutes: Tensor | None


def check_tree(lanes: Lanes, tree: DraftTree, width: int, allowed: Sequence[int]) -> Checked:
    """Read a whole tree in one forward and find the longest path that passes.

    width: most children of a node. allowed: substitutes that each image may still make; empty without LANTERN.
    """
    task, neighbours = lanes.task, lanes.task.neighbours
    features = forward(lanes, tree.tokens, lanes.rows.step(lanes.roots, 0, tree.depths, tree.ancestors))
    z = logits(lanes, features, tree.depths)
    scores = perturbed(lanes, z, tree.depths)
    emitted, substitutes = scores.argmax(-1), None
    if task.lantern is None or neighbours is None:
        agrees = exact_agreement(tree, emitted)
    else:
        greedy, left = task.sampling.temperature == 0, torch.tensor(allowed, device=z.device)
        agrees, substitutes = relaxed_agreement(
            tree, emitted, z, neighbours, task.lantern, greedy=greedy, width=width, allowed=left
        )
    return Checked(tree, features, scores, longest_path(tree, agrees, emitted), substitutes)


def read_results(lanes: Lanes, checked: Checked, shapes: Sequence[Shape]) -> list[Result]:
    """Wait for the device and read what the round has brought: the one wait of a round with drafts."""
    tree, verdict = checked.tree, checked.verdict
    depth, width, nodes = tree.realised_depth(), tree.realised_width(), tree.valid.sum(1) - 1
    counts = torch.stack([verdict.accepted, depth, width, nodes, verdict.next_root], 1)
    along = [tree.tokens, tree.ranks, *([] if checked.substitutes is None else [checked.substitutes.long()])]
    read = torch.cat([counts, verdict.path, *(values.gather(1, verdict.path) for values in along)], 1).tolist()
    columns = verdict.path.shape[1]
    found = []
    for row, asked, image, position in zip(read, shapes, lanes.images, lanes.roots.positions):
        accepted, depth, width, nodes, next_root = row[:5]
        path, codes, ranks, *rest = (row[i : i + 1 + accepted] for i in range(5, len(row), columns))
        seen = (depth, nodes, accepted, tuple(ranks[1:]), sum(map(sum, rest)), width)
        share = ImageRound(image, position, asked.depth, asked.width, *seen)
        found.append(Result(share, path, [*codes[1:], next_root]))
    return found


def settle(lanes: Lanes, checked: Checked, results: Sequence[Result]) -> None:
    """Move the accepted paths together in the cache, go on to the new roots, and let the drafter learn."""
    tree, features, scores, verdict, _ = checked
    roots, accepted = lanes.roots, [result.share.accepted for result in results]
    contiguous = all(result.path == list(range(len(result.path))) for result in results)
    if not contiguous:
        starts = lanes.rows.spread(roots.at) + lanes.rows.first_slot
        lanes.cache.compact(starts, lanes.rows.spread(verdict.path[:, : max(accepted) + 1]))
    lanes.go_on(verdict.next_root, verdict.accepted[:, None] + 1, [count + 1 for count in accepted])
    if lanes.proposer is not None:
        lanes.proposer.observe(Verified(tree, features, scores, verdict, roots, accepted, contiguous))
