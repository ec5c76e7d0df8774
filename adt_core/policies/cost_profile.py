"""Cost profiles: the time that rounds take on a device, in plain rounds.

A plain round is the time of one target forward pass in decoding without a drafter, with the same model, settings and
batch size. A round is one target forward pass, together with the drafting before it. :mod:`.cost_model` learns a
profile for each combination of device, models and settings. The policy `auto` uses no other information about the
device. So with the same seed, prompt, settings and profile, it chooses the same trees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import AdtError
from ..untrusted import label, list_of, mapping, number, record, row, whole_number

Curve = tuple[tuple[int, float], ...]
"""Points of a function of the number of drafts per image: pairs (drafts, value), with ascending drafts from 0."""
MOST_DRAFTS = 256
"""Maximum number of drafts per image in a profile."""
MOST_STEPS = 1e4
"""Maximum cost in a profile, in plain rounds."""
MOST_POINTS = 32
"""Maximum number of curves in a profile, and of points in a curve."""
MOST_DECODINGS = 2**53
"""Maximum number of decodings that a profile counts."""
LONGEST_NAME = 200
"""Maximum length of a name in a profile, in characters."""


def interpolated(curve: Curve, drafts: int) -> float:
    """Return the value of a curve at a number of drafts: linear between its points, and after the last two of them."""
    at = next((i for i, (size, _) in enumerate(curve) if size >= drafts), len(curve) - 1)
    if at == 0:
        return curve[0][1]
    size, value = curve[at - 1]
    next_size, next_value = curve[at]
    return value + (next_value - value) * (drafts - size) / (next_size - size)


class CostEstimate(NamedTuple):
    """Estimated cost of drafting in a draft mode, in plain rounds, without the target's forward pass.

    Attributes:
        fixed: Cost of drafting that does not depend on the number of drafts.
        each: Additional cost of each draft per image.
    """

    fixed: float
    each: float


@dataclass(frozen=True)
class CostProfile:
    """Cost of rounds in plain rounds, and ratio of accepted to expected drafts, by draft mode.

    Attributes:
        name: Description of the device, model and settings.
        images: Number of images that are decoded together.
        costs: Cost of a round of each draft mode, in plain rounds.
        decodings: Number of decodings from which the profile was learned; 0 for an estimate.
        gains: Number of accepted drafts / number of expected drafts, for each draft mode. The expected number is
            `DraftMode.expected_accepted`. The ratio of a mode without an entry is 1.
    """

    name: str
    images: int
    costs: Mapping[str, Curve]
    decodings: int = 0
    gains: Mapping[str, float] = field(default_factory=dict)

    def cost(self, mode: str, drafts: int) -> float:
        """Return the time of a round with this number of drafts per image, in plain rounds, at least 0.1."""
        return max(interpolated(self.costs[mode], drafts), 0.1)

    @property
    def plain(self) -> float:
        """Cost of a round without drafts in a decoding that has a drafter: the lowest such cost of all draft modes."""
        return min((curve[0][1] for curve in self.costs.values()), default=1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the profile and its digest as plain JSON types."""
        return {"digest": self.digest, **self._content()}

    def _content(self) -> dict[str, Any]:
        curves = {mode: [list(point) for point in curve] for mode, curve in self.costs.items()}
        content = {"name": self.name, "images": self.images, "costs": curves}
        learned = {"decodings": self.decodings, "gains": dict(self.gains)}
        return content | {name: value for name, value in learned.items() if value}  # old files have no such entries

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that identify this profile."""
        canonical = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @classmethod
    def from_json(cls, value: Any) -> CostProfile:
        """Return the profile that :meth:`to_json` has written. Raise AdtError if the value or its digest is wrong."""
        if _PROFILE.fits(value) and all(map(_is_curve, value["costs"].values())):
            costs = {mode: tuple((size, float(steps)) for size, steps in p) for mode, p in value["costs"].items()}
            decodings = value.get("decodings", 0)
            gains = value.get("gains", {})
            is_learned = _COUNT.fits(decodings) and _GAINS.fits(gains)
            profile = cls(value["name"], value["images"], costs, *((decodings, gains) if is_learned else ()))
            if value == profile.to_json():
                return profile
        raise AdtError("costs.damaged")


_NAME = label(LONGEST_NAME)
_POINTS = list_of(row(whole_number(0, MOST_DRAFTS), number(0, MOST_STEPS)), 2, MOST_POINTS)
_GAINS = mapping(_NAME, number(1 / MOST_STEPS, MOST_STEPS), 0, MOST_POINTS)
_COUNT = whole_number(0, MOST_DECODINGS)
_PROFILE = record({"name": _NAME, "images": whole_number(1, 2**20), "costs": mapping(_NAME, _POINTS, 0, MOST_POINTS)})


def _is_curve(points: list) -> bool:
    """Return whether the sizes ascend from 0 and all costs are positive."""
    sizes = [size for size, _ in points]
    return sizes[0] == 0 and sizes == sorted(set(sizes)) and all(steps > 0 for _, steps in points)


def rounded(steps: float) -> float:
    """Round a number to three significant digits. Timings are not accurate enough for more."""
    return float(f"{steps:.3g}")
