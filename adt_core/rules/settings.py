"""Settings of a run, each declared once: what it is where it is not given, its bounds, and what people are told of it.

Nodes, the command line, and what reads a stranger's file take all of it from here. How tokens are drawn and how far
acceptance is relaxed stand below; each policy declares the settings of its own drafts (``policies/``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from ..errors import AdtError, shown


class Option(NamedTuple):
    """All that is said of a setting.

    help: one or two sentences for people. low, high: bounds of a number, None for what is none. choices: of a word.
    step: of the arrows beside a number. name: in files and on the command line, if it is not the field's.
    """

    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    step: float = 0.01
    name: str = ""

    @property
    def kind(self) -> type:
        """Of its values: str, int or float."""
        return str if self.choices else int if isinstance(self.low, int) else float

    def check(self, name: str, value: Any) -> None:
        """Raises AdtError, which names the setting, for a value that it can't have."""
        if self.choices and value not in self.choices:
            raise AdtError(f"{name} is {shown(value)}; choose one of {', '.join(self.choices)}.")
        if self.low is None or self.high is None or (value is None and self.default is None):
            return
        kinds = int if self.kind is int else int | float
        if not isinstance(value, kinds) or isinstance(value, bool) or not self.low <= value <= self.high:
            called = "whole number" if self.kind is int else "number"
            bounds = f"from {_written(self.low)} to {_written(self.high)}"
            raise AdtError(f"{name} is {shown(value)}; it must be a {called} {bounds}.")


def _written(bound: float) -> str:
    """A bound, as people write it."""
    if isinstance(bound, int) and bound > 2**20:
        return f"2**{bound.bit_length()} - 1"
    return f"{bound:g}"


def setting(default: Any, help: str, **more: Any) -> Any:
    """A field of a class of settings. more: what else :class:`Option` holds."""
    return field(default=default, metadata={"option": Option(default, help, **more)})


def whole(default: int, help: str, low: int = 1, high: int = 256, **more: Any) -> Any:
    """A setting that is a whole number; from 1 to 256, unless it is told."""
    return setting(default, help, low=low, high=high, **more)


def share(default: float, help: str, **more: Any) -> Any:
    """A setting that is a number from 0 to 1."""
    return setting(default, help, low=0.0, high=1.0, **more)


@dataclass(frozen=True)
class Settings:
    """Settings that belong together. A subclass declares each with :func:`setting`. AdtError for a value out of
    bounds."""

    def __post_init__(self) -> None:
        for field_name, option in self.options().items():
            option.check(option.name or field_name, getattr(self, field_name))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """What is said of every setting, by the name of its field."""
        return {one.name: one.metadata["option"] for one in fields(cls)}


@dataclass(frozen=True)
class Sampling(Settings):
    """How tokens are drawn. guidance: ``logits = uncond + guidance * (cond - uncond)``."""

    seed: int = whole(0, "Of the noise; the same seed gives the same image.", 0, 2**64 - 1)
    temperature: float = setting(1.0, "0 takes the likeliest token.", low=0.0, high=100.0, step=0.05)
    top_k: int = whole(0, "Draw from the K likeliest tokens only; 0 is off.", 0, 2**31 - 1)
    top_p: float = setting(
        1.0, "Draw from the likeliest tokens with a probability of P together; 1 is off.", low=0.01, high=1.0
    )
    guidance: float = setting(3.0, "Scale of classifier-free guidance; 1 is off.", low=0.0, high=100.0, step=0.1)


@dataclass(frozen=True)
class Lantern(Settings):
    """How far acceptance is relaxed.

    delta: of LANTERN, the probability that A may hold at a node, all its children together. The distribution of a token
    then moves by at most delta in total variation, if drafts are chosen without the noise (``top-k``). factor: of
    LANTERN++; A(x) may hold (factor - 1) p(x), and delta is not used. max_substitution: share of an image's tokens that
    may differ from the exact sample.
    """

    neighbours: int = whole(100, "Neighbours in the codebook that are looked at.", 1, 2**31 - 1, name="lantern_k")
    delta: float = share(0.1, "LANTERN: probability that may be moved per token; 0 is exact.", name="lantern_delta")
    factor: float | None = setting(
        None,
        "LANTERN++: a draft's own probability times this is its limit; 1 is exact.",
        low=1.0,
        high=1e6,
        step=0.1,
        name="lantern_lambda",
    )
    max_substitution: float = share(1.0, "Share of tokens that may differ from the exact sample; 1 sets no limit.")

    def allowed(self, emitted: int, substituted: int) -> int:
        """Substitutions that an image may still make when it has ``emitted`` tokens with ``substituted`` among them."""
        return 2**31 if self.max_substitution == 1 else int(self.max_substitution * emitted) - substituted
