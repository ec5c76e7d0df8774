"""Kills a case again and again, and checks after each kill that nothing is lost."""

from __future__ import annotations

import random
from collections import Counter

from .cases import Case, Found
from .faults import MOMENTS

RANDOM = "random"
AGAIN = 1 / 3
"""Share of the kills after which the run that goes on is killed too."""


class Kills:
    """Kills of a case. figures: what was seen; a loss fails at once.

    The case is first run undisturbed. ``rng`` chooses the moments.
    """

    def __init__(self, case: Case, rng: random.Random):
        self._case, self._rng, self.figures = case, rng, Counter[str]()
        self._kept: Found = {}
        assert not case.run(lambda: None), "killed by somebody else"
        self._result = case.result()
        case.start_anew()

    def kill(self, moment: str) -> None:
        """Kill the case at a moment of this kind; a run that ends before it is checked, and the next one is killed."""
        latest = 1.0
        while not self._is_killed(moment, latest):
            self._check_end()
            latest /= 2
        self._look()
        self.figures["kills"] += 1
        self.figures[f"kills: {moment}"] += 1
        self.figures["files left by a kill"] += len(self._case.parts())

    def _is_killed(self, moment: str, latest: float) -> bool:
        """Run it with a kill at a moment of this kind. latest: the share of the run in which it falls."""
        case, share = self._case, self._rng.uniform(0, latest)
        if moment == RANDOM:
            return case.run(self._look, (case.begins + (1 - case.begins) * share) * case.seconds)
        return case.run(self._look, fault=(moment, 1 + int(share * case.writes)))

    def finish(self) -> None:
        """Run it to the end: the result is that of the undisturbed run. The next kill begins anew."""
        assert not self._case.run(self._look), "killed by somebody else"
        self._check_end()

    def _look(self) -> None:
        """Nothing is half-written, and all that was ever finished is there, unchanged."""
        found = self._case.finished()
        lost = {name for name, content in self._kept.items() if found.get(name) != content}
        assert not lost, f"lost or changed: {sorted(lost)}"
        self._kept = found

    def _check_end(self) -> None:
        self._look()
        assert self._case.result() == self._result, "another result than that of the undisturbed run"
        assert not self._case.parts(), f"{self._case.parts()} were left for ever"
        self.figures["runs to the end"] += 1
        self.figures["finished things that were checked"] += len(self._kept)
        self._case.start_anew()
        self._kept = {}


def kill_often(case: Case, count: int, seed: int) -> Counter[str]:
    """Kill a case ``count`` times, each second time at a moment of writing. Returns the figures."""
    rng = random.Random(seed)
    kills = Kills(case, rng)
    for number in range(count):
        kills.kill(RANDOM if number % 2 else MOMENTS[number // 2 % len(MOMENTS)])
        if rng.random() > AGAIN or number == count - 1:
            kills.finish()
    return kills.figures
