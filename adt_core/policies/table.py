"""The table of policies, and how a user says which one drafts and with what settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from ..errors import AdtError
from .adt_tree import AdtTree, AdtTreeSettings
from .auto import Auto
from .base import Policy, Settings, setting, share
from .fixed import STATIC_TREES, Fixed, Plain, static

PLAIN = "autoregressive"
"""The method that drafts nothing; all others are measured against it."""
POLICIES: dict[str, type[Policy]] = {
    PLAIN: Plain,
    "eagle2": Fixed,
    "adt-tree": AdtTree,
    "auto": Auto,
    **{f"static:{name}": static(name) for name in STATIC_TREES},
}
"""The policies by the name of their method. A new policy is a line here."""


@dataclass(frozen=True)
class Proposals(Settings):
    """What drafters are told, whatever the policy."""

    proposal: str = setting(
        "coupled",
        "coupled: guess with the noise that the model will draw with, which hits far more often. top-k: guess the "
        "likeliest tokens, as the EAGLE-2 and ADT-Tree papers do.",
        choices=("coupled", "top-k"),
    )
    expand_above: float = share(
        0.0, "Guess no further below a node that is less probable than this; 0 switches it off."
    )
    keep_above: float = share(0.0, "Do not check a guess that is less probable than this; 0 switches it off.")


@dataclass(frozen=True, init=False)
class Drafting:
    """How drafts are made. method: a key of POLICIES. proposals: for the drafter. settings: for the method's policy."""

    method: str
    proposals: Proposals
    settings: Settings

    def __init__(self, method: str = "adt-tree", **options: Any):
        """options: by their names, those of :class:`Proposals` and of the method's policy.

        Raises AdtError for a method that is unknown, an option that it does not have, and a value out of bounds.
        """
        if method not in POLICIES:
            raise AdtError(f"method is {method!r}; choose one of {', '.join(POLICIES)}.")
        known = _names(POLICIES[method].settings_type)
        unknown = [name for name in options if name not in (*known, *_names(Proposals))]
        if unknown:
            raise AdtError(f"method {method!r} has no option {unknown[0]!r}; leave it out.")
        drafter_options = {name: options.pop(name) for name in _names(Proposals) if name in options}
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "proposals", Proposals(**drafter_options))
        object.__setattr__(self, "settings", POLICIES[method].settings_type(**options))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Drafting:
        """The same from options of several methods: None, and what the method does not have, is left out."""
        given = {name: value for name, value in values.items() if value is not None}
        method = given.pop("method", "adt-tree")
        known = _names(POLICIES[method].settings_type) if method in POLICIES else ()
        return cls(method, **{name: given[name] for name in (*_names(Proposals), *known) if name in given})

    def flat(self) -> dict[str, Any]:
        """The method and all its options by their names, as PNGs, traces and reports carry them."""
        return {"method": self.method, **asdict(self.proposals), **asdict(self.settings)}

    def replace(self, **options: Any) -> Drafting:
        """With these options in place of its own; another method keeps what it has in common with this one."""
        return Drafting.of({**self.flat(), **options})

    @property
    def policy(self) -> type[Policy]:
        return POLICIES[self.method]

    @property
    def proposal(self) -> str:
        return self.proposals.proposal


class Option(NamedTuple):
    """An option of drafting, for the command line and the Settings node; see :func:`.base.setting`."""

    name: str
    default: Any
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    advanced: bool


def options() -> dict[str, Option]:
    """Every option of every method in the table but the method itself.

    Their order is that of the Settings node's inputs, which saved workflows name by position: what comes with
    another policy goes last.
    """
    proposal, *pruning = fields(Proposals)
    of_policies = [one for policy in POLICIES.values() for one in fields(policy.settings_type)]
    found: dict[str, Option] = {}
    for one in (proposal, *fields(AdtTreeSettings), *pruning, *of_policies):
        found.setdefault(one.name, Option(one.name, one.default, **one.metadata))
    return found


def check_fit(method: str, network: bool) -> None:
    """Raises AdtError if the method's trees can be grown by a network alone, and there is none, or none without a window."""
    if method in POLICIES and POLICIES[method].needs_network and not network:
        raise AdtError(
            f"method {method!r} needs a drafter network; choose 'eagle2' or 'adt-tree' with the drafter 'jacobi'."
        )


def _names(settings: type[Settings]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(settings))
