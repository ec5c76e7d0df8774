"""The watch sees what an input writes outside its folder, and nothing that Python writes of its own accord."""

import importlib
import sys

import pytest

from .watch import Watch


@pytest.fixture
def watch(tmp_path):
    (tmp_path / "place").mkdir()
    return Watch(tmp_path / "place")


def test_what_is_written_outside_is_seen(tmp_path, watch):
    with watch.on():
        (tmp_path / "place" / "mine.txt").write_text("a", encoding="utf-8")
        (tmp_path / "stray.pyc").write_text("a", encoding="utf-8")
    assert watch.seen == {f"open {tmp_path / 'stray.pyc'}"}


@pytest.mark.parametrize("usual", [True, False])
def test_the_first_import_of_a_module_writes_nothing(tmp_path, monkeypatch, watch, usual):
    """Whether it was imported before depends on the tests that ran before."""
    name = f"never_imported_{usual}".lower()
    (tmp_path / f"{name}.py").write_text("VALUE = 3", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", usual)
    with watch.on():
        assert importlib.import_module(name).VALUE == 3
    assert watch.seen == set() and not list(tmp_path.rglob("*.pyc"))
    assert sys.dont_write_bytecode is usual, "it is as it was"
