"""One round, from top to bottom: propose, check, commit, report.

A drafter proposes a tree of tokens for every image. The target reads all of it in one forward and says which token it
draws behind each node, so checking is comparing. The longest path that passes is settled: its keys and values move
together in the cache, the drafter learns, and the token behind the path is the next root. The report is all that the
host reads, once a round.

A device only says how this is launched: piece by piece on a CPU, and on a GPU as a CUDA graph that is replayed when a
round of the same sizes comes again (:mod:`.graphs`). The code is the same, and only sizes differ. Some depend on what
was computed, such as the length of the longest accepted path. They are asked of ``Session.size``: on a CPU it gives the
number itself, and on a GPU, whose numbers the host may not read in the middle of a round, the most that is possible. On
a CPU a finished image leaves its slot. On a GPU its slot may be computed on, but the image does not move.
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
from .report import Report
from .slots import Slots

WAIT_SHARE = 0.05
"""Plain images that are ahead wait for those behind, if the gap is at most this share of the tokens that they still
need. Waiting pays up to there: forwards are some 5 % cheaper where all images are at one position."""


class Outcome(NamedTuple):
    """What a round brought.

    images: share and emitted codes of every image that took part; the last code is the new root's. drafting: seconds of
    the drafter, where the host can tell. forwards: the drafter's.
    """

    images: list[tuple[ImageRound, list[int]]]
    drafting: float = 0.0
    forwards: int = 0


def run_round(slots: Slots, shapes: Sequence[Shape], allowed: Sequence[int]) -> Outcome:
    """One round with trees of these shapes at most. allowed: substitutes that each image may still take."""
    # Drafts stand behind the root. The last place is for the token that the target draws behind them.
    rooms = [slots.request.target.length - 2 - position for position in slots.positions]
    fitting = [_within(shape, room) for shape, room in zip(shapes, rooms)]
    launch: Callable[[], tuple[Tensor, _Launched]]
    key: Hashable
    proposer, replayed = slots.proposer, slots.request.replayed
    if proposer is not None and _drafts(proposer, fitting, max(rooms)):
        moves = [int(at_work) for at_work in slots.at_work]
        # A replayed round has the sizes that the policy asked for, because these repeat. The limits cut each tree to
        # what fits.
        sizes = Shapes(shapes if replayed else fitting, slots.limits, may_be_cut=replayed)
        key, launch = sizes.key, partial(_drafted, slots, proposer, sizes)
    else:
        moves = _plain_moves(slots)
        # With a drafter it is another round than without: its graph reads memory that is freed with the drafter.
        key, launch = ("plain", proposer is not None), partial(_plain, slots)
    slots.order(fitting, moves, allowed)
    packed, launched = slots.graphs((key, slots.roots.columns), launch, slots.state)  # launched, or replayed
    slots.prepare_noise()  # of the next round, while the device is at work
    reports = [Report.unpacked(row, launched.widths) for row in packed.tolist()]  # the one wait
    images = [_read(slots, slot, reports[slot], fitting[slot]) for slot, moved in enumerate(moves) if moved]
    return Outcome(images, launched.drafting, launched.forwards)


# ---- what is launched -------------------------------------------------------------------------


class _Launched(NamedTuple):
    """What the host knows of a round when it has launched it. A replay has it from the capture.

    widths: of the report's parts. drafting: seconds of the drafter; 0 where the host does not wait for it.
    """

    widths: tuple[int, ...]
    drafting: float = 0.0
    forwards: int = 0


def _drafted(slots: Slots, proposer: Proposer, shapes: Shapes) -> tuple[Tensor, _Launched]:
    """A round with a tree for every image."""
    started, before = time.perf_counter(), proposer.forwards
    tree = proposer.propose(slots.roots, shapes)
    drafting = 0.0 if slots.request.replayed else time.perf_counter() - started
    verified = check(slots, proposer, tree, shapes.width)
    report = Report.of(verified)  # first: the tree's tokens may be those of the roots, which ``commit`` changes
    commit(slots, proposer, verified)
    packed, widths = report.packed()
    return packed, _Launched(widths, drafting, proposer.forwards - before)


def _plain(slots: Slots) -> tuple[Tensor, _Launched]:
    """A round without drafts: the target reads the roots alone, and every image that moves gets one token."""
    roots, moves = slots.roots, slots.moves
    z = logits(slots, forward(slots, roots.codes[:, None], slots.rows.step(roots, 0, 0, None)), 0)
    emitted, finite = emitted_codes(add_noise(slots, z, 0))
    following = torch.where(moves[:, 0] > 0, emitted[:, 0], roots.codes)
    if slots.proposer is not None:
        slots.proposer.on_plain_step(roots, following, z)
    roots.advance(following, moves)
    packed, widths = Report.of_plain(following, finite[:, 0]).packed()
    return packed, _Launched(widths)


def check(slots: Slots, proposer: Proposer, tree: DraftTree, width: int) -> Verified:
    """Read a whole tree in one forward and find the longest path that passes. width: most children of a node."""
    request, lantern, neighbours = slots.request, slots.request.lantern, slots.tables.neighbours
    features = forward(slots, tree.tokens, slots.rows.step(slots.roots, 0, tree.depths, tree.ancestors))
    z = logits(slots, features, tree.depths)
    scores = add_noise(slots, z, tree.depths)
    emitted, finite = emitted_codes(scores)
    substitutes = None
    if lantern is None or neighbours is None:  # without LANTERN there is neither
        agrees = exact_agreement(tree, emitted)
    else:
        agrees, substitutes = relaxed_agreement(
            tree, emitted, z, neighbours, lantern, greedy=request.sampling.greedy, width=width, allowed=slots.allowed
        )
    acceptance = longest_path(tree, agrees, emitted)
    longest = proposer.session.size(lambda: acceptance.accepted, tree.height)
    acceptance = acceptance.cut(longest)
    return Verified(
        tree, features, scores, acceptance, finite.gather(1, acceptance.path).all(1), slots.roots, substitutes
    )


def commit(slots: Slots, proposer: Proposer, verified: Verified) -> None:
    """Move the accepted paths together in the cache, let the drafter learn, and go on to the new roots."""
    acceptance, roots, moves = verified.acceptance, slots.roots, slots.moves
    if proposer.session.size(acceptance.is_scattered, 1):  # 0 or 1: on a GPU always 1
        starts = slots.rows.spread(roots.at) + slots.rows.cache_offset
        slots.cache.compact(starts, slots.rows.spread(acceptance.path))
    proposer.on_verified(verified)
    following = torch.where(moves[:, 0] > 0, acceptance.next_root, roots.codes)
    roots.advance(following, (acceptance.accepted[:, None] + 1) * moves)


# ---- what is read -----------------------------------------------------------------------------


def _read(slots: Slots, slot: int, report: Report, shape: Shape) -> tuple[ImageRound, list[int]]:
    """An image's share of a round, and its codes. Its position goes on.

    In the lists of a report number 0 stands for the root, which is no draft.

    Raises:
        AdtError: If the target's logits are no finite numbers: no image comes from them.
    """
    if not report.finite[0]:
        raise not_finite(slots.request.target)
    (accepted,), (depth,) = report.accepted, report.depth
    levels = tuple(report.levels[1 : depth + 1])
    share = ImageRound(
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
    return share, [*report.codes[1 : accepted + 1], *report.root]


def not_finite(target: Target) -> AdtError:
    """Return the error for logits that are infinite or NaN."""
    dtype = str(target.decoder.dtype).removeprefix("torch.")
    remedy = "download its weights again, or check them with inspect"
    if dtype == "float16":
        remedy = "use bfloat16 or float32, whose range is larger"
    return AdtError(
        f"`dtype` is {dtype}, in which the logits of {target.name} are infinite or NaN, so there is no image; {remedy}."
    )


# ---- what the host decides --------------------------------------------------------------------


def _within(shape: Shape, room: int) -> Shape:
    """The shape for an image in which ``room`` drafts can follow each other.

    A tree that is cut shorter gets no more branches. A published tree loses the levels below, and that is all.
    """
    if room <= 0:
        return NO_DRAFTS
    depth, branches = min(shape.depth, room), max(shape.nodes - shape.depth, 0)
    return shape._replace(depth=depth, nodes=shape.nodes if shape.tree else min(shape.nodes, depth + branches))


def _drafts(proposer: Proposer, shapes: Sequence[Shape], room: int) -> bool:
    """Is this a round with trees? So it is if an image gets drafts, or if the drafter must read every root.

    room: for drafts, in the image that has most.
    """
    return any(shape.nodes > 0 for shape in shapes) or (room > 0 and not proposer.idles)


def _plain_moves(slots: Slots) -> list[int]:
    """Which images take a step: all at work. Where the gap is small, those furthest ahead wait."""
    positions = [position for position, at_work in zip(slots.positions, slots.at_work) if at_work]
    first, last = min(positions), max(positions)
    waits = slots.proposer is None and 0 < last - first <= WAIT_SHARE * (slots.request.target.length - last)
    return [int(at_work and not (waits and at == last)) for at, at_work in zip(slots.positions, slots.at_work)]
