"""Base class of policies, with the shapes that they choose and the request as they see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..rules.settings import Settings, choice, fraction
from ..rules.trace import Round
from .costs import CostEstimate, CostProfile

if TYPE_CHECKING:  # the command line reads options from this package and must not import torch for them
    from torch import Tensor

    from ..models.target import Target
    from ..rules.noise import Key
    from ..rules.settings import Sampling


class Shape(NamedTuple):
    """Maximum size of a draft tree.

    Attributes:
        depth: Levels below the root.
        width: Children of a node, or candidates at a position.
        nodes: Drafts to verify, root excluded.
        tree: Name of a published tree with fixed nodes; "" for trees that grow by their scores.
        mode: Name of the :class:`DraftMode` to draft with; "" for everything that the drafter has.
    """

    depth: int
    width: int
    nodes: int
    tree: str = ""
    mode: str = ""


NO_DRAFTS = Shape(0, 1, 0)
"""Shape of a tree that consists of its root."""
_PROPOSAL_HELP = (
    "coupled: draft with the noise that the model samples with, so far more drafts are accepted. top-k: draft the "
    "most probable tokens, as in the EAGLE-2 and ADT-Tree papers."
)


class DraftMode(NamedTuple):
    """One of the ways in which a drafter can draft, for policies that choose between them.

    The number of accepted drafts is modelled by the saturating curve `limit * n / (n + half)` over n drafts.

    Attributes:
        name: Name in shapes and in cost profiles.
        width: Maximum number of candidates at a position; 1 means chains.
        limit: Average number of accepted drafts if there were infinitely many.
        half: Number of drafts of which half as many are accepted.
        cpu_cost: Estimated cost of drafting on a CPU, for a batch of one image.
        gpu_cost: The same on a GPU.
    """

    name: str
    width: int = 256
    limit: float = 5.0
    half: float = 20.0
    cpu_cost: CostEstimate = CostEstimate(1.3, 0.005)
    gpu_cost: CostEstimate = CostEstimate(0.2, 0.003)

    def expected_accepted(self, drafts: int) -> float:
        """Return the average number of accepted drafts if every round has this many."""
        return self.limit * drafts / (drafts + self.half)


@dataclass(frozen=True)
class DraftSettings(Settings):
    """Options of every method. Subclasses add their own with :func:`setting`."""

    proposal: str = choice("coupled", _PROPOSAL_HELP, ("coupled", "top-k"))
    expand_above: float = fraction(0.0, "Stop drafting below a node that is less probable than this; 0 is off.")
    keep_above: float = fraction(0.0, "Do not verify drafts that are less probable than this; 0 is off.")


class Slot(NamedTuple):
    """A batch slot, as a policy sees it.

    Attributes:
        image: Number of the slot's image within the request.
        position: Raster position of the last decided token of the image.
    """

    image: int
    position: int


@dataclass(frozen=True)
class Context:
    """Part of a request that drafters and policies may see.

    Attributes:
        target: Model that draws the images.
        sampling: How tokens are sampled.
        settings: Options of the method.
        largest: Maximum of all shapes that the policy may choose.
        keys: (seed, index) of each image's noise.
        start: Raster position of the first token to decode.
        modes: Draft modes of the drafter, for a policy that chooses.
        profile: Cost profile of the device, for a policy that chooses; None for others.
        replayed: Whether rounds are captured and replayed, as on a GPU.
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
        """Tokens in a row of the raster."""
        return self.target.columns

    @property
    def remaining(self) -> int:
        """Tokens to decode of each image."""
        return self.target.length - self.start

    def size(self, numbers: Callable[[], Tensor], most: int) -> int:
        """Return a tensor size that fits all images.

        A captured round is replayed with other values, so its sizes must not depend on values on the device: there the
        size is the upper bound, and `numbers` is not called.

        Args:
            numbers: Returns the size that each image needs, a tensor on the device.
            most: Upper bound.

        Returns:
            The largest of the numbers where the host may read them, otherwise the upper bound.
        """
        return most if self.replayed else min(int(numbers().max()), most)


class Policy:
    """Chooses the shape of each draft tree of a decoding.

    A subclass implements `choose`, and overrides what else it needs.

    Attributes:
        settings_type: Class of the method's options.
        help: Description of the method, shown by `--help` and in the interface.
        needs_drafter: False for plain decoding.
        needs_network: Whether only a drafter network can grow the policy's trees.
        chooses: Whether the policy chooses between draft modes. A drafter network is then combined with the Jacobi
            window.
        sizes: Numbers of drafts that such a policy chooses from; the cost profile has a point for each.
        drafts: Set to False to stop drafting; the active images are then finished by plain decoding.
    """

    settings_type: ClassVar[type[DraftSettings]] = DraftSettings
    help: ClassVar[str] = ""
    needs_drafter: ClassVar[bool] = True
    needs_network: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    sizes: ClassVar[Sequence[int]] = ()
    drafts: bool = True

    def __init__(self, context: Context):
        self.context = context
        self.settings = context.settings

    @classmethod
    def largest(cls, settings: Any) -> Shape:
        """Return the maximum of all shapes that `choose` may return; memory is allocated for it."""
        return Shape(settings.depth, settings.width, settings.nodes)

    def begin(self) -> bool:
        """Prepare for new images, and return whether to draft for them."""
        return self.needs_drafter

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        """Return the shape of the next tree of each slot."""
        return [self.largest(self.settings)] * len(slots)

    def on_verified(self, round: Round) -> None:
        """Update the policy's state with the result of the round whose shapes were chosen last."""
