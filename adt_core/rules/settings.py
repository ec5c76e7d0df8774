"""Settings of a run, each declared once: default, bounds and help text.

Nodes, the command line, and the readers of saved files use these declarations. This module has the settings of sampling
and of relaxed acceptance. Each policy declares the settings of its drafts (`policies/`), and `policies/recipe.py`
combines all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import AdtError, shown

BUNDLED = "bundled"
"""Name of the target that is part of the pack, and of its drafter."""
UPSTREAM = "upstream"
"""Noise of the model authors' scripts."""
MAX_SEED = 2**64 - 1
"""Largest seed."""
MAX_BATCH_SIZE = 4096
"""Maximum number of images that are decoded together."""
MAX_TEXT_LENGTH = 10**6
"""Maximum number of characters of a text setting."""


class Option(NamedTuple):
    """Declaration of a setting.

    Attributes:
        default: Value if nothing is given.
        help: One or two sentences for users, shown by `--help` and as a tooltip.
        kind: Type of the values; tuple stands for a list of integers.
        low: Lower bound of a number, or of each number of a list; None for no bound.
        high: Upper bound.
        choices: Valid values of a text with a fixed set of values.
        length: Number of elements of a list; None for any.
        step: Step of the arrows beside a number in the interface.
        name: Name in files and on the command line, if it differs from the field's.
        metavar: Placeholder of the value in the help of the command line.
        repeated: Whether the setting is a list of values of its kind, and the option can be given several times.
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
    metavar: str = "X"
    repeated: bool = False

    def check(self, name: str, value: Any) -> None:
        """Check a value; None is valid if it is the default.

        Args:
            name: Name of the setting, for the error.
            value: The value.

        Raises:
            AdtError: If the value is not valid.
        """
        if value is not None or self.default is not None:
            if not self.accepts(value):
                raise AdtError(f"`{name}` is {shown(value)}; {self._requirement()}.")

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid."""
        if self.repeated:
            one = self._replace(repeated=False)
            return isinstance(value, list | tuple) and all(map(one.accepts, value))
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.kind is str:
            return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH
        if self.kind is tuple:
            is_list = isinstance(value, list | tuple) and self.length in (None, len(value))
            return is_list and all(self._is_number(number) for number in value)
        return self._is_number(value) if self.kind in (int, float) else isinstance(value, self.kind)

    def _is_number(self, value: Any) -> bool:
        kinds = float | int if self.kind is float else int
        if not isinstance(value, kinds) or isinstance(value, bool) or not abs(value) < inf:
            return False
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def _requirement(self) -> str:
        """Return the description of valid values, for errors."""
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        if self.kind is str:
            return f"it must be a text of at most {MAX_TEXT_LENGTH} characters"
        if self.kind not in (tuple, int, float):
            return f"it must be a {self.kind.__name__}"
        if self.high is None:
            return f"it must be {_format_bound(self.low)} or more"
        bounds = f"from {_format_bound(self.low)} to {_format_bound(self.high)}"
        if self.kind is tuple:
            return f"it must be a list of {'' if self.length is None else f'{self.length} '}whole numbers {bounds}"
        return f"it must be a {'whole number' if self.kind is int else 'number'} {bounds}"


def _format_bound(bound: float | None) -> str:
    if isinstance(bound, int) and bound > 2**20:
        return f"2**{bound.bit_length()} - 1"
    return f"{bound:g}"


def setting(default: Any, help: str, **more: Any) -> Any:
    """Declare a field of a :class:`Settings` class.

    Args:
        default: Value if nothing is given.
        help: One or two sentences for users.
        **more: Further fields of :class:`Option`; `kind` is the type of the default unless given.
    """
    more.setdefault("kind", float if default is None else type(default))
    return field(default=default, metadata={"option": Option(default, help, **more)})


def integer(default: int | None, help: str, low: int = 1, high: int | None = 256, **more: Any) -> Any:
    """Declare an integer setting; see :func:`setting`.

    Args:
        default: Value if nothing is given.
        help: One or two sentences for users.
        low: Lower bound.
        high: Upper bound; None for no bound.
        **more: Further fields of :class:`Option`.
    """
    return setting(default, help, kind=int, low=low, high=high, **more)


def number(default: float | None, help: str, low: float, high: float | None = None, **more: Any) -> Any:
    """Declare a numeric setting; see :func:`setting`.

    Args:
        default: Value if nothing is given.
        help: One or two sentences for users.
        low: Lower bound.
        high: Upper bound; None for no bound.
        **more: Further fields of :class:`Option`.
    """
    return setting(default, help, low=low, high=high, **more)


def fraction(default: float | None, help: str, **more: Any) -> Any:
    """Declare a setting from 0 to 1; see :func:`setting`.

    Args:
        default: Value if nothing is given.
        help: One or two sentences for users.
        **more: Further fields of :class:`Option`.
    """
    return number(default, help, 0.0, 1.0, **more)


def choice(default: str | None, help: str, choices: tuple[str, ...], **more: Any) -> Any:
    """Declare a setting with a fixed set of values; see :func:`setting`.

    Args:
        default: Value if nothing is given.
        help: One or two sentences for users.
        choices: Valid values.
        **more: Further fields of :class:`Option`.
    """
    return setting(default, help, kind=str, choices=choices, **more)


def path(help: str, metavar: str = "FILE", **more: Any) -> Any:
    """Declare a path setting, None by default; see :func:`setting`.

    Args:
        help: One or two sentences for users.
        metavar: Placeholder in the help of the command line.
        **more: Further fields of :class:`Option`.
    """
    return setting(None, help, kind=Path, metavar=metavar, **more)


def paths(help: str, metavar: str = "FILE", **more: Any) -> Any:
    """Declare a setting with a list of paths, empty by default; see :func:`setting`.

    Args:
        help: One or two sentences for users.
        metavar: Placeholder in the help of the command line.
        **more: Further fields of :class:`Option`.
    """
    return setting((), help, kind=Path, metavar=metavar, repeated=True, **more)


def text(default: str | None, help: str, metavar: str = "TEXT", **more: Any) -> Any:
    """Declare a text setting; see :func:`setting`.

    Args:
        default: Value if nothing is given.
        help: One or two sentences for users.
        metavar: Placeholder in the help of the command line.
        **more: Further fields of :class:`Option`.
    """
    return setting(default, help, kind=str, metavar=metavar, **more)


Section = TypeVar("Section", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Group of settings. A subclass declares each of them with :func:`setting`.

    Raises:
        AdtError: If a value is not valid.
    """

    def __post_init__(self) -> None:
        for field_name, option in self.fields().items():
            option.check(option.name or field_name, getattr(self, field_name))

    @classmethod
    def fields(cls) -> dict[str, Option]:
        """Return the declaration of each setting by the name of its field."""
        return {field.name: field.metadata["option"] for field in fields(cls) if "option" in field.metadata}

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the declaration of each setting by its name in files and on the command line."""
        return {option.name or field_name: option for field_name, option in cls.fields().items()}

    @classmethod
    def of(cls: type[Section], given: Mapping[str, Any]) -> Section:
        """Make the settings from values by their names in files and on the command line.

        Args:
            given: Values. None, and names that do not belong to this class, are ignored.
        """
        names = {option.name or field_name: field_name for field_name, option in cls.fields().items()}
        values = {names[name]: value for name, value in given.items() if name in names and value is not None}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def flat(self) -> dict[str, Any]:
        """Return the values by their names in files and on the command line."""
        return {option.name or name: getattr(self, name) for name, option in self.fields().items()}


@dataclass(frozen=True)
class Sampling(Settings):
    """Settings of sampling.

    The guidance scale is applied as `logits = uncond + guidance * (cond - uncond)`.
    """

    seed: int = integer(0, "Seed of the noise; the same seed gives the same image.", 0, MAX_SEED, metavar="N")
    temperature: float = number(
        1.0, "Sampling temperature; 0 always picks the most probable token.", 0.0, 100.0, step=0.05, metavar="T"
    )
    top_k: int = integer(0, "Sample from the K most probable tokens only; 0 is off.", 0, 2**31 - 1, metavar="K")
    top_p: float = number(
        1.0, "Sample from the most probable tokens with a total probability of P; 1 is off.", 0.01, 1.0, metavar="P"
    )
    guidance: float = number(3.0, "Scale of classifier-free guidance; 1 is off.", 0.0, 100.0, step=0.1, metavar="S")
    noise: str = choice(
        "own",
        "own: the same image on every device. upstream: the image that the authors' script makes with this seed.",
        ("own", UPSTREAM),
    )
    noise_batch: int | None = integer(
        None,
        "Batch size of the authors' script, for upstream noise (default: the images of a prompt).",
        1,
        MAX_BATCH_SIZE,
        metavar="N",
    )

    @property
    def greedy(self) -> bool:
        """True if the most probable token is picked, without noise."""
        return self.temperature == 0

    def recorded(self) -> dict[str, Any]:
        """Return the values without the kind of noise if it is our own.

        Older versions had no choice of noise, and names of folders are digests of these values.
        """
        omitted = () if self.noise == UPSTREAM else ("noise", "noise_batch")
        return {name: value for name, value in self.flat().items() if name not in omitted}


@dataclass(frozen=True)
class Lantern(Settings):
    """Settings of relaxed acceptance (:mod:`.verify`).

    With LANTERN, a token's distribution changes by at most `delta` in total variation if drafts are chosen without the
    noise (proposal `top-k`). With LANTERN++, set by `factor`, A(x) may have the probability (factor - 1) p(x), and
    `delta` is not used.
    """

    neighbours: int = integer(
        100, "LANTERN: number of nearest codebook neighbours to consider.", 1, 2**31 - 1, name="lantern_k"
    )
    delta: float = fraction(0.1, "LANTERN: maximum probability moved per token; 0 is exact.", name="lantern_delta")
    factor: float | None = number(
        None,
        "LANTERN++: limit, as a multiple of the draft's probability; 1 is exact.",
        1.0,
        1e6,
        step=0.1,
        name="lantern_lambda",
    )
    max_substitution: float = fraction(
        1.0, "Maximum share of tokens that may differ from the exact sample; 1 sets no limit."
    )

    def allowed(self, emitted: int, substituted: int) -> int:
        """Return how many more substitutes an image may have.

        Args:
            emitted: Number of its tokens so far.
            substituted: Number of substitutes among them.
        """
        return 2**31 if self.max_substitution == 1 else int(self.max_substitution * emitted) - substituted


def read_lantern(given: Mapping[str, Any]) -> Lantern | None:
    """Return relaxed acceptance from values by their names in files and on the command line.

    Args:
        given: Values, of which other names are ignored.

    Returns:
        The settings; None for exact acceptance, if neither `lantern_delta` nor `lantern_lambda` is given.

    Raises:
        AdtError: If both are given, or a value is not valid.
    """
    rules = [name for name in ("lantern_delta", "lantern_lambda") if given.get(name) is not None]
    if len(rules) > 1:
        raise AdtError("`lantern_delta` and `lantern_lambda` can't be used together; give only one.")
    lantern = Lantern.of(given)  # also checks the other values if there is no rule
    return lantern if rules else None


def flat_lantern(lantern: Lantern | None) -> dict[str, Any]:
    """Return the values that :func:`read_lantern` reads, with None for the rule that is not used."""
    flat = (lantern or Lantern()).flat()
    if lantern is None or lantern.factor is not None:
        flat["lantern_delta"] = None
    return flat
