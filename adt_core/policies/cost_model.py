"""Cost model: learns from finished decodings how long rounds take on a device.

The unit of a cost is a *plain step*: the time of a round without drafts, with the same models, settings and batch size.
A round in which draft mode m verifies n drafts per image costs

    c(m, n) = IDLE + node * n + tile * tiles(n) + fixed(m) + each(m) * n        for n > 0, and c(m, 0) = IDLE

- `node` and `tile` belong to the target: one more draft per image, and one more tile of rows in batch-invariant mode.
  tiles(n) is the number of tiles that n drafts add to those of a plain step.
- `fixed(m)` and `each(m)` belong to the draft mode: drafting at all, and one more draft.

The parameters start from estimates. After a decoding, the median time of its rounds of each mode and size, divided by
the time of a plain step, becomes a *reading*. Readings of the same mode and size are averaged, with weights that decay
from decoding to decoding. A decoding that contradicts the model discards all earlier readings. The parameters are then
fitted to readings and estimates by least squares of logarithms, so sizes that were never used get a cost, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, log
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..untrusted import label, list_of, number, record, row, text, whole_number
from .base import DraftMode
from .costs import LONGEST_NAME, MOST_DECODINGS, MOST_DRAFTS, MOST_POINTS, MOST_STEPS, CostProfile, rounded

IDLE = 1.04
"""Cost of a round without drafts while a drafter follows it."""
CPU_NODE = 0.05
"""Estimate of `node` on a CPU, for a batch of one image."""
GPU_NODE = 0.003
"""Estimate of `node` on a GPU, for a batch of one image."""
GPU_TILE = 0.25
"""Estimate of `tile`."""
READING_ERROR = 0.1
"""Standard deviation of the logarithm of a reading of weight 1."""
PARAMETER_ERROR = 0.6
"""Standard deviation of the logarithm of an estimated parameter."""
DECAY = 0.5
"""Factor on the weights of a mode's readings when a decoding that has used the mode is added."""
CONTRADICTION = 0.4
"""Difference of logarithms between a reading of weight 1 and the model from which earlier readings are discarded. With
the weight w it is 1 / w times as large."""
FIT_STEPS = 12
"""Gauss-Newton steps of a fit, which converges in six or fewer."""

Size = tuple[str, int]
"""Draft mode and number of drafts per image."""
PLAIN_STEP: Size = ("", 0)
"""Mode and number of drafts of a round without drafts."""


class Reading(NamedTuple):
    """Measured cost of the rounds of a mode and size.

    Attributes:
        cost: Cost in plain steps. That of `PLAIN_STEP` is its time in seconds.
        weight: Weight in the fit, from 0 to 2. One round has the weight 0.5, many rounds of a decoding have nearly 1.
    """

    cost: float
    weight: float


@dataclass(frozen=True)
class CostModel:
    """Cost of rounds as a function of draft mode and number of drafts.

    Attributes:
        name: Description of the device, model and settings.
        images: Number of images that are decoded together.
        modes: Draft modes.
        on_cpu: Whether the device is a CPU.
        rows: Rows per image in a forward pass: 2 with guidance, otherwise 1.
        tile: Rows in a tile of batch-invariant mode; 0 if the number of tiles does not matter.
        readings: Readings by mode and size.
        decodings: Number of decodings that were learned from.
    """

    name: str
    images: int
    modes: Sequence[DraftMode]
    on_cpu: bool
    rows: int = 2
    tile: int = 0
    readings: Mapping[Size, Reading] = field(default_factory=dict)
    decodings: int = 0

    def profile(self, sizes: Iterable[int]) -> CostProfile:
        """Return the cost profile, with these numbers of drafts as points of its curves."""
        cost = self._fitted()
        points = sorted({0, 1, MOST_DRAFTS, *sizes})
        costs = {mode.name: tuple((n, rounded(cost(mode.name, n))) for n in points) for mode in self.modes}
        return CostProfile(self.name, self.images, costs, self.decodings)

    def learn(self, rounds: Iterable[tuple[Size, float]]) -> CostModel:
        """Return the model after one more decoding.

        Args:
            rounds: Mode and size of each round, and its time in seconds. Leave out rounds that did other work, too.

        Returns:
            The model itself if no round had drafts.
        """
        times: dict[Size, list[float]] = {PLAIN_STEP: []}
        for size, seconds in rounds:
            times.setdefault(size, []).append(seconds)
        plain = times.pop(PLAIN_STEP)
        if not times:
            return self
        cost = self._fitted()
        # A plain step of this decoding may have been interrupted, the machine may have been faster in earlier
        # decodings, and the model may be wrong. The median follows those that agree.
        steps = [exp(median(log(seconds / cost(*size)) for size, its in times.items() for seconds in its))]
        steps += [seconds / IDLE for seconds in plain]
        steps += [self.readings[PLAIN_STEP].cost] if PLAIN_STEP in self.readings else []
        new = {size: _reading(its, median(steps)) for size, its in times.items()}
        limits = {size: CONTRADICTION / reading.weight for size, reading in new.items()}
        is_wrong = any(abs(log(reading.cost / cost(*size))) > limits[size] for size, reading in new.items())
        if plain:
            new[PLAIN_STEP] = _reading(plain, IDLE)
        used = {mode for mode, _ in new}
        before = {} if is_wrong else self.readings
        kept = {size: Reading(it.cost, it.weight * (DECAY if size[0] in used else 1)) for size, it in before.items()}
        readings = kept | {size: _average(kept.get(size), reading) for size, reading in new.items()}
        return replace(self, readings=readings, decodings=self.decodings + 1)

    def _estimates(self) -> np.ndarray:
        """Return the estimated parameters: node, tile, then fixed and each of every mode."""
        node = CPU_NODE if self.on_cpu else GPU_NODE
        # B images with n drafts are B * (n + 1) rows. The plain step becomes longer with B, too.
        growth = self.images / (1 + node * (self.images - 1))
        drafting = [mode.cpu_cost if self.on_cpu else mode.gpu_cost for mode in self.modes]
        return np.array([node * growth, GPU_TILE, *(x for it in drafting for x in (it.fixed, it.each * growth))])

    def _features(self, mode: str, drafts: int) -> np.ndarray:
        """Return the factor of each parameter in the cost of a round."""
        tiles = [ceil(self.images * self.rows * (n + 1) / self.tile) if self.tile else 0 for n in (0, drafts)]
        of_modes = [(one.name == mode) * factor for one in self.modes for factor in (1, drafts)]
        return np.array([drafts, tiles[1] - tiles[0], *of_modes]) * (drafts > 0)

    def _fitted(self) -> Callable[[str, int], float]:
        """Return the cost as a function of mode and number of drafts, with the most probable parameters.

        Logarithms of parameters have a normal distribution around the estimates, and logarithms of readings one around
        the costs. This is a nonlinear least-squares problem, solved by Gauss-Newton steps.
        """
        estimates = np.log(self._estimates())
        sizes = [size for size in self.readings if size != PLAIN_STEP]
        features = np.array([self._features(*size) for size in sizes]).reshape(-1, len(estimates))
        readings = np.log([self.readings[size].cost for size in sizes])
        precision = np.array([self.readings[size].weight for size in sizes]) / READING_ERROR**2
        prior = np.eye(len(estimates)) / PARAMETER_ERROR**2
        x = estimates
        for _ in range(FIT_STEPS):
            costs = IDLE + features @ np.exp(x)
            slopes = features * np.exp(x) / costs[:, None]  # d log(cost) / d x
            gradient = slopes.T @ (precision * (readings - np.log(costs))) + prior @ (estimates - x)
            x = x + np.clip(np.linalg.solve(slopes.T @ (precision[:, None] * slopes) + prior, gradient), -1, 1)
        return lambda mode, drafts: float(IDLE + self._features(mode, drafts) @ np.exp(x))

    def to_json(self) -> dict[str, Any]:
        """Return what was learned, as plain JSON types."""
        rows = [[*size, *map(rounded, reading)] for size, reading in self.readings.items()]
        return {"name": self.name, "images": self.images, "decodings": self.decodings, "readings": rows}

    def with_json(self, value: Any) -> CostModel:
        """Return the model with what :meth:`to_json` has written; without readings if the value is anything else.

        Args:
            value: Parsed JSON, which is not trusted.
        """
        if not _MODEL.fits(value) or (value["name"], value["images"]) != (self.name, self.images):
            return self
        readings = {(mode, drafts): Reading(*values) for mode, drafts, *values in value["readings"]}
        return replace(self, readings=readings, decodings=value["decodings"])


_READING = row(text(0, LONGEST_NAME), whole_number(0, MOST_DRAFTS), number(1 / MOST_STEPS, MOST_STEPS), number(0, 2))
_MODEL = record(
    {
        "name": label(LONGEST_NAME),
        "images": whole_number(1, 2**20),
        "decodings": whole_number(0, MOST_DECODINGS),
        "readings": list_of(_READING, 0, MOST_POINTS**2),
    }
)


def _reading(seconds: Sequence[float], step: float) -> Reading:
    """Return the reading of rounds that took these times, relative to the time of a plain step."""
    cost = min(max(median(seconds) / step, 1 / MOST_STEPS), MOST_STEPS)
    return Reading(cost, len(seconds) / (len(seconds) + 1))


def _average(before: Reading | None, new: Reading) -> Reading:
    """Return the weighted geometric mean of two readings."""
    if before is None:
        return new
    weight = before.weight + new.weight
    cost = exp((before.weight * log(before.cost) + new.weight * log(new.cost)) / weight)
    return Reading(cost, min(weight, 2.0))
