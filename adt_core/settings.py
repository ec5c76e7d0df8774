"""Declarations of settings: default, bounds and help text.

The nodes, the command line and the readers of saved files all use the same declarations. This module declares the
settings of sampling and of relaxed acceptance. Each policy in `policies/` declares the settings of its drafts.
`recipe.py` combines all settings of a run.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .errors import AdtError, shown

BUNDLED = "bundled"
"""Name of the target model that this node pack contains, and of the drafter for this model."""
ORIGINAL_SCRIPT = "original-script"
"""Value of the setting `noise` for the noise of the model authors' original scripts."""
RAM = "ram"
DISK = "disk"
"""Values of the setting `memory`: layers that do not fit stay in main memory, or are read from the model's files."""
MAX_SEED = 2**64 - 1
MAX_BATCH_SIZE = 4096
"""Maximum number of images that are decoded together."""
MAX_TEXT_LENGTH = 10**6
"""Maximum number of characters of a text setting."""


class Option(NamedTuple):
    """Declaration of a setting.

    Attributes:
        default: Value if the user gives none.
        help: One or two sentences for users, shown by `--help` and as a tooltip.
        kind: Type of the value. `tuple` means a list of integers.
        low: Lower bound of a number, or of each number in a list; None for no bound.
        high: Upper bound of a number, or of each number in a list; None for no bound.
        choices: Valid values, if the setting is a string with a fixed set of values.
        length: Required length of a list; None for any length.
        step: Amount by which the arrow buttons of a node's input change a number.
        name: Name in files and on the command line, if it differs from the name of the dataclass field.
        metavar: Placeholder for the value in the help of the command line.
        repeated: Whether the setting is a list of values of the type `kind`. The user can then give the command-line
            option several times.
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
        """Raise AdtError if a value is not valid. None is valid if None is the default."""
        if value is not None or self.default is not None:
            if not self.accepts(value):
                key, bounds = self._requirement()
                raise AdtError(key, input=name, value=shown(value), **bounds)

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

    def _requirement(self) -> tuple[str, dict[str, object]]:
        """Return the key of the error for an invalid value, and the parameters that describe valid values."""
        if self.choices:
            return "setting.choice", {"choices": ", ".join(self.choices)}
        if self.kind is str:
            return "setting.text", {"most": MAX_TEXT_LENGTH}
        if self.kind not in (tuple, int, float):
            return "setting.kind", {"kind": self.kind.__name__}
        low: dict[str, object] = {"low": _format_bound(self.low)}
        if self.high is None:
            return "setting.least", low
        bounds = {**low, "high": _format_bound(self.high)}
        if self.kind is tuple and self.length is None:
            return "setting.numbers", bounds
        if self.kind is tuple:
            return "setting.some_numbers", {**bounds, "length": self.length}
        return "setting.whole_number" if self.kind is int else "setting.number", bounds


def _format_bound(bound: float | None) -> str:
    if isinstance(bound, int) and bound > 2**20:
        return f"2**{bound.bit_length()} - 1"
    return f"{bound:g}"


def setting(default: Any, help: str, **more: Any) -> Any:
    """Declare a field of a :class:`Settings` class.

    Args:
        **more: Other fields of :class:`Option`. Without `kind`, the kind is the type of the default, or float if the
            default is None.
    """
    more.setdefault("kind", float if default is None else type(default))
    return field(default=default, metadata={"option": Option(default, help, **more)})


def integer(default: int | None, help: str, low: int = 1, high: int | None = 256, **more: Any) -> Any:
    """Declare an integer setting; see :func:`setting`."""
    return setting(default, help, kind=int, low=low, high=high, **more)


def number(default: float | None, help: str, low: float, high: float | None = None, **more: Any) -> Any:
    """Declare a numeric setting; see :func:`setting`."""
    return setting(default, help, low=low, high=high, **more)


def fraction(default: float | None, help: str, **more: Any) -> Any:
    """Declare a setting from 0 to 1; see :func:`setting`."""
    return number(default, help, 0.0, 1.0, **more)


def choice(default: str | None, help: str, choices: tuple[str, ...], **more: Any) -> Any:
    """Declare a setting with a fixed set of values; see :func:`setting`."""
    return setting(default, help, kind=str, choices=choices, **more)


def path(help: str, metavar: str = "FILE", **more: Any) -> Any:
    """Declare a path setting, None by default; see :func:`setting`."""
    return setting(None, help, kind=Path, metavar=metavar, **more)


def paths(help: str, metavar: str = "FILE", **more: Any) -> Any:
    """Declare a setting with a list of paths, empty by default; see :func:`setting`."""
    return setting((), help, kind=Path, metavar=metavar, repeated=True, **more)


def text(default: str | None, help: str, metavar: str = "TEXT", **more: Any) -> Any:
    """Declare a text setting; see :func:`setting`."""
    return setting(default, help, kind=str, metavar=metavar, **more)


def plain(value: Any) -> Any:
    """Return a number, array, tensor, list or tuple with Python's own numbers. Other values are returned unchanged."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value)) if isinstance(value, tuple) else list(map(plain, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, int) else value


Section = TypeVar("Section", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Group of settings. A subclass is a dataclass, and declares each field with :func:`setting` or a similar function.

    Raises:
        AdtError: If a value is not valid.
    """

    def __post_init__(self) -> None:
        for field_name, option in self.fields().items():
            option.check(option.name or field_name, getattr(self, field_name))

    @classmethod
    def fields(cls) -> dict[str, Option]:
        """Return a dictionary from the field name of each setting to its declaration."""
        return {field.name: field.metadata["option"] for field in fields(cls) if "option" in field.metadata}

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return a dictionary from the name of each setting in files and on the command line to its declaration."""
        return {option.name or field_name: option for field_name, option in cls.fields().items()}

    @classmethod
    def of(cls: type[Section], given: Mapping[str, Any]) -> Section:
        """Create the settings from a dictionary of values.

        Args:
            given: Values by their names in files and on the command line. Entries with the value None, and entries for
                settings of other classes, are ignored.
        """
        names = {option.name or field_name: field_name for field_name, option in cls.fields().items()}
        values = {names[name]: value for name, value in given.items() if name in names and value is not None}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def flat(self) -> dict[str, Any]:
        """Return a dictionary from the name of each setting in files and on the command line to its value."""
        return {option.name or name: getattr(self, name) for name, option in self.fields().items()}


@dataclass(frozen=True)
class Sampling(Settings):
    """Settings of sampling.

    The guidance scale is applied as `logits = uncond + guidance_scale * (cond - uncond)`.
    """

    seed: int = integer(0, "Seed of the noise; the same seed gives the same image.", 0, MAX_SEED, metavar="N")
    temperature: float = number(
        1.0, "Sampling temperature; 0 always picks the most probable token.", 0.0, 100.0, step=0.05, metavar="T"
    )
    top_k: int = integer(0, "Sample from the K most probable tokens only; 0 is off.", 0, 2**31 - 1, metavar="K")
    top_p: float = number(
        1.0, "Sample from the most probable tokens with a total probability of P; 1 is off.", 0.01, 1.0, metavar="P"
    )
    guidance_scale: float = number(
        3.0, "Scale of classifier-free guidance; 1 is off.", 0.0, 100.0, step=0.1, metavar="S"
    )
    noise: str = choice(
        "adt-tree",
        "adt-tree: the same image on every device. original-script: the image that the authors' script makes with this "
        "seed.",
        ("adt-tree", ORIGINAL_SCRIPT),
    )
    noise_batch: int | None = integer(
        None,
        "Batch size of the authors' script, for its noise (default: the images of a prompt).",
        1,
        MAX_BATCH_SIZE,
        metavar="N",
    )

    @property
    def greedy(self) -> bool:
        """True if the most probable token is picked, without noise."""
        return self.temperature == 0

    @property
    def guided(self) -> bool:
        """True if an image needs a second row, without its prompt, for guidance."""
        return self.guidance_scale != 1

    def recorded(self) -> dict[str, Any]:
        """Return the values to save with results and to use in digests.

        `noise` and `noise_batch` are included only for the noise of the authors' scripts. Batch folders are named by a
        digest of these values. So folders that were made before these two settings existed keep their names.
        """
        omitted = () if self.noise == ORIGINAL_SCRIPT else ("noise", "noise_batch")
        return {name: value for name, value in self.flat().items() if name not in omitted}


@dataclass(frozen=True)
class Lantern(Settings):
    """Settings of relaxed acceptance.

    A(x) is a set of nearest codebook neighbours of a draft x. If the sampled token is in A(x), the draft x can be
    accepted as a substitute for the sampled token; see :mod:`.verify`.

    - LANTERN is used if `factor` is None. The sets A of sibling drafts together have at most the total probability
      `delta`. If drafts are chosen without the noise (`proposal` is `top-k`), the distribution of a token changes by at
      most `delta` in total variation.
    - LANTERN++ is used if `factor` is a number. A(x) has at most the probability (factor - 1) * p(x), where p(x) is the
      probability of x. `delta` is not used.
    """

    neighbours: int = integer(
        100, "LANTERN: number of nearest codebook neighbours to consider.", 1, 2**31 - 1, name="lantern_k"
    )
    delta: float = fraction(0.1, "LANTERN: maximum probability moved per token; 0 is exact.", name="lantern_delta")
    factor: float | None = number(
        None,
        "LANTERN++: limit, as a multiple of the draft's probability (lambda in the paper); 1 is exact.",
        1.0,
        1e6,
        step=0.1,
        name="lantern_factor",
    )
    max_substitution: float = fraction(
        1.0, "Maximum share of tokens that may differ from the exact sample; 1 sets no limit."
    )

    def allowed(self, emitted: int, substituted: int) -> int:
        """Return how many more substitutes an image may have."""
        return 2**31 if self.max_substitution == 1 else int(self.max_substitution * emitted) - substituted


def read_lantern(given: Mapping[str, Any]) -> Lantern | None:
    """Create the settings of relaxed acceptance from a dictionary of values; see :meth:`Settings.of`.

    Returns:
        The settings. None, for exact acceptance, if neither `lantern_delta` nor `lantern_factor` is given.

    Raises:
        AdtError: If both are given, or a value is not valid.
    """
    rules = [name for name in ("lantern_delta", "lantern_factor") if given.get(name) is not None]
    if len(rules) > 1:
        raise AdtError("lantern.both")
    lantern = Lantern.of(given)  # also checks the other values if there is no rule
    return lantern if rules else None


def flat_lantern(lantern: Lantern | None) -> dict[str, Any]:
    """Return the settings of relaxed acceptance as a dictionary that :func:`read_lantern` can read.

    `lantern_delta` or `lantern_factor` is None if its rule is not used. Both are None for exact acceptance.
    """
    flat = (lantern or Lantern()).flat()
    if lantern is None or lantern.factor is not None:
        flat["lantern_delta"] = None
    return flat
