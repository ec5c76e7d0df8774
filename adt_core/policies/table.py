"""Table of policies, and the choice of one of them with its settings."""

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
"""Method without drafts, the baseline of all others."""
DEFAULT = "auto"
"""Default method."""
POLICIES: dict[str, type[Policy]] = {
    DEFAULT: Auto,
    "adt-tree": AdtTree,
    "eagle2": Fixed,
    PLAIN: Plain,
    **{f"static:{name}": static(name) for name in STATIC_TREES},
}
"""Policies by the name of their method. To add a policy, add a line at the end."""


@dataclass(frozen=True, init=False)
class Drafting:
    """A method and its options.

    Attributes:
        method: Key of POLICIES.
        settings: Options of its policy.
    """

    method: str
    settings: DraftSettings

    def __init__(self, method: str = DEFAULT, **options: Any):
        """Check and store the method and its options.

        Args:
            method: Key of POLICIES.
            **options: Options of the method, by their names.

        Raises:
            AdtError: If the method is unknown, an option does not belong to it, or a value is not valid.
        """
        if method not in list(POLICIES):  # a list, because the value may not be hashable
            raise AdtError(f"`method` is {shown(method)}; choose one of {', '.join(POLICIES)}.")
        object.__setattr__(self, "method", method)
        self.check_options(options)
        object.__setattr__(self, "settings", self.policy.settings_type(**options))

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raise AdtError if an option belongs to another method."""
        own = self.policy.settings_type.options()
        for name in given:
            if name in options() and name not in own:
                raise AdtError(
                    f"`{name}` is not an option of the method {self.method!r}; remove it, or choose another `method`."
                )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Drafting:
        """Return a method and its options from values that may include other settings.

        Args:
            values: Values by option name; None, and options that the method does not have, are ignored.
        """
        given = {name: value for name, value in values.items() if value is not None}
        method = given.pop("method", DEFAULT)
        names = POLICIES[method].settings_type.options() if method in list(POLICIES) else {}
        return cls(method, **{name: given[name] for name in names if name in given})

    def flat(self) -> dict[str, Any]:
        """Return the method and all its options by name, as saved in PNGs, traces and reports."""
        return {"method": self.method, **self.settings.flat()}

    def replace(self, **options: Any) -> Drafting:
        """Return a copy with other options.

        Args:
            **options: New values. If `method` is among them, options that both methods have are kept.
        """
        return Drafting.of({**self.flat(), **options})

    @property
    def policy(self) -> type[Policy]:
        return POLICIES[self.method]

    @property
    def proposal(self) -> str:
        return self.settings.proposal


def options() -> dict[str, Option]:
    """Return all options of all methods in the table.

    Their order is that of the Settings node's inputs, which saved workflows refer to by position. So options of new
    policies come last.
    """
    table = AdtTreeSettings.options()
    table |= {name: table.pop(name) for name in ("expand_above", "keep_above")}
    for policy in POLICIES.values():
        table |= {name: option for name, option in policy.settings_type.options().items() if name not in table}
    return table


def check_fit(method: str, network: bool) -> None:
    """Check that a method can be used with a drafter.

    Args:
        method: Key of POLICIES.
        network: Whether the drafter is a network without the Jacobi window.

    Raises:
        AdtError: If the method needs such a network.
    """
    if method in POLICIES and POLICIES[method].needs_network and not network:
        raise AdtError(
            f"method {method!r} needs a drafter network; choose 'eagle2' or 'adt-tree' with the drafter 'jacobi'."
        )
