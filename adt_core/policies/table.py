"""The table of policies, and how a user says which one drafts and with what settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AdtError, shown
from ..rules.settings import Option
from .adt_tree import AdtTree, AdtTreeSettings
from .auto import Auto
from .base import DraftSettings, Policy
from .fixed import STATIC_TREES, Fixed, Plain, static

PLAIN = "autoregressive"
"""The method that drafts nothing; all others are measured against it."""
DEFAULT = "auto"
"""The method where none is named."""
POLICIES: dict[str, type[Policy]] = {
    DEFAULT: Auto,
    "adt-tree": AdtTree,
    "eagle2": Fixed,
    PLAIN: Plain,
    **{f"static:{name}": static(name) for name in STATIC_TREES},
}
"""The policies by the name of their method, those for everyday use first. A new policy is a line here."""


@dataclass(frozen=True, init=False)
class Drafting:
    """How drafts are made. method: a key of POLICIES. settings: of its policy."""

    method: str
    settings: DraftSettings

    def __init__(self, method: str = DEFAULT, **options: Any):
        """options: of the method, by their names.

        Raises AdtError for a method that is unknown, an option that it does not have, and a value out of bounds.
        """
        if method not in list(POLICIES):  # a list, because what has no hash may be asked for, too
            raise AdtError(f"`method` is {shown(method)}; choose one of {', '.join(POLICIES)}.")
        object.__setattr__(self, "method", method)
        self.check_options(options)
        object.__setattr__(self, "settings", self.policy.settings_type(**options))

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raises AdtError for an option of another method."""
        own = self.policy.settings_type.options()
        for name in given:
            if name in options() and name not in own:
                raise AdtError(
                    f"`{name}` is not an option of the method {self.method!r}; remove it, or choose another `method`."
                )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Drafting:
        """The same from options of several methods: None, and what the method does not have, is left out."""
        given = {name: value for name, value in values.items() if value is not None}
        method = given.pop("method", DEFAULT)
        names = POLICIES[method].settings_type.options() if method in list(POLICIES) else {}
        return cls(method, **{name: given[name] for name in names if name in given})

    def flat(self) -> dict[str, Any]:
        """The method and all its options by their names, as PNGs, traces and reports carry them."""
        return {"method": self.method, **self.settings.flat()}

    def replace(self, **options: Any) -> Drafting:
        """With these options in place of its own; another method keeps what it has in common with this one."""
        return Drafting.of({**self.flat(), **options})

    @property
    def policy(self) -> type[Policy]:
        return POLICIES[self.method]

    @property
    def proposal(self) -> str:
        return self.settings.proposal


def options() -> dict[str, Option]:
    """Every option of every method in the table but the method itself.

    Their order is that of the Settings node's inputs, which saved workflows name by position: what comes with another
    policy goes last.
    """
    table = AdtTreeSettings.options()
    table |= {name: table.pop(name) for name in ("expand_above", "keep_above")}
    for policy in POLICIES.values():
        table |= {name: option for name, option in policy.settings_type.options().items() if name not in table}
    return table


def check_fit(method: str, network: bool) -> None:
    """Raises AdtError if the method needs a network without a window, and there is none."""
    if method in POLICIES and POLICIES[method].needs_network and not network:
        raise AdtError(
            f"method {method!r} needs a drafter network; choose 'eagle2' or 'adt-tree' with the drafter 'jacobi'."
        )
