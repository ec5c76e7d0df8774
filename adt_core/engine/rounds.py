"""How a round is launched and read: cut to what is there, or whole and of fixed size.

Both ways the host waits for the device once, to read what a round has brought. On a CPU that costs nothing, so it reads
in the middle of the round and cuts what follows to what was accepted. A GPU would run dry meanwhile. There all sizes
are the largest possible, the whole round is launched at once, and it is replayed as a CUDA graph when it comes again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Shapes
from ..policies import NO_DRAFTS, Shape
from ..rules.trace import ImageRound
from .lanes import Lanes
from .stages import check_root, check_tree, plain_round, propose, settle, summary, worths

WAIT_SHARE = 0.05
"""A plain image may wait for the others for this share of the way that it has left: forwards over images that are all
at one position are cheaper by about as much."""


WORTH_STEPS = 2**20
"""Tokens that drafts would bring travel to the host as whole numbers of such parts of a token."""


class Result(NamedTuple):
    """What a round brought an image. path: accepted nodes, root first. codes: emitted, the new root at last."""

    share: ImageRound
    path: list[int]
    codes: list[int]


class Outcome(NamedTuple):
    """What a round brought. drafting: seconds of the drafter, where the host can tell. forwards: the drafter's."""

    results: list[Result]
    drafting: float = 0.0
    forwards: int = 0


def run_round(lanes: Lanes, shapes: Sequence[Shape], allowed: Sequence[int], asks: Sequence[int]) -> Outcome:
    """One round with trees of these shapes at most. allowed: substitutes that each image may still take.

    asks: numbers of drafts; afterwards ``lanes.worths`` says what they would bring. Trees are cut so that the last
    draft of an image still leaves one token to emit.
    """
    rooms = [lanes.task.target.length - 2 - position for position in lanes.positions]
    cut = [_within(shape, room) for shape, room in zip(shapes, rooms)]
    proposer, most = lanes.proposer, max(shape.nodes for shape in cut)
    drafts = proposer is not None and (most > 0 or (max(rooms) > 0 and not proposer.idles))
    moves = list(map(int, lanes.at_work)) if drafts else _plain_moves(lanes)
    lanes.begin_round()
    lanes.order(cut, moves, allowed)
    if not drafts:
        return Outcome(_plain(lanes, cut, moves, asks))
    if lanes.task.fixed:  # sizes are those that the policy asked for, so that they repeat; what is cut is in the limits
        return _whole(lanes, Shapes(shapes, lanes.limits, fixed=True), cut, asks)
    return _cut(lanes, Shapes(cut, lanes.limits), cut, asks)


def _within(shape: Shape, room: int) -> Shape:
    """The shape for an image in which ``room`` drafts can follow each other: a shorter tree has no more branches."""
    if room <= 0:
        return NO_DRAFTS
    depth, branches = min(shape.depth, room), max(shape.nodes - shape.depth, 0)
    return shape._replace(depth=depth, nodes=shape.nodes if shape.tree else min(shape.nodes, depth + branches))


# ---- without drafts -----------------------------------------------------------------------------


def _plain_moves(lanes: Lanes) -> list[int]:
    """Which images take a step: all at work, or those behind, while the others wait until all are at one position."""
    positions = [position for position, at_work in zip(lanes.positions, lanes.at_work) if at_work]
    first, last = min(positions), max(positions)
    waits = lanes.proposer is None and 0 < last - first <= WAIT_SHARE * (lanes.task.target.length - last)
    return [int(at_work and not (waits and at == last)) for at, at_work in zip(lanes.positions, lanes.at_work)]


def _plain(lanes: Lanes, shapes: Sequence[Shape], moves: Sequence[int], asks: Sequence[int]) -> list[Result]:
    """One token for every image that moves."""

    def launch() -> tuple[Tensor, None]:
        codes = plain_round(lanes)[:, None]
        return (torch.cat([codes, _as_whole(worths(lanes, asks))], 1) if asks else codes), None

    drafter = lanes.proposer is not None  # a graph captured with a drafter reads memory that is freed with it
    report, _ = lanes.graphs(("plain", drafter, tuple(asks), lanes.roots.columns), launch, lanes.state)
    lanes.prepare_noise()
    found, rows = [], report.tolist()
    _note_worths(lanes, asks, [_from_whole(row[1:]) for row in rows])
    for image, at, shape, row, moved in zip(lanes.images, lanes.positions, shapes, rows, moves):
        if moved:
            found.append(Result(ImageRound(image, at, shape.depth, shape.width, 0, 0, 0, ()), [0], row[:1]))
    lanes.positions = [position + moved for position, moved in zip(lanes.positions, moves)]
    return found


# ---- with drafts --------------------------------------------------------------------------------


def _cut(lanes: Lanes, shapes: Shapes, asked: Sequence[Shape], asks: Sequence[int]) -> Outcome:
    """A round that is read in the middle."""
    assert lanes.proposer is not None
    started, before = time.perf_counter(), lanes.proposer.forwards
    tree = propose(lanes, shapes)
    drafting = time.perf_counter() - started
    checked = check_tree(lanes, tree, shapes.width) if tree.size > 1 else check_root(lanes, tree)
    results = _read(lanes, summary(checked).tolist(), asked)
    contiguous = all(result.path == list(range(len(result.path))) for result in results)
    settle(lanes, checked, max(result.share.accepted for result in results), contiguous)
    _note_worths(lanes, asks, worths(lanes, asks).tolist())
    lanes.prepare_noise()
    return Outcome(results, drafting, lanes.proposer.forwards - before)


def _whole(lanes: Lanes, shapes: Shapes, asked: Sequence[Shape], asks: Sequence[int]) -> Outcome:
    """A round that is launched at once and read at its end."""

    def launch() -> tuple[Tensor, tuple[int, int]]:
        assert lanes.proposer is not None
        before = lanes.proposer.forwards
        tree = propose(lanes, shapes)
        checked = check_tree(lanes, tree, shapes.width)
        report = summary(checked)
        settle(lanes, checked, tree.height)
        told = worths(lanes, asks)
        report = torch.cat([_as_whole(told), report], 1)
        return report, (told.shape[1], lanes.proposer.forwards - before)

    key = shapes.key, tuple(asks), lanes.roots.columns
    report, (told, forwards) = lanes.graphs(key, launch, lanes.state)
    lanes.prepare_noise()
    rows = report.tolist()
    _note_worths(lanes, asks, [_from_whole(row[:told]) for row in rows])
    return Outcome(_read(lanes, [row[told:] for row in rows], asked), forwards=forwards)


def _as_whole(tokens: Tensor) -> Tensor:
    return (tokens * WORTH_STEPS).round().long()


def _from_whole(steps: list[int]) -> list[float]:
    return [step / WORTH_STEPS for step in steps]


def _note_worths(lanes: Lanes, asks: Sequence[int], values: list[list[float]]) -> None:
    lanes.worths = [dict(zip(asks, row)) for row in values]


def _read(lanes: Lanes, report: list[list[int]], asked: Sequence[Shape]) -> list[Result]:
    """What the round has brought. report: of :func:`.stages.summary`."""
    columns = (len(report[0]) - 3) // (5 if lanes.task.lantern else 4)
    found = []
    for lane, (row, shape) in enumerate(zip(report, asked, strict=True)):
        if not lanes.at_work[lane]:
            continue
        accepted, depth, next_root = row[:3]
        levels = tuple(row[4 : 4 + depth])
        path, codes, ranks, *rest = (row[i : i + 1 + accepted] for i in range(3 + columns, len(row), columns))
        seen = (depth, sum(levels), accepted, tuple(ranks[1:]), sum(map(sum, rest)), max(levels, default=0), levels)
        share = ImageRound(lanes.images[lane], lanes.positions[lane], shape.depth, shape.width, *seen)
        found.append(Result(share, path, [*codes[1:], next_root]))
        lanes.positions[lane] += accepted + 1
    return found
