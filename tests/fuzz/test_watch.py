"""Tests of the watch. It must report writes outside of the folder, but not Python's bytecode files."""

import importlib
import sys

import pytest

from .watch import Watch


@pytest.fixture
def watch(tmp_path):
    (tmp_path / "place").mkdir()
    return Watch(tmp_path / "place")


def test_writes_outside_the_folder_are_reported(tmp_path, watch):
    with watch.on():
        (tmp_path / "place" / "mine.txt").write_text("a", encoding="utf-8")
        (tmp_path / "stray.pyc").write_text("a", encoding="utf-8")
    assert watch.violations == {f"open {tmp_path / 'stray.pyc'}"}


@pytest.mark.parametrize("dont_write", [True, False])
def test_first_import_of_a_module_writes_nothing(tmp_path, monkeypatch, watch, dont_write):
    name = f"never_imported_{dont_write}".lower()
    (tmp_path / f"{name}.py").write_text("VALUE = 3", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", dont_write)
    with watch.on():
        assert importlib.import_module(name).VALUE == 3
    assert watch.violations == set()
    assert not list(tmp_path.rglob("*.pyc"))
    assert sys.dont_write_bytecode is dont_write, "the setting is restored"
