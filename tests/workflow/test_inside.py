"""What needs no server, such as the sentence of every error, in ComfyUI's own Python: the tests of ``inside/``."""

import os
import subprocess
from pathlib import Path

import pytest
from comfy_server import environment, source

TESTS = sorted((Path(__file__).parent / "inside").glob("test_*.py"))
DRAWING = [path for path in TESTS if path.stem in ("test_sampler", "test_other_nodes", "test_glm_image", "test_train")]
"""What is the same in every ComfyUI."""


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param([path for path in TESTS if path not in DRAWING], marks=pytest.mark.contract, id="words"),
        pytest.param(DRAWING, id="drawing"),
    ],
)
def test_inside_comfyui_s_process(release, tests):
    variables = {**os.environ, "PYTHONPATH": str(source(release))}
    command = [environment(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    finished = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " skipped" not in finished.stdout
