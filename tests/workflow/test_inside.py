"""What needs no server, such as the sentence of every error, in ComfyUI's own Python: the tests of ``inside/``."""

import os
import subprocess
from pathlib import Path

import pytest
from comfy_server import environment, source

TESTS = Path(__file__).parent / "inside"


@pytest.mark.contract
def test_inside_comfyui_s_process(release):
    variables = {**os.environ, "PYTHONPATH": str(source(release))}
    command = [environment(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", TESTS]
    finished = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " skipped" not in finished.stdout
