"""Short run of the crash tests; ``python -m tests.crash`` is the long one."""

import sys
from random import Random

import pytest

from tests.crash.cases import CASES
from tests.crash.faults import MOMENTS
from tests.crash.kills import RANDOM, Kills

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("name, moments", [("generate", [RANDOM] * 3), ("benchmark", MOMENTS)])
def test_killed_commands_lose_no_results(tmp_path, name, moments):
    kills = Kills(CASES[name](tmp_path / name), Random(4))
    for moment in moments:  # each run after the first resumes the killed one
        kills.kill(moment)
    kills.finish()
    assert kills.counts["kills"] == len(moments)
