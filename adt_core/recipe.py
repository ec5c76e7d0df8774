"""Recipe: the settings that determine an image and the speed of its generation, apart from the prompt.

A :class:`Recipe` describes a run. The command line and the nodes create recipes. PNGs, traces, benchmark records, batch
folders, cost profiles and drafter trainings save a recipe or parts of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any

from .policies.choices import RELAXABLE, RELAXED
from .policies.cost_profile import CostProfile
from .policies.methods import DEFAULT, POLICIES, Drafting
from .policies.methods import options as drafting_options
from .settings import (
    BUNDLED,
    DISK,
    RAM,
    Lantern,
    Option,
    Sampling,
    Settings,
    choice,
    flat_lantern,
    integer,
    number,
    read_lantern,
    setting,
    text,
)

AUTO = "auto"
"""Value of the settings `dtype` and `device` that leaves the choice to `run.resolve`."""
DTYPES = (AUTO, "float32", "float64", "bfloat16", "float16")
MAX_CODE = 2**20
"""Upper bound of a code (an image token)."""
MAX_PIXELS = 2**14
"""Maximum width and height of an image."""
MAX_IMAGE_INDEX = 2**32


@dataclass(frozen=True)
class Loading(Settings):
    """Settings of loading the target model: its files and its precision.

    Users cannot set `tiled`. It is True if batch-invariant mode is active in the loaded target. Some devices do not
    support this mode, so `tiled` can be False although `exact` is on.
    """

    model: str = text(BUNDLED, "Folder or weights file of the target model.", "PATH")
    dtype: str = choice(
        AUTO,
        "Precision of the computation; with `exact` on, drafting does not change the image in any of them. auto: "
        "float32 for the bundled model and on a CPU, else bfloat16 or what the device computes well.",
        DTYPES,
    )
    exact: str = choice(
        "on",
        "Batch-invariant mode: drafting does not change the image in bfloat16 and float16 either; off is faster.",
        ("on", "off"),
    )
    weights: str | None = choice(
        None,
        "Store the transformer's matrices with 8 or 4 bits per number (default: as `dtype`).",
        ("int8", "fp8", "int4"),
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


@dataclass(frozen=True)
class Placement(Settings):
    """Device of the models, and the memory that they may use. No recipe contains it, because it changes no image."""

    device: str = text(AUTO, "auto uses CUDA if available; else cpu, cuda, cuda:1 or another device.", "DEVICE")
    device_memory: float | None = number(
        None,
        "Memory of the GPU in GiB for weights and work (default: its free memory). Layers that don't fit are copied "
        "from the main memory in each pass; the image stays the same.",
        0.0,
        metavar="GIB",
    )
    memory: str = choice(
        RAM,
        "Where layers are stored that the device has no memory for. disk: each pass reads them again from the model's "
        "files, which is slow.",
        (RAM, DISK),
    )

    @property
    def device_bytes(self) -> float | None:
        """`device_memory` in bytes; None for the free memory."""
        return None if self.device_memory is None else self.device_memory * 2**30


_DRAFTER_HELP = (
    "Folder of a drafter network; jacobi, which needs no files; or PATH+jacobi for both in one tree (default: bundled "
    "for the bundled model, else the published drafter next to the model, else jacobi)."
)
_NEGATIVE_HELP = "Negative prompt: what guidance steers away from (default: none; for Emu3, its published prompt)."


@dataclass(frozen=True)
class Recipe(Settings):
    """Settings that determine an image, apart from its prompt.

    Attributes:
        lantern: Settings of relaxed acceptance; None for exact acceptance.
        profile: Cost profile that a PNG contains; None to use the cost profile of this device.
        drafter: Name for `load_drafter`. It is None if there is no drafter, or if the default has not been chosen yet.
        kept: Codes (image tokens) of the first cells of every image, row by row; -1 for cells to generate. The cells
            after these are generated.
        sources: Source images as a flat list of numbers, in the encoding of `app/continuation.py`.
        image_index: Index of the first image among the images of its prompt.
    """

    sampling: Sampling = Sampling()
    drafting: Drafting = Drafting()
    lantern: Lantern | None = None
    loading: Loading = Loading()
    profile: CostProfile | None = None
    drafter: str | None = text(None, _DRAFTER_HELP, "PATH")
    negative_prompt: str = text("", _NEGATIVE_HELP)
    suffix: str = text("", "Appended to every prompt.")
    kept: tuple[int, ...] = setting(
        (), "Codes of the cells that are kept; -1 for cells to generate.", low=-1, high=MAX_CODE
    )
    sources: tuple[int, ...] = setting((), "Source images.", low=0, high=MAX_CODE)
    image_index: int = integer(
        0,
        "Index of the first image's noise: in a list, the number of the image minus 1.",
        0,
        MAX_IMAGE_INDEX,
        metavar="N",
    )

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return a dictionary from the name of each setting in files and on the command line to its declaration."""
        sections = Loading.options(), super().options(), method_options(), Sampling.options(), Lantern.options()
        return {name: option for section in sections for name, option in section.items()}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all values that :meth:`of` reads."""
        return *cls.options(), "profile"

    @classmethod
    def of(cls, given: Mapping[str, Any], usual: Mapping[str, Any] = {}) -> Recipe:  # type: ignore[override]
        """Create a recipe from a dictionary of values.

        Args:
            given: Values by their names in files and on the command line. A setting with the value None, or without a
                value, has its default.
            usual: Defaults by name. They replace the defaults in the declarations.

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
        """Last part of the drafter's path, or "none" if there is no drafter."""
        return PurePath(self.drafter).name if self.drafter else "none"

    def as_loaded(self, loading: Mapping[str, Any]) -> Recipe:
        """Return this recipe with the loading settings that were actually used, as `Target.loaded` returns them."""
        return replace(self, loading=replace(self.loading, **loading))

    def flat(self) -> dict[str, Any]:
        """Return the settings as a dictionary of plain JSON types that :meth:`of` can read.

        The cost profile is not included. A decoding adds the profile that it used to this dictionary.
        """
        size = self.loading.size
        return {
            **super().flat(),
            **self.loading.flat(),
            **self.sampling.flat(),
            **self.drafting.flat(),
            **flat_lantern(self.lantern),
            "negative_prompt": self.negative_prompt.strip(),
            "size": list(size) if size else None,
            "kept": list(self.kept),
            "sources": list(self.sources),
        }

    def sections(self) -> dict[str, Any]:
        """Return the settings as plain JSON types with one entry per group, for traces, reports and records."""
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
        """Return the settings that change an image, as plain JSON types.

        The settings of drafting are included only with relaxed acceptance (LANTERN), because with exact acceptance they
        do not change the image. A batch folder is named by a digest of the result. To keep the names of existing
        folders, include a new setting only if its value differs from the default.

        Args:
            grid: Number of rows and columns of tokens.
            network: Fingerprint of the drafter's weights; None if the drafter has no weights.
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
            "negative_prompt": self.negative_prompt.strip(),
            "lantern": self.lantern and {**asdict(self.lantern), **drafts},
        }

    def memory_key(self) -> Hashable:
        """Return a key for reusing memory and captured CUDA graphs. They depend only on the settings in this key."""
        loading = self.loading
        sampling = replace(self.sampling, seed=0)
        return sampling, self.drafting.settings, self.lantern, loading.dtype, loading.weights, loading.tiled

    def cost_key(self) -> tuple[str, str]:
        """Return descriptions of the precision and of the sampling. The cost of a round depends on both.

        Example: ("bfloat16 exact, plain weights", "drawn"). "drawn" means a temperature above 0.
        """
        numbers = f"{self.loading.dtype}{' exact' if self.loading.tiled else ''}"
        drawn = "greedy" if self.sampling.greedy else "drawn"
        return f"{numbers}, {self.loading.weights or 'plain weights'}", drawn + (", relaxed" if self.lantern else "")


def method_options() -> dict[str, Option]:
    """Return the declaration of the setting `method`, and those of the settings of all methods in `POLICIES`."""
    methods = "; ".join(f"{name}: {policy.help}" for name, policy in POLICIES.items())
    relaxed = tuple(name + RELAXED for name in RELAXABLE)
    methods += (
        f"; {', '.join(relaxed)}: the same with LANTERN's published values for the model, which changes the image"
    )
    method = Option(DEFAULT, methods, str, choices=(*POLICIES, *relaxed), metavar="METHOD")
    return {"method": method, **drafting_options()}
