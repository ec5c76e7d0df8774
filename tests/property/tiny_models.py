"""A tiny target in float64, and a drafter of every draft mode."""

import tempfile
from functools import cache
from pathlib import Path

import torch

from adt_core import load_drafter, load_target
from adt_core.lab.benchmark import drafters_by_name
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

LENGTH = 16
"""Tokens per image."""


@cache
def models():
    """Return the target and a dictionary of its drafters, with draft modes as keys."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_checkpoint(Path(folder) / "target", scale=3.0)
        target = load_target(path, dtype=torch.float64)
        return target, drafters_by_name(load_drafter(write_tiny_drafter(Path(folder) / "drafter", path), target))
