"""Small random models for all unit tests that only read them, and copies for those that change them."""

import shutil
from functools import cache

import pytest
import torch

from adt_core import load_drafter, load_target
from tests.hub import Hub
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a tiny ``target`` of sharp distributions and its ``drafter``."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder / "target", scale=3.0)
    write_tiny_drafter(folder / "drafter", folder / "target")
    return folder


@pytest.fixture(scope="session")
def models(tiny):
    """The same, loaded in float64: the target, and its drafter."""
    target = load_target(tiny / "target", dtype=torch.float64)
    return target, load_drafter(tiny / "drafter", target)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """By layout: a checkpoint, in a folder with what belongs beside it."""
    from tests.layouts.families import LAYOUTS  # with transformers, which takes a while

    return cache(lambda layout: LAYOUTS[layout](tmp_path_factory.mktemp(layout)))


@pytest.fixture
def copied(written, tmp_path):
    """The same in a folder of the test's own."""

    def copy(layout):
        path = written(layout)
        shutil.copytree(path.parent, tmp_path / "home")
        return tmp_path / "home" / path.name

    return copy


@pytest.fixture
def local_hub(monkeypatch):
    """A small Hub without repositories, which downloads of this test use."""
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", "/nonexistent")
        yield hub
