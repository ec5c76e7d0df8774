"""What every drafter has. A drafter is what is loaded; its proposer is its state in one decoding.

:mod:`.repeat` is the worked example.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.rows import AttentionMetadata, BatchRows, Roots
from ..models.target import Target
from ..policies import DraftSettings, Shape, Source
from ..rules.noise import Noise
from ..rules.settings import Sampling
from ..rules.tree import DraftTree
from ..rules.verify import Acceptance


@dataclass(frozen=True)
class Session:
    """What a proposer works for.

    rows: of the images at work. noise: the very noise that the target is sampled with; None at temperature 0. settings:
    of the method. largest: the largest shape that it will be asked for. replayed: a GPU replays rounds, see
    :meth:`size`.
    """

    target: Target
    rows: BatchRows
    noise: Noise | None
    sampling: Sampling
    settings: DraftSettings
    largest: Shape
    replayed: bool = False

    def size(self, numbers: Callable[[], Tensor], most: int) -> int:
        """The size that fits all images. ``numbers()`` says what each needs; ``most`` is the upper bound.

        It is the largest of the numbers if the host may read them. The sizes of a round that is replayed can't depend
        on what the device holds. There it is ``most``, and the numbers are not made.
        """
        return most if self.replayed else min(int(numbers().max()), most)


@dataclass
class Prefill:
    """What the target made of the prompts and the kept tokens.

    features: [R, n, h] of all these tokens. ids: [R, n], the id that follows each, that of the first drawn token at
    last. step: of the forward. z: processed logits [B, 1, V] of that token, which is at raster ``position``.
    """

    features: Tensor
    ids: Tensor
    step: AttentionMetadata
    z: Tensor
    position: int


class Shapes:
    """The shapes of a round, one for each image, and the largest depth, width and number of nodes among them.

    tree, source: as in :class:`Shape`. branches: number of drafts outside the longest path, in the image that has most
    of them. alike: all images have the largest sizes.
    """

    def __init__(self, shapes: Sequence[Shape], limits: Tensor, may_be_cut: bool = False):
        """limits: depth, width and nodes of every image, [B, 3] int64. may_be_cut: they may be below its shape."""
        self._limits = limits
        self.depth = max(shape.depth for shape in shapes)
        self.width = max(shape.width for shape in shapes)
        self.nodes = max(shape.nodes for shape in shapes)
        self.branches = max(shape.nodes - min(shape.depth, shape.nodes) for shape in shapes)
        kinds = {(shape.tree, shape.source) for shape in shapes if shape.nodes}
        assert len(kinds) <= 1, "all images of a round have one source, and one published tree"
        self.tree, self.source = next(iter(kinds), ("", ""))
        self.alike = not may_be_cut and len(set(shapes)) == 1

    @property
    def key(self) -> Hashable:
        """Rounds with the same key launch the same work."""
        return self.depth, self.width, self.nodes, self.branches, self.tree, self.source

    @property
    def widths(self) -> Tensor:
        """Of every image, [B, 1]."""
        return self._limits[:, 1:2]

    @property
    def lengths(self) -> Tensor:
        """Drafts of every image's longest path, within its depth and its nodes, [B, 1]."""
        return torch.minimum(self._limits[:, :1], self._limits[:, 2:])

    @property
    def budgets(self) -> Tensor | None:
        """``nodes`` of every image, [B, 1]; None where all have the same."""
        return None if self.alike else self._limits[:, 2:]


@dataclass
class Verified:
    """What one target forward over a tree found.

    features: [R, N + 1, h], of every node. perturbed: [B, N + 1, V], z + g after every node (its argmax is what the
    target emits there). finite: [B] bool, whether what the target emits on the accepted path comes from finite logits.
    roots: of the tree. substitutes: [B, N + 1] bool, nodes that LANTERN let pass; None without it.
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    acceptance: Acceptance
    finite: Tensor
    roots: Roots
    substitutes: Tensor | None = None

    @cached_property
    def following(self) -> Tensor:
        """Codes [B, D + 1] after the nodes of the accepted paths, the new root at last; padding behind it."""
        acceptance = self.acceptance
        drafts = self.tree.tokens.gather(1, acceptance.path[:, 1:])
        codes = torch.cat([drafts, acceptance.next_root[:, None]], 1)
        return codes.scatter_(1, acceptance.accepted[:, None], acceptance.next_root[:, None])


class Proposer:
    """Drafts for the images at work. ``forwards`` counts the calls of the drafter's own network.

    A subclass names the attributes of its state that have an entry for every image (``by_image``) or for every row
    (``by_row``): tensors, KV caches, other proposers, or what else can ``select``, ``admit`` and tell its ``state``.
    They follow the images as these enter and leave. Nothing is shared between images, so that each has the trees that
    it would have alone.

    A GPU replays rounds. So ``propose`` and ``on_verified`` keep three rules. Sizes depend on the shapes and on
    ``session.size`` alone. Nothing waits for the device. Tensors of the state are changed in place.
    """

    by_image: ClassVar[tuple[str, ...]] = ()
    by_row: ClassVar[tuple[str, ...]] = ()
    idles: ClassVar[bool] = False
    """A round without drafts is a plain step, after which ``on_plain_step`` is called in place of ``on_verified``."""
    forwards: int = 0

    def __init__(self, session: Session):
        self.session = session
        self.noise = session.noise
        self.sees(session.rows)

    def sees(self, rows: BatchRows) -> None:
        """These are the rows from now on."""
        self.rows = rows

    def begin(self, prefill: Prefill) -> None:
        """The prompts were read."""

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        """A tree for every image. One whose depth is 0 gets a lone root."""
        raise NotImplementedError

    def on_verified(self, verified: Verified) -> None:
        """Learn what became of the tree."""

    def on_plain_step(self, roots: Roots, codes: Tensor, z: Tensor) -> None:
        """The codes [B] were drawn after the roots in a plain step, from the logits z [B, 1, V]."""

    def select(self, slots: Tensor, rows: BatchRows) -> None:
        """Go on with the images of these slots alone. rows: theirs."""
        for name, index in self._places(slots, self.rows):
            part = getattr(self, name)
            if isinstance(part, Tensor):
                setattr(self, name, part[index])
            elif isinstance(part, Proposer):
                part.select(index, rows)
            else:
                part.select(index)
        self.sees(rows)

    def admit(self, slots: Tensor, others: Any, rows: BatchRows) -> None:
        """Put the images of ``others``, a proposer of the same class, into these slots.

        rows: of all slots. They and the noise have been changed in their places.
        """
        for name, index in self._places(slots, rows):
            part, new = getattr(self, name), getattr(others, name)
            if isinstance(part, Tensor):
                place: tuple[Any, ...] = (index, *map(slice, new.shape[1:]))  # others may have fewer columns
                part[place] = new
            elif isinstance(part, Proposer):
                part.admit(index, new, rows)
            else:
                part.admit(index, new)
        self.sees(rows)

    def state(self) -> list[Tensor]:
        """All tensors that a round changes and the next one reads, but for KV caches."""
        tensors: list[Tensor] = []
        for name in self.by_image + self.by_row:
            part = getattr(self, name)
            if isinstance(part, Tensor):
                tensors.append(part)
            elif hasattr(part, "state"):
                tensors += part.state()
        return tensors

    def _places(self, slots: Tensor, rows: BatchRows) -> list[tuple[str, Tensor]]:
        """The names of the state, each with the places of these slots in it."""
        numbers = rows.of(slots)
        return [(name, slots) for name in self.by_image] + [(name, numbers) for name in self.by_row]


class Drafter:
    """What a decoding, a loader and memory management need to know of a drafter: by default it has no weights.

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

    def uncommitted(self, largest: Shape) -> int:
        """Slots of its own KV cache that a round may need behind the committed ones."""
        return 0

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        """Bytes of a proposer's KV cache and of its tables of features. What else it keeps is small beside them.

        itemsize: bytes of a number of the model's dtype.
        """
        return 0
