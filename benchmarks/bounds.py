"""Table of tree bounds for the method *adt-tree*: rounds, sizes of trees, and computed speed at three prices.

    python -m benchmarks.bounds [--captions 64] [--first 0] [--temperatures 0,0.6,1] [--drafts 6,31]
    python -m benchmarks.bounds --pairs ...         compare ADT-Tree with EAGLE-2 and with fixed trees of equal depth

The table has no measured times. *Value* is the computed number of tokens in the time of a plain round: tau divided by
the price of a round (`PRICES`). The interval of a ratio is a 95 % bootstrap over the captions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from adt_core import Drafting, Sampling
from adt_core.drafters import without_window
from adt_core.lab.paper import BASELINE, fixed_trees
from adt_core.lab.presets import PRESETS, find_preset, listed, presets
from adt_core.policies import ADT_TREE, EAGLE2
from adt_core.trace import ImageRound

from .harness import BUNDLED, SAMPLING, bundled, captions
from .tables import header, row


class Price(NamedTuple):
    """Price of a round in plain rounds: a fixed part, and parts per verified draft and per call of the drafter network.

    `calls` is the figure of a round that is the number of calls: "depth" of the verified tree, or "depth_asked",
    because captured rounds of a GPU call the network for every level of it.
    """

    once: float
    draft: float
    call: float
    calls: str


PRICES = {
    "CPU": Price(1.31, 0.043, 0.16, "depth"),
    "H100": Price(1.15, 0.0, 0.06, "depth_asked"),
    "RTX 4090": Price(1.05, 0.006, 0.05, "depth_asked"),
}
"""Prices by device.

The CPU's was fitted to docs/performance.md. Those of the GPUs are estimates for a model of 7 billion parameters in
bfloat16 with guidance: on an H100, 31 drafts fill one tile of a product and cost nothing.
"""
BATCH = 64  # number of images that are decoded together


@dataclass(frozen=True)
class Measured:
    """Records of the rounds of each image, for a method."""

    images: list[list[ImageRound]]

    def sums(self, name: str) -> np.ndarray:
        """Return the sum of a figure over the rounds of each image, [images]."""
        return np.array([sum(getattr(record, name) for record in records) for records in self.images])

    @cached_property
    def rounds(self) -> np.ndarray:
        return np.array([len(records) for records in self.images])

    def mean(self, name: str) -> float:
        return float(self.sums(name).sum() / self.rounds.sum())

    @property
    def tau(self) -> float:
        return 1 + self.mean("accepted")

    @property
    def widths(self) -> str:
        """Smallest and largest width that the policy chose."""
        found = {record.width_asked for records in self.images for record in records if record.depth}
        return f"{min(found)} to {max(found)}"

    def values(self, price: Price, chosen: np.ndarray) -> np.ndarray:
        """Return the value of several selections of images.

        Args:
            chosen: [n, images], indices of images.

        Returns:
            [n].
        """
        tokens = self.sums("accepted") + self.rounds
        cost = price.once * self.rounds + price.draft * self.sums("drafts") + price.call * self.sums(price.calls)
        return tokens[chosen].sum(-1) / cost[chosen].sum(-1)

    def value(self, price: Price) -> float:
        """Return the value of all images together."""
        return float(self.values(price, np.arange(len(self.images))[None])[0])


def measure(drafting: Drafting, prompts: list[str], sampling: Sampling) -> Measured:
    """Decode images of the bundled model with its network, and return their rounds."""
    loaded = bundled()
    recipe = replace(loaded.recipe, sampling=sampling, drafting=drafting)
    pipeline = replace(loaded, recipe=recipe, drafter=without_window(loaded.drafter))
    images = []
    for at in range(0, len(prompts), BATCH):
        trace = pipeline.decoding(prompts[at : at + BATCH]).run().trace
        records = [record for round in trace.rounds for record in round.images]
        images += [[record for record in records if record.image == image] for image in range(trace.images)]
    return Measured(images)


def ratio(one: Measured, other: Measured, price: Price) -> str:
    """Return the ratio of values with its interval, as text."""
    rng = np.random.Generator(np.random.Philox(key=0))
    count = len(one.images)
    chosen = rng.integers(0, count, (2000, count))
    low, high = np.quantile(one.values(price, chosen) / other.values(price, chosen), (0.025, 0.975))
    return f"{one.value(price) / other.value(price):.3f} ({low:.3f} to {high:.3f})"


METHODS = {
    6: [
        "eagle2:depth=3,width=2", "eagle2:depth=4,width=2", "eagle2:depth=5,width=2", "eagle2:depth=4,width=3",
        *(f"adt-tree:depth=3,width=2,depth_min={low},depth_max={high},width_min={few},width_max={many}"
          for low, high, few, many in ((1, 6, 1, 3), (2, 6, 1, 3), (2, 6, 1, 2), (3, 6, 1, 3), (2, 8, 1, 4))),
    ],
    31: [
        *(f"eagle2:depth={depth},width={width}" for depth, width in ((5, 10), (6, 8), (7, 8), (8, 8), (9, 8), (10, 4))),
        *(f"adt-tree:depth={(low + high) // 2},width={(few + many + 1) // 2},depth_min={low},depth_max={high},"
          f"width_min={few},width_max={many},beta={beta}"
          for low, high, few, many in ((2, 12, 2, 12), (4, 12, 2, 10), (5, 12, 1, 8), (5, 12, 3, 10), (6, 12, 4, 10))
          for beta in (0.6, 0.7)),
        "predicted:depth=8,width=8,depth_min=5,depth_max=12,width_min=8,width_max=8,beta=0.7",
    ],
}  # fmt: skip
"""Number of drafts -> methods with their bounds. The first ones are fixed trees of EAGLE-2."""


DEVICES = {6: "cpu", 31: "cuda"}  # type of device whose default trees have this number of drafts


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="number of the first held-out caption, from 0")
    parser.add_argument("--temperatures", default="0.6")
    parser.add_argument("--drafts", default="6,31")
    parser.add_argument("--methods", default=None, help="methods with settings, instead of the table's")
    parser.add_argument("--pairs", action="store_true", help="compare the defaults of ADT-Tree with fixed trees")
    args = parser.parse_args()
    print(header("T", "drafts", *(PAIR_COLUMNS if args.pairs else COLUMNS)))
    prompts = captions(BUNDLED + args.first, args.captions)
    for temperature in map(float, args.temperatures.split(",")):
        sampling = replace(SAMPLING, temperature=temperature)
        for drafts in map(int, args.drafts.split(",")):
            given = prompts, sampling, drafts
            for cells in _pairs(*given) if args.pairs else _screening(*given, args.methods):
                print(row(f"{temperature:g}", drafts, *cells), flush=True)


COLUMNS = (
    "method",
    "widths",
    "tau",
    "mean depth",
    "levels asked",
    *(*PRICES, *(f"ratio, {device}" for device in PRICES)),
)
PAIR_COLUMNS = ("baseline", "tau", "mean depth", *(f"ADT-Tree / baseline, {device}" for device in PRICES))


def _screening(prompts: list[str], sampling: Sampling, drafts: int, methods: str | None) -> Iterator[list]:
    """Yield the cells of each method. The ratios compare with the best fixed tree so far at each price."""
    fixed: list[Measured] = []
    for name in listed(methods) if methods else METHODS[drafts]:
        one = measure(find_preset(f"{name},drafts={drafts}", PRESETS, None).drafting, prompts, sampling)
        fixed += [one] * name.startswith(EAGLE2)
        values = [f"{one.value(price):.3f}" for price in PRICES.values()]
        best = [max(fixed or [one], key=lambda tree, price=price: tree.value(price)) for price in PRICES.values()]
        ratios = [ratio(one, tree, price) for tree, price in zip(best, PRICES.values())]
        yield [name, one.widths, one.tau, one.mean("depth"), one.mean("depth_asked"), *values, *ratios]


def _pairs(prompts: list[str], sampling: Sampling, drafts: int) -> Iterator[list]:
    """Yield the cells of ADT-Tree with the device's defaults, and of each fixed tree that it is compared with."""
    available = presets(DEVICES[drafts])
    own = measure(available[ADT_TREE].drafting, prompts, sampling)
    trees = fixed_trees({"drafts_per_round": own.mean("drafts"), "mean_depth": own.mean("depth")})
    for name in (ADT_TREE, BASELINE, EAGLE2, *trees):
        one = own if name == ADT_TREE else measure(find_preset(name, available, None).drafting, prompts, sampling)
        yield [name, one.tau, one.mean("depth"), *(ratio(own, one, price) for price in PRICES.values())]


if __name__ == "__main__":
    main()
