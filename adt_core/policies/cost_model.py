"""Cost model: learns from finished decodings how long rounds take on a device, and how many drafts they accept.

The unit of a cost is a *plain round*: the time of one target forward pass in decoding without a drafter, with the same
model, settings and batch size. A round with n drafts per image in draft mode m costs

    c(m, n) = IDLE + node * n + tile * tiles(n) + fixed(m) + each(m) * n        for n > 0, and c(m, 0) = IDLE

- `node` is the target's cost of verifying one more draft per image.
- `tile` is the additional cost of one more tile. In batch-invariant mode, the target multiplies matrices in tiles of a
  fixed number of rows. tiles(n) is the number of tiles in a round with n drafts, minus the number in a plain round.
- `fixed(m)` is the cost of drafting in mode m that does not depend on n, and `each(m)` is the cost of each draft.

These parameters start from estimates. Then the model learns from each decoding. For each mode and number of drafts that
a decoding has used, the median time of these rounds, divided by the time of a plain round, is a *reading*. Readings of
several decodings are averaged, and older readings have less weight. But if a new reading differs too much from the
model (`CONTRADICTION`), all earlier readings are discarded. Finally, the parameters are fitted to the readings and to
the estimates by least squares of logarithms. So the model also has costs for numbers of drafts that were never used.

The *gain* of a mode is the number of accepted drafts divided by the number that `DraftMode.expected_accepted` returns.
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
from .cost_profile import LONGEST_NAME, MOST_DECODINGS, MOST_DRAFTS, MOST_POINTS, MOST_STEPS, CostProfile, rounded

IDLE = 1.04
"""Cost of a round without drafts in a decoding that has a drafter."""
CPU_NODE = 0.052
"""Estimate of `node` on a CPU, for a batch of one image."""
CPU_IMAGE = 0.15
"""Estimated cost of one more image in a plain round on a CPU. On a GPU, it is `GPU_NODE`."""
CPU_SPREAD = 0.2
"""Estimated additional cost of a round on a CPU if the images of a batch are at different positions, as after a round
with drafts."""
GPU_NODE = 0.003
"""Estimate of `node` on a GPU, for a batch of one image."""
GPU_TILE = 0.25
"""Estimate of `tile`."""
READING_ERROR = 0.1
"""Assumed standard deviation of the logarithm of a reading with the weight 1."""
PARAMETER_ERROR = 0.6
"""Assumed standard deviation of the logarithm of a parameter from the logarithm of its estimate."""
DECAY = 0.5
"""Factor on the weights of a mode's earlier readings when the model learns from another decoding with this mode."""
CONTRADICTION = 0.5
"""Maximum difference between the logarithms of a new reading and of the model's cost for the same round. If a new
reading differs more, all earlier readings are discarded."""
GAIN_DECAY = 0.9
"""Factor on the weight of a mode's earlier gain when the model learns from another decoding with this mode. It is
larger than `DECAY`, because the gain differs more from image to image than the time of a round."""
GAIN_ESTIMATE_WEIGHT = 2.0
"""Weight of an estimated gain. The gain of one image has at most the weight 1."""
GAIN_DRAFTS = 100.0
"""Number of drafts that must be expected to be accepted in a decoding for its gain to have the weight 0.5."""
FIT_STEPS = 12
"""Number of Gauss-Newton steps in a fit. A fit converges in at most six steps."""

Size = tuple[str, int]
"""Draft mode and number of drafts per image."""
PLAIN_ROUND: Size = ("", 0)
"""Mode and number of drafts of rounds without drafts, as a key of `CostModel.readings`."""


class RoundResult(NamedTuple):
    """Time and accepted drafts of a round.

    Attributes:
        size: Mode and number of drafts per image.
        seconds: Time of the round. Rounds with one-off work, such as capturing a CUDA graph, must be left out.
        accepted: Average number of accepted drafts per image.
    """

    size: Size
    seconds: float
    accepted: float


class Reading(NamedTuple):
    """Measured cost of a mode and number of drafts, or measured gain of a mode; an average after several decodings.

    Attributes:
        value: A cost in plain rounds, the time of a plain round in seconds, or a gain.
        weight: Weight, at least 0. The cost of a single round has the weight 0.5. The cost of many rounds of one
            decoding has nearly the weight 1.
    """

    value: float
    weight: float


@dataclass(frozen=True)
class CostModel:
    """Cost of rounds as a function of draft mode and number of drafts.

    Attributes:
        name: Description of the device, model and settings.
        images: Number of images that are decoded together.
        rows: Rows per image in a forward pass: 2 with guidance, otherwise 1.
        tile: Rows in a tile of batch-invariant mode; 0 if the number of tiles does not change the cost.
        sampling: Description of the sampling settings. Gains are valid only for these settings.
        temperature: Temperature of sampling, from which gains are estimated until they are learned.
        slowdown: How many times as long a plain round takes because layers are streamed (:mod:`..models.streamed`). It
            divides the estimates, because drafts take no longer then.
        readings: Costs by mode and number of drafts. The entry `PLAIN_ROUND` is the time of a plain round in seconds.
        gains: Gain of each mode.
        decodings: Number of decodings from which the model has learned.
    """

    name: str
    images: int
    modes: Sequence[DraftMode]
    on_cpu: bool
    rows: int = 2
    tile: int = 0
    sampling: str = ""
    temperature: float = 0.6
    slowdown: float = 1.0
    readings: Mapping[Size, Reading] = field(default_factory=dict)
    gains: Mapping[str, Reading] = field(default_factory=dict)
    decodings: int = 0

    def profile(self, sizes: Iterable[int]) -> CostProfile:
        """Return the cost profile. Its curves have points at 0, 1, `MOST_DRAFTS` and these numbers of drafts."""
        cost = self._fitted()
        points = sorted({0, 1, MOST_DRAFTS, *sizes})
        costs = {mode.name: tuple((n, rounded(cost(mode.name, n))) for n in points) for mode in self.modes}
        gains = {mode.name: rounded(self._gain(mode).value) for mode in self.modes}
        return CostProfile(self.name, self.images, costs, self.decodings, gains)

    def learn(self, rounds: Iterable[RoundResult]) -> CostModel:
        """Return a model that has also learned from these rounds of a decoding."""
        results: dict[Size, list[RoundResult]] = {PLAIN_ROUND: []}
        for result in rounds:
            results.setdefault(result.size, []).append(result)
        times = {size: [result.seconds for result in its] for size, its in results.items()}
        plain = times.pop(PLAIN_ROUND)
        if not times:
            return replace(self, decodings=self.decodings + 1)
        cost = self._fitted()
        # `steps` are estimates of the time of a plain round: from the rounds with drafts and their costs in the model,
        # from the rounds without drafts, and from earlier decodings. Each estimate can be wrong: the model may be
        # wrong, a round may have been interrupted, or the speed of the machine may have changed. So take the median.
        steps = [exp(median(log(seconds / cost(*size)) for size, its in times.items() for seconds in its))]
        steps += [seconds / IDLE for seconds in plain]
        steps += [self.readings[PLAIN_ROUND].value] if PLAIN_ROUND in self.readings else []
        new = {size: _reading(its, median(steps)) for size, its in times.items()}
        is_wrong = any(abs(log(reading.value / cost(*size))) > CONTRADICTION for size, reading in new.items())
        if plain:
            new[PLAIN_ROUND] = _reading(plain, IDLE)
        used = {mode for mode, _ in new}
        before = {} if is_wrong else self.readings
        decayed = {
            size: it._replace(weight=it.weight * (DECAY if size[0] in used else 1)) for size, it in before.items()
        }
        readings = decayed | {size: _average(decayed.get(size), reading) for size, reading in new.items()}
        return replace(self, readings=readings, gains=self._new_gains(results), decodings=self.decodings + 1)

    def _new_gains(self, results: Mapping[Size, Sequence[RoundResult]]) -> dict[str, Reading]:
        """Return the gains after a decoding with these rounds."""
        gains = dict(self.gains)
        for mode in self.modes:
            sizes = [size for size in results if size[0] == mode.name]
            expected = sum(len(results[size]) * mode.expected_accepted(size[1]) for size in sizes)
            if expected:
                accepted = sum(result.accepted for size in sizes for result in results[size])
                new = Reading((accepted + 1) / (expected + 1), expected / (expected + GAIN_DRAFTS))
                before = self._gain(mode)
                gains[mode.name] = _average(before._replace(weight=GAIN_DECAY * before.weight), new)
        return gains

    def _gain(self, mode: DraftMode) -> Reading:
        """Return the learned gain of a mode, or its estimate."""
        return self.gains.get(mode.name) or Reading(mode.estimated_gain(self.temperature), GAIN_ESTIMATE_WEIGHT)

    def _estimates(self) -> np.ndarray:
        """Return the estimates of all parameters: `node`, `tile`, and then `fixed` and `each` of every mode."""
        node = CPU_NODE if self.on_cpu else GPU_NODE
        # The estimates are in plain rounds of one image. With B images, each draft costs B times as much time, but a
        # plain round, the unit of costs, takes longer too. The fixed costs of drafting grow as the plain round does.
        step = 1 + (CPU_IMAGE if self.on_cpu else GPU_NODE) * (self.images - 1)
        drafting = [mode.cpu_cost if self.on_cpu else mode.gpu_cost for mode in self.modes]
        spread = CPU_SPREAD if self.on_cpu and self.images > 1 else 0
        of_modes = [x for it in drafting for x in (it.fixed + spread, it.each * self.images / step)]
        return np.array([node * self.images / step, GPU_TILE, *of_modes]) / self.slowdown

    def _features(self, mode: str, drafts: int) -> np.ndarray:
        """Return the number by which each parameter is multiplied in the cost of a round."""
        tiles = [ceil(self.images * self.rows * (n + 1) / self.tile) if self.tile else 0 for n in (0, drafts)]
        of_modes = [(one.name == mode) * factor for one in self.modes for factor in (1, drafts)]
        return np.array([drafts, tiles[1] - tiles[0], *of_modes]) * (drafts > 0)

    def _fitted(self) -> Callable[[str, int], float]:
        """Return the cost as a function of mode and number of drafts, with the most probable parameters.

        Assumption: the logarithms of the parameters have a normal distribution around the logarithms of the estimates,
        and the logarithms of the readings have one around the logarithms of the costs. So finding the parameters is a
        nonlinear least-squares problem. It is solved by Gauss-Newton steps.
        """
        estimates = np.log(self._estimates())
        sizes = [size for size in self.readings if size != PLAIN_ROUND]
        features = np.array([self._features(*size) for size in sizes]).reshape(-1, len(estimates))
        readings = np.log([self.readings[size].value for size in sizes])
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
        return {
            "name": self.name,
            "images": self.images,
            "decodings": self.decodings,
            "readings": [[*size, *map(rounded, reading)] for size, reading in self.readings.items()],
            "sampling": self.sampling,
            "gains": [[mode, *map(rounded, gain)] for mode, gain in self.gains.items()],
        }

    def with_json(self, value: Any) -> CostModel:
        """Return a copy of the model with the readings and gains that :meth:`to_json` has written.

        If the value, which is not trusted, is damaged or of another name or batch size, the model itself is returned.
        Gains that were measured with other sampling settings are left out.
        """
        if not _MODEL.fits(value) or (value["name"], value["images"]) != (self.name, self.images):
            return self
        readings = {(mode, drafts): Reading(*values) for mode, drafts, *values in value["readings"]}
        is_same = value["sampling"] == self.sampling
        gains = {mode: Reading(*values) for mode, *values in value["gains"]} if is_same else {}
        return replace(self, readings=readings, gains=gains, decodings=value["decodings"])


_MODE = text(0, LONGEST_NAME)
_VALUES = number(1 / MOST_STEPS, MOST_STEPS), number(0, 20)
_MODEL = record(
    {
        "name": label(LONGEST_NAME),
        "images": whole_number(1, 2**20),
        "decodings": whole_number(0, MOST_DECODINGS),
        "readings": list_of(row(_MODE, whole_number(0, MOST_DRAFTS), *_VALUES), 0, MOST_POINTS**2),
        "sampling": _MODE,
        "gains": list_of(row(_MODE, *_VALUES), 0, MOST_POINTS),
    }
)


def _reading(seconds: Sequence[float], step: float) -> Reading:
    """Return the median of the times `seconds`, divided by the time `step`."""
    cost = min(max(median(seconds) / step, 1 / MOST_STEPS), MOST_STEPS)
    return Reading(cost, len(seconds) / (len(seconds) + 1))


def _average(before: Reading | None, new: Reading) -> Reading:
    """Return the weighted geometric mean of two readings."""
    if before is None:
        return new
    weight = before.weight + new.weight
    return Reading(exp((before.weight * log(before.value) + new.weight * log(new.value)) / weight), weight)
