"""What needs no server, such as the sentence of every error, in ComfyUI's own Python: the tests of ``inside/``."""

import os
import subprocess
from pathlib import Path

from comfy_server import FLOOR, environment, source

TESTS = sorted((Path(__file__).parent / "inside").glob("test_*.py"))
DRAWING = "test_sampler", "test_other_nodes", "test_glm_image", "test_train"
"""What is the same in every ComfyUI."""


def run_inside(release, tests):
    """Run these tests in the process of a ComfyUI."""
    variables = {**os.environ, "PYTHONPATH": str(source(release))}
    command = [environment(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    finished = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " skipped" not in finished.stdout


def test_inside_comfyui_s_process(release):
    run_inside(release, TESTS)


def test_schemas_and_sentences_in_the_oldest():
    run_inside(FLOOR, [path for path in TESTS if path.stem not in DRAWING])
