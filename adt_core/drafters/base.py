"""Base classes of drafters.

A :class:`Drafter` is loaded once. It makes a :class:`Proposer` for each batch of images, which holds their state.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.rows import AttentionMetadata, BatchRows, Roots
from ..policies import Context, DraftMode, Shape
from ..rules.noise import Noise
from ..rules.tree import DraftTree
from ..rules.verify import Acceptance


@dataclass
class Prefill:
    """Result of the target's forward pass over the prompts and prefixes.

    Attributes:
        features: [R, n, h], of all these tokens.
        ids: [R, n], the token id after each of them; the last is the first decoded token.
        step: Metadata of the forward pass.
        z: [B, 1, V], processed logits of the first decoded token.
        position: Raster position of the first decoded token.
    """

    features: Tensor
    ids: Tensor
    step: AttentionMetadata
    z: Tensor
    position: int


class Shapes:
    """Shapes of a round's trees, one per image.

    Attributes:
        depth: Maximum depth of all images.
        width: Maximum width of all images.
        nodes: Maximum number of drafts of all images.
        branches: Maximum number of drafts outside the longest path of an image.
        tree: Published tree, as in :class:`Shape`.
        mode: Draft mode, as in :class:`Shape`.
        alike: Whether all images have the maximum sizes.
    """

    def __init__(self, shapes: Sequence[Shape], limits: Tensor, may_be_cut: bool = False):
        """Combine the shapes of all images.

        Args:
            shapes: Shape of each image, all with one draft mode and one published tree.
            limits: Depth, width and nodes of each image, [B, 3] int64.
            may_be_cut: Whether the limits may be below the shapes.
        """
        self._limits = limits
        self.depth = max(shape.depth for shape in shapes)
        self.width = max(shape.width for shape in shapes)
        self.nodes = max(shape.nodes for shape in shapes)
        self.branches = max(shape.nodes - min(shape.depth, shape.nodes) for shape in shapes)
        kinds = {(shape.tree, shape.mode) for shape in shapes if shape.nodes}
        assert len(kinds) <= 1, "all images of a round must have one draft mode and one published tree"
        self.tree, self.mode = next(iter(kinds), ("", ""))
        self.alike = not may_be_cut and len(set(shapes)) == 1

    @property
    def key(self) -> Hashable:
        """Identifies rounds that launch the same work."""
        return self.depth, self.width, self.nodes, self.branches, self.tree, self.mode

    @property
    def widths(self) -> Tensor:
        """Width of each image, [B, 1]."""
        return self._limits[:, 1:2]

    @property
    def lengths(self) -> Tensor:
        """Drafts on the longest path of each image, [B, 1]: its depth, or its nodes if there are fewer."""
        return torch.minimum(self._limits[:, :1], self._limits[:, 2:])

    @property
    def budgets(self) -> Tensor | None:
        """Nodes of each image, [B, 1]; None if all images have the same number."""
        return None if self.alike else self._limits[:, 2:]


@dataclass
class Verified:
    """Result of the target's forward pass over a tree.

    Attributes:
        tree: The tree.
        features: [R, N + 1, h], of every node.
        perturbed: [B, N + 1, V], z + g after every node; the target emits its argmax there.
        acceptance: The accepted paths.
        finite: [B] bool, whether all logits that decide the accepted path are finite.
        roots: Roots of the tree.
        substitutes: [B, N + 1] bool, nodes that LANTERN accepted as substitutes; None without LANTERN.
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
        """Codes [B, D + 1] after the nodes of the accepted path: its drafts, the next root, then padding."""
        acceptance = self.acceptance
        drafts = self.tree.tokens.gather(1, acceptance.path[:, 1:])
        codes = torch.cat([drafts, acceptance.next_root[:, None]], 1)
        return codes.scatter_(1, acceptance.accepted[:, None], acceptance.next_root[:, None])


class Proposer:
    """State of a drafter for a batch of images.

    A subclass names the attributes that have an entry for each image (`by_image`) or for each row (`by_row`). They can
    be tensors, KV caches, other proposers, or any object with `select`, `admit` and `state`; they follow the images as
    these enter and leave. Images share no state, so each gets the same trees in any batch.

    A GPU captures rounds and replays them. Therefore `propose` and `on_verified` follow three rules on every device:
    tensor sizes depend only on the shapes and on `context.size`, nothing waits for the device, and the tensors of the
    state are changed in place.

    Attributes:
        by_image: Names of attributes with an entry for each image.
        by_row: Names of attributes with an entry for each row.
        supports_plain_steps: Whether a round without drafts may be a plain step, after which `on_plain_step` is called
            instead of `on_verified`.
        forwards: Number of forward passes of the drafter's own network so far.
        context: The request.
        rows: Rows of the active images.
        noise: Noise that the target samples with; None at temperature 0.
    """

    by_image: ClassVar[tuple[str, ...]] = ()
    by_row: ClassVar[tuple[str, ...]] = ()
    supports_plain_steps: ClassVar[bool] = False
    forwards: int = 0

    def __init__(self, context: Context, rows: BatchRows, noise: Noise | None):
        self.context = context
        self.noise = noise
        self.set_rows(rows)

    def set_rows(self, rows: BatchRows) -> None:
        """Use these rows from now on."""
        self.rows = rows

    def begin(self, prefill: Prefill) -> None:
        """Initialise the state from the prompts and prefixes."""

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        """Return a draft tree for each image; an image with depth 0 gets only the root."""
        raise NotImplementedError

    def on_verified(self, verified: Verified) -> None:
        """Update the state with the result of the last tree."""

    def on_plain_step(self, roots: Roots, codes: Tensor, z: Tensor) -> None:
        """Update the state after a plain step.

        Args:
            roots: Roots of the step.
            codes: [B], the code decided after each root.
            z: [B, 1, V], processed logits of these codes.
        """

    def select(self, slots: Tensor, rows: BatchRows) -> None:
        """Drop the images of all other slots.

        Args:
            slots: [b], slots to keep.
            rows: Rows of these slots.
        """
        for name, index in self._indexed_state(slots, self.rows):
            part = getattr(self, name)
            if isinstance(part, Tensor):
                setattr(self, name, part[index])
            elif isinstance(part, Proposer):
                part.select(index, rows)
            else:
                part.select(index)
        self.set_rows(rows)

    def admit(self, slots: Tensor, others: Any, rows: BatchRows) -> None:
        """Replace the images of some slots.

        Args:
            slots: [b], slots to fill.
            others: Proposer of the same class, with the state of the new images.
            rows: Rows of all slots. Like the noise, they were already changed in place.
        """
        for name, index in self._indexed_state(slots, rows):
            part = getattr(self, name)
            new = getattr(others, name)
            if isinstance(part, Tensor):
                place: tuple[Any, ...] = (index, *map(slice, new.shape[1:]))  # others may have fewer columns
                part[place] = new
            elif isinstance(part, Proposer):
                part.admit(index, new, rows)
            else:
                part.admit(index, new)
        self.set_rows(rows)

    def state(self) -> list[Tensor]:
        """Return all tensors that a round changes and the next one reads, except KV caches."""
        tensors: list[Tensor] = []
        for name in self.by_image + self.by_row:
            part = getattr(self, name)
            if isinstance(part, Tensor):
                tensors.append(part)
            elif hasattr(part, "state"):
                tensors += part.state()
        return tensors

    def _indexed_state(self, slots: Tensor, rows: BatchRows) -> list[tuple[str, Tensor]]:
        """Return the names of the state's attributes, each with the indices of the slots in it."""
        row_numbers = rows.of(slots)
        return [(name, slots) for name in self.by_image] + [(name, row_numbers) for name in self.by_row]


class Drafter:
    """A loaded drafter, without weights by default.

    Attributes:
        defaults: Default options of drafting with it, and its default method if that is not `auto`.
        gpu_defaults: Different defaults on a GPU, where more drafts cost almost nothing.
        modes: Its draft modes, for a policy that chooses.
    """

    defaults: Mapping[str, Any] = {}
    gpu_defaults: Mapping[str, Any] = {}
    modes: tuple[DraftMode, ...] = (DraftMode("other"),)

    @property
    def network(self) -> nn.Module | None:
        """Its weights."""
        return None

    @property
    def kind(self) -> Hashable:
        """Key that is equal for drafters that make the same drafts."""
        return self

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> Proposer:
        """Make the state for a batch of images.

        Args:
            context: The request.
            rows: Rows of the images.
            noise: Noise that the target samples with; None at temperature 0.

        Raises:
            AdtError: If the drafter does not support the request's method.
        """
        raise NotImplementedError

    def uncommitted(self, largest: Shape) -> int:
        """Return the number of positions of the drafter's KV cache that a round may write after the committed ones."""
        return 0

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        """Return the bytes of a proposer's KV cache and tables of features; its other state is small.

        Args:
            rows: Rows of the transformer's batch.
            cache_length: Positions of the KV cache.
            itemsize: Bytes of a number of the model's dtype.
        """
        return 0
