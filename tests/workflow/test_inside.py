"""Runner for the tests in ``inside/``. They need the Python environment of ComfyUI, but no server."""

import os
import subprocess
from pathlib import Path

import pytest
from comfy_server import NEWEST, environment, source

TESTS = sorted((Path(__file__).parent / "inside").glob("test_*.py"))
DRAWING = "test_sampler", "test_other_nodes", "test_glm_image", "test_train"
"""Test files that don't depend on the version of ComfyUI."""


@pytest.mark.smoke
@pytest.mark.runner
def test_inside_comfyui_s_process(release, pytestconfig):
    tests = [path for path in TESTS if release == NEWEST or path.stem not in DRAWING]
    tier = ["--all"] if pytestconfig.getoption("--all") else []
    command = [environment(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tier, *tests]
    variables = {**os.environ, "PYTHONPATH": str(source(release))}
    finished = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " skipped" not in finished.stdout
