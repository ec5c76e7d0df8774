"""Drafters. A drafter proposes tokens, and the target (the image model) verifies them. :mod:`.load` lists drafters."""

from .base import Drafter, PlainRead, Prefill, Proposer, TreeSizes, Verified
from .load import (
    DRAFTERS,
    JACOBI,
    NETWORKS,
    WITH_WINDOW,
    NetworkKind,
    default_options,
    drafter_defaults,
    fits,
    is_network,
    load_drafter,
    recorded_name,
    with_window,
    without_window,
)

__all__ = [
    "DRAFTERS", "JACOBI", "NETWORKS", "WITH_WINDOW", "Drafter", "NetworkKind", "PlainRead", "Prefill", "Proposer",
    "TreeSizes", "Verified",
    "default_options", "drafter_defaults", "fits", "is_network", "load_drafter", "recorded_name", "with_window",
    "without_window",
]  # fmt: skip
