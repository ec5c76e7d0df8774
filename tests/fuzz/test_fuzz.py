"""Every fuzzer, for a moment. ``ADT_TREE_FUZZ=1000`` tries that many inputs of each."""

import pytest

from .run import FUZZERS, NODES, inputs_in_tests, run


@pytest.mark.parametrize("name", [*FUZZERS, NODES])
def test_every_input_ends_in_a_result_or_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path / "place" / "cache"))
    figures = run(name, inputs_in_tests(), 0, tmp_path / "place")
    assert figures.failures() == [] and figures.tried >= inputs_in_tests()
