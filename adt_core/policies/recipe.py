"""The recipe: all that makes a picture what it is but its prompt, and how soon it is there, in plain values.

What a run *is* stands here and nowhere else. The command line, the nodes, PNGs, traces, records, folders of batches,
profiles of costs and trainings take from it what they need.
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
    relaxed,
    setting,
    text,
    whole,
)
from .costs import CostProfile
from .table import DEFAULT, POLICIES, Drafting
from .table import options as drafting_options

DTYPES = ("float32", "float64", "bfloat16", "float16")
MOST_CODES, MOST_PIXELS, MOST_IMAGES = 2**20, 2**14, 2**32
"""Bounds of a code and of how many are kept, of a side, and of an image's number among those of its prompt."""


@dataclass(frozen=True)
class Loading(Settings):
    """Which target draws, and in which numbers.

    tiled: the exact mode of half precision is at work, which only a loaded target can tell: some devices have none.
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
        high=MOST_PIXELS,
        length=2,
        stands="WxH",
    )
    tiled: bool = False


_DRAFTER_HELP = (
    "Folder of a drafter network; jacobi, which needs no files; or PATH+jacobi for both in one tree (default: bundled "
    "for the bundled model, else the published drafter next to the model, else jacobi)."
)
_NEGATIVE_HELP = "Negative prompt: what guidance steers away from (default: none; for Emu3, its published prompt)."


@dataclass(frozen=True)
class Recipe(Settings):
    """How pictures are made.

    sampling, drafting: how tokens are drawn, and how drafts are. lantern: None for exact acceptance. loading: of the
    target. drafter: what ``load_drafter`` takes; None where nothing drafts, and where it has not been chosen yet. kept:
    codes that every image starts from, in raster order. sources: pictures that every image is made of, as
    ``app.continuation`` writes them. image_index: of the first image, among those of its prompt.
    profile: what rounds cost, where a PNG has said it.
    """

    sampling: Sampling = Sampling()
    drafting: Drafting = Drafting()
    lantern: Lantern | None = None
    loading: Loading = Loading()
    profile: CostProfile | None = None
    drafter: str | None = text(None, _DRAFTER_HELP, "PATH")
    negative: str = text("", _NEGATIVE_HELP)
    suffix: str = text("", "Appended to every prompt.")
    kept: tuple[int, ...] = setting((), "Codes that the image starts with.", low=0, high=MOST_CODES)
    sources: tuple[int, ...] = setting((), "Source images.", low=0, high=MOST_CODES)
    image_index: int = whole(0, "Index of the image among the images of its prompt.", 0, MOST_IMAGES)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Every setting of every part, by the names that files and the command line use."""
        sections = Loading.options(), super().options(), method_options(), Sampling.options(), Lantern.options()
        return {name: option for section in sections for name, option in section.items()}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all that :meth:`of` reads."""
        return *cls.options(), "profile"

    @classmethod
    def of(cls, given: Mapping[str, Any], usual: Mapping[str, Any] = {}) -> Recipe:  # type: ignore[override]
        """The recipe by those names. usual: what holds for what is not given, or None. AdtError for a wrong value."""
        chosen = {**usual, **{name: value for name, value in given.items() if value is not None}}
        profile = chosen.get("profile")
        own: dict[str, Any] = {name: chosen[name] for name in cls.fields() if name in chosen}
        own |= {name: tuple(own.get(name, ())) for name in ("kept", "sources")}
        return cls(
            Sampling.of(chosen),
            Drafting.of(chosen),
            relaxed(chosen),
            Loading.of(chosen),
            CostProfile.from_json(profile) if profile is not None else None,
            **own,
        )

    @property
    def drafter_name(self) -> str:
        """What people call the drafter: the last part of its path, or "none"."""
        return PurePath(self.drafter).name if self.drafter else "none"

    def flat(self) -> dict[str, Any]:
        """What :meth:`of` reads, in JSON's types, as PNGs carry it. A decoding says which ``profile`` it followed."""
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
        """The same part by part, as traces, reports and records carry it, in JSON's types."""
        return {
            "method": self.drafting.method,
            "proposal": self.drafting.proposal,
            "seed": self.sampling.seed,
            "dtype": self.loading.dtype,
            "weights": self.loading.weights,
            "exact": self.loading.tiled,
            "sampling": self.sampling.told(),
            "drafting": self.drafting.flat(),
            "lantern": self.lantern and asdict(self.lantern),
        }

    def image(self, weights: Sequence[str], grid: Sequence[int], network: str | None) -> dict[str, Any]:
        """What changes an image, in JSON's types. Drafting counts under LANTERN alone.

        weights, network: what tells the target's weights, and the drafter's, from others. Names of folders are digests
        of this, so what came with later versions is there only where it has a value of its own.
        """
        drafts = {**self.drafting.flat(), "drafter": self.drafter_name, "drafter_weights": network}
        return {
            "weights": list(weights),
            "stored": self.loading.weights,
            "grid": list(grid),
            "dtype": self.loading.dtype,
            **({"exact": True} if self.loading.tiled else {}),
            "sampling": self.sampling.told(),
            **({"suffix": self.suffix} if self.suffix else {}),
            "negative": self.negative.strip(),
            "lantern": self.lantern and {**asdict(self.lantern), **drafts},
        }

    def memory(self) -> Hashable:
        """What the memory of a decoding, and what is captured in it, depends on."""
        how = replace(self.sampling, seed=0), self.drafting.settings, self.lantern
        return *how, self.loading.dtype, self.loading.weights, self.loading.tiled

    def costs(self) -> tuple[str, str]:
        """What costs of rounds depend on, in words: the numbers, and the way in which tokens are drawn and accepted."""
        numbers = f"{self.loading.dtype}{' exact' if self.loading.tiled else ''}"
        drawn = "greedy" if self.sampling.greedy else "drawn"
        return f"{numbers}, {self.loading.weights or 'plain weights'}", drawn + (", relaxed" if self.lantern else "")


def method_options() -> dict[str, Option]:
    """The method and the options of all policies. They are looked up when they are needed: policies may be added."""
    methods = "; ".join(f"{name}: {policy.help}" for name, policy in POLICIES.items())
    method = Option(DEFAULT, methods, str, choices=tuple(POLICIES), stands="METHOD")
    return {"method": method, **drafting_options()}
