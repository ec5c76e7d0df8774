"""One round, from top to bottom: propose, check, settle, report.

A drafter proposes a tree of tokens for every image. The target reads all of it in one forward and says which token it
draws behind each node, so checking is comparing. The longest path that passes is settled: its keys and values move
together in the cache, the drafter learns, and the token behind the path is the next root. The report is all that the
host reads, once a round.

A device says only how a round is launched. A CPU reads a number in the middle for nothing, so what follows the check is
cut to the longest accepted path. A GPU would run dry meanwhile: there all sizes are the largest that the shapes allow,
and the round is replayed as a CUDA graph when it comes again (:mod:`.graphs`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Shapes, Verified
from ..policies import NO_DRAFTS, Shape
from ..rules.trace import ImageRound
from ..rules.tree import DraftTree
from ..rules.verify import exact_agreement, longest_path, relaxed_agreement
from .forward import forward, logits, perturbed
from .lanes import Lanes
from .report import Checked, Report

WAIT_SHARE = 0.05
"""A plain image may wait for the others for this share of the way that it has left: forwards over images that are all
at one position are cheaper by about as much."""


class Result(NamedTuple):
    """What a round brought an image. codes: emitted, the new root at last."""

    share: ImageRound
    codes: list[int]


class Outcome(NamedTuple):
    """What a round brought. drafting: seconds of the drafter, where the host can tell. forwards: the drafter's."""

    results: list[Result]
    drafting: float = 0.0
    forwards: int = 0


def run_round(lanes: Lanes, shapes: Sequence[Shape], allowed: Sequence[int]) -> Outcome:
    """One round with trees of these shapes at most. allowed: substitutes that each image may still take.

    Trees are cut so that the last draft of an image still leaves one token to emit.
    """
    rooms = [lanes.task.target.length - 2 - position for position in lanes.positions]
    cut = [_within(shape, room) for shape, room in zip(shapes, rooms)]
    proposer, most = lanes.proposer, max(shape.nodes for shape in cut)
    drafts = proposer is not None and (most > 0 or (max(rooms) > 0 and not proposer.idles))
    moves = list(map(int, lanes.at_work)) if drafts else _plain_moves(lanes)
    lanes.begin_round()
    lanes.order(cut, moves, allowed)
    sizes = None
    if drafts:  # sizes that are asked for repeat, so a GPU takes these; what is cut is then in the limits of each image
        sizes = Shapes(shapes if lanes.task.fixed else cut, lanes.limits, lanes.task.fixed)

    def launch() -> tuple[Tensor, _Launched]:
        return _drafted(lanes, sizes) if sizes else _plain(lanes)

    # A plain round with a drafter is another one than without: its graph reads memory that is freed with the drafter.
    key = sizes.key if sizes else ("plain", proposer is not None)
    packed, launched = lanes.graphs((key, lanes.roots.columns), launch, lanes.state)
    lanes.prepare_noise()
    reports = [Report.unpacked(row, launched.widths) for row in packed.tolist()]
    every = enumerate(zip(reports, cut, moves, strict=True))
    results = [_result(lanes, lane, report, shape) for lane, (report, shape, moved) in every if moved]
    return Outcome(results, launched.drafting, launched.forwards)


# ---- what is launched -------------------------------------------------------------------------


class _Launched(NamedTuple):
    """What the host knows of a round that was launched, and of all its replays.

    widths: of the report's parts. drafting: seconds of the drafter; 0 where the host does not wait for it.
    """

    widths: tuple[int, ...]
    drafting: float = 0.0
    forwards: int = 0


def _drafted(lanes: Lanes, shapes: Shapes) -> tuple[Tensor, _Launched]:
    """A round with a tree for every image."""
    proposer = lanes.proposer
    assert proposer is not None
    started, before = time.perf_counter(), proposer.forwards
    tree = proposer.propose(lanes.roots, shapes)
    drafting = 0.0 if shapes.fixed else time.perf_counter() - started
    checked = check(lanes, tree, shapes.width)
    report = Report.of(checked)
    settle(lanes, checked, tree.height if shapes.fixed else int(checked.verdict.accepted.max()))
    packed, widths = report.packed()
    return packed, _Launched(widths, drafting, proposer.forwards - before)


def _plain(lanes: Lanes) -> tuple[Tensor, _Launched]:
    """A round without drafts: one token for every image that moves."""
    roots, moves = lanes.roots, lanes.moves
    z = logits(lanes, forward(lanes, roots.codes[:, None], lanes.rows.step(roots, 0, 0, None)), 0)
    following = torch.where(moves[:, 0] > 0, perturbed(lanes, z, 0).argmax(-1)[:, 0], roots.codes)
    if lanes.proposer is not None:
        lanes.proposer.passed(roots, following, z)
    roots.advance(following, moves)
    packed, widths = Report.of_plain(following).packed()
    return packed, _Launched(widths)


def check(lanes: Lanes, tree: DraftTree, width: int) -> Checked:
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


def settle(lanes: Lanes, checked: Checked, longest: int) -> None:
    """Move the accepted paths together in the cache, let the drafter learn, and go on to the new roots.

    longest: drafts on the longest accepted path, or a bound on them.
    """
    tree, features, scores, verdict, _ = checked
    if lanes.task.fixed or not verdict.is_in_place(longest):
        starts = lanes.rows.spread(lanes.roots.at) + lanes.rows.first_slot
        lanes.cache.compact(starts, lanes.rows.spread(verdict.path[:, : longest + 1]))
    if lanes.proposer is not None:
        lanes.proposer.observe(Verified(tree, features, scores, verdict, lanes.roots, longest))
    moves = lanes.moves
    following = torch.where(moves[:, 0] > 0, verdict.next_root, lanes.roots.codes)
    lanes.roots.advance(following, (verdict.accepted[:, None] + 1) * moves)


# ---- what is read -----------------------------------------------------------------------------


def _result(lanes: Lanes, lane: int, report: Report, shape: Shape) -> Result:
    """What an image's part of a report says, and the image's next position."""
    (accepted,), (depth,) = report.accepted, report.depth
    levels, ranks = tuple(report.levels[1 : depth + 1]), tuple(report.ranks[1 : accepted + 1])
    substituted = sum(report.substituted[: accepted + 1])
    asked = lanes.images[lane], lanes.positions[lane], shape.depth, shape.width
    share = ImageRound(
        *asked, depth, sum(levels), accepted, ranks, substituted, width=max(levels, default=0), levels=levels
    )
    lanes.positions[lane] += accepted + 1
    return Result(share, [*report.codes[1 : accepted + 1], *report.root])


# ---- what the host decides --------------------------------------------------------------------


def _within(shape: Shape, room: int) -> Shape:
    """The shape for an image in which ``room`` drafts can follow each other: a shorter tree has no more branches."""
    if room <= 0:
        return NO_DRAFTS
    depth, branches = min(shape.depth, room), max(shape.nodes - shape.depth, 0)
    return shape._replace(depth=depth, nodes=shape.nodes if shape.tree else min(shape.nodes, depth + branches))


def _plain_moves(lanes: Lanes) -> list[int]:
    """Which images take a step: all at work, or those behind, while the others wait until all are at one position."""
    positions = [position for position, at_work in zip(lanes.positions, lanes.at_work) if at_work]
    first, last = min(positions), max(positions)
    waits = lanes.proposer is None and 0 < last - first <= WAIT_SHARE * (lanes.task.target.length - last)
    return [int(at_work and not (waits and at == last)) for at, at_work in zip(lanes.positions, lanes.at_work)]
