"""Small random models of every family. They load quickly and have about thirty tokens per image."""

from __future__ import annotations

import os
from pathlib import Path

import transformers

from adt_core import load_target
from adt_core.models.target import Target
from tests.drafted import write_drafter
from tests.tiny import write_tiny_checkpoint

from . import janus, llamagen
from .edits import edit_config
from .emu3 import write_emu3
from .glm_image import write_glm_image
from .liquid import write_liquid
from .lumina import share_norms, write_lumina
from .lumina2 import write_lumina2

WRITERS = {
    "chameleon": lambda home: write_tiny_checkpoint(home / "Anole-7b-v0.1-hf", scale=3.0, resolution=48),
    "lumina": lambda home: write_lumina(home / "Lumina-mGPT-7B-768", scale=3.0),
    "lumina-mgpt-2": lambda home: write_lumina2(home / "Lumina-mGPT-2.0", scale=3.0),
    "emu3": lambda home: write_emu3(home / "Emu3-Gen-hf"),
    "janus": lambda home: janus.write_janus(home / "Janus-Pro-1B", image_size=96),
    "liquid": lambda home: write_liquid(home / "Liquid_V1_7B"),
    "glm-image": lambda home: write_glm_image(home / "GLM-Image", scale=3.0),
    "llamagen": lambda home: llamagen.write_hugging_face(home, side=6),
}
"""Family -> function that writes a checkpoint and its companion files into a folder."""
if not hasattr(transformers, "GlmImageConfig"):  # added in transformers 5
    del WRITERS["glm-image"]
LAYOUTS = WRITERS | {
    "janus, deepseek": lambda home: janus.write_janus(home / "Janus-Pro-7B", layout="deepseek", shards=2),
    "llamagen, authors'": llamagen.write_upstream,
}
"""The functions of `WRITERS`, and functions for further layouts of some families."""
SIZES = {"lumina": (96, 64), "lumina-mgpt-2": (64, 32), "emu3": (48, 40), "glm-image": (96, 64)}
"""Width and height in pixels, for families with selectable sizes. Their default sizes would be slow."""


DEVICE = os.environ.get("ADT_TREE_TEST_DEVICE", "cpu")
"""Device of the small models; set the environment variable to "cuda" to test on a GPU."""


def load_small(family: str, path: Path, **options) -> Target:
    """Load a small checkpoint of the family and select a small image size. ``load_target`` gets the ``options``."""
    target = load_target(path, DEVICE, **options)
    if target.lead_of is not None:
        target.lead_of = lambda grid: (3, 4)  # by default, GLM-Image's small image has about 250 cells at any size
    return target.sized(*SIZES[family]) if family in SIZES else target


def write_network(family: str, folder: Path, target: Target) -> Path:
    """Write a drafter for the family, in the layout of LANTERN's published drafters. Return its path."""
    if family == "llamagen":
        llamagen.write_drafter(folder)
        edit_config(folder, lambda config: config.pop("input_type"))  # with it, the loader requires a published size
        return folder
    write_drafter(folder, target)
    if family.startswith("lumina"):
        share_norms(folder)
    return folder


def write_both(family: str, home: Path) -> tuple[Path, Path]:
    """Write a checkpoint of the family and a drafter for it below ``home``; return both paths."""
    path = WRITERS[family](home)
    return path, write_network(family, home / "network", load_small(family, path))
