"""Short run of each fuzzer; ``python -m tests.fuzz`` tries more inputs."""

import pytest

from .run import FUZZERS, NODES, run

INPUTS = 40


@pytest.mark.long
@pytest.mark.parametrize("name", [*FUZZERS, NODES])
def test_inputs_lead_to_results_or_error_messages(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path / "place" / "cache"))
    counts = run(name, INPUTS, 0, tmp_path / "place")
    assert counts.failures() == []
    assert counts.tried >= INPUTS
