"""Cost profiles: the time that rounds take on a device, in plain steps.

A profile is measured once per model and device (:mod:`...engine.device.measuring`) and identified by a digest. `auto`
uses nothing else about the device, so the same seed, prompt, settings and profile give the same trees.
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
"""Pairs (drafts per image, cost of the round in plain steps), with ascending numbers of drafts from 0."""
MOST_DRAFTS = 256
"""Maximum number of drafts in a profile."""
MOST_STEPS = 1e4
"""Maximum cost in a profile, in plain steps."""
MOST_POINTS = 32
"""Maximum number of curves in a profile, and of points in a curve."""
LONGEST_NAME = 200
"""Maximum length of a name in a profile, in characters."""
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
"""Estimated costs by kind of device and draft mode, in plain steps.

The numbers are: a round without drafts, the extra cost if there are any drafts, and the extra cost of each draft.

`cuda` approximates an H100 (docs/gpu.md): there, rounds with 24 drafts take 1.15 plain steps in the mode `window` and
1.38 in `both`; 64 drafts take 1.96. The measured cost rises in steps, one for each tile of batch-invariant mode; the
estimate is a straight line.
"""


@dataclass(frozen=True)
class CostProfile:
    """Cost of rounds in plain steps.

    Attributes:
        name: Description of the device, model and settings that it was measured for.
        images: Number of images that were decoded together.
        costs: Curve of each draft mode.
    """

    name: str
    images: int
    costs: Mapping[str, Curve]

    def cost(self, mode: str, drafts: int) -> float:
        """Return the cost of a round, interpolated linearly between the measured sizes.

        Beyond the largest size, the last segment is extended.

        Args:
            mode: Name of the draft mode.
            drafts: Number of drafts per image.

        Returns:
            Time of the round in plain steps, at least 0.1.
        """
        curve = self.costs[mode]
        at = next((i for i, (size, _) in enumerate(curve) if size >= drafts), len(curve) - 1)
        if at == 0:
            return curve[0][1]
        (size, cost), (next_size, next_cost) = curve[at - 1], curve[at]
        return max(cost + (next_cost - cost) * (drafts - size) / (next_size - size), 0.1)

    @property
    def plain(self) -> float:
        """Cost of a round without drafts while a drafter follows it, in the cheapest draft mode."""
        return min(curve[0][1] for curve in self.costs.values())

    def to_json(self) -> dict[str, Any]:
        """Return the profile and its digest as plain JSON types."""
        return {"digest": self.digest, **self._content()}

    def _content(self) -> dict[str, Any]:
        curves = {mode: [list(point) for point in curve] for mode, curve in self.costs.items()}
        return {"name": self.name, "images": self.images, "costs": curves}

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that identify this profile."""
        canonical = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @classmethod
    def from_json(cls, value: Any) -> CostProfile:
        """Return the profile that :meth:`to_json` has written.

        Args:
            value: Parsed JSON, which is not trusted.

        Raises:
            AdtError: If it is anything else, or its digest is wrong.
        """
        if _PROFILE.fits(value) and all(map(_is_curve, value["costs"].values())):
            costs = {mode: tuple((size, float(steps)) for size, steps in p) for mode, p in value["costs"].items()}
            profile = cls(value["name"], value["images"], costs)
            if value == profile.to_json():
                return profile
        raise AdtError(
            "the cost profile is damaged or was edited; generate the image without it to measure the costs again."
        )


_NAME = label(LONGEST_NAME)
_POINTS = list_of(row(whole_number(0, MOST_DRAFTS), number(0, MOST_STEPS)), 2, MOST_POINTS)
_PROFILE = record({"name": _NAME, "images": whole_number(1, 2**20), "costs": mapping(_NAME, _POINTS, 1, MOST_POINTS)})


def _is_curve(points: list) -> bool:
    """Return whether the sizes ascend from 0 and all costs are positive."""
    sizes = [size for size, _ in points]
    return sizes[0] == 0 and sizes == sorted(set(sizes)) and all(steps > 0 for _, steps in points)


def rounded(steps: float) -> float:
    """Round to three significant digits; timings are less accurate than that."""
    return float(f"{steps:.3g}")


def built_in(device: str, images: int, modes: Iterable[str] = ()) -> CostProfile:
    """Return the estimated profile, used until the costs are measured.

    Args:
        device: Kind of device, `cpu` or `cuda`; others are treated as `cuda`.
        images: Number of images that are decoded together.
        modes: Names of further draft modes, which are estimated like `both`.
    """
    kind = device if device in BUILT_IN else "cuda"
    estimates = BUILT_IN[kind]
    costs: dict[str, Curve] = {}
    for mode in dict.fromkeys((*estimates, *modes)):
        idle, once, each = estimates.get(mode, estimates["both"])
        points = ((size, rounded(idle + once + each * images * size)) for size in (1, MOST_DRAFTS))
        costs[mode] = ((0, idle), *points)
    return CostProfile(f"built in for {kind}", images, costs)
