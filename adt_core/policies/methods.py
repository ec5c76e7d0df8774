"""Table of all policies, and the user's choice: a method (the name of a policy) with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AdtError, shown
from ..settings import Option
from .adt_tree import AdtTree, AdtTreeSettings
from .auto import Auto
from .base import DraftSettings, Policy
from .fixed import STATIC_TREES, Eagle2, Plain, static
from .predicted import Predicted

PLAIN = "no-drafting"
"""Method without drafts, with which others are compared."""
DEFAULT = "auto"
ADT_TREE = "adt-tree"
EAGLE2 = "eagle2"
POLICIES: dict[str, type[Policy]] = {
    DEFAULT: Auto,
    ADT_TREE: AdtTree,
    EAGLE2: Eagle2,
    PLAIN: Plain,
    **{f"static:{name}": static(name) for name in STATIC_TREES},
    "predicted": Predicted,
}
"""Policies by the names of their methods. To add a policy, add a line at the end."""


@dataclass(frozen=True, init=False)
class Drafting:
    """A method, which is a key of `POLICIES`, and its settings."""

    method: str
    settings: DraftSettings

    def __init__(self, method: str = DEFAULT, **options: Any):
        """Check and store the method and its settings.

        Raises:
            AdtError: If the method is unknown, a setting does not belong to the method, or a value is not valid.
        """
        if method not in list(POLICIES):  # a list, because the value may not be hashable
            raise AdtError("setting.choice", input="method", value=shown(method), choices=", ".join(POLICIES))
        object.__setattr__(self, "method", method)
        self.check_options(options)
        object.__setattr__(self, "settings", self.policy.settings_type(**options))

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raise AdtError if one of the given settings, by name, belongs only to other methods."""
        own = self.policy.settings_type.options()
        for name in given:
            if name in options() and name not in own:
                raise AdtError("method.no_option", input=name, method=self.method)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Drafting:
        """Create a drafting from values by name. None, and settings that the method does not have, are ignored."""
        given = {name: value for name, value in values.items() if value is not None}
        method = given.pop("method", DEFAULT)
        names = POLICIES[method].settings_type.options() if method in list(POLICIES) else {}
        return cls(method, **{name: given[name] for name in names if name in given})

    def flat(self) -> dict[str, Any]:
        """Return the method and all of its settings by name, in the form that PNGs, traces and reports contain."""
        return {"method": self.method, **self.settings.flat()}

    def replace(self, **options: Any) -> Drafting:
        """Return a copy with other values. With another `method`, it keeps the settings that both methods have."""
        return Drafting.of({**self.flat(), **options})

    @property
    def policy(self) -> type[Policy]:
        return POLICIES[self.method]

    @property
    def proposal(self) -> str:
        return self.settings.proposal


def options() -> dict[str, Option]:
    """Return the declarations of the settings of all methods in the table, by name.

    The inputs of the Settings node have the same order. Saved workflows refer to these inputs by position. So new
    settings, and the settings of a new policy, must come last.
    """
    table = AdtTreeSettings.options()
    table |= {name: table.pop(name) for name in ("expand_above", "keep_above")}
    for policy in POLICIES.values():
        table |= {name: option for name, option in policy.settings_type.options().items() if name not in table}
    return table


def check_fit(method: str, network: bool) -> None:
    """Raise AdtError if a method needs a drafter that is only a network, and the drafter is not.

    Args:
        network: Whether the drafter is only a network: neither the Jacobi window, nor combined with it.
    """
    if method in POLICIES and POLICIES[method].needs_network and not network:
        raise AdtError("method.needs_network", method=method)
