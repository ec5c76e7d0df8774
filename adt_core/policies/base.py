"""What every policy has: settings, the shapes that it chooses, and the calls of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..rules.settings import Settings, choice, share
from ..rules.trace import Round
from .costs import CostProfile

if TYPE_CHECKING:  # the command line reads these options, and does without torch until it draws
    from ..rules.noise import Key


class Shape(NamedTuple):
    """How large the next tree of an image may be.

    depth: levels below the root. width: children of a node, or candidates at a position. nodes: drafts to be checked.
    tree: name of a published tree that is drafted node by node; empty for one that grows by its scores. source: name of
    the :class:`Source` that drafts; empty for all that the drafter has.
    """

    depth: int
    width: int
    nodes: int
    tree: str = ""
    source: str = ""


NO_DRAFTS = Shape(0, 1, 0)
"""The shape of a lone root."""
_PROPOSAL_HELP = (
    "coupled: draft with the noise that the model samples with, so far more drafts are accepted. top-k: draft the "
    "most probable tokens, as in the EAGLE-2 and ADT-Tree papers."
)


class Source(NamedTuple):
    """A way in which a drafter can draft, for a policy that chooses.

    name: in shapes, and in the profile of what rounds cost. width: most candidates at a position; with one it makes
    chains. most: drafts that would usually be accepted of an endless number. half: the number of which half as many
    are.
    """

    name: str
    width: int = 256
    most: float = 5.0
    half: float = 20.0

    def hope(self, drafts: int) -> float:
        """Drafts of so many that are usually accepted, where every round has as many."""
        return self.most * drafts / (drafts + self.half)


@dataclass(frozen=True)
class DraftSettings(Settings):
    """Options of a method: these, which every drafter heeds, and those that a subclass adds with :func:`setting`."""

    proposal: str = choice("coupled", _PROPOSAL_HELP, ("coupled", "top-k"))
    expand_above: float = share(0.0, "Stop drafting below a node that is less probable than this; 0 is off.")
    keep_above: float = share(0.0, "Do not verify drafts that are less probable than this; 0 is off.")


class Slot(NamedTuple):
    """A slot, as a policy sees it. image: number of the image in it. position: of the image's last decided token."""

    image: int
    position: int


@dataclass(frozen=True)
class Scene:
    """What a policy is told of a decoding.

    columns: tokens in a row of the raster. length: tokens that are drawn of each image. keys: of every image's noise.
    sources: of drafts, to choose from. profile: what rounds cost; None for a policy that does not choose. deepest:
    levels of a tree at most; what is below is cut off.
    """

    columns: int
    length: int
    keys: Sequence[Key]
    sources: Sequence[Source] = ()
    profile: CostProfile | None = None
    deepest: int = 256


class Policy:
    """Chooses the shapes of one decoding's trees.

    A subclass writes ``choose``, and what else it needs. settings_type: class of its settings. help: what it does.
    needs_drafter: False for plain decoding. needs_network: only a drafter with a network can grow its trees.
    chooses: it chooses between the sources of its scene; a network has the window beside it then. If it
    uses the cost profile, it overrides ``measured_shapes``, and none of these shapes exceeds ``largest``.
    """

    settings_type: ClassVar[type[DraftSettings]] = DraftSettings
    help: ClassVar[str] = ""
    needs_drafter: ClassVar[bool] = True
    needs_network: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    drafts: bool = True
    """False: drafting ends for the images at work, and they are decoded plainly."""
    steps: float | None = None
    """Expected time of a round of the last chosen shapes, in plain steps; None if it is not known."""

    def __init__(self, settings: Any, scene: Scene):
        self.settings, self.scene = settings, scene

    @classmethod
    def largest(cls, settings: Any) -> Shape:
        """The largest shape that ``choose`` may give: memory is set aside for it."""
        return Shape(settings.depth, settings.width, settings.nodes)

    @classmethod
    def measured_shapes(cls, source: Source) -> Sequence[Shape]:
        """Return the shapes whose rounds are timed for the cost profile of a draft mode, with ascending `nodes` from 0.

        A policy that uses the profile overrides this.
        """
        return ()

    def begin(self) -> bool:
        """A new set of images begins. Are there drafts for them?"""
        return self.needs_drafter

    def choose(self, slots: Sequence[Slot]) -> list[Shape]:
        """A shape for the next tree of every slot."""
        return [self.largest(self.settings)] * len(slots)

    def on_verified(self, round: Round) -> None:
        """Learn from the round whose shapes were chosen last."""
