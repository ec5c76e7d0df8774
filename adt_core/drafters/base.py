"""Base classes of drafters.

A :class:`Drafter` is loaded once. For each batch of images, it makes a :class:`Proposer`. The proposer stores the state
of these images and proposes their draft trees. :mod:`..rules.tree` defines the terms root and draft.

Dimensions: B images; R rows of the transformer's batch (2 * B with guidance, else B); n prompt tokens per row; h is the
length of a feature vector; N drafts per tree (N + 1 nodes with the root); D levels below the root; V codes. `z` are the
target's logits after guidance, temperature, filters and grammar. `g` is the Gumbel noise of the images.
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
        features: [R, n, h], the target's features of all tokens of the prompt and prefix.
        ids: [R, n]. Column i is the id of token i + 1, so the last column is the first decoded token.
        metadata: Positions and attention mask of the forward pass.
        z: [B, 1, V], processed logits from which the first token was sampled.
        position: Raster position of the first decoded token.
    """

    features: Tensor
    ids: Tensor
    metadata: AttentionMetadata
    z: Tensor
    position: int


@dataclass
class PlainRead:
    """Result of a plain round: the target has read the root of each image and the kept tokens after it.

    Attributes:
        roots: Roots before the round.
        tokens: [B, n], the root and the kept tokens. An image with fewer kept tokens has arbitrary tokens after them.
        runs: [B, 1], number of kept tokens of each image.
        features: [R, n, h], the target's features of the tokens.
        next_roots: [B], the token that was decided after the kept tokens.
        z: [B, 1, V], processed logits from which this token was sampled.
    """

    roots: Roots
    tokens: Tensor
    runs: Tensor
    features: Tensor
    next_roots: Tensor
    z: Tensor

    @cached_property
    def tokens_and_next(self) -> Tensor:
        """Root, kept tokens and next root of each image, then arbitrary tokens, [B, n + 1]."""
        return torch.cat([self.tokens, self.tokens[:, :1]], 1).scatter_(1, self.runs + 1, self.next_roots[:, None])


class TreeSizes:
    """Largest sizes of the trees of a round, and the limits of each image's tree.

    Attributes:
        depth: Largest depth among the images.
        width: Largest width among the images.
        drafts: Largest number of drafts among the images.
        branches: Largest number of drafts outside the longest path of a tree, among the images.
        tree: Name of a fixed tree from a paper ("published tree"), or "", as in :class:`Shape`.
        mode: Name of the draft mode, as in :class:`Shape`.
        alike: Whether the trees of all images have exactly `depth`, `width` and `drafts` as their limits.
    """

    def __init__(self, shapes: Sequence[Shape], limits: Tensor, may_be_cut: bool = False):
        """Combine the shapes of all images.

        Args:
            shapes: Shape of each image. All shapes have the same draft mode and the same published tree.
            limits: [B, 3] int64, maximum depth, width and number of drafts of each image, on the device.
            may_be_cut: Whether some limits may be smaller than the shape of the image.
        """
        self._limits = limits
        self.depth = max(shape.depth for shape in shapes)
        self.width = max(shape.width for shape in shapes)
        self.drafts = max(shape.drafts for shape in shapes)
        self.branches = max(shape.drafts - min(shape.depth, shape.drafts) for shape in shapes)
        kinds = {(shape.tree, shape.mode) for shape in shapes if shape.drafts}
        assert len(kinds) <= 1, "all images of a round must have one draft mode and one published tree"
        self.tree, self.mode = next(iter(kinds), ("", ""))
        self.alike = not may_be_cut and len(set(shapes)) == 1

    @property
    def key(self) -> Hashable:
        """Key that is equal for rounds that launch the same kernels with the same tensor sizes."""
        return self.depth, self.width, self.drafts, self.branches, self.tree, self.mode

    @property
    def widths(self) -> Tensor:
        """Maximum width of each image's tree, [B, 1]."""
        return self._limits[:, 1:2]

    @property
    def lengths(self) -> Tensor:
        """Maximum number of drafts on a path of each image's tree, [B, 1]: the smaller of maximum depth and drafts."""
        return torch.minimum(self._limits[:, :1], self._limits[:, 2:])

    @property
    def budgets(self) -> Tensor | None:
        """Maximum number of drafts of each image, [B, 1]; None if all images have the same number."""
        return None if self.alike else self._limits[:, 2:]


@dataclass
class Verified:
    """Result of the target's forward pass over a tree.

    Attributes:
        tree: The draft trees.
        features: [R, N + 1, h], the target's features of every node.
        perturbed: [B, N + 1, V], scores z + g after every node. The target emits the code with the largest score.
        acceptance: The accepted paths.
        finite: [B, 1] bool, whether all logits that decided the accepted path are finite.
        roots: Roots of the trees.
        substitutes: [B, N + 1] bool, True for nodes that LANTERN accepted as substitutes; None without LANTERN.
        certainty: [B, D + 1, 2], certainty of the token after each node of the path (`sampling.certainty`).
    """

    tree: DraftTree
    features: Tensor
    perturbed: Tensor
    acceptance: Acceptance
    finite: Tensor
    roots: Roots
    substitutes: Tensor | None = None
    certainty: Tensor | None = None

    @cached_property
    def following(self) -> Tensor:
        """Decided codes after the root, [B, D + 1]: the accepted drafts, then the next root, then padding.

        Example: two accepted drafts 3 and 9, and the next root 4, in a tree with 4 levels: 3, 9, 4, padding, padding.
        """
        acceptance = self.acceptance
        drafts = self.tree.tokens.gather(1, acceptance.drafts)
        return drafts.scatter_(1, acceptance.accepted, acceptance.next_root)


class Proposer:
    """State of a drafter for a batch of images.

    A subclass lists the attributes that are its state: `by_image` names attributes with one entry per image, and
    `by_row` names attributes with one entry per batch row. Such an attribute can be a tensor, a KV cache, another
    proposer, or any object with the methods `select`, `admit` and `state`. When images enter or leave the batch, this
    base class updates all these attributes. Images share no state, so an image gets the same trees in every batch.

    `propose`, `on_verified` and `on_plain_round` follow the three rules of captured code (:mod:`..engine.round`).

    Attributes:
        by_image: Names of the attributes with one entry per image.
        by_row: Names of the attributes with one entry per batch row.
        supports_plain_rounds: Whether every round without drafts may be a plain round. After a plain round,
            `on_plain_round` is called instead of `on_verified`. If False, plain rounds only end an image or read kept
            tokens.
        forwards: Number of forward passes of the drafter's own network so far.
        context: Data of the request that drafters may use.
        rows: Prompt rows of the images.
        noise: Noise with which the target samples; None at temperature 0.
    """

    by_image: ClassVar[tuple[str, ...]] = ()
    by_row: ClassVar[tuple[str, ...]] = ()
    supports_plain_rounds: ClassVar[bool] = False
    forwards: int = 0

    def __init__(self, context: Context, rows: BatchRows, noise: Noise | None):
        self.context = context
        self.noise = noise
        self.set_rows(rows)

    def set_rows(self, rows: BatchRows) -> None:
        """Set the prompt rows, after the images have changed."""
        self.rows = rows

    def begin(self, prefill: Prefill) -> None:
        """Initialise the state from the prompts and prefixes."""

    def propose(self, roots: Roots, sizes: TreeSizes) -> DraftTree:
        """Return a draft tree for each image. If the depth of an image is 0, its tree has only the root."""
        raise NotImplementedError

    def on_verified(self, verified: Verified) -> None:
        """Update the state with the result of the last tree."""

    def on_plain_round(self, read: PlainRead) -> None:
        """Update the state after a plain round."""

    def select(self, slots: Tensor, rows: BatchRows) -> None:
        """Keep only the images of the given slots [b]."""
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
            slots: [b], indices of the slots to fill.
            others: Proposer of the same class, with the state of the b new images, in the order of `slots`.
            rows: Prompt rows of all slots, the new images included. The caller has also updated the noise.
        """
        for name, index in self._indexed_state(slots, rows):
            part = getattr(self, name)
            new = getattr(others, name)
            if isinstance(part, Tensor):
                place: tuple[Any, ...] = (index, *map(slice, new.shape[1:]))  # `new` may have fewer columns than `part`
                part[place] = new
            elif isinstance(part, Proposer):
                part.admit(index, new, rows)
            else:
                part.admit(index, new)
        self.set_rows(rows)

    def state(self) -> list[Tensor]:
        """Return all tensors, except KV caches, that a round changes and the next round reads."""
        tensors: list[Tensor] = []
        for name in self.by_image + self.by_row:
            part = getattr(self, name)
            if isinstance(part, Tensor):
                tensors.append(part)
            elif hasattr(part, "state"):
                tensors += part.state()
        return tensors

    def _indexed_state(self, slots: Tensor, rows: BatchRows) -> list[tuple[str, Tensor]]:
        """Return the name of each state attribute, with the indices of the slots' entries in it."""
        row_numbers = rows.of(slots)
        return [(name, slots) for name in self.by_image] + [(name, row_numbers) for name in self.by_row]


class Drafter:
    """A loaded drafter. This base class has no weights.

    Attributes:
        defaults: Default options of drafting with this drafter.
        gpu_defaults: Defaults that replace `defaults` on a GPU, where more drafts cost almost nothing.
        unguided_gpu_defaults: Defaults that also replace `gpu_defaults` without guidance. An image then has one batch
            row instead of two.
        gpu_method_defaults: Defaults of single methods on a GPU, which replace the defaults of all methods.
        modes: Draft modes, for a policy that chooses between modes.
        name: Name by which `load_drafter` has loaded the drafter; "" for a drafter that a program has made.
    """

    name = ""
    defaults: Mapping[str, Any] = {}
    gpu_defaults: Mapping[str, Any] = {}
    unguided_gpu_defaults: Mapping[str, Any] = {}
    gpu_method_defaults: Mapping[str, Mapping[str, Any]] = {}
    modes: tuple[DraftMode, ...] = (DraftMode("other"),)

    @property
    def network(self) -> nn.Module | None:
        """Neural network of the drafter; None if the drafter has no weights."""
        return None

    @property
    def kind(self) -> Hashable:
        """Key for comparing drafters. Two drafters with the same key make the same drafts."""
        return self

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> Proposer:
        """Make the state for a batch of images. Arguments as the attributes of :class:`Proposer`.

        Raises:
            AdtError: If the drafter does not support the request's method.
        """
        raise NotImplementedError

    def uncommitted(self, largest: Shape) -> int:
        """Return the most entries per batch row that a round with a tree of size `largest` appends to the KV cache."""
        return 0

    def cache_bytes(self, rows: int, cache_length: int, itemsize: int) -> int:
        """Return the bytes of the large parts of a proposer's state: its KV cache and its tables of features.

        Args:
            itemsize: Bytes of one number in the model's dtype.
        """
        return 0
