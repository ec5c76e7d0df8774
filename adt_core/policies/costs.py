"""What rounds cost on a device: plain numbers, measured once (``engine/measuring.py``) and named by a digest.

A profile is all that ``auto`` knows of a device. So the same seed, prompt, settings and profile lead to the same trees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AdtError
from ..untrusted import label, list_of, mapping, number, record, row, whole_number

Curve = tuple[tuple[int, float], ...]
"""Pairs of a number of drafts of every image, ascending from 0, and plain steps that a round with them takes."""
MOST_DRAFTS, MOST_STEPS, MOST_POINTS, LONGEST_NAME = 256, 1e4, 32, 200
"""Bounds of what a profile may say."""
BUILT_IN: dict[str, dict[str, tuple[float, float, float]]] = {
    "cpu": {
        "chain": (1.1, 0.15, 0.05),
        "window": (1.15, 0.4, 0.07),
        "both": (1.05, 1.3, 0.05),
        "both chain": (1.05, 1.2, 0.05),
    },
    "cuda": {
        "chain": (1.02, 0.0, 0.006),
        "window": (1.03, 0.0, 0.007),
        "both": (1.05, 0.12, 0.01),
        "both chain": (1.05, 0.1, 0.01),
    },
}
"""By kind of device and source: plain steps of a round without drafts, what drafts add at all, and what each adds.

``cuda`` is near an H100 (docs/gpu.md): there 24 drafts take 1.15 steps from the window and 1.38 with the network, and
64 take 1.96. In truth they cost little up to a tile of the exact mode and then a step; a line spreads that.
"""


@dataclass(frozen=True)
class CostProfile:
    """What rounds cost in plain steps.

    name: what it was measured for, in words. images: how many were drawn together. costs: by source of drafts.
    """

    name: str
    images: int
    costs: Mapping[str, Curve]

    def of(self, source: str, drafts: int) -> float:
        """Plain steps of a round with so many drafts for every image: on a line between the sizes that were measured.

        Beyond the largest, the last line goes on.
        """
        curve = self.costs[source]
        at = next((i for i, (size, _) in enumerate(curve) if size >= drafts), len(curve) - 1)
        (low, below), (high, above) = curve[max(at - 1, 0)], curve[max(at, 1)]
        return max(below + (above - below) * (drafts - low) / (high - low), 0.1) if at else curve[0][1]

    @property
    def plain(self) -> float:
        """Plain steps of a round without drafts, while a source keeps up with it: of the source that costs least."""
        return min(curve[0][1] for curve in self.costs.values())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"digest": self.digest, **self._content()}

    def _content(self) -> dict[str, Any]:
        curves = {source: [list(point) for point in curve] for source, curve in self.costs.items()}
        return {"name": self.name, "images": self.images, "costs": curves}

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that name this profile."""
        canonical = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @classmethod
    def from_json(cls, value: Any) -> CostProfile:
        """What :meth:`to_json` gave. Raises AdtError for anything else."""
        if _PROFILE.fits(value) and all(map(_ascends, value["costs"].values())):
            costs = {source: tuple((size, float(steps)) for size, steps in p) for source, p in value["costs"].items()}
            profile = cls(value["name"], value["images"], costs)
            if value == profile.to_json():
                return profile
        raise AdtError(
            "the cost profile is damaged or was edited; generate the image without it to measure the costs again."
        )


_NAME = label(LONGEST_NAME)
_POINTS = list_of(row(whole_number(0, MOST_DRAFTS), number(0, MOST_STEPS)), 2, MOST_POINTS)
_PROFILE = record({"name": _NAME, "images": whole_number(1, 2**20), "costs": mapping(_NAME, _POINTS, 1, MOST_POINTS)})


def _ascends(points: list) -> bool:
    """Do the sizes of a curve ascend from 0, and is no round for nothing?"""
    sizes = [size for size, _ in points]
    return sizes[0] == 0 and sizes == sorted(set(sizes)) and all(steps > 0 for _, steps in points)


def rounded(steps: float) -> float:
    """To three significant digits, which is more than a clock can tell."""
    return float(f"{steps:.3g}")


def built_in(device: str, images: int, sources: Iterable[str] = ()) -> CostProfile:
    """What rounds probably cost on this kind of device (``cpu``, ``cuda``), until they are measured.

    sources: names; one that is not in the table is taken to cost what ``both`` does.
    """
    kind = device if device in BUILT_IN else "cuda"
    known, costs = BUILT_IN[kind], dict[str, Curve]()
    for source in dict.fromkeys((*known, *sources)):
        idle, once, each = known.get(source, known["both"])
        points = ((size, rounded(idle + once + each * images * size)) for size in (1, MOST_DRAFTS))
        costs[source] = ((0, idle), *points)
    return CostProfile(f"built in for {kind}", images, costs)
