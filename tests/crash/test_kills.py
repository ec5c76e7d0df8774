"""A small part of ``python -m tests.crash``, so that it keeps working."""

import sys
from random import Random

import pytest

from tests.crash.cases import CASES
from tests.crash.faults import MOMENTS
from tests.crash.kills import RANDOM, Kills

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("name, moments", [("generate", [RANDOM] * 3), ("benchmark", MOMENTS)])
def test_killed_commands_lose_nothing(tmp_path, name, moments):
    """Each kill strikes the run that goes on after the one before."""
    kills = Kills(CASES[name](tmp_path / name), Random(4))
    for moment in moments:
        kills.kill(moment)
    kills.finish()
    assert kills.figures["kills"] == len(moments)
