"""One round of decoding: propose, verify, commit, report.

1. The drafter *proposes* a tree of draft tokens for each image. Its root is the last decided token of the image.
2. The target reads all nodes of the tree in one forward pass. Its logits plus the image's noise determine which token
   it emits after each node. A draft is accepted if it is the token emitted after its parent and all its ancestors are
   accepted. This is *verification*; the result is the longest accepted path.
3. The path is *committed*: its keys and values become contiguous in the KV cache, the drafter updates its state, and
   the token that the target emits after the path is the next root.
4. A *report*, one small tensor, is the only thing that the host reads from the device.

So each round decides at least one token per image. Without drafts it is a plain decoding step.

Example: the root is token 7, and the drafter proposes the tree on the left. The target emits the tokens on the right.
Draft 3 is accepted because the target emits 3 after the root; draft 9 because it emits 9 after 3. The path is 7, 3, 9,
two drafts are accepted, and 4 is the next root::

    7 ─┬─ 3 ─┬─ 9        emitted after 7: 3
       │     └─ 1        emitted after 3: 9
       └─ 5              emitted after 9: 4

The same functions run on every device. A CPU executes them directly. A GPU replays them as a CUDA graph that was
captured in an earlier round of the same sizes (:mod:`.graphs`). Therefore the code between `upload_controls` and the
report must not wait for the device, and tensor sizes must not depend on values on the device. For a size that
would, `Context.size` reads the values if the device is a CPU, and returns an upper bound in a replayed round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Proposer, Shapes, Verified
from ..errors import AdtError
from ..models.target import Target
from ..policies import NO_DRAFTS, Shape
from ..rules.trace import ImageRound
from ..rules.tree import DraftTree
from ..rules.verify import exact_agreement, longest_path, relaxed_agreement
from .forward import add_noise, emitted_codes, forward, logits
from .report import RoundReport
from .slots import Slots

WAIT_SHARE = 0.05
"""In plain decoding, the leading images wait for the last ones if they are ahead by at most this share of the tokens
that they still need. Forward passes are about 5 % faster if all images are at the same position."""


class Outcome(NamedTuple):
    """Result of a round.

    Attributes:
        images: For each image that advanced, its entry in the trace and the codes that were decided. The last code is
            the new root.
        drafting: Seconds that the drafter took; 0 in a replayed round.
        forwards: Forward passes of the drafter's network.
    """

    images: list[tuple[ImageRound, list[int]]]
    drafting: float = 0.0
    forwards: int = 0


def run_round(slots: Slots, shapes: Sequence[Shape], max_substitutions: Sequence[int]) -> Outcome:
    """Run one round for all slots.

    Args:
        slots: State of the images, which is updated.
        shapes: Maximum size of each slot's draft tree.
        max_substitutions: Number of tokens of each slot's image that LANTERN may still substitute.

    Returns:
        The decided codes and statistics of the round.

    Raises:
        AdtError: If the target's logits are not finite.
    """
    plan = _plan_round(slots, shapes)
    slots.upload_controls(plan.shapes, plan.advances, max_substitutions)
    packed, info = slots.graphs((plan.key, slots.roots.kv_length), plan.launch, slots.state)
    slots.prepare_noise()  # for the next round, while the device executes this one
    reports = [RoundReport.unpack(row, info.widths) for row in packed.tolist()]  # waits for the device
    images = [
        _read_report(slots, slot, reports[slot], plan.shapes[slot])
        for slot, advances in enumerate(plan.advances)
        if advances
    ]
    return Outcome(images, info.drafting, info.forwards)


class _RoundPlan(NamedTuple):
    """Decisions of the host before a round.

    Attributes:
        shapes: Maximum size of each slot's draft tree, cut to the positions that remain.
        advances: 1 for each slot whose image advances, else 0.
        launch: Launches the round; called unless a captured round is replayed.
        key: Identifies rounds that launch the same work.
    """

    shapes: Sequence[Shape]
    advances: Sequence[int]
    launch: Callable[[], tuple[Tensor, _LaunchInfo]]
    key: Hashable


def _plan_round(slots: Slots, shapes: Sequence[Shape]) -> _RoundPlan:
    proposer = slots.proposer
    replayed = slots.request.replayed
    # A draft at the last position is useless, because every round also decides the token after the accepted path.
    remaining = [slots.request.target.length - 2 - position for position in slots.positions]
    fitting = [_cut_to_fit(shape, positions) for shape, positions in zip(shapes, remaining)]
    if proposer is None or not _has_drafts(proposer, fitting, max(remaining)):
        # Plain rounds with a proposer have a key of their own, because their graphs access the proposer's memory.
        key = "plain", proposer is not None
        return _RoundPlan(fitting, _plain_advances(slots), partial(_plain_round, slots), key)
    advances = [int(is_active) for is_active in slots.active]
    # A graph is captured for each size. The fitting sizes change every round near the end of an image, so a replayed
    # round uses the policy's sizes, and the limits in the control tensors cut each tree to the remaining positions.
    sizes = Shapes(shapes if replayed else fitting, slots.tree_limits, may_be_cut=replayed)
    return _RoundPlan(fitting, advances, partial(_drafted_round, slots, proposer, sizes), sizes.key)


# ---- work on the device: no synchronisation, fixed sizes in a replayed round ---------------------


class _LaunchInfo(NamedTuple):
    """Values that the host gets from launching a round. A replay reuses the values of the capture.

    Attributes:
        widths: Number of columns of each field of the report.
        drafting: Seconds that the drafter took; 0 where the host does not wait for it.
        forwards: Forward passes of the drafter's network.
    """

    widths: tuple[int, ...]
    drafting: float = 0.0
    forwards: int = 0


def _drafted_round(slots: Slots, proposer: Proposer, shapes: Shapes) -> tuple[Tensor, _LaunchInfo]:
    """Propose, verify and commit a tree for each image, and return the packed report."""
    started = time.perf_counter()
    forwards = proposer.forwards
    tree = proposer.propose(slots.roots, shapes)
    drafting = 0.0 if slots.request.replayed else time.perf_counter() - started
    verified = verify(slots, proposer, tree, shapes.width)
    # Make the report before `commit`: the tree may refer to the roots, which `commit` overwrites.
    report = RoundReport.from_verified(verified)
    commit(slots, proposer, verified)
    packed, widths = report.pack()
    return packed, _LaunchInfo(widths, drafting, proposer.forwards - forwards)


def _plain_round(slots: Slots) -> tuple[Tensor, _LaunchInfo]:
    """Decide one token of each image that advances: read its root and sample the next token."""
    roots = slots.roots
    z = logits(slots, forward(slots, roots.codes[:, None], slots.rows.step(roots, 0, 0, None)), 0)
    emitted, finite = emitted_codes(add_noise(slots, z, 0))
    next_roots = torch.where(slots.advances[:, 0] > 0, emitted[:, 0], roots.codes)
    if slots.proposer is not None:
        slots.proposer.on_plain_step(roots, next_roots, z)
    roots.advance(next_roots, slots.advances)
    packed, widths = RoundReport.from_plain_step(next_roots, finite[:, 0]).pack()
    return packed, _LaunchInfo(widths)


def verify(slots: Slots, proposer: Proposer, tree: DraftTree, width: int) -> Verified:
    """Read a draft tree in one forward pass and find the longest accepted path.

    Args:
        slots: State of the images.
        proposer: Proposer that has made the tree.
        tree: Draft trees [B, N + 1], root first.
        width: Maximum number of children of a node.

    Returns:
        Scores of all nodes and the accepted path.
    """
    request = slots.request
    features = forward(slots, tree.tokens, slots.rows.step(slots.roots, 0, tree.depths, tree.ancestors))
    z = logits(slots, features, tree.depths)
    scores = add_noise(slots, z, tree.depths)
    emitted, finite = emitted_codes(scores)
    substitutes = None
    if request.lantern is None or slots.tables.neighbours is None:  # without LANTERN both are None
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
    path_is_finite = finite.gather(1, acceptance.path).all(1)
    return Verified(tree, features, scores, acceptance, path_is_finite, slots.roots, substitutes)


def commit(slots: Slots, proposer: Proposer, verified: Verified) -> None:
    """Keep the accepted paths in the KV cache, update the drafter, and advance to the new roots."""
    acceptance = verified.acceptance
    roots = slots.roots
    if proposer.context.size(acceptance.is_scattered, 1):  # 1 if a path is not contiguous; always 1 if replayed
        starts = slots.rows.spread(roots.at) + slots.rows.cache_offset
        slots.cache.compact(starts, slots.rows.spread(acceptance.path))
    proposer.on_verified(verified)
    next_roots = torch.where(slots.advances[:, 0] > 0, acceptance.next_root, roots.codes)
    roots.advance(next_roots, (acceptance.accepted[:, None] + 1) * slots.advances)


# ---- work on the host ----------------------------------------------------------------------------


def _cut_to_fit(shape: Shape, remaining: int) -> Shape:
    """Return the shape without the levels that exceed the image's `remaining` positions.

    The nodes beyond the first chain (`nodes - depth`) are kept: 10 nodes at depth 6 are a chain of 6 and 4 more, so at
    depth 2 there are 2 + 4 = 6 nodes. A published tree (`Shape.tree`) has fixed nodes, so it keeps their number; those
    below the last level are not verified.
    """
    if remaining <= 0:
        return NO_DRAFTS
    depth = min(shape.depth, remaining)
    branches = max(shape.nodes - shape.depth, 0)
    nodes = shape.nodes if shape.tree else min(shape.nodes, depth + branches)
    return shape._replace(depth=depth, nodes=nodes)


def _has_drafts(proposer: Proposer, shapes: Sequence[Shape], remaining: int) -> bool:
    """Return whether the round verifies trees.

    It does if an image gets drafts. It also does if an image can get drafts later (`remaining` is the largest number of
    positions) and the drafter does not support plain steps.
    """
    return any(shape.nodes > 0 for shape in shapes) or (remaining > 0 and not proposer.supports_plain_steps)


def _plain_advances(slots: Slots) -> list[int]:
    """Return 1 for each slot that takes a plain step, and 0 for inactive slots and those that wait (`WAIT_SHARE`)."""
    positions = [position for position, is_active in zip(slots.positions, slots.active) if is_active]
    first = min(positions)
    last = max(positions)
    gap_is_small = 0 < last - first <= WAIT_SHARE * (slots.request.target.length - last)
    leaders_wait = slots.proposer is None and gap_is_small
    return [
        int(is_active and not (leaders_wait and position == last))
        for position, is_active in zip(slots.positions, slots.active)
    ]


def _read_report(slots: Slots, slot: int, report: RoundReport, shape: Shape) -> tuple[ImageRound, list[int]]:
    """Return an image's trace entry and decided codes, and advance its position on the host.

    Index 0 of the report's lists is the root, which is not a draft.
    """
    if not report.finite[0]:
        raise not_finite_error(slots.request.target)
    (accepted,) = report.accepted
    (depth,) = report.depth
    levels = tuple(report.levels[1 : depth + 1])
    entry = ImageRound(
        image=slots.images[slot],
        position=slots.positions[slot],
        depth_asked=shape.depth,
        width_asked=shape.width,
        depth=depth,
        nodes=sum(levels),
        accepted=accepted,
        ranks=tuple(report.ranks[1 : accepted + 1]),
        substituted=sum(report.substituted[: accepted + 1]),
        width=max(levels, default=0),
        levels=levels,
    )
    slots.positions[slot] += accepted + 1
    return entry, [*report.codes[1 : accepted + 1], *report.root]


def not_finite_error(target: Target) -> AdtError:
    """Return the error for logits that are infinite or NaN."""
    dtype = str(target.decoder.dtype).removeprefix("torch.")
    remedy = "download its weights again, or check them with inspect"
    if dtype == "float16":
        remedy = "use bfloat16 or float32, whose range is larger"
    return AdtError(
        f"`dtype` is {dtype}, in which the logits of {target.name} are infinite or NaN, so there is no image; {remedy}."
    )
