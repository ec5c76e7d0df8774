"""Every fuzzer, for a moment. ``python -m tests.fuzz`` tries more inputs."""

import pytest

from .run import FUZZERS, NODES, run

INPUTS = 40


@pytest.mark.long
@pytest.mark.parametrize("name", [*FUZZERS, NODES])
def test_every_input_ends_in_a_result_or_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path / "place" / "cache"))
    figures = run(name, INPUTS, 0, tmp_path / "place")
    assert figures.failures() == [] and figures.tried >= INPUTS
