"""One round of decoding: propose, verify, commit, report.

1. *Propose*: the drafter proposes a tree of draft tokens (drafts) for each image. The root of the tree is the last
   decided token of the image.
2. *Verify*: the target model reads all nodes of the tree in one forward pass. After each node it *emits* one token,
   the token with the largest score. The score of a token is its logit plus the image's noise. A draft is accepted if
   its parent is accepted and the target emits the draft's token after this parent. The root counts as accepted. The
   result is the accepted path, which starts at the root.
3. *Commit*: the keys and values of the accepted path are moved to contiguous positions of the KV cache. The drafter
   updates its state. The token that the target emits after the path becomes the next root.
4. *Report*: the host reads one small tensor with the results. The host reads nothing else from the device.

With drafts, a round decides at least one token of each image. Without drafts, a round is a *plain round*: the target
reads only the root of each image and the kept tokens after it (:mod:`.kept`), and the next token is sampled.

Example: the root is token 7, and the drafter proposes the tree on the left. The target emits the tokens on the right.
The target emits 3 after the root, so draft 3 is accepted. The target emits 9 after 3, so draft 9 is accepted. The
accepted path is 7, 3, 9 with two accepted drafts. The target emits 4 after 9, so 4 is the next root::

    7 ─┬─ 3 ─┬─ 9        emitted after 7: 3
       │     └─ 1        emitted after 3: 9
       └─ 5              emitted after 9: 4

The same functions run on every device. A CPU executes them directly. A GPU captures a round as a CUDA graph
(:mod:`.graphs`). Later rounds with the same tensor sizes *replay* this graph. The captured part of a round begins after
`upload_controls` and ends before the host reads the report. The code of this part follows three rules:

1. It never waits for the device.
2. No tensor size depends on a value that is stored on the device. It may depend on the argument `shapes` of `propose`.
   Where the exact size is on the device, the code calls `Context.size`: in a replayed round it returns an upper bound,
   otherwise the exact size.
3. It changes the tensors of the state in place, because a graph always uses the same addresses.

Notation: B images, N drafts per image, N + 1 nodes per tree. A *slot* holds the state of one image of the batch. The
*policy* (:mod:`adt_core.policies`) decides the maximum size (shape) of each draft tree. The *trace*
(:mod:`adt_core.trace`) records all rounds. In the code, `z` are the logits after guidance, temperature and
filters, [B, N + 1, vocabulary].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import PlainRead, Proposer, TreeSizes, Verified
from ..errors import AdtError
from ..models.target import Target
from ..policies import PLAIN_SHAPE, Shape
from ..rules.sampling import certainty, top_probability_and_entropy
from ..rules.tree import DraftTree
from ..rules.verify import exact_agreement, longest_path, relaxed_agreement
from ..trace import ImageRound
from .forward import add_noise, emitted_codes, forward, logits, read_causally
from .report import RoundReport, pack_plain_round, pack_verified
from .slots import Slots

WAIT_SHARE = 0.05
"""Limit for waiting in plain decoding.

Forward passes are about 5 % faster if all images are at the same position. Therefore an image that is ahead waits for
the other images, but only if they are not far behind: at most `WAIT_SHARE` times the number of tokens that the leading
image still needs. Example: the leading image still needs 200 tokens. It waits if no other image is more than
0.05 * 200 = 10 tokens behind.
"""


class Outcome(NamedTuple):
    """Result of a round.

    Attributes:
        images: One pair for each image that advanced: its record, and the codes that the round decided.
            The last of these codes is the new root.
        drafting: Seconds that the drafter took; 0 if rounds are replayed.
        forwards: Number of forward passes of the drafter's network.
    """

    images: list[tuple[ImageRound, list[int]]]
    drafting: float = 0.0
    forwards: int = 0


def run_round(slots: Slots, shapes: Sequence[Shape], max_substitutions: Sequence[int]) -> Outcome:
    """Run one round for all slots, which it updates.

    Args:
        shapes: Maximum size of the draft tree of each slot.
        max_substitutions: Number of tokens that LANTERN may still substitute in the image of each slot.

    Returns:
        The decided codes and statistics of the round.

    Raises:
        AdtError: If the target's logits are not finite.
    """
    plan = _plan_round(slots, shapes)
    if plan.size > 1:
        slots.prepare_noise()  # of the tokens after the kept tokens
    slots.upload_controls(plan.shapes, plan.advances, max_substitutions)
    packed, info = slots.graphs((plan.key, slots.roots.kv_length), plan.launch, slots.state)
    slots.prepare_noise()  # for the next round, while the device executes this one
    reports = [RoundReport.unpack(row, info.widths) for row in packed.tolist()]  # waits for the device
    images = [
        _read_report(slots, slot, reports[slot], plan.shapes[slot], plan.runs[slot])
        for slot, advances in enumerate(plan.advances)
        if advances
    ]
    return Outcome(images, info.drafting, info.forwards)


class _RoundPlan(NamedTuple):
    """Decisions of the host before a round.

    Attributes:
        shapes: Maximum size of the draft tree of each slot. The depth is limited by the end of the image.
        advances: 1 for each slot whose image advances in this round, else 0.
        launch: Launches the kernels of the round. It is not called if a captured round is replayed.
        key: Two rounds with the same key launch the same kernels with the same tensor sizes.
        runs: Number of kept tokens of each slot that the round reads.
        size: Number of tokens per image that a plain round reads.
    """

    shapes: Sequence[Shape]
    advances: Sequence[int]
    launch: Callable[[], tuple[Tensor, _LaunchInfo]]
    key: Hashable
    runs: Sequence[int]
    size: int = 1


def _plan_round(slots: Slots, shapes: Sequence[Shape]) -> _RoundPlan:
    proposer = slots.proposer
    replayed = slots.request.replayed
    kept = slots.request.kept
    # For each image, the number of positions at which a draft is useful. Example: an image has the positions 0 to 575,
    # none of them kept, and its root is at 573. A draft is useful at position 574. At position 575 it is not, because
    # the round also decides the token after the accepted path. So the number is 576 - 2 - 573 = 1.
    remaining = [kept.end(image, position) - 2 - position for image, position in zip(slots.images, slots.positions)]
    fitting = [_cut_to_fit(shape, positions) for shape, positions in zip(shapes, remaining)]
    runs = [run if is_active else 0 for run, is_active in zip(slots.runs(), slots.active)]
    if proposer is None or _reads_runs(slots, runs) or not _verifies_trees(proposer, fitting, max(remaining)):
        size = slots.request.read_size(max(runs))
        # If there is a proposer, a plain round also updates the proposer. So the key depends on it.
        key = "plain", proposer is not None, size
        return _RoundPlan(fitting, _plain_advances(slots), partial(_plain_round, slots, size), key, runs, size)
    advances = [int(is_active and not run) for is_active, run in zip(slots.active, runs)]
    # Each combination of tensor sizes needs its own CUDA graph. Near the end of an image, `fitting` changes in every
    # round. Replayed rounds use the sizes of `shapes` instead, so they need no new graphs there. The captured kernels
    # cut each tree to the limits in `slots.tree_limits`. The host uploads these limits, the sizes in `fitting`.
    sizes = TreeSizes(shapes if replayed else fitting, slots.tree_limits, may_be_cut=replayed)
    return _RoundPlan(fitting, advances, partial(_drafted_round, slots, proposer, sizes), sizes.key, [0] * len(slots))


# ---- work on the device: no synchronisation, fixed sizes in a replayed round ---------------------


class _LaunchInfo(NamedTuple):
    """Values of a launch. A replayed round has the values of the launch that was captured.

    Attributes:
        widths: Number of columns of each field of the report.
        drafting: Seconds that the drafter took; 0 if rounds are replayed.
        forwards: Number of forward passes of the drafter's network.
    """

    widths: tuple[int, ...]
    drafting: float = 0.0
    forwards: int = 0


def _drafted_round(slots: Slots, proposer: Proposer, sizes: TreeSizes) -> tuple[Tensor, _LaunchInfo]:
    """Propose, verify and commit a tree for each image. Return the report (see `report.Packed`) and host values."""
    started = time.perf_counter()
    forwards = proposer.forwards
    tree = proposer.propose(slots.roots, sizes)
    drafting = 0.0 if slots.request.replayed else time.perf_counter() - started
    verified = verify(slots, proposer, tree, sizes.width)
    # Make the report before `commit`, because tensors of the tree may share memory with `slots.roots`, and `commit`
    # overwrites the roots.
    packed, widths = pack_verified(verified)
    commit(slots, proposer, verified)
    return packed, _LaunchInfo(widths, drafting, proposer.forwards - forwards)


def _plain_round(slots: Slots, size: int) -> tuple[Tensor, _LaunchInfo]:
    """Decide one token of each image that advances.

    The target reads the root of the image and the kept tokens after it, and the next token is sampled.

    Args:
        size: Number of tokens to read per image. An image with fewer tokens is padded with arbitrary tokens.

    Returns:
        The report as one tensor (see `report.Packed`), and values for the host.
    """
    roots = slots.roots
    runs: Tensor | int = 0
    steps = slots.advances
    if size == 1:  # the usual case, with fewer operations
        tokens = roots.codes[:, None]
        features = last = forward(slots, tokens, slots.rows.metadata(roots, 0, 0, None))
    else:
        runs = slots.run_lengths
        steps = (runs + 1) * steps
        tokens = _roots_and_kept(slots, size)
        features = read_causally(slots, tokens)
        last = slots.rows.gather(features, runs)
    z = logits(slots, last, runs)
    emitted, finite = emitted_codes(add_noise(slots, z, runs))
    next_roots = torch.where(slots.advances[:, 0] > 0, emitted[:, 0], roots.codes)
    if slots.proposer is not None:
        slots.proposer.on_plain_round(PlainRead(roots, tokens, slots.run_lengths, features, next_roots, z))
    roots.advance(next_roots, steps)
    packed, widths = pack_plain_round(next_roots, finite[:, 0], certainty(z))
    return packed, _LaunchInfo(widths)


def _roots_and_kept(slots: Slots, size: int) -> Tensor:
    """Return the root of each image and the tokens after it, [B, size]. Positions to generate have the token 0."""
    roots = slots.roots
    assert slots.kept is not None  # else no round reads more than the root
    at = roots.at + slots.rows.columns[1:size]
    kept = slots.kept.gather(1, at.clamp_max(slots.kept.shape[1] - 1)).clamp_min(0)
    return torch.cat([roots.codes[:, None], kept], 1)


def verify(slots: Slots, proposer: Proposer, tree: DraftTree, width: int) -> Verified:
    """Read a draft tree in one forward pass and find the longest accepted path.

    Args:
        proposer: Proposer that has made the tree, which helps to choose a tensor size.
        tree: Draft trees of B images with N + 1 nodes each, root first.
        width: Maximum number of children of a node.

    Returns:
        The target's features and scores at all nodes, and the accepted path of each image.
    """
    request = slots.request
    features = forward(slots, tree.tokens, slots.rows.metadata(slots.roots, 0, tree.depths, tree.ancestors))
    z = logits(slots, features, tree.depths)
    scores = add_noise(slots, z, tree.depths)
    emitted, finite = emitted_codes(scores)
    substitutes = None
    if request.lantern is None or slots.tables.neighbours is None:  # both are None without LANTERN
        agrees = exact_agreement(tree, emitted)
    else:
        agrees, substitutes = relaxed_agreement(
            tree,
            emitted,
            z,
            slots.tables.neighbours,
            request.lantern,
            greedy=request.sampling.greedy,
            width=width,
            allowed=slots.max_substitutions,
        )
    acceptance = longest_path(tree, agrees, emitted)
    acceptance = acceptance.cut(proposer.context.size(lambda: acceptance.accepted, tree.height))
    path_is_finite = finite.gather(1, acceptance.path).all(1, keepdim=True)
    on_path = z.gather(1, acceptance.path[..., None].expand(-1, -1, z.shape[-1]))
    return Verified(
        tree, features, scores, acceptance, path_is_finite, slots.roots, substitutes, certainty=certainty(on_path)
    )


def commit(slots: Slots, proposer: Proposer, verified: Verified) -> None:
    """Keep the accepted paths in the KV cache, update the drafter, and replace the roots by the next ones."""
    acceptance = verified.acceptance
    roots = slots.roots
    # The cache holds the nodes in the order of their numbers. The path 0, 1, 2 is contiguous and stays in place. The
    # path 0, 2, 5 is scattered, and `compact` moves it. A replayed round always calls `compact`.
    if proposer.context.size(acceptance.is_scattered, 1) == 1:
        starts = slots.rows.broadcast(roots.at) + slots.rows.cache_offset
        slots.cache.compact(starts, slots.rows.broadcast(acceptance.path))
    proposer.on_verified(verified)
    advances = slots.advances
    next_roots = torch.where(advances > 0, acceptance.next_root, roots.codes[:, None])
    roots.advance(next_roots[:, 0], (acceptance.accepted + 1) * advances)


# ---- work on the host ----------------------------------------------------------------------------


def _cut_to_fit(shape: Shape, remaining: int) -> Shape:
    """Limit the depth of a shape to the `remaining` positions of its image.

    `Shape.drafts` becomes smaller by the number of removed levels. Example: a shape with depth 6 and 10 drafts has 6
    drafts on one path and 4 others. If 2 positions remain, the result has depth 2, and 2 + 4 = 6 drafts. A fixed tree
    from a paper (`Shape.tree`) keeps its number of drafts, and those below the new depth are excluded on the device.
    """
    if remaining <= 0:
        return PLAIN_SHAPE
    depth = min(shape.depth, remaining)
    branches = max(shape.drafts - shape.depth, 0)
    drafts = shape.drafts if shape.tree else min(shape.drafts, depth + branches)
    return shape._replace(depth=depth, drafts=drafts)


def _reads_runs(slots: Slots, runs: Sequence[int]) -> bool:
    """Return whether the round reads the kept tokens after the roots.

    Images before kept tokens wait until they are half of the active images, because the others get no drafts in such a
    round.
    """
    return any(runs) and 2 * sum(run > 0 for run in runs) >= sum(slots.active)


def _verifies_trees(proposer: Proposer, shapes: Sequence[Shape], remaining: int) -> bool:
    """Return whether the round verifies trees; else it is a plain round.

    It verifies trees if an image gets drafts, or if an image can get drafts in a later round and the drafter would lose
    its state in a plain round (`Proposer.supports_plain_rounds` is False).

    Args:
        remaining: Largest number of positions that an image has left for drafts.
    """
    return any(shape.drafts > 0 for shape in shapes) or (remaining > 0 and not proposer.supports_plain_rounds)


def _plain_advances(slots: Slots) -> list[int]:
    """Return 1 for each slot whose image advances in a plain round; 0 if it is finished, or waits (`WAIT_SHARE`)."""
    positions = [position for position, is_active in zip(slots.positions, slots.active) if is_active]
    first = min(positions)
    last = max(positions)
    gap_is_small = 0 < last - first <= WAIT_SHARE * (slots.request.target.length - 1 - last)
    leaders_wait = slots.proposer is None and gap_is_small
    return [
        int(is_active and not (leaders_wait and position == last))
        for position, is_active in zip(slots.positions, slots.active)
    ]


def _read_report(slots: Slots, slot: int, report: RoundReport, shape: Shape, run: int) -> tuple[ImageRound, list[int]]:
    """Read the report of one image, and advance the image's position on the host.

    In the report, `codes`, `ranks` and `substituted` have one entry for each node of the accepted path, and `levels`
    has one entry for each level of the tree. Entry 0 of these lists belongs to the root, which is not a draft.

    Args:
        shape: Maximum size of the image's draft tree.
        run: Number of kept tokens of the image that the round has read.

    Returns:
        The image's record, and the codes that the round decided.

    Raises:
        AdtError: If the logits on the accepted path are not finite.
    """
    if not report.finite[0]:
        raise not_finite_error(slots.request.target)
    (accepted,) = report.accepted
    (depth,) = report.depth
    levels = tuple(report.levels[1 : depth + 1])
    counted = report.certainty[: 2 * accepted + 2]  # two numbers for each node of the path
    certain = [top_probability_and_entropy(*pair) for pair in zip(counted[::2], counted[1::2])]
    record = ImageRound(
        image=slots.images[slot],
        position=slots.positions[slot],
        depth_asked=shape.depth,
        width_asked=shape.width,
        depth=depth,
        drafts=sum(levels),
        accepted=accepted,
        ranks=tuple(report.ranks[1 : accepted + 1]),
        substituted=sum(report.substituted[: accepted + 1]),
        width=max(levels, default=0),
        levels=levels,
        kept=run,
        probabilities=tuple(probability for probability, _ in certain),
        entropies=tuple(entropy for _, entropy in certain),
    )
    slots.positions[slot] += run + accepted + 1
    return record, [*report.codes[1 : accepted + 1], *report.root]


def not_finite_error(target: Target) -> AdtError:
    """Return the error for logits of `target` that are infinite or NaN."""
    dtype = str(target.decoder.dtype).removeprefix("torch.")
    key = "dtype.overflow" if dtype == "float16" else "dtype.not_finite"
    return AdtError(key, dtype=dtype, model=target.name)
