"""Settings of a run, each declared once: what it is where it is not given, its bounds, and what people are told of it.

Nodes, the command line, and what reads a stranger's file take all of it from here. How tokens are drawn and how far
acceptance is relaxed stand below; each policy declares the settings of its own drafts (``policies/``), and
``policies/recipe.py`` puts all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import AdtError, shown

BUNDLED = "bundled"
"""The name of the target that comes with the pack, and of its drafter."""
UPSTREAM = "upstream"
"""The noise of the scripts of the models' authors."""
LARGEST_SEED = 2**64 - 1
MOST_AT_ONCE = 4096
"""Pictures that are drawn at once, at most."""
LONGEST_TEXT = 10**6
"""Characters of a setting that is a text."""


class Option(NamedTuple):
    """All that is said of a setting.

    help: one or two sentences for people. kind: of its values; tuple stands for a list of whole numbers. low, high:
    bounds of a number, of each number of a list, or of the characters of a text; None for what is none. choices: of a
    word. length: numbers of a list, where there is a rule. step: of the arrows beside a number. name: in files and on
    the command line, if it is not the field's. stands: for its value in the help of the command line. repeated: it
    holds a list of values of its kind, and the option may be given several times.
    """

    default: Any
    help: str
    kind: type = float
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None
    step: float = 0.01
    name: str = ""
    stands: str = "X"
    repeated: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raises AdtError, which names the setting, for a value that it can't have. None is what was not given."""
        if value is not None or self.default is not None:
            if not self.holds(value):
                raise AdtError(f"`{name}` is {shown(value)}; {self._wanted()}.")

    def holds(self, value: Any) -> bool:
        """Can it have this value?"""
        if self.repeated:
            one = self._replace(repeated=False)
            return isinstance(value, list | tuple) and all(map(one.holds, value))
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.kind is str:
            return isinstance(value, str) and len(value) <= LONGEST_TEXT
        if self.kind is tuple:
            is_list = isinstance(value, list | tuple) and self.length in (None, len(value))
            return is_list and all(self._is_number(number) for number in value)
        return self._is_number(value) if self.kind in (int, float) else isinstance(value, self.kind)

    def _is_number(self, value: Any) -> bool:
        kinds = float | int if self.kind is float else int
        if not isinstance(value, kinds) or isinstance(value, bool) or not abs(value) < inf:
            return False
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def _wanted(self) -> str:
        """What a value has to be."""
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        if self.kind is str:
            return f"it must be a text of at most {LONGEST_TEXT} characters"
        if self.kind not in (tuple, int, float):
            return f"it must be a {self.kind.__name__}"
        if self.high is None:
            return f"it must be {_written(self.low)} or more"
        bounds = f"from {_written(self.low)} to {_written(self.high)}"
        if self.kind is tuple:
            return f"it must be a list of {'' if self.length is None else f'{self.length} '}whole numbers {bounds}"
        return f"it must be a {'whole number' if self.kind is int else 'number'} {bounds}"


def _written(bound: float | None) -> str:
    """A bound, as people write it."""
    if isinstance(bound, int) and bound > 2**20:
        return f"2**{bound.bit_length()} - 1"
    return f"{bound:g}"


def setting(default: Any, help: str, **more: Any) -> Any:
    """A field of a class of settings. more: what else :class:`Option` holds; its kind is the default's unless told."""
    more.setdefault("kind", float if default is None else type(default))
    return field(default=default, metadata={"option": Option(default, help, **more)})


def whole(default: int | None, help: str, low: int = 1, high: int | None = 256, **more: Any) -> Any:
    """A setting that is a whole number; from 1 to 256, unless it is told."""
    return setting(default, help, kind=int, low=low, high=high, **more)


def number(default: float | None, help: str, low: float, high: float | None = None, **more: Any) -> Any:
    """A setting that is a number."""
    return setting(default, help, low=low, high=high, **more)


def share(default: float | None, help: str, **more: Any) -> Any:
    """A setting that is a number from 0 to 1."""
    return number(default, help, 0.0, 1.0, **more)


def choice(default: str | None, help: str, choices: tuple[str, ...], **more: Any) -> Any:
    """A setting that is one of some words."""
    return setting(default, help, kind=str, choices=choices, **more)


def path(help: str, stands: str = "FILE", **more: Any) -> Any:
    """A setting that is the path of a file or folder; None where it is not given."""
    return setting(None, help, kind=Path, stands=stands, **more)


def paths(help: str, stands: str = "FILE", **more: Any) -> Any:
    """A setting that is a list of paths; () where none is given."""
    return setting((), help, kind=Path, stands=stands, repeated=True, **more)


def text(default: str | None, help: str, stands: str = "TEXT", **more: Any) -> Any:
    """A setting that is a text or a name."""
    return setting(default, help, kind=str, stands=stands, **more)


Section = TypeVar("Section", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Settings that belong together. A subclass declares each with :func:`setting`. AdtError for a value out of
    bounds."""

    def __post_init__(self) -> None:
        for field_name, option in self.fields().items():
            option.check(option.name or field_name, getattr(self, field_name))

    @classmethod
    def fields(cls) -> dict[str, Option]:
        """What is said of every setting, by the name of its field."""
        return {field.name: field.metadata["option"] for field in fields(cls) if "option" in field.metadata}

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The same by the names that files and the command line use."""
        return {option.name or field_name: option for field_name, option in cls.fields().items()}

    @classmethod
    def of(cls: type[Section], given: Mapping[str, Any]) -> Section:
        """Settings by the names that files and the command line use. What is None, or of others, is left out."""
        names = {option.name or field_name: field_name for field_name, option in cls.fields().items()}
        values = {names[name]: value for name, value in given.items() if name in names and value is not None}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def flat(self) -> dict[str, Any]:
        """The values by the names that files and the command line use."""
        return {option.name or name: getattr(self, name) for name, option in self.fields().items()}


@dataclass(frozen=True)
class Sampling(Settings):
    """How tokens are drawn. guidance: ``logits = uncond + guidance * (cond - uncond)``."""

    seed: int = whole(0, "Seed of the noise; the same seed gives the same image.", 0, LARGEST_SEED, stands="N")
    temperature: float = number(
        1.0, "Sampling temperature; 0 always picks the most probable token.", 0.0, 100.0, step=0.05, stands="T"
    )
    top_k: int = whole(0, "Sample from the K most probable tokens only; 0 is off.", 0, 2**31 - 1, stands="K")
    top_p: float = number(
        1.0, "Sample from the most probable tokens with a total probability of P; 1 is off.", 0.01, 1.0, stands="P"
    )
    guidance: float = number(3.0, "Scale of classifier-free guidance; 1 is off.", 0.0, 100.0, step=0.1, stands="S")
    noise: str = choice(
        "own",
        "own: the same image on every device. upstream: the image that the authors' script makes with this seed.",
        ("own", UPSTREAM),
    )
    noise_batch: int | None = whole(
        None,
        "Batch size of the authors' script, for upstream noise (default: the images of a prompt).",
        1,
        MOST_AT_ONCE,
        stands="N",
    )

    @property
    def greedy(self) -> bool:
        """Is the likeliest token taken, without noise?"""
        return self.temperature == 0

    def told(self) -> dict[str, Any]:
        """As :meth:`flat`, without noise that is our own, as before there was a choice: names of folders are digests of
        this."""
        later = () if self.noise == UPSTREAM else ("noise", "noise_batch")
        return {name: value for name, value in self.flat().items() if name not in later}


@dataclass(frozen=True)
class Lantern(Settings):
    """How far acceptance is relaxed.

    delta: of LANTERN, the probability that A may hold at a node, all its children together. The distribution of a token
    then moves by at most delta in total variation, if drafts are chosen without the noise (``top-k``). factor: of
    LANTERN++; A(x) may hold (factor - 1) p(x), and delta is not used. max_substitution: share of an image's tokens that
    may differ from the exact sample.
    """

    neighbours: int = whole(
        100, "LANTERN: number of nearest codebook neighbours to consider.", 1, 2**31 - 1, name="lantern_k"
    )
    delta: float = share(0.1, "LANTERN: maximum probability moved per token; 0 is exact.", name="lantern_delta")
    factor: float | None = number(
        None,
        "LANTERN++: limit, as a multiple of the draft's probability; 1 is exact.",
        1.0,
        1e6,
        step=0.1,
        name="lantern_lambda",
    )
    max_substitution: float = share(
        1.0, "Maximum share of tokens that may differ from the exact sample; 1 sets no limit."
    )

    def allowed(self, emitted: int, substituted: int) -> int:
        """Substitutions that an image may still make when it has ``emitted`` tokens with ``substituted`` among them."""
        return 2**31 if self.max_substitution == 1 else int(self.max_substitution * emitted) - substituted


def relaxed(given: Mapping[str, Any]) -> Lantern | None:
    """Relaxed acceptance by the names that files and the command line use. None, exact acceptance, without a rule."""
    rules = [name for name in ("lantern_delta", "lantern_lambda") if given.get(name) is not None]
    if len(rules) > 1:
        raise AdtError("`lantern_delta` and `lantern_lambda` can't be used together; give only one.")
    lantern = Lantern.of(given)  # checks the other numbers in any case
    return lantern if rules else None


def flat_lantern(lantern: Lantern | None) -> dict[str, Any]:
    """What :func:`relaxed` reads: the rule that does not hold is None."""
    flat = (lantern or Lantern()).flat()
    if lantern is None or lantern.factor is not None:
        flat["lantern_delta"] = None
    return flat
