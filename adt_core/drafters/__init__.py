"""Where drafts come from. :mod:`.repeat` is the worked example; :mod:`.table` knows them all."""

from .base import Drafter, Prefill, Proposer, Session, Shapes, Verified
from .eagle_files import fits
from .table import (
    DRAFTERS,
    JACOBI,
    WITH_WINDOW,
    drafter_defaults,
    is_network,
    load_drafter,
    usual_options,
    with_window,
    without_window,
)

__all__ = [
    "DRAFTERS", "JACOBI", "WITH_WINDOW", "Drafter", "Prefill", "Proposer", "Session", "Shapes", "Verified",
    "drafter_defaults", "fits", "is_network", "load_drafter", "usual_options", "with_window", "without_window",
]  # fmt: skip
