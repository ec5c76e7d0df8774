"""A small random model of every family, quick to load and to draw with: some thirty tokens an image."""

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
"""By family, what writes a checkpoint into a folder, together with what belongs beside it."""
if not hasattr(transformers, "GlmImageConfig"):  # it came with transformers 5
    del WRITERS["glm-image"]
LAYOUTS = WRITERS | {
    "janus, deepseek": lambda home: janus.write_janus(home / "Janus-Pro-7B", layout="deepseek", shards=2),
    "llamagen, authors'": llamagen.write_upstream,
}
"""The same, and by other names what writes a family's other layouts."""
SIZES = {"lumina": (96, 64), "lumina-mgpt-2": (64, 32), "emu3": (48, 40), "glm-image": (96, 64)}
"""Pixels of the families that draw other sizes than their usual one, which is large."""


DEVICE = os.environ.get("ADT_TREE_TEST_DEVICE", "cpu")
"""Where small models are loaded to; "cuda" tries a GPU with them."""


def load_small(family: str, path: Path, **how) -> Target:
    """The checkpoint that the family's writer left at ``path``. how: as ``load_target`` takes it."""
    target = load_target(path, DEVICE, **how)
    if target.lead_of is not None:
        target.lead_of = lambda grid: (3, 4)  # the usual one has as many cells for every size, some 250
    return target.sized(*SIZES[family]) if family in SIZES else target


def write_network(family: str, folder: Path, target: Target) -> Path:
    """A drafter of the family, in the layout that LANTERN has published it in."""
    if family == "llamagen":
        llamagen.write_drafter(folder)
        edit_config(folder, lambda config: config.pop("input_type"))  # it would ask for one of the published sizes
        return folder
    write_drafter(folder, target)
    if family.startswith("lumina"):
        share_norms(folder)
    return folder


def write_both(family: str, home: Path) -> tuple[Path, Path]:
    """A checkpoint of the family, and a drafter for it, below ``home``: their paths."""
    path = WRITERS[family](home)
    return path, write_network(family, home / "network", load_small(family, path))
