"""Table of tree bounds for the method *adt-tree*: rounds, sizes of trees, and computed speed at three prices.

    python -m benchmarks.bounds [--captions 64] [--first 0] [--temperatures 0,0.6,1] [--drafts 6,31]
    python -m benchmarks.bounds --pairs ...         compare ADT-Tree with EAGLE-2 and with fixed trees of equal depth

Drafting does not change the tokens of an image. So plain decoding runs once, and the target's features are kept. Every
method then decodes the same images again: the drafter runs, but the features of the drafts are read from memory instead
of being computed. At a draft on the accepted path, they are those that the target would compute. Other drafts get the
features of plain decoding at the same position, which changes nothing: a draft is accepted only if its complete path
equals the tokens of plain decoding.

The table has no measured times. *Value* is the computed number of tokens in the time of a plain round: tau divided by
the price of a round (`PRICES`). The interval of a ratio is a 95 % bootstrap over the captions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Pipeline, Sampling
from adt_core.drafters import without_window
from adt_core.engine import round as engine_round
from adt_core.lab.paper import BASELINE, fixed_trees
from adt_core.lab.presets import PRESETS, find_preset, listed, presets
from adt_core.policies import ADT_TREE, EAGLE2, PLAIN

from .harness import BUNDLED, SAMPLING, bundled, captions


class Price(NamedTuple):
    """Price of a round in plain rounds.

    Attributes:
        once: Fixed part.
        draft: Part per verified draft.
        call: Part per call of the drafter network.
        calls: Name of the figure that has the number of calls: "depth" of the verified tree, or the depth that was
            "asked" for, because captured rounds of a GPU call the network for every level of it.
    """

    once: float
    draft: float
    call: float
    calls: str


PRICES = {
    "CPU": Price(1.31, 0.043, 0.16, "depth"),
    "H100": Price(1.15, 0.0, 0.06, "asked"),
    "RTX 4090": Price(1.05, 0.006, 0.05, "asked"),
}
"""Prices by device.

The CPU's was fitted to docs/performance.md. Those of the GPUs are estimates for a model of 7 billion parameters in
bfloat16 with guidance: on an H100, 31 drafts fill one tile of a product and cost nothing.
"""
BATCH = 64
"""Number of images that are decoded together."""


@dataclass
class Recording:
    """Features that the target computed in plain decoding.

    Attributes:
        features: For each image and batch row of it (with the prompt, without), the feature of each position [T, h].
    """

    features: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @contextmanager
    def record(self, length: int) -> Iterator[None]:
        """Keep the features of all forward passes of plain decoding."""
        original = engine_round.forward

        def forward(slots, codes, step):
            features = original(slots, codes, step)
            for (key, row), at in zip(_rows(slots), _positions(slots, step)):
                empty = torch.zeros(length, features.shape[-1])
                self.features.setdefault(key, empty)[at] = features[row]
            return features

        with patch.object(engine_round, "forward", forward):
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Read the features of all forward passes from this recording."""

        def forward(slots, codes, step):
            positions = _positions(slots, step)
            return torch.stack([self.features[key][positions[row]] for key, row in _rows(slots)])

        with patch.object(engine_round, "forward", forward):
            yield


def _rows(slots) -> list[tuple[tuple[int, int], int]]:
    """Return a pair for each batch row: (image, which of its rows), and the index of the batch row."""
    images = len(slots.images)
    return [((slots.images[row % images], row // images), row) for row in range(slots.rows.count)]


def _positions(slots, step) -> Tensor:
    """Return the raster position of each token of a forward pass, [R, n]."""
    rows = slots.rows
    length = slots.request.target.length
    return (step.positions + rows._shifts - rows.cache_offset).expand(rows.count, -1).clamp(0, length - 1)


@dataclass(frozen=True)
class Measured:
    """Figures of a method, one entry per image: tokens, rounds, and sums over the rounds."""

    tokens: np.ndarray
    rounds: np.ndarray
    depth: np.ndarray
    drafts: np.ndarray
    asked: np.ndarray
    widths: set[int]

    @property
    def tau(self) -> float:
        return float(self.tokens.sum() / self.rounds.sum())

    def mean(self, name: str) -> float:
        return float(getattr(self, name).sum() / self.rounds.sum())

    def values(self, price: Price, chosen: np.ndarray | None = None) -> np.ndarray:
        """Return the value of all images together.

        Args:
            chosen: [n, images], indices of images; the result then has one value for each of the n selections.
        """
        cost = price.once * self.rounds + price.draft * self.drafts + price.call * getattr(self, price.calls)
        chosen = np.arange(len(cost)) if chosen is None else chosen
        return self.tokens[chosen].sum(-1) / cost[chosen].sum(-1)


class Captions:
    """Captions whose images every method decodes."""

    def __init__(self, first: int, count: int, sampling: Sampling):
        self._target = bundled().target
        self._drafter = without_window(bundled().drafter)
        self._sampling = sampling
        self._prompts = captions(BUNDLED + first, count)
        self._batches = [self._prompts[at : at + BATCH] for at in range(0, count, BATCH)]
        self._recordings = []
        self._codes = []
        for batch in self._batches:
            recording = Recording()
            decoding = self._decoding(batch, Drafting(PLAIN))
            with recording.record(self._target.length):
                decoding.run()
            self._recordings.append(recording)
            self._codes.append(decoding.grid_codes())

    def _decoding(self, batch: list[str], drafting: Drafting) -> Decoding:
        recipe = replace(bundled().recipe, sampling=self._sampling, drafting=drafting)
        drafter = self._drafter if drafting.policy.needs_drafter else None
        return Pipeline(self._target, recipe, drafter).decoding(batch)

    def measure(self, drafting: Drafting) -> Measured:
        """Decode all images with a method, and return its figures."""
        rows: list[tuple[float, ...]] = []
        widths: set[int] = set()
        for batch, recording, codes in zip(self._batches, self._recordings, self._codes):
            decoding = self._decoding(batch, drafting)
            with recording.replay():
                decoding.run()
            agree = (decoding.grid_codes() == codes).double().mean().item()
            assert agree > 0.99, "only near ties of rounding may change a token"
            figures, used = _figures(decoding)
            rows += figures
            widths |= used
        return Measured(*(np.array(column) for column in zip(*rows)), widths)


def _figures(decoding: Decoding) -> tuple[list[tuple[float, ...]], set[int]]:
    """Return the figures of each image in the order of `Measured`, and all widths that the policy chose."""
    figures = []
    records = [record for round in decoding.trace.rounds for record in round.images]
    for image in range(decoding.trace.images):
        own = [record for record in records if record.image == image]
        sums = [sum(getattr(record, name) for record in own) for name in ("depth", "drafts", "depth_asked")]
        figures.append((sum(record.accepted + 1 for record in own), len(own), *sums))
    return figures, {record.width_asked for record in records if record.depth}


def ratio(one: Measured, other: Measured, price: Price) -> str:
    """Return the ratio of values with its interval, as text."""
    rng = np.random.Generator(np.random.Philox(key=0))
    chosen = rng.integers(0, len(one.tokens), (2000, len(one.tokens)))
    low, high = np.quantile(one.values(price, chosen) / other.values(price, chosen), (0.025, 0.975))
    return f"{one.values(price) / other.values(price):.3f} ({low:.3f} to {high:.3f})"


METHODS = {
    6: [
        *("eagle2:depth=3,width=2", "eagle2:depth=4,width=2", "eagle2:depth=5,width=2", "eagle2:depth=4,width=3"),
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


DEVICES = {6: "cpu", 31: "cuda"}
"""Type of device whose default trees have this number of drafts."""


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
    headings = PAIR_HEADINGS if args.pairs else HEADINGS
    print(_line(headings) + "\n" + "|---" * len(headings) + "|")
    for temperature in map(float, args.temperatures.split(",")):
        images = Captions(args.first, args.captions, replace(SAMPLING, temperature=temperature))
        for drafts in map(int, args.drafts.split(",")):
            lines = _pairs(images, drafts) if args.pairs else _screening(images, drafts, args.methods)
            for cells in lines:
                print(_line((temperature, drafts, *cells)), flush=True)


HEADINGS = (
    "T",
    "drafts",
    "method",
    "widths",
    "tau",
    "mean depth",
    "levels asked",
    *PRICES,
    *(f"ratio, {p}" for p in PRICES),
)
PAIR_HEADINGS = ("T", "drafts", "baseline", "tau", "mean depth", *(f"ADT-Tree / baseline, {p}" for p in PRICES))


def _line(cells: Iterable) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _screening(images: Captions, drafts: int, methods: str | None) -> Iterator[list]:
    """Yield the cells of each method. The ratios compare with the best fixed tree so far at each price."""
    results: dict[str, Measured] = {}
    for name in listed(methods) if methods else METHODS[drafts]:
        one = images.measure(find_preset(f"{name},drafts={drafts}", PRESETS, None).drafting)
        results[name] = one
        fixed = [result for other, result in results.items() if other.startswith(EAGLE2)] or [one]
        cells = [name, f"{min(one.widths)} to {max(one.widths)}", f"{one.tau:.2f}"]
        cells += [f"{one.mean(figure):.2f}" for figure in ("depth", "asked")]
        cells += [f"{one.values(price):.3f}" for price in PRICES.values()]
        for price in PRICES.values():
            cells.append(ratio(one, max(fixed, key=lambda result, price=price: result.values(price)), price))
        yield cells


def _pairs(images: Captions, drafts: int) -> Iterator[list]:
    """Yield the cells of ADT-Tree with the device's defaults, and of each fixed tree that it is compared with."""
    available = presets(DEVICES[drafts])
    own = images.measure(available[ADT_TREE].drafting)
    row = {"drafts_per_round": own.mean("drafts"), "mean_depth": own.mean("depth")}
    for name in (ADT_TREE, BASELINE, EAGLE2, *fixed_trees(row)):
        one = own if name == ADT_TREE else images.measure(find_preset(name, available, None).drafting)
        ratios = [ratio(own, one, price) for price in PRICES.values()]
        yield [name, f"{one.tau:.2f}", f"{one.mean('depth'):.2f}", *ratios]


if __name__ == "__main__":
    main()
