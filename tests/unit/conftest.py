"""Small random models: shared ones for tests that only read them, and copies for tests that change them."""

import shutil
from functools import cache

import pytest
import torch

from adt_core import load_drafter, load_target
from tests.hub import Hub
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Write a tiny ``target`` with sharp distributions and its ``drafter``; return their folder."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder / "target", scale=3.0)
    write_tiny_drafter(folder / "drafter", folder / "target")
    return folder


@pytest.fixture(scope="session")
def models(tiny):
    """Load the tiny target and its drafter in float64."""
    target = load_target(tiny / "target", dtype=torch.float64)
    return target, load_drafter(tiny / "drafter", target)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return a function that writes a checkpoint in a layout, with its companion files, and returns its path."""
    from tests.layouts.families import LAYOUTS  # imports transformers, which takes seconds

    return cache(lambda layout: LAYOUTS[layout](tmp_path_factory.mktemp(layout)))


@pytest.fixture
def copied(written, tmp_path):
    """Return a function that copies a checkpoint and its companion files to the test's folder."""

    def copy(layout):
        path = written(layout)
        shutil.copytree(path.parent, tmp_path / "home")
        return tmp_path / "home" / path.name

    return copy


@pytest.fixture
def local_hub(monkeypatch):
    """Start a small Hub without repositories; downloads of this test use it."""
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", "/nonexistent")
        yield hub
