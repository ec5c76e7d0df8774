"""Statistics of single images, such as seconds and tau, their sums, and the validation of statistics from files.

In a batch, images share the rounds. The time and the forward passes of a round are divided equally among its images, so
that the sums over all images equal the sums of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ..trace import Trace
from ..untrusted import number, record

LARGEST = 10**12
"""Upper bound of all statistics. It keeps sums of statistics finite."""
SHARES = "substitution_rate", "agreement"
"""Statistics between 0 and 1."""
SHORTEST = 1e-9
"""Lower bound of durations in seconds. It is above 0, because a speed is computed by dividing by a duration."""

FIGURE = number(0, LARGEST)
SHARE = number(0, 1)
SECONDS = number(SHORTEST, LARGEST)
_KINDS = {**dict.fromkeys(SHARES, SHARE), "seconds": SECONDS}
_SUMS = ("seconds", "tokens", "drafting_seconds", "prefill_seconds", "verified_drafts", "target_share", "drafter_share")
"""Statistics of an image whose sums are statistics of the run.

`target_share` and `drafter_share` are forward passes, each divided by the number of images in its round."""
_MEANS = ("tau", "mean_depth", "mean_drafts")
"""Statistics of an image that are means over its target forwards."""
IMAGE_STATS = (*_SUMS, *_MEANS, "target_forwards", "drafter_forwards", "substitution_rate")
"""Statistics of an image."""


def are_run_stats(value: object, names: Iterable[str]) -> TypeGuard[dict]:
    """Return whether a value is a dictionary with a valid value for every statistic in `names`."""
    return record({name: _KINDS.get(name, FIGURE) for name in names}).fits(value)


def are_image_stats(value: object) -> TypeGuard[dict]:
    """Return whether a value is a dictionary with valid `IMAGE_STATS`. An image that was kept completely took 0 s."""
    return record({name: SHARE if name in SHARES else FIGURE for name in IMAGE_STATS}).fits(value)


def image_stats(trace: Trace, image: int) -> dict[str, float]:
    """Return the statistics of one image of a decoding."""
    report = trace.subset([image]).report()
    mine = [round for round in trace.rounds if any(record.image == image for record in round.images)]
    report["target_share"] = sum(1 / len(round.images) for round in mine)
    report["drafter_share"] = sum(round.drafter_forwards / len(round.images) for round in mine)
    return {name: report[name] for name in IMAGE_STATS}


class Totals:
    """Sums of the statistics of images."""

    def __init__(self) -> None:
        self.images = 0
        self._sums: Counter[str] = Counter()

    def add(self, stats: Mapping[str, Any]) -> None:
        """Add the result of `image_stats`. Invalid statistics from a damaged file are ignored."""
        if not are_image_stats(stats):
            return
        self.images += 1
        forwards = stats["target_forwards"]
        emitted = stats["tau"] * forwards
        self._sums.update({name: stats[name] for name in _SUMS})
        self._sums.update({name: stats[name] * forwards for name in _MEANS})
        self._sums.update(forwards=forwards, emitted=emitted, substituted=stats["substitution_rate"] * emitted)

    def report(self) -> dict[str, Any]:
        """Return the statistics that `Trace.report` returns, and the number of images."""
        sums = self._sums
        count = max(sums["forwards"], 1)
        means = {name: sums[name] / count for name in _MEANS}
        return {
            "images": self.images,
            "seconds": float(sums["seconds"]),
            "tokens": int(sums["tokens"]),
            "tokens_per_second": sums["tokens"] / sums["seconds"] if sums["seconds"] else 0.0,
            **means,
            "accepted_per_round": max(means["tau"] - 1, 0.0),
            "target_forwards": round(sums["target_share"]),
            "drafter_forwards": round(sums["drafter_share"]),
            "verified_drafts": int(sums["verified_drafts"]),
            "substitution_rate": sums["substituted"] / sums["emitted"] if sums["emitted"] else 0.0,
            "drafting_seconds": float(sums["drafting_seconds"]),
            "prefill_seconds": float(sums["prefill_seconds"]),
        }


class ComparedTotals:
    """Sums of the statistics of the chosen method and, with ``generate --compare``, of plain decoding.

    Attributes:
        same: Number of compared images with the same tokens.
    """

    def __init__(self) -> None:
        self._chosen = Totals()
        self._plain = Totals()
        self.same = 0

    @property
    def images(self) -> int:
        """Number of compared images."""
        return self._plain.images

    def add(self, figures: Mapping[str, Any]) -> None:
        """Add the statistics of an image, as its record has them."""
        self._chosen.add(figures)
        if isinstance(plain := figures.get("plain"), dict):
            self._plain.add(plain)
            self.same += figures.get("identical") is True

    def report(self) -> dict[str, Any]:
        """Return the statistics for the report. The comparison is included if all images were compared."""
        report = self._chosen.report()
        if not self.images or self.images < self._chosen.images:
            return report
        plain = self._plain.report()
        speedup = plain["seconds"] / report["seconds"]
        identical = self.same == self.images
        return report | {"plain": plain, "speedup": speedup, "identical": identical, "identical_images": self.same}
