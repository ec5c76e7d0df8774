"""Fixtures with small random models.

Tests that only read a model share it. Tests that change a model get a copy.
"""

import shutil
from copy import deepcopy
from functools import cache

import pytest
import torch

from adt_core import load_drafter, load_target
from adt_core.lab.benchmark import drafters_by_name
from tests.drafted import write_drafter
from tests.hub import Hub
from tests.small_download import REPOSITORIES, Downloads
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Write a tiny target with sharp distributions, and its drafter. Return the folder that contains both."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder / "target", scale=3.0)
    write_tiny_drafter(folder / "drafter", folder / "target")
    return folder


@pytest.fixture(scope="session")
def models(tiny):
    """Load the tiny target and its drafter, both in float64."""
    target = load_target(tiny / "target", dtype=torch.float64)
    return target, load_drafter(tiny / "drafter", target)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folders of a target of 64 x 64 pixels and of its drafter. Its decoder may be changed by the module."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("target"), resolution=64, max_positions=300)
    return folder, write_drafter(tmp_path_factory.mktemp("drafter"), load_target(folder))


@pytest.fixture(scope="module")
def target(folders):
    return load_target(folders[0], dtype=torch.float64)


@pytest.fixture(scope="module")
def drafters(folders, target):
    return drafters_by_name(load_drafter(folders[1], target))


@pytest.fixture
def restored_threads():
    """Restore torch's number of CPU threads after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def four_threads(restored_threads):
    """Allow torch to use four CPU threads."""
    torch.set_num_threads(4)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return a function that writes a checkpoint in a layout, with its companion files.

    The function returns the path of the checkpoint.
    """
    from tests.layouts.families import LAYOUTS  # imports transformers, which needs seconds

    return cache(lambda layout: LAYOUTS[layout](tmp_path_factory.mktemp(layout)))


@pytest.fixture
def copied(written, tmp_path):
    """Return a function that copies a checkpoint and its companion files to the folder of the test."""

    def copy(layout):
        path = written(layout)
        shutil.copytree(path.parent, tmp_path / "home")
        return tmp_path / "home" / path.name

    return copy


@pytest.fixture
def local_hub(monkeypatch):
    """Start a local Hub server without repositories. Downloads of this test and of its processes use it."""
    from huggingface_hub import constants

    with Hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", "/nonexistent")
        yield hub


@pytest.fixture
def hub(local_hub, monkeypatch):
    """Publish the small model of tests/small_download.py on a local Hub server. Failed attempts need no long pauses."""
    monkeypatch.setattr("adt_core.app.download.PAUSE", 0.01)
    local_hub.repositories = deepcopy(REPOSITORIES)
    return local_hub


@pytest.fixture
def downloads(tmp_path, hub):
    """Return downloads to an empty folder, from the server of the fixture `hub`."""
    return Downloads(tmp_path / "models")
