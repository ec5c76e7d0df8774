"""Tests on systems that hide their state, such as Termux on Android and hardened containers."""

from contextlib import contextmanager

import psutil
import pytest

from adt_core import Pipeline
from adt_core.engine.device import threads
from adt_core.memory_limit import memory_limit


def denied(*_, **__):
    raise PermissionError(13, "Permission denied", "/proc/stat")


@contextmanager
def hidden_state():
    """Let psutil fail in the block. Afterwards, the tests' own meter needs it again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cpu_times", "virtual_memory", "cpu_count"):
            patch.setattr(psutil, name, denied)
        for name in ("cpu_times", "memory_info"):
            patch.setattr(psutil.Process, name, denied)
        yield


def test_machine_without_readable_state(runtime):
    with hidden_state():
        assert memory_limit().bytes > 2**28
        assert threads.available_cores() >= 1


def test_images_are_drawn_without_readable_state(runtime, tiny, four_threads):
    with hidden_state():
        result = Pipeline.load(str(tiny / "target"), str(tiny / "drafter"), device="cpu").generate("a cat", seed=1)
    assert result.tokens.shape[0] > 0
