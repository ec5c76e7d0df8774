"""Series of kills of a command. After each kill, finished results must still exist."""

from __future__ import annotations

import random
from collections import Counter

from .cases import Case, Results
from .faults import MOMENTS

RANDOM = "random"
KILL_AGAIN = 1 / 3  # share of kills after which the resumed run is killed, too


class Kills:
    """Series of kills of one case. The results are compared with an undisturbed run.

    A lost result raises AssertionError. `counts` are the numbers of kills, completed runs and checked results.
    """

    def __init__(self, case: Case, rng: random.Random):
        self.counts: Counter[str] = Counter()
        self._case = case
        self._rng = rng
        self._kept: Results = {}
        assert not case.run(lambda: None), "the undisturbed run was killed"
        self._expected = case.final_result()
        case.reset()

    def kill(self, moment: str) -> None:
        """Kill the case once; runs that end before the kill are checked and repeated.

        Args:
            moment: One of ``MOMENTS``, or ``RANDOM`` for a random time.
        """
        latest = 1.0
        while not self._run_with_kill(moment, latest):
            self._check_completed()
            latest /= 2
        self._check_kept()
        self.counts["kills"] += 1
        self.counts[f"kills: {moment}"] += 1
        self.counts["files left by a kill"] += len(self._case.partial_files())

    def _run_with_kill(self, moment: str, latest: float) -> bool:
        """Run the case with a kill in the first `latest` share of the run. Return whether it was killed."""
        case = self._case
        share = self._rng.uniform(0, latest)
        if moment == RANDOM:
            return case.run(self._check_kept, (case.begins + (1 - case.begins) * share) * case.seconds)
        return case.run(self._check_kept, fault=(moment, 1 + int(share * case.writes)))

    def finish(self) -> None:
        """Complete the resumed run, check that its result is as expected, and reset the case."""
        assert not self._case.run(self._check_kept), "the resumed run was killed"
        self._check_completed()

    def _check_kept(self) -> None:
        """Check that no file is incomplete and that all earlier results are unchanged."""
        results = self._case.results()
        lost = {name for name, content in self._kept.items() if results.get(name) != content}
        assert not lost, f"lost or changed: {sorted(lost)}"
        self._kept = results

    def _check_completed(self) -> None:
        self._check_kept()
        assert self._case.final_result() == self._expected, "the result differs from the undisturbed run's"
        assert not self._case.partial_files(), f"not removed: {self._case.partial_files()}"
        self.counts["completed runs"] += 1
        self.counts["checked results"] += len(self._kept)
        self._case.reset()
        self._kept = {}


def kill_repeatedly(case: Case, count: int, seed: int) -> Counter[str]:
    """Kill a case `count` times, at random times and at moments of writing in alternation.

    Returns:
        Counts of kills, completed runs and checked results.
    """
    rng = random.Random(seed)
    kills = Kills(case, rng)
    for number in range(count):
        kills.kill(RANDOM if number % 2 else MOMENTS[number // 2 % len(MOMENTS)])
        if rng.random() > KILL_AGAIN or number == count - 1:
            kills.finish()
    return kills.counts
