"""Built-in estimate of a cost profile. It is used until the costs of rounds are measured on a device."""

from __future__ import annotations

from collections.abc import Iterable

from ..policies import CostProfile, DraftMode
from ..policies.costs import MOST_DRAFTS, Curve, rounded
from .jacobi import CHAIN, WINDOW
from .merged import BOTH, BOTH_CHAIN

MODES = (CHAIN, WINDOW, BOTH, BOTH_CHAIN)
"""Draft modes of this package's drafters."""


def built_in(device: str, images: int, modes: Iterable[DraftMode] = ()) -> CostProfile:
    """Return the estimated profile.

    A profile contains a curve for each draft mode: the cost of a round as a function of the number of drafts. The unit
    is the cost of a plain round, which has no drafts.

    Args:
        device: Type of device. "cpu" gives the estimate for CPUs, any other type the estimate for GPUs.
        images: Number of images that are decoded together.
        modes: Draft modes of drafters from outside this package. They are added to `MODES`.
    """
    kind = "cpu" if device == "cpu" else "cuda"
    costs: dict[str, Curve] = {}
    for mode in (*MODES, *modes):
        estimate = mode.cpu_cost if kind == "cpu" else mode.gpu_cost
        drafted = estimate.idle + estimate.once
        points = ((size, rounded(drafted + estimate.each * images * size)) for size in (1, MOST_DRAFTS))
        costs.setdefault(mode.name, ((0, estimate.idle), *points))
    return CostProfile(f"built in for {kind}", images, costs)
