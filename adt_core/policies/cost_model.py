"""Cost model: learns from finished decodings how long rounds take on a device.

The unit of a cost is a *plain step*: the time of a round without drafts, with the same models, settings and batch size.
A round in which draft mode m verifies n drafts per image costs

    c(m, n) = IDLE + node * n + tile * tiles(n) + fixed(m) + each(m) * n        for n > 0, and c(m, 0) = IDLE

- `node` and `tile` belong to the target: one more draft per image, and one more tile of rows in batch-invariant mode.
  tiles(n) is the number of tiles that n drafts add to those of a plain step.
- `fixed(m)` and `each(m)` belong to the draft mode: drafting at all, and one more draft.

The parameters start from estimates. After a decoding, the median time of all its rounds of a mode and size, divided by
the time of its plain steps, becomes a *reading*. Readings of the same mode and size are averaged with weights that
decay from decoding to decoding. A decoding that contradicts the model discards all earlier readings. The parameters are
then fitted to readings and estimates by least squares of logarithms, so sizes that were never used get a cost, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
"""Estimate of `tile` on a GPU."""
READING_ERROR = 0.1
"""Standard deviation of the logarithm of a reading of weight 1."""
PARAMETER_ERROR = 0.6
"""Standard deviation of the logarithm of an estimated parameter."""
PLAIN_ERROR = 0.2
"""Standard deviation of the logarithm of one plain step's time."""
DRIFT_ERROR = 0.25
"""Standard deviation of the logarithm of a plain step's average time between decodings."""
MODEL_ERROR = 0.35
"""Standard deviation of the logarithm of a plain step's time, as the model concludes it from rounds with drafts."""
HALF_WEIGHT = 1
"""Number of rounds in a decoding that give its reading the weight 1/2; infinitely many give it 1."""
FORGET = 0.5
"""Share of its weight that an earlier reading loses when a reading of weight 1 of the same mode is added."""
TOLERANCE = 0.4
"""Largest difference of logarithms between the model and a mode's readings of weight 1 that is not a contradiction."""
FIT_STEPS = 12
"""Gauss-Newton steps of a fit, which converges in six or fewer."""

_Size = tuple[str, int]
"""Draft mode and number of drafts."""
PLAIN_STEP: _Size = ("", 0)
"""Mode and number of drafts of a plain step."""


class RoundTime(NamedTuple):
    """Time of a round.

    Attributes:
        mode: Draft mode; "" for a round without drafts.
        drafts: Drafts per image that the policy has chosen.
        seconds: Time of the round.
    """

    mode: str
    drafts: int
    seconds: float


class Reading(NamedTuple):
    """Measured cost of the rounds of a mode and size.

    Attributes:
        cost: Cost in plain steps; for a plain step its time in seconds.
        weight: Weight in the fit, from 0 to 2.
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
        rows: Rows per image of a forward pass: 2 with guidance, otherwise 1.
        tile: Rows of a matrix product in batch-invariant mode; 0 if their number does not matter.
        readings: Readings by draft mode and number of drafts.
        plain: Average time of a plain step in seconds, with its weight; None if unknown.
        decodings: Number of decodings that the readings come from.
    """

    name: str
    images: int
    modes: Sequence[DraftMode]
    on_cpu: bool
    rows: int = 2
    tile: int = 0
    readings: Mapping[_Size, Reading] = field(default_factory=dict)
    plain: Reading | None = None
    decodings: int = 0

    def profile(self, sizes: Iterable[int]) -> CostProfile:
        """Return the cost profile, with these numbers of drafts as points of its curves."""
        parameters = self._fit()
        points = sorted({0, 1, MOST_DRAFTS, *sizes})
        costs = {
            mode.name: tuple((size, rounded(self._cost(parameters, mode.name, size))) for size in points)
            for mode in self.modes
        }
        return CostProfile(self.name, self.images, costs, self.decodings)

    def learn(self, rounds: Iterable[RoundTime]) -> CostModel:
        """Return the model after one more decoding.

        Args:
            rounds: Times of the decoding's rounds, without those that were cut or included other work.

        Returns:
            The model itself if no round had drafts.
        """
        groups: dict[_Size, list[float]] = {}
        for mode, drafts, seconds in rounds:
            groups.setdefault((mode, drafts), []).append(seconds)
        plain = groups.pop(PLAIN_STEP, [])
        modes = {mode.name for mode in self.modes}
        groups = {key: times for key, times in groups.items() if key[0] in modes}
        if not groups:
            return self
        parameters = self._fit()
        step = self._plain_step(parameters, plain, groups)
        new = {key: _reading(times, step) for key, times in groups.items()}
        used = {mode: {key: reading for key, reading in new.items() if key[0] == mode} for mode, _ in new}
        readings = dict(self.readings)
        if any(self._contradicts(parameters, its) for its in used.values()):
            readings = {}
        for (mode, drafts), reading in readings.items():
            if mode in used:
                kept = 1 - FORGET * max(its.weight for its in used[mode].values())
                readings[mode, drafts] = _weakened(reading, kept)
        for key, reading in new.items():
            readings[key] = _average(readings.get(key), reading)
        average = self.plain
        if plain:
            average = _average(average and _weakened(average, FORGET), _reading(plain, IDLE))
        return replace(self, readings=readings, plain=average, decodings=self.decodings + 1)

    def _plain_step(
        self, parameters: np.ndarray, plain: Sequence[float], groups: Mapping[_Size, Sequence[float]]
    ) -> float:
        """Return the time of a plain step in a decoding, in seconds.

        It is a robust mean of three estimates: from the decoding's plain steps, of which there may be one only, from
        earlier decodings, whose machine may have been faster, and from the rounds with drafts by a model that may be
        wrong. If two agree, the third has little influence.
        """
        weights = [_weight(times) for times in groups.values()]
        steps = [log(median(times) / self._cost(parameters, *key)) for key, times in groups.items()]
        values = [float(np.average(steps, weights=weights))]
        precisions = [MODEL_ERROR**-2]
        if plain:
            values.append(log(median(plain) / IDLE))
            precisions.append(len(plain) * PLAIN_ERROR**-2)
        if self.plain is not None:
            values.append(log(self.plain.cost))
            precisions.append(min(self.plain.weight, 1.0) * DRIFT_ERROR**-2)
        value = np.array(values)
        precision = np.array(precisions)
        mean = np.average(value, weights=precision)
        for _ in range(FIT_STEPS):
            mean = np.average(value, weights=precision / (1 + precision * (value - mean) ** 2))
        return float(np.exp(mean))

    def _contradicts(self, parameters: np.ndarray, new: Mapping[_Size, Reading]) -> bool:
        """Return whether a mode's readings differ so much from the model that it must be wrong for all modes."""
        weights = [reading.weight for reading in new.values()]
        differences = [log(reading.cost / self._cost(parameters, *key)) for key, reading in new.items()]
        return bool(abs(np.average(differences, weights=weights)) > TOLERANCE / max(weights))

    def _estimates(self) -> np.ndarray:
        """Return the estimated parameters: node, tile, then fixed and each of every mode."""
        node = CPU_NODE if self.on_cpu else GPU_NODE
        # More images make a plain step longer, too: B images with n drafts are B * (n + 1) rows, and a plain step B.
        growth = self.images / (1 + node * (self.images - 1))
        modes = [mode.cpu_cost if self.on_cpu else mode.gpu_cost for mode in self.modes]
        drafting = [value for fixed, each in modes for value in (fixed, each * growth)]
        return np.array([node * growth, GPU_TILE, *drafting])

    def _features(self, mode: str, drafts: int) -> np.ndarray:
        """Return the factor of each parameter in the cost of a round."""
        values = np.zeros(2 + 2 * len(self.modes))
        if drafts:
            at = 2 + 2 * [one.name for one in self.modes].index(mode)
            values[:2] = drafts, self._tiles(drafts) - self._tiles(0)
            values[at : at + 2] = 1, drafts
        return values

    def _tiles(self, drafts: int) -> int:
        return ceil(self.images * self.rows * (drafts + 1) / self.tile) if self.tile else 0

    def _cost(self, parameters: np.ndarray, mode: str, drafts: int) -> float:
        return float(IDLE + self._features(mode, drafts) @ parameters)

    def _fit(self) -> np.ndarray:
        """Return the parameters with the highest posterior probability.

        Logarithms of parameters have a normal distribution around the estimates, and logarithms of readings one around
        the costs: a nonlinear least-squares problem, solved by Gauss-Newton steps.
        """
        estimates = np.log(self._estimates())
        if not self.readings:
            return np.exp(estimates)
        features = np.array([self._features(*key) for key in self.readings])
        readings = np.array([log(reading.cost) for reading in self.readings.values()])
        precision = np.array([reading.weight for reading in self.readings.values()]) / READING_ERROR**2
        prior = np.eye(len(estimates)) / PARAMETER_ERROR**2
        x = estimates
        for _ in range(FIT_STEPS):
            costs = IDLE + features @ np.exp(x)
            slopes = features * np.exp(x) / costs[:, None]  # d log(cost) / d x
            gradient = slopes.T @ (precision * (readings - np.log(costs))) + prior @ (estimates - x)
            hessian = slopes.T @ (precision[:, None] * slopes) + prior
            x = x + np.clip(np.linalg.solve(hessian, gradient), -1, 1)
        return np.exp(x)

    def to_json(self) -> dict[str, Any]:
        """Return what was learned, as plain JSON types."""
        readings = {**self.readings, PLAIN_STEP: self.plain} if self.plain is not None else self.readings
        rows = [[*key, *map(rounded, reading)] for key, reading in readings.items()]
        return {"name": self.name, "images": self.images, "decodings": self.decodings, "readings": rows}

    def with_json(self, value: Any) -> CostModel:
        """Return the model with what :meth:`to_json` has written; without readings if the value is anything else.

        Args:
            value: Parsed JSON, which is not trusted.
        """
        if not _MODEL.fits(value) or (value["name"], value["images"]) != (self.name, self.images):
            return self
        readings = {(mode, drafts): Reading(cost, weight) for mode, drafts, cost, weight in value["readings"]}
        plain = readings.pop(PLAIN_STEP, None)
        modes = {mode.name for mode in self.modes}
        readings = {key: reading for key, reading in readings.items() if key[0] in modes and key[1]}
        return replace(self, readings=readings, plain=plain, decodings=value["decodings"])


_READING = row(text(0, LONGEST_NAME), whole_number(0, MOST_DRAFTS), number(1 / MOST_STEPS, MOST_STEPS), number(0, 2))
_MODEL = record(
    {
        "name": label(LONGEST_NAME),
        "images": whole_number(1, 2**20),
        "decodings": whole_number(0, MOST_DECODINGS),
        "readings": list_of(_READING, 0, MOST_POINTS**2),
    }
)


def _weight(times: Sequence[float]) -> float:
    return len(times) / (len(times) + HALF_WEIGHT)


def _reading(times: Sequence[float], step: float) -> Reading:
    """Return the reading of rounds of a mode and size that took these times, relative to the time of a plain step."""
    return Reading(min(max(median(times) / step, 1 / MOST_STEPS), MOST_STEPS), _weight(times))


def _weakened(reading: Reading, share: float) -> Reading:
    return reading._replace(weight=share * reading.weight)


def _average(before: Reading | None, new: Reading) -> Reading:
    """Return the weighted geometric mean of two readings."""
    if before is None:
        return new
    weight = before.weight + new.weight
    cost = exp((before.weight * log(before.cost) + new.weight * log(new.cost)) / weight)
    return Reading(cost, min(weight, 2.0))
