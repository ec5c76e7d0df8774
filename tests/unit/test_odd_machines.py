"""Tests on systems that hide their state, such as Termux on Android and hardened containers."""

import psutil
import pytest

from adt_core.app.pipeline import Pipeline
from adt_core.engine.device import threads
from adt_core.memory_limit import memory_limit


def denied(*_, **__):
    raise PermissionError(13, "Permission denied", "/proc/stat")


@pytest.fixture
def hidden_state(monkeypatch, runtime):
    for name in ("cpu_times", "virtual_memory", "cpu_count"):
        monkeypatch.setattr(psutil, name, denied)
    monkeypatch.setattr(psutil.Process, "cpu_times", denied)
    monkeypatch.setattr(psutil.Process, "memory_info", denied)


def test_machine_without_readable_state(hidden_state):
    assert memory_limit().bytes > 2**28
    assert threads.available_cores() >= 1


def test_images_are_drawn_without_readable_state(hidden_state, tiny, four_threads):
    result = Pipeline.load(str(tiny / "target"), str(tiny / "drafter"), device="cpu").generate("a cat", seed=1)
    assert result.tokens.shape[0] > 0
