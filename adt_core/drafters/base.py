"""What every drafter has. A drafter is what is loaded; its proposer is its state in one decoding.

:mod:`.repeat` is the worked example.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.rows import Roots, Rows, Step
from ..models.target import Target
from ..policies import DraftSettings, Shape, Source
from ..rules.noise import Noise
from ..rules.settings import Sampling
from ..rules.tree import DraftTree
from ..rules.verify import Verdict


@dataclass(frozen=True)
class Session:
    """What a proposer works for.

    rows: of the images at work. noise: the very noise that the target is sampled with; None at temperature 0. settings:
    of the method. largest: the largest shape that it will be asked for. fixed: rounds are of fixed sizes, so that a GPU
    can replay them.
    """

    target: Target
    rows: Rows
    noise: Noise | None
    sampling: Sampling
    settings: DraftSettings
    largest: Shape
    fixed: bool = False


@dataclass
class Prefill:
    """What the target made of the prompts and the kept tokens.

    features: [R, n, h] of all these tokens. ids: [R, n], the id that follows each, that of the first drawn token at
    last. step: of the forward. z: processed logits [B, m, V] of the m image tokens up to the first drawn one, which is
    at raster ``position``; m is a raster row, or as many as there are.
    """

    features: Tensor
    ids: Tensor
    step: Step
    z: Tensor
    position: int


class Shapes:
    """The shapes of a round, one for each image, and the largest depth, width and number of nodes among them.

    tree, source: as in :class:`Shape`. branches: number of drafts outside the longest path, in the image that has most
    of them. fixed: tensors have the largest sizes that are possible. Tensors such as ``depths`` then say which part an
    image uses.
    """

    def __init__(self, shapes: Sequence[Shape], limits: Tensor, fixed: bool = False):
        """limits: depth, width and nodes of every image, [B, 3] int64, which may be less than its shape says."""
        self._limits, self.fixed = limits, fixed
        self.depth = max(shape.depth for shape in shapes)
        self.width = max(shape.width for shape in shapes)
        self.nodes = max(shape.nodes for shape in shapes)
        # Policies that set these have one shape for all images, but for those that have no room left for drafts.
        largest = max(shapes, key=lambda shape: shape.depth)
        self.tree, self.source = largest.tree, largest.source
        self.mixed = fixed or len(set(shapes)) > 1
        branches = {shape.nodes - min(shape.depth, shape.nodes) for shape in shapes}
        self.branches = max(branches)
        together = fixed and len(shapes) > 1
        self._budgeted = together or len(branches) > 1 or any(shape.nodes < self.nodes for shape in shapes)

    @property
    def key(self) -> Hashable:
        """Rounds with the same key launch the same work."""
        return self.depth, self.width, self.nodes, self.branches, self.tree, self.source

    @property
    def depths(self) -> Tensor:
        """Of every image, [B, 1]."""
        return self._limits[:, :1]

    @property
    def widths(self) -> Tensor:
        """Of every image, [B, 1]."""
        return self._limits[:, 1:2]

    @property
    def lengths(self) -> Tensor:
        """Drafts of every image's longest path, within its depth and its nodes, [B, 1]."""
        return torch.minimum(self.depths, self._limits[:, 2:])

    @property
    def budgets(self) -> Tensor | None:
        """``nodes`` of every image, [B, 1]; None where all have the same."""
        return self._limits[:, 2:] if self._budgeted else None


@dataclass
class Verified:
    """What one target forward over a tree found.

    features: [R, N + 1, h], of every node. perturbed: [B, N + 1, V], z + g after every node (its argmax is what the
    target emits there). roots: of the tree. longest: drafts on the longest accepted path, or the tree's height where
    nobody has read it yet.
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    verdict: Verdict
    roots: Roots
    longest: int

    @cached_property
    def following(self) -> Tensor:
        """Codes [B, longest + 1] after the nodes of every accepted path, the new root at last; padding behind it."""
        verdict = self.verdict
        drafts = self.tree.tokens.gather(1, verdict.path[:, 1 : self.longest + 1])
        codes = torch.cat([drafts, verdict.next_root[:, None]], 1)
        return codes.scatter_(1, verdict.accepted[:, None], verdict.next_root[:, None])


class Proposer:
    """Drafts for the images at work. ``forwards`` counts the calls of the drafter's own network.

    A subclass names the attributes of its state that have an entry for every image (``by_image``) or for every row
    (``by_row``): tensors, lists, KV caches, other proposers, or what else can ``select``, ``admit`` and tell its
    ``state``. They follow the images as these enter and leave. Nothing is shared between images, so that each has the
    trees that it would have alone.

    Where ``session.fixed`` is set, a GPU replays rounds. Then ``propose`` and ``observe`` must launch work whose sizes
    depend on nothing but the shapes, must not wait for the device, and must change the tensors of their state in place.
    """

    by_image: ClassVar[tuple[str, ...]] = ()
    by_row: ClassVar[tuple[str, ...]] = ()
    idles: ClassVar[bool] = False
    """A round without drafts is a plain step, after which ``passed`` is called in place of ``observe``."""
    forwards: int = 0

    def __init__(self, session: Session):
        self.session = session
        self.sees(session.rows, session.noise)

    def sees(self, rows: Rows, noise: Noise | None) -> None:
        """These are the rows and the noise from now on."""
        self.rows, self.noise = rows, noise

    def begin(self, prefill: Prefill) -> None:
        """The prompts were read."""

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        """A tree for every image. One whose depth is 0 gets a lone root."""
        raise NotImplementedError

    def observe(self, verified: Verified) -> None:
        """Learn what became of the tree."""

    def passed(self, roots: Roots, codes: Tensor, z: Tensor) -> None:
        """The codes [B] were drawn after the roots in a plain step, from the logits z [B, 1, V]."""

    def select(self, lanes: Tensor, rows: Rows, noise: Noise | None) -> None:
        """Go on with the images of these lanes alone. rows, noise: theirs."""
        for name, index in self._state(lanes, self.rows):
            setattr(self, name, _selected(getattr(self, name), index, rows, noise))
        self.sees(rows, noise)

    def admit(self, lanes: Tensor, others: Any, rows: Rows) -> None:
        """Put the images of ``others``, a proposer of the same class, into these lanes.

        rows: of all lanes. They and the noise have been changed in their places.
        """
        for name, index in self._state(lanes, rows):
            setattr(self, name, _admitted(getattr(self, name), index, getattr(others, name), rows))
        self.sees(rows, self.noise)

    def state(self) -> list[Tensor]:
        """All tensors that a round changes and the next one reads, but for KV caches."""
        named = [getattr(self, name) for name in self.by_image + self.by_row]
        found = [value for value in named if isinstance(value, Tensor)]
        return found + [tensor for value in named if hasattr(value, "state") for tensor in value.state()]

    def _state(self, lanes: Tensor, rows: Rows) -> list[tuple[str, Tensor]]:
        """The names of the state, each with the places of these lanes in it."""
        numbers = rows.of(lanes)
        return [(name, lanes) for name in self.by_image] + [(name, numbers) for name in self.by_row]


def _selected(value: Any, index: Tensor, rows: Rows, noise: Noise | None) -> Any:
    """A part of a proposer's state for some images alone."""
    if isinstance(value, Tensor):
        return value[index]
    if isinstance(value, list):
        return [value[i] for i in index.tolist()]
    if value is None:
        return None
    value.select(index, rows, noise) if isinstance(value, Proposer) else value.select(index)
    return value


def _admitted(value: Any, index: Tensor, others: Any, rows: Rows) -> Any:
    """A part of a proposer's state with that of ``others``, which may be shorter behind the first axis, in places."""
    if isinstance(value, Tensor):
        value = value if value.is_contiguous() else value.clone()
        value[(index, *map(slice, others.shape[1:]))] = others
    elif isinstance(value, list):
        new = dict(zip(index.tolist(), others))
        value = [new.get(i, old) for i, old in enumerate(value)]
    elif value is not None:
        value.admit(index, others, rows) if isinstance(value, Proposer) else value.admit(index, others)
    return value


class Drafter:
    """What a decoding, a loader and memory management need to know of a drafter: one without weights, unless told.

    defaults: options of drafting with it where nothing else is asked for, and a method if that is not ``auto``. roomy:
    other values of some of these options, for a device on which drafts cost nearly nothing, such as a GPU. sources: its
    ways to draft, for a policy that chooses.
    """

    defaults: Mapping[str, Any] = {}
    roomy: Mapping[str, Any] = {}
    sources: tuple[Source, ...] = (Source("other"),)

    @property
    def network(self) -> nn.Module | None:
        """Its weights."""
        return None

    @property
    def kind(self) -> Hashable:
        """Drafters of the same kind make the same drafts."""
        return self

    def proposer(self, session: Session) -> Proposer:
        """A fresh proposer. Raises AdtError if it can't draft what the session asks for."""
        raise NotImplementedError

    def slots(self, largest: Shape) -> int:
        """Slots of its own KV cache that a round may need behind the committed ones."""
        return 0

    def cache_bytes(self, rows: int, slots: int, itemsize: int) -> int:
        """Bytes of a proposer's KV cache and of its tables of features. What else it keeps is small beside them.

        itemsize: bytes of a number of the model's dtype.
        """
        return 0
