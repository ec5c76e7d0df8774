"""The stages of a round: functions over the lanes, which launch work and never wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Shapes, Verified
from ..models.rows import Step
from ..models.target import with_grammar
from ..rules.sampling import process_logits
from ..rules.tree import DraftTree
from ..rules.verify import Verdict, exact_agreement, longest_path, relaxed_agreement
from .lanes import Lanes
from .task import KEPT_AT_ONCE

# ---- the target's forward ---------------------------------------------------------------------


def forward(lanes: Lanes, codes: Tensor, step: Step) -> Tensor:
    """Codes [B, n] through the target: features [R, n, h]. step: of tokens from the roots on."""
    task, decoder, rows = lanes.task, lanes.task.target.decoder, lanes.rows
    ids = rows.spread(decoder.image_ids[codes])
    if decoder.tile:
        step = rows.windowed(step, rows.spread(lanes.roots.at) + rows.first_slot, task.near)
    check = None if task.fixed else task.check  # nothing may be raised in the middle of a capture
    return decoder(ids, step, lanes.cache, lanes.tables.rope, check)


def prefill(lanes: Lanes, step: Step) -> Tensor:
    """The prompts and the kept tokens through the target: features [R, n, h].

    In the exact mode the kept tokens are read as if they were drawn: apart from the prompts, and a few at a time.
    """
    task, rows, decoder = lanes.task, lanes.rows, lanes.task.target.decoder
    first = rows.first_slot if decoder.tile else rows.length
    ends = [0, first, *range(first + KEPT_AT_ONCE, rows.length, KEPT_AT_ONCE)]
    features = []
    for start, end in zip(ends, [*ends[1:], rows.length]):
        if start == end:
            continue
        part = step.part(start, end)
        if start >= first:
            part = rows.windowed(part, start, task.near)
        inputs = None if rows.features is None else rows.features[:, start:end]
        features.append(decoder(rows.ids[:, start:end], part, lanes.cache, lanes.tables.rope, task.check, inputs))
    return features[0] if len(features) == 1 else torch.cat(features, 1)


def logits(lanes: Lanes, features: Tensor, depths: Tensor | int) -> Tensor:
    """Features [R, n, h] of nodes -> processed logits z [B, n, V] of the tokens after them.

    depths: [B, n], of the nodes below their roots, or one number for all.
    """
    task, grammar = lanes.task, lanes.tables.grammar
    z = process_logits(task.target.decoder.logits(features, task.sampling.guidance), task.sampling)
    return z if grammar is None else with_grammar(z, grammar, lanes.roots.at + 1 + depths)


def perturbed(lanes: Lanes, z: Tensor, depths: Tensor | int) -> Tensor:
    """z + g of the tokens after nodes, [B, n, V]. depths: as for :func:`logits`."""
    return z if lanes.noise is None else z + lanes.noise.at(lanes.roots.at + 1 + depths)


# ---- a round without drafts -------------------------------------------------------------------


def plain_round(lanes: Lanes) -> Tensor:
    """One token for every image that moves. Returns the codes [B]."""
    roots = lanes.roots
    z = logits(lanes, forward(lanes, roots.codes[:, None], lanes.rows.step(roots, 0, 0, None)), 0)
    following = torch.where(lanes.moves[:, 0] > 0, perturbed(lanes, z, 0).argmax(-1)[:, 0], roots.codes)
    if lanes.proposer is not None:
        lanes.proposer.passed(roots, following, z)
    roots.advance(following, lanes.moves)
    return following


# ---- a round with drafts ----------------------------------------------------------------------


class Checked(NamedTuple):
    """A tree that the target has read. features: [R, N + 1, h]. perturbed: z + g after every node, [B, N + 1, V].

    substitutes: [B, N + 1] bool, nodes that LANTERN let pass; None without it.
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    verdict: Verdict
    substitutes: Tensor | None


def propose(lanes: Lanes, shapes: Shapes) -> DraftTree:
    """The drafter's trees."""
    assert lanes.proposer is not None
    return lanes.proposer.propose(lanes.roots, shapes)


def check_tree(lanes: Lanes, tree: DraftTree, width: int) -> Checked:
    """Read a whole tree in one forward and find the longest path that passes. width: most children of a node."""
    task, neighbours = lanes.task, lanes.tables.neighbours
    features = forward(lanes, tree.tokens, lanes.rows.step(lanes.roots, 0, tree.depths, tree.ancestors))
    z = logits(lanes, features, tree.depths)
    scores = perturbed(lanes, z, tree.depths)
    emitted, substitutes = scores.argmax(-1), None
    if task.lantern is None or neighbours is None:
        agrees = exact_agreement(tree, emitted)
    else:
        greedy = task.sampling.temperature == 0
        agrees, substitutes = relaxed_agreement(
            tree, emitted, z, neighbours, task.lantern, greedy=greedy, width=width, allowed=lanes.allowed
        )
    return Checked(tree, features, scores, longest_path(tree, agrees, emitted), substitutes)


def check_root(lanes: Lanes, tree: DraftTree) -> Checked:
    """The same for lone roots: as a plain step, which builds no mask and looks for no path."""
    features = forward(lanes, tree.tokens, lanes.rows.step(lanes.roots, 0, 0, None))
    scores, none = perturbed(lanes, logits(lanes, features, 0), 0), torch.zeros_like(tree.tokens)
    verdict = Verdict(none[:, 0], none, none[:, 0], scores[:, 0].argmax(-1))
    return Checked(tree, features, scores, verdict, None if lanes.task.lantern is None else none.bool())


def summary(checked: Checked) -> Tensor:
    """What the host reads of a round, [B, k] int64: counts, drafts by level, what stands along the accepted path."""
    tree, verdict = checked.tree, checked.verdict
    counts = torch.stack([verdict.accepted, tree.realised_depth(), verdict.next_root], 1)
    levels = tree.levels()[:, : verdict.path.shape[1]]
    along = [tree.tokens, tree.ranks, *([] if checked.substitutes is None else [checked.substitutes.long()])]
    return torch.cat([counts, levels, verdict.path, *(values.gather(1, verdict.path) for values in along)], 1)


def settle(lanes: Lanes, checked: Checked, longest: int, contiguous: bool = False) -> None:
    """Move the accepted paths together in the cache, let the drafter learn, and go on to the new roots.

    longest: drafts on the longest accepted path, or a bound on them. contiguous: every accepted path is 0, 1, 2, ...
    """
    tree, features, scores, verdict, _ = checked
    if not contiguous:
        starts = lanes.rows.spread(lanes.roots.at) + lanes.rows.first_slot
        lanes.cache.compact(starts, lanes.rows.spread(verdict.path[:, : longest + 1]))
    if lanes.proposer is not None:
        lanes.proposer.observe(Verified(tree, features, scores, verdict, lanes.roots, longest, contiguous))
    moves = lanes.moves
    following = torch.where(moves[:, 0] > 0, verdict.next_root, lanes.roots.codes)
    lanes.roots.advance(following, (verdict.accepted[:, None] + 1) * moves)


def worths(lanes: Lanes, sizes: Sequence[int]) -> Tensor:
    """Tokens that so many drafts would bring from the roots on, [B, sizes]; no columns if nobody can tell."""
    found = lanes.proposer.worths(lanes.roots, sizes) if lanes.proposer is not None and sizes else None
    return torch.empty(len(lanes), 0, device=lanes.rows.device) if found is None else found
