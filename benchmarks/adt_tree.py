"""Compare ADT-Tree with the best fixed EAGLE-2 tree that has the same number of drafts, at three temperatures.

    python -m benchmarks.adt_tree [--count 64]

The options of both methods are chosen on tuning captions. The comparison uses other captions. For each number of
drafts, the fixed tree is chosen separately for each temperature, but ADT-Tree has the same options at all temperatures.

Nothing is timed. The *value* of a tree is computed from counts: it is the number of tokens that are decoded in the time
of one plain round. The computation assumes the cost of a round in plain rounds: 1, plus a fixed cost, plus a cost for
each draft, plus a cost for each call of the drafter's network. :mod:`.replay` counts the rounds and calls. Other
processes may run at the same time, because they do not change the counts.

Each result is appended to a temporary file, from which an interrupted measurement resumes. The table is stored in
docs/figures.json and written into docs/results.md, like the tables of ``python -m benchmarks.figures``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adt_core import Drafting, load_drafter
from adt_core.app.pipeline import Pipeline
from adt_core.policies import PLAIN

from .harness import RECIPE, SAMPLING, bundled, captions
from .replay import Recording, record, replaying

RUNS = Path(tempfile.gettempdir()) / "adt_tree_runs.jsonl"
"""File to which results are appended."""
TUNING = 2000
"""Number of the first tuning caption in the list of held-out captions."""
EVALUATION = 1000
"""Number of the first caption of the comparison in the list of held-out captions."""
TUNED = 8
"""Number of tuning captions."""
AT_ONCE = 16
"""Number of images that are decoded at the same time. The results do not depend on this number."""
PART = 32
"""Number of captions whose results are stored together."""
TEMPERATURES = (0.0, 0.6, 1.0)
BUDGETS = (24, 31, 63, 12, 6)
"""Compared numbers of drafts per round, in the order in which they are measured."""
FIXED = {
    6: ((6, 1), (4, 2), (5, 2)),
    12: ((5, 2), (5, 4), (6, 4)),
    24: ((7, 8), (8, 5), (8, 8), (10, 4), (10, 8), (16, 3)),
    31: ((8, 5), (8, 8), (10, 4), (10, 8), (16, 3)),
    63: ((8, 8), (10, 8), (16, 3)),
}
"""Number of drafts -> depth and width of each fixed tree to choose from."""
_BOTH = {"rule": "predicted", "init": "both"}
_STEPS = {"depth": 8, "width": 4, "depth_min": 4, "depth_max": 20, "depth_step": 3, "width_min": 2, "width_max": 6}


def _predicted(beta: float, least: int, most: int, width: int) -> dict[str, Any]:
    """Return options of the rule `predicted`, for trees of `least` to `most` levels that all have the same width."""
    depth = (least + most) // 2
    bounds = {"depth_min": least, "depth_max": most, "width_min": width, "width_max": width}
    return {**_BOTH, "beta": beta, "depth": depth, "width": width, **bounds}


ADAPTIVE: dict[int, tuple[dict[str, Any], ...]] = {
    6: ({"init": "both"}, _predicted(0.8, 3, 6, 3)),
    12: (_predicted(0.7, 3, 8, 4),),
    24: (_STEPS, _predicted(0.7, 5, 12, 8)),
    31: (_predicted(0.7, 5, 12, 8), _predicted(0.7, 6, 13, 8)),
    63: (_predicted(0.7, 5, 12, 8), _predicted(0.7, 6, 14, 8)),
}
"""Number of drafts -> sets of options of ADT-Tree to choose from."""


class Price(NamedTuple):
    """Assumed costs of a round in addition to the cost of a plain round. The unit is the cost of a plain round.

    Attributes:
        fixed: Cost of each round.
        draft: Cost of each draft that is verified.
        call: Cost of each call of the drafter network.
        captured: Whether rounds are captured as CUDA graphs. The network is then called for every level of the depth
            that the policy has chosen, even if the tree stops growing earlier.
    """

    fixed: float
    draft: float
    call: float
    captured: bool = False


PRICES = {
    "early stop": Price(0.15, 0.0, 0.06),
    "captured": Price(0.15, 0.0, 0.06, captured=True),
    "CPU": Price(0.31, 0.043, 0.16),
}
"""Prices by name. The first two are close to the costs on an H100. `CPU` is fitted to tables in docs/performance.md."""
CHOSEN_BY = "early stop", "captured"
"""Prices for which the best fixed tree is chosen. For `CPU`, the comparison uses the tree of "early stop"."""


class Counts(NamedTuple):
    """Counts from decoding n captions. Each array [n] has a count per caption.

    Attributes:
        rounds: Rounds with drafts.
        depth: Sum of the depths of the verified trees.
        calls: Calls of the network in rounds that are not captured. There, a tree may stop growing before it has the
            depth that the policy has chosen.
        levels: Sum of the depths that the policy has chosen. Captured rounds have this number of calls.
    """

    rounds: np.ndarray
    depth: np.ndarray
    calls: np.ndarray
    levels: np.ndarray

    def cost(self, price: Price, drafts: int) -> np.ndarray:
        """Return the cost of each image in plain rounds."""
        calls = self.levels if price.captured else self.calls
        return (1 + price.fixed + price.draft * drafts) * self.rounds + price.call * calls

    def per_round(self, counts: np.ndarray) -> float:
        return float(counts.sum() / self.rounds.sum())


@cache
def _pipeline(temperature: float, drafting: Drafting = Drafting(PLAIN)) -> Pipeline:
    recipe = replace(RECIPE, sampling=replace(SAMPLING, seed=3, temperature=temperature), drafting=drafting)
    return Pipeline(bundled(), replace(recipe, lantern=None), load_drafter("bundled", bundled()))


@cache
def _recording(first: int, count: int, temperature: float) -> Recording:
    return record(_pipeline(temperature), captions(first, count))


def count_rounds(first: int, count: int, temperature: float, drafting: Drafting) -> Counts:
    """Decode held-out captions, and count the rounds and the calls of the drafter network.

    Args:
        first: Number of the first caption in the list of held-out captions.
        count: Number of captions.
        temperature: Sampling temperature.
        drafting: Method and its options.
    """
    recording = _recording(first, count, temperature)
    decoding = _pipeline(temperature, drafting).decoding(captions(first, count), at_once=AT_ONCE)
    with replaying(recording) as replay:
        decoding.run()
    assert decoding.codes.equal(recording.codes)
    sums = np.zeros((4, count))
    for round in decoding.trace.rounds:
        for one in round.images:
            sums[:, one.image] += 1, one.depth, 0, one.depth_asked
    sums[2] = [replay.calls[image] for image in range(count)]
    return Counts(*sums)


@dataclass
class Runs:
    """Results that are stored in a file, one JSON line each.

    Attributes:
        file: The file.
        commit: Commit of the checkout. Results of other commits are not used.
    """

    file: Path
    commit: str

    def __post_init__(self) -> None:
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        self._known = {line["key"]: line["counts"] for line in map(json.loads, lines)}

    def counts(self, first: int, count: int, temperature: float, method: str, **options: Any) -> Counts:
        """Return the counts of a method on some captions. Counts that are not in the file are measured."""
        drafting = Drafting(method, **options)
        starts = range(first, first + count, PART)
        parts = [self._part(start, min(PART, first + count - start), temperature, drafting) for start in starts]
        return Counts(*map(np.concatenate, zip(*parts)))

    def _part(self, first: int, count: int, temperature: float, drafting: Drafting) -> Counts:
        key = json.dumps([self.commit, first, count, temperature, drafting.flat()])
        if key not in self._known:
            measured = count_rounds(first, count, temperature, drafting)
            self._known[key] = [counts.tolist() for counts in measured]
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "counts": self._known[key]}) + "\n")
        return Counts(*map(np.array, self._known[key]))


def _best(choices: Iterable[dict[str, Any]], costs: Iterable[float]) -> dict[str, Any]:
    """Return the choice with the lowest cost."""
    return min(zip(costs, range(1000), choices))[2]


def choose_fixed(runs: Runs, temperature: float, drafts: int, price: Price) -> dict[str, Any]:
    """Return the options of the fixed tree with the highest value on the tuning captions."""
    choices = [{"depth": depth, "width": width, "drafts": drafts} for depth, width in FIXED[drafts]]
    counts = (runs.counts(TUNING, TUNED, temperature, "eagle2", **options) for options in choices)
    return _best(choices, (each.cost(price, drafts).sum() for each in counts))


def choose_adaptive(runs: Runs, drafts: int) -> dict[str, Any]:
    """Return ADT-Tree's options with the highest geometric mean of the values of all temperatures and `CHOSEN_BY`."""
    choices = [{**options, "drafts": drafts} for options in ADAPTIVE[drafts]]

    def cost(options: dict[str, Any]) -> float:
        counts = (runs.counts(TUNING, TUNED, temperature, "adt-tree", **options) for temperature in TEMPERATURES)
        return sum(np.log(each.cost(PRICES[name], drafts).sum()) for each in counts for name in CHOSEN_BY)

    return _best(choices, map(cost, choices))


def ratio_with_interval(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Return sum(one) / sum(other) and its 95 % bootstrap interval. A resample keeps one[i] and other[i] together."""
    drawn = np.random.default_rng(0).integers(len(one), size=(4000, len(one)))
    ratios = one[drawn].sum(1) / other[drawn].sum(1)
    return [float(one.sum() / other.sum()), *map(float, np.quantile(ratios, (0.025, 0.975)))]


def compare(runs: Runs, count: int, temperature: float, drafts: int) -> dict[str, Any]:
    """Compare ADT-Tree with the best fixed trees.

    Returns:
        The number of drafts, the temperature and the chosen options. For each price also the tokens per round, counts
        per round and values of the fixed tree and of ADT-Tree, and the ratio of ADT-Tree's value to the fixed tree's.
    """
    options = choose_adaptive(runs, drafts)
    adaptive = runs.counts(EVALUATION, count, temperature, "adt-tree", **options)
    trees = {name: choose_fixed(runs, temperature, drafts, PRICES[name]) for name in CHOSEN_BY}
    fixed = {name: runs.counts(EVALUATION, count, temperature, "eagle2", **tree) for name, tree in trees.items()}
    line: dict[str, Any] = {"drafts": drafts, "temperature": temperature, "adaptive": options, "fixed": trees}
    tokens = bundled().length - 1
    for name, price in PRICES.items():
        baseline = fixed.get(name, fixed[CHOSEN_BY[0]])
        costs = [each.cost(price, drafts) for each in (baseline, adaptive)]
        figures = [[each.per_round(counts) for counts in each[1:]] for each in (baseline, adaptive)]
        taus = [tokens * count / each.rounds.sum() for each in (baseline, adaptive)]
        values = [tokens * count / cost.sum() for cost in costs]
        line[name] = {"tau": taus, "figures": figures, "values": values, "ratio": ratio_with_interval(*costs)}
    return line


def measure(count: int) -> list[dict[str, Any]]:
    """Compare all numbers of drafts and temperatures, and print each result."""
    from .figures.__main__ import origin  # not at the top, because `figures` imports this module

    runs = Runs(RUNS, origin()["commit"])
    lines = []
    for drafts, temperature in product(BUDGETS, TEMPERATURES):
        lines.append(compare(runs, count, temperature, drafts))
        print(json.dumps(lines[-1]), flush=True)
    return sorted(lines, key=lambda line: (line["temperature"], line["drafts"]))


def main() -> None:
    """Run the command line of this benchmark."""
    from .figures.__main__ import STORED, load_figures, measure_and_store, render, update_documents

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="captions of the comparison")
    figures = load_figures()
    measure_and_store(["trees"], parser.parse_args().count, STORED, figures)
    update_documents(render(figures))


if __name__ == "__main__":
    main()
