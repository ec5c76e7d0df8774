"""Types of the options that `Pipeline` accepts, for type checkers and for completion in editors.

The declarations of the settings determine names and types; tests/unit/run/test_pipeline.py compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict


class LoadingOptions(TypedDict, total=False):
    """Options of `Pipeline.load` that are not named arguments."""

    exact: str
    size: Sequence[int]


class RecipeOptions(TypedDict, total=False):
    """Options of an image, without its seed."""

    negative_prompt: str
    suffix: str
    kept: Sequence[int]
    sources: Sequence[int]
    image_index: int
    method: str
    proposal: str
    depth: int
    width: int
    drafts: int
    beta: float
    depth_min: int
    depth_max: int
    width_min: int
    width_max: int
    init: str
    wrap: str
    depth_step: int
    width_step: int
    expand_above: float
    keep_above: float
    predict_from: str
    temperature: float
    top_k: int
    top_p: float
    guidance_scale: float
    noise: str
    noise_batch: int | None
    lantern_k: int
    lantern_delta: float | None
    lantern_factor: float | None
    max_substitution: float
    profile: Mapping[str, Any]


class ImageOptions(RecipeOptions, total=False):
    """Options of `Pipeline.with_options`."""

    seed: int


class PngOptions(ImageOptions, LoadingOptions, total=False):
    """Options of `Pipeline.from_png`."""

    model: str | Path
    drafter: str | Path
    dtype: str
    weights: str | None


class ListOptions(RecipeOptions, total=False):
    """Options of `Pipeline.generate` that `Pipeline.stream` reads."""

    seed: int | Sequence[int] | None
    same_noise: bool
    num_images_per_prompt: int
