"""The images at work, and the stages of a round: functions over their state.

A stage never waits for the device. :func:`read_results` is where a round waits, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Proposer, Verified
from ..errors import Check
from ..models.cache import KVCache
from ..models.rows import Roots, Rows, Step
from ..models.target import Target, with_grammar
from ..policies import Shape
from ..rules.sampling import Sampling, process_logits
from ..rules.trace import ImageRound
from ..rules.tree import DraftTree
from ..rules.verify import Lantern, Neighbours, Verdict, exact_agreement, longest_path, relaxed_agreement

WAIT_SHARE = 0.05
"""A plain image may wait for the others for this share of the way that it has left: forwards over images that are all
at one position are cheaper by about as much."""


@dataclass(frozen=True)
class Shared:
    """What all images of a decoding have in common.

    rope: tables of the target's decoder. grammar: of :meth:`Target.grammar`. neighbours: of every token, for LANTERN.
    check: called before every layer; may raise to cancel.
    """

    target: Target
    sampling: Sampling
    rope: tuple[Tensor, Tensor]
    grammar: Tensor | None
    lantern: Lantern | None
    neighbours: Neighbours | None
    check: Check | None


@dataclass
class Lanes:
    """State of the images at work, by lane.

    images: number of each lane's image. rows, cache: of the target; read: its forward over them. noise: [B, T, V]; None at
    temperature 0. roots: the last decided tokens. proposer: what drafts; None for nothing.
    """

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
        """Put the images of ``others``, whose first token is drawn, in the place of those of ``lanes``, one for each."""
        index = torch.tensor(lanes, device=self.rows.device)
        self.rows = self.rows.with_images(index, others.rows)
        self.cache.admit(self.rows.of(index), others.cache)
        if self.noise is not None and others.noise is not None:
            self.noise[index] = others.noise
        self.roots.admit(index, others.roots)
        for lane, image in zip(lanes, others.images, strict=True):
            self.images[lane] = image
        if self.proposer is not None:
            self.proposer.admit(index, others.proposer, self.rows)

    def after(self, next_roots: Tensor, steps: Tensor | int, counts: Sequence[int]) -> Roots:
        """The roots when every image has gone on by so many tokens. next_roots: codes [B]. steps: [B, 1], counts: the same."""
        positions = [position + count for position, count in zip(self.roots.positions, counts)]
        return Roots(next_roots, self.roots.at + steps, positions)


# ---- the target's forward ---------------------------------------------------------------------


def forward(shared: Shared, lanes: Lanes, codes: Tensor, step: Step) -> Tensor:
    """Codes [B, n] through the target: features [R, n, h]."""
    ids = lanes.rows.spread(shared.target.decoder.image_ids[codes])
    return lanes.read(ids, step=step, cache=lanes.cache, rope=shared.rope, check=shared.check)


def logits(shared: Shared, roots: Roots, features: Tensor, depths: Tensor | int) -> Tensor:
    """Features [R, n, h] of nodes -> processed logits z [B, n, V] of the tokens after them.

    depths: [B, n], of the nodes below their roots, or one number for all.
    """
    z = process_logits(shared.target.decoder.logits(features, shared.sampling.guidance), shared.sampling)
    return z if shared.grammar is None else with_grammar(z, shared.grammar, roots.at + 1 + depths)


def perturbed(z: Tensor, noise: Tensor | None, roots: Roots, depths: Tensor | int) -> Tensor:
    """z + g of the tokens after nodes, [B, n, V]. noise: [B, T, V]. depths: as for :func:`logits`."""
    if noise is None:
        return z
    if roots.in_step:
        ahead = noise[:, roots.positions[0] + 1 :]
        if isinstance(depths, int):
            return z + ahead[:, depths : depths + 1]
        return z + ahead.gather(1, depths[..., None].expand(-1, -1, z.shape[-1]))
    at = (roots.at + 1 + depths).clamp_max(noise.shape[1] - 1)
    return z + noise[torch.arange(len(at), device=z.device)[:, None], at]


# ---- stages -------------------------------------------------------------------------------------


def plain_step(shared: Shared, lanes: Lanes) -> Tensor:
    """Read the roots alone. Returns the codes [B] that follow them."""
    step = lanes.rows.step(lanes.roots, 0, 0, None)
    features = forward(shared, lanes, lanes.roots.codes[:, None], step)
    z = logits(shared, lanes.roots, features, 0)
    return perturbed(z, lanes.noise, lanes.roots, 0).argmax(-1)[:, 0]


class Result(NamedTuple):
    """What became of an image's tree. path: accepted nodes, root first. codes: emitted, the new root at last."""

    share: ImageRound
    path: list[int]
    codes: list[int]


def plain_round(shared: Shared, lanes: Lanes, shapes: Sequence[Shape]) -> list[Result]:
    """One token for every image, without drafts. Images that are a little ahead wait until all are at one position."""
    following, positions = plain_step(shared, lanes), lanes.roots.positions
    first, last = min(positions), max(positions)
    waits = lanes.proposer is None and 0 < last - first <= WAIT_SHARE * (shared.target.length - last)
    moves = [int(not waits or position < last) for position in positions]
    steps: Tensor | int = 1
    if waits:
        steps = torch.tensor(moves, device=following.device)[:, None]
        following = torch.where(steps[:, 0] > 0, following, lanes.roots.codes)
    lanes.roots = lanes.after(following, steps, moves)
    codes = following.tolist()
    shares = [
        ImageRound(image, position, shape.depth, shape.width, 0, 0, 0, ())
        for image, position, shape in zip(lanes.images, positions, shapes)
    ]
    return [Result(share, [0], [code]) for share, code, moved in zip(shares, codes, moves) if moved]


class Checked(NamedTuple):
    """A tree that the target has read. substitutes: [B, N + 1] bool, nodes that LANTERN let pass; None without it.

    features: [R, N + 1, h]. perturbed: [B, N + 1, V].
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    verdict: Verdict
    substitutes: Tensor | None


def check_tree(shared: Shared, lanes: Lanes, tree: DraftTree, width: int, allowed: list[int]) -> Checked:
    """Read a whole tree in one forward and find the longest path that passes.

    width: most children of a node. allowed: substitutions that each image may still make; empty without LANTERN.
    """
    step = lanes.rows.step(lanes.roots, 0, tree.depths, tree.ancestors)
    features = forward(shared, lanes, tree.tokens, step)
    z = logits(shared, lanes.roots, features, tree.depths)
    scores = perturbed(z, lanes.noise, lanes.roots, tree.depths)
    emitted, substitutes = scores.argmax(-1), None
    if shared.lantern is None or shared.neighbours is None:
        agrees = exact_agreement(tree, emitted)
    else:
        greedy = shared.sampling.temperature == 0
        agrees, substitutes = relaxed_agreement(
            tree,
            emitted,
            z,
            shared.neighbours,
            shared.lantern,
            greedy=greedy,
            width=width,
            allowed=torch.tensor(allowed, device=z.device),
        )
    return Checked(tree, features, scores, longest_path(tree, agrees, emitted), substitutes)


def read_results(lanes: Lanes, checked: Checked, shapes: Sequence[Shape]) -> list[Result]:
    """Wait for the device and read what the round has brought: the one synchronisation of a round."""
    tree, verdict = checked.tree, checked.verdict
    depth, width, nodes = tree.realised_depth(), tree.realised_width(), tree.valid.sum(1) - 1
    counts = torch.stack([verdict.accepted, depth, width, nodes, verdict.next_root], 1)
    along = [tree.tokens, tree.ranks, *([] if checked.substitutes is None else [checked.substitutes.long()])]
    read = torch.cat([counts, verdict.path, *(values.gather(1, verdict.path) for values in along)], 1).tolist()
    columns = verdict.path.shape[1]
    found = []
    for row, shape, image, position in zip(read, shapes, lanes.images, lanes.roots.positions):
        accepted, depth, width, nodes, next_root = row[:5]
        path, codes, ranks, *rest = (row[i : i + 1 + accepted] for i in range(5, len(row), columns))
        substituted = sum(map(sum, rest))
        share = ImageRound(
            image, position, shape.depth, shape.width, depth, nodes, accepted, tuple(ranks[1:]), substituted, width
        )
        found.append(Result(share, path, [*codes[1:], next_root]))
    return found


def settle(lanes: Lanes, checked: Checked, results: Sequence[Result]) -> None:
    """Keep the accepted paths in the cache, move the roots on, and let the drafter learn."""
    accepted = [result.share.accepted for result in results]
    contiguous = all(result.path == list(range(len(result.path))) for result in results)
    old, verdict = lanes.roots, checked.verdict
    if not contiguous:
        starts = lanes.rows.spread(old.at) + lanes.rows.first_slot
        lanes.cache.compact(starts, lanes.rows.spread(verdict.path[:, : max(accepted) + 1]))
    counts = [count + 1 for count in accepted]
    lanes.roots = lanes.after(verdict.next_root, verdict.accepted[:, None] + 1, counts)
    if lanes.proposer is not None:
        features, scores = checked.features, checked.perturbed
        lanes.proposer.observe(Verified(checked.tree, features, scores, verdict, old, accepted, contiguous))
