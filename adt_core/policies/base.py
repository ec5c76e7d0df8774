"""Base class of policies, and the types of their inputs and outputs.

Terms:

- A request is a set of images to decode with the same settings.
- A round is one forward pass of the target, together with the drafting before it. In each round, the target verifies
  one draft tree per image.
- A draft is a node of such a tree other than the root (:mod:`..rules.tree`).
- A method is a policy with a name. Users choose it with the setting `method`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..settings import Settings, choice, fraction
from ..trace import Round
from .cost_profile import CostEstimate, CostProfile, Curve, interpolated

if TYPE_CHECKING:  # the command line reads options from this package and must not import torch for them
    from torch import Tensor

    from ..models.target import Target
    from ..rules.noise import Key
    from ..settings import Sampling


class Shape(NamedTuple):
    """Maximum size of a draft tree, and how to draft it.

    Attributes:
        depth: Maximum number of levels below the root.
        width: Maximum number of children of a node. For the drafter jacobi: maximum number of candidates at a position.
        drafts: Maximum number of drafts to verify.
        tree: Name of a fixed tree from a paper, a key of `fixed.STATIC_TREES`; "" for trees whose nodes are chosen by
            their scores.
        mode: Name of the :class:`DraftMode` to use; "" if the policy does not choose a mode. The drafter then uses all
            of its sources of drafts.
    """

    depth: int
    width: int
    drafts: int
    tree: str = ""
    mode: str = ""


PLAIN_SHAPE = Shape(0, 1, 0)
"""Shape of a tree without drafts."""
_PROPOSAL_HELP = (
    "coupled: draft with the noise that the model samples with, so far more drafts are accepted. top-k: draft the "
    "most probable tokens, as in the EAGLE-2 and ADT-Tree papers."
)


class DraftMode(NamedTuple):
    """One of the ways in which a drafter can draft. Some policies choose a mode for each round.

    Attributes:
        name: Name in shapes and in cost profiles.
        width: Maximum number of candidates at a position. If it is 1, trees are chains without branches.
        accepted: Average number of accepted drafts in a round at temperature 0.6: pairs (number of drafts, average),
            with ascending numbers of drafts from 0.
        cpu_cost: Estimated cost of drafting on a CPU, for a batch of one image.
        gpu_cost: Estimated cost of drafting on a GPU, for a batch of one image.
        hot_gain: Accepted drafts at temperature 1, divided by those at 0.6.
    """

    name: str
    width: int = 256
    accepted: Curve = ((0, 0.0), (4, 0.8), (8, 1.4), (16, 2.2), (31, 3.0), (63, 3.8))
    cpu_cost: CostEstimate = CostEstimate(1.3, 0.005)
    gpu_cost: CostEstimate = CostEstimate(0.2, 0.003)
    hot_gain: float = 1.0

    def estimated_gain(self, temperature: float) -> float:
        """Return the estimated ratio of accepted to expected drafts at a temperature, by linear interpolation."""
        return 1 + (self.hot_gain - 1) * min(max((temperature - 0.6) / 0.4, 0.0), 1.0)

    def expected_accepted(self, drafts: int) -> float:
        """Return the expected number of accepted drafts in a round with `drafts` drafts, at temperature 0.6."""
        return interpolated(self.accepted, drafts)


@dataclass(frozen=True)
class DraftSettings(Settings):
    """Settings of drafting that every method has. A subclass adds the settings of its method."""

    proposal: str = choice("coupled", _PROPOSAL_HELP, ("coupled", "top-k"))
    expand_above: float = fraction(0.0, "Stop drafting below a node that is less probable than this; 0 is off.")
    keep_above: float = fraction(0.0, "Do not verify drafts that are less probable than this; 0 is off.")


class ActiveImage(NamedTuple):
    """An active image, by its index within the request, and the raster position of its root."""

    image: int
    position: int


@dataclass(frozen=True)
class Context:
    """Part of a request that drafters and policies may use.

    Attributes:
        settings: Settings of the method.
        largest: Upper bound of the shapes that the policy chooses.
        keys: Pair (seed, image index) of each image, which determines the image's noise.
        start: Position of the first token to decode, counted row by row from 0.
        modes: Draft modes of the drafter.
        profile: Cost profile of the device; None if the policy does not choose between draft modes.
        replayed: Whether rounds are captured as CUDA graphs and replayed.
    """

    target: Target
    sampling: Sampling
    settings: Any
    largest: Shape
    keys: Sequence[Key] = ()
    start: int = 0
    modes: Sequence[DraftMode] = ()
    profile: CostProfile | None = None
    replayed: bool = False

    @property
    def columns(self) -> int:
        """Number of tokens in a row of the image."""
        return self.target.columns

    @property
    def remaining(self) -> int:
        """Number of tokens to decode for each image."""
        return self.target.length - self.start

    def size(self, numbers: Callable[[], Tensor], most: int) -> int:
        """Return a tensor size that is large enough for all images.

        A captured CUDA graph is replayed later, when the tensors on the device have other values, so its sizes must not
        depend on them. If rounds are captured, the result is therefore `most`, and `numbers` is not called.

        Args:
            numbers: Returns a tensor on the device with the size that each image needs.
            most: Upper bound.
        """
        return most if self.replayed else min(int(numbers().max()), most)


class Policy:
    """Base class of policies. A policy chooses the shape of each draft tree of a decoding.

    This class chooses the same shape for every tree: the depth, width and number of drafts in the settings.

    Attributes:
        settings_type: Class of the method's settings.
        help: Description of the method, shown by `--help` and in the interface.
        needs_drafter: Whether the policy drafts. It is False for plain decoding.
        needs_network: Whether the policy works only with a drafter network.
        chooses: Whether the policy chooses between draft modes. If so, a drafter network is combined with the Jacobi
            window (drafts from the target's own earlier forward passes). With both, there are more modes.
        sizes: If `chooses` is True, the numbers of drafts from which the policy chooses. The curves of the cost profile
            have a point at each of these numbers.
        is_drafting: A policy sets this attribute to False to stop drafting. The active images are then finished by
            plain decoding.
    """

    settings_type: ClassVar[type[DraftSettings]] = DraftSettings
    help: ClassVar[str] = ""
    needs_drafter: ClassVar[bool] = True
    needs_network: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    sizes: ClassVar[Sequence[int]] = ()
    is_drafting: bool = True

    def __init__(self, context: Context):
        self.context = context
        self.settings = context.settings

    @classmethod
    def largest(cls, settings: Any) -> Shape:
        """Return a shape that no result of `choose` exceeds. The memory for a tree of this shape is allocated."""
        return Shape(settings.depth, settings.width, settings.drafts)

    @classmethod
    def largest_streamed(cls, settings: Any) -> Shape:
        """Return the same for a model with streamed layers, for which a large tree costs hardly more than a token."""
        return cls.largest(settings)

    def begin(self) -> bool:
        """Prepare the policy for new images, and return whether to draft for these images."""
        return self.needs_drafter

    def choose(self, slots: Sequence[ActiveImage]) -> list[Shape]:
        """Return the shape of the next tree of each slot."""
        return [self.largest(self.settings)] * len(slots)

    def on_verified(self, round: Round) -> None:
        """Update the policy's state after a round that used the shapes of the last call of `choose`."""
