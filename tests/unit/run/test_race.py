"""Tests of races: the order of turns, rounds in turns, and the statistics of the times."""

from types import SimpleNamespace

import numpy as np
import pytest

from adt_core.run import race
from adt_core.run.race import MIN_SAMPLES, Estimate


class CountedDecoding:
    def __init__(self, tokens: int, total: int = 12, log: list | None = None):
        self._tokens = tokens
        self._total = total
        self.done_tokens = 0
        self.is_closed = False

    def __iter__(self):
        try:
            while self.done_tokens < self._total:
                self.done_tokens = min(self.done_tokens + self._tokens, self._total)
                yield SimpleNamespace()
        finally:
            self.is_closed = True


def test_the_order_is_balanced_and_depends_on_the_task_only():
    orders = [race.order("abcd", number) for number in range(40)]
    assert orders == [race.order("abcd", number) for number in range(40)]
    assert all(sorted(names) == list("abcd") for names in orders)
    assert all(after == before[::-1] for before, after in zip(orders[::2], orders[1::2]))
    assert len({"".join(names) for names in orders}) > 10 and race.order("abcd", 0, seed=1) != orders[0]
    assert sum(race.order("ab", number)[0] == "a" for number in range(40)) == 20, "two methods alternate"


def test_all_methods_run_a_task_before_the_next():
    log = []
    methods = {name: lambda task, name=name: log.append((task, name)) or name * task for name in "abc"}
    assert list(race.by_tasks(methods, [1, 2])) == [{"a": "a", "b": "b", "c": "c"}, {"a": "aa", "b": "bb", "c": "cc"}]
    assert log == [(task, name) for task in (1, 2) for name in race.order("abc", task - 1)]


def test_progress_names_the_next_method_and_can_cancel():
    ran = []
    calls = []

    def progress(done, name):
        calls.append((done, name))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        race.turn(dict.fromkeys("abc", ran.append), 0, 5, progress)
    assert calls == list(enumerate(race.order("abc", 5))) and len(ran) == 2


@pytest.mark.parametrize("tokens, expected", [(None, "abaaba"), (6, "aba")])
def test_the_decoding_with_the_fewest_tokens_runs_the_next_round(tokens, expected):
    decodings = {"a": CountedDecoding(3), "b": CountedDecoding(6)}
    assert "".join(race.by_rounds(decodings, tokens)) == expected
    assert all(decoding.is_closed for decoding in decodings.values())
    assert min(decoding.done_tokens for decoding in decodings.values()) >= (tokens or 12)


def test_a_race_that_is_left_closes_its_decodings():
    decodings = {"a": CountedDecoding(1), "b": CountedDecoding(1)}
    rounds = race.by_rounds(decodings)
    assert next(rounds) == "a" and next(rounds) == "b"
    rounds.close()
    assert all(decoding.is_closed and decoding.done_tokens == 1 for decoding in decodings.values())


def test_a_speed_up_is_the_median_of_ratios_beside_the_ratio_of_totals():
    seconds = [1.0, 2.0, 8.0]
    baseline = [4.0, 4.0, 8.0]
    assert race.speedup(baseline, seconds) == Estimate(2.0)
    assert race.ratio_of_totals(baseline, seconds) == 16 / 11


def test_few_values_have_no_interval():
    for count in range(1, MIN_SAMPLES):
        estimate = race.median(np.linspace(1.9, 1.9 + count, count))
        assert estimate.low is None and estimate.high is None and "to" not in str(estimate) and estimate.remark == ""
    estimate = race.median([1.42, 1.5, 1.5, 1.5, 1.5, 1.61])
    assert str(estimate) == "1.50 (1.46 to 1.56)" and estimate.text(1) == "1.5 (1.5 to 1.6)"
    assert estimate.remark == "95 % interval: 1.5 to 1.6." and str(Estimate(2.0)) == "2.00"


@pytest.mark.parametrize("draw", ["normal", "lognormal"])
def test_intervals_of_the_smallest_count_contain_the_median(draw):
    """The coverage of 95 % intervals is simulated for the smallest number of values that has an interval."""
    rng = np.random.default_rng(1)
    middle = 0 if draw == "normal" else 1
    samples = getattr(rng, draw)(size=(300, MIN_SAMPLES))
    estimates = [race.median(values) for values in samples]
    coverage = np.mean([estimate.low <= middle <= estimate.high for estimate in estimates])
    assert coverage > 0.9  # the standard error of the simulation is 0.014
