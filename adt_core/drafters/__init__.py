"""Drafters. A drafter proposes tokens, and the target (the image model) verifies them. :mod:`.table` lists drafters."""

from .base import Drafter, PlainRead, Prefill, Proposer, TreeSizes, Verified
from .eagle_files import fits
from .load import (
    DRAFTERS,
    JACOBI,
    WITH_WINDOW,
    default_options,
    drafter_defaults,
    is_network,
    load_drafter,
    with_window,
    without_window,
)

__all__ = [
    "DRAFTERS", "JACOBI", "WITH_WINDOW", "Drafter", "PlainRead", "Prefill", "Proposer", "TreeSizes", "Verified",
    "default_options", "drafter_defaults", "fits", "is_network", "load_drafter", "with_window", "without_window",
]  # fmt: skip
