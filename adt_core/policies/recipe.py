"""Settings that determine an image and its speed, apart from the prompt.

The command line, the nodes, PNGs, traces, records, batch folders, cost profiles and trainings all describe a run by a
:class:`Recipe`, or by parts of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any

from ..rules.settings import (
    BUNDLED,
    Lantern,
    Option,
    Sampling,
    Settings,
    choice,
    flat_lantern,
    integer,
    read_lantern,
    setting,
    text,
)
from .costs import CostProfile
from .table import DEFAULT, POLICIES, Drafting
from .table import options as drafting_options

DTYPES = ("float32", "float64", "bfloat16", "float16")
"""Names of the dtypes."""
MAX_CODE = 2**20
"""Upper bound of a code."""
MAX_PIXELS = 2**14
"""Maximum width and height of an image in pixels."""
MAX_IMAGE_INDEX = 2**32
"""Upper bound of an image's index among the images of its prompt."""


@dataclass(frozen=True)
class Loading(Settings):
    """Target and its precision.

    `tiled` is set by the loaded target: whether batch-invariant mode is active, which some devices do not support.
    """

    model: str = text(BUNDLED, "Folder or weights file of the target model.", "PATH")
    dtype: str = choice(
        "float32",
        "Precision of the computation; with `exact` on, drafting does not change the image in any of them.",
        DTYPES,
    )
    exact: str = choice(
        "on",
        "Batch-invariant mode: drafting does not change the image in bfloat16 and float16 either; off is faster.",
        ("on", "off"),
    )
    weights: str | None = choice(
        None, "Store the transformer's matrices with one byte per number (default: as `dtype`).", ("int8", "fp8")
    )
    size: tuple[int, int] | None = setting(
        None,
        "Image size in pixels, for models that support several sizes (default: the model's usual size).",
        kind=tuple,
        low=0,
        high=MAX_PIXELS,
        length=2,
        metavar="WxH",
    )
    tiled: bool = False


_DRAFTER_HELP = (
    "Folder of a drafter network; jacobi, which needs no files; or PATH+jacobi for both in one tree (default: bundled "
    "for the bundled model, else the published drafter next to the model, else jacobi)."
)
_NEGATIVE_HELP = "Negative prompt: what guidance steers away from (default: none; for Emu3, its published prompt)."


@dataclass(frozen=True)
class Recipe(Settings):
    """Settings that determine an image, apart from its prompt.

    Attributes:
        sampling: How tokens are sampled.
        drafting: Method and its options.
        lantern: Relaxed acceptance; None for exact acceptance.
        loading: Target and its precision.
        profile: Cost profile from a PNG; None to use the device's.
        drafter: Name for `load_drafter`; None if there is no drafter or the default has not been chosen yet.
        negative: Negative prompt.
        suffix: Text to append to every prompt.
        kept: Codes that every image begins with, in raster order.
        sources: Source images, as :mod:`...app.continuation` encodes them.
        image_index: Index of the first image among the images of its prompt.
    """

    sampling: Sampling = Sampling()
    drafting: Drafting = Drafting()
    lantern: Lantern | None = None
    loading: Loading = Loading()
    profile: CostProfile | None = None
    drafter: str | None = text(None, _DRAFTER_HELP, "PATH")
    negative: str = text("", _NEGATIVE_HELP)
    suffix: str = text("", "Appended to every prompt.")
    kept: tuple[int, ...] = setting((), "Codes that the image starts with.", low=0, high=MAX_CODE)
    sources: tuple[int, ...] = setting((), "Source images.", low=0, high=MAX_CODE)
    image_index: int = integer(0, "Index of the image among the images of its prompt.", 0, MAX_IMAGE_INDEX)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the declarations of all settings, by their names in files and on the command line."""
        sections = Loading.options(), super().options(), method_options(), Sampling.options(), Lantern.options()
        return {name: option for section in sections for name, option in section.items()}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all values that :meth:`of` reads."""
        return *cls.options(), "profile"

    @classmethod
    def of(cls, given: Mapping[str, Any], usual: Mapping[str, Any] = {}) -> Recipe:  # type: ignore[override]
        """Make a recipe from values by their names in files and on the command line.

        Args:
            given: Values; None stands for the default.
            usual: Defaults that replace the settings' own defaults.

        Raises:
            AdtError: If a value is not valid.
        """
        chosen = {**usual, **{name: value for name, value in given.items() if value is not None}}
        profile = chosen.get("profile")
        own: dict[str, Any] = {name: chosen[name] for name in cls.fields() if name in chosen}
        own |= {name: tuple(own.get(name, ())) for name in ("kept", "sources")}
        return cls(
            Sampling.of(chosen),
            Drafting.of(chosen),
            read_lantern(chosen),
            Loading.of(chosen),
            CostProfile.from_json(profile) if profile is not None else None,
            **own,
        )

    @property
    def drafter_name(self) -> str:
        """Short name of the drafter: the last part of its path, or "none"."""
        return PurePath(self.drafter).name if self.drafter else "none"

    def flat(self) -> dict[str, Any]:
        """Return the settings as plain JSON types, for :meth:`of`. The decoding adds the `profile` that it used."""
        size = self.loading.size
        return {
            **super().flat(),
            **self.loading.flat(),
            **self.sampling.flat(),
            **self.drafting.flat(),
            **flat_lantern(self.lantern),
            "negative": self.negative.strip(),
            "size": list(size) if size else None,
            "kept": list(self.kept),
            "sources": list(self.sources),
        }

    def sections(self) -> dict[str, Any]:
        """Return the settings by group as plain JSON types, for traces, reports and records."""
        return {
            "method": self.drafting.method,
            "proposal": self.drafting.proposal,
            "seed": self.sampling.seed,
            "dtype": self.loading.dtype,
            "weights": self.loading.weights,
            "exact": self.loading.tiled,
            "sampling": self.sampling.recorded(),
            "drafting": self.drafting.flat(),
            "lantern": self.lantern and asdict(self.lantern),
        }

    def image_settings(self, weights: Sequence[str], grid: Sequence[int], network: str | None) -> dict[str, Any]:
        """Return the settings that change an image, as plain JSON types. Drafting changes it only with LANTERN.

        Batch folders are named by a digest of the result. So that these names do not change, a setting that a later
        version adds is included only if it differs from the default.

        Args:
            weights: Fingerprints of the target's weights.
            grid: Rows and columns of the image.
            network: Fingerprint of the drafter's weights; None without weights.
        """
        drafts = {**self.drafting.flat(), "drafter": self.drafter_name, "drafter_weights": network}
        return {
            "weights": list(weights),
            "stored": self.loading.weights,
            "grid": list(grid),
            "dtype": self.loading.dtype,
            **({"exact": True} if self.loading.tiled else {}),
            "sampling": self.sampling.recorded(),
            **({"suffix": self.suffix} if self.suffix else {}),
            "negative": self.negative.strip(),
            "lantern": self.lantern and {**asdict(self.lantern), **drafts},
        }

    def memory_key(self) -> Hashable:
        """Return a key of the settings that a decoding's memory and captured graphs depend on."""
        loading = self.loading
        sampling = replace(self.sampling, seed=0)
        return sampling, self.drafting.settings, self.lantern, loading.dtype, loading.weights, loading.tiled

    def cost_key(self) -> tuple[str, str]:
        """Return descriptions of the precision and the sampling, on which the cost of a round depends."""
        numbers = f"{self.loading.dtype}{' exact' if self.loading.tiled else ''}"
        drawn = "greedy" if self.sampling.greedy else "drawn"
        return f"{numbers}, {self.loading.weights or 'plain weights'}", drawn + (", relaxed" if self.lantern else "")


def method_options() -> dict[str, Option]:
    """Return the declarations of the method and of all methods' options, also of policies that were added."""
    methods = "; ".join(f"{name}: {policy.help}" for name, policy in POLICIES.items())
    method = Option(DEFAULT, methods, str, choices=tuple(POLICIES), metavar="METHOD")
    return {"method": method, **drafting_options()}
