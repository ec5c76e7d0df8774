"""Tests of downloads with the oldest and the newest huggingface_hub that can be installed with this pack.

The oldest is what transformers 4.48 requires. It uses the library requests, newer ones use httpx.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = "tests/unit/app/test_download.py", "tests/unit/app/test_odd_servers.py"
SHOW = "import sys, pytest, huggingface_hub as hub; print(hub.__version__); sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.long
@pytest.mark.runner
@pytest.mark.parametrize("version", ["==0.24.0", "==0.36.0", "==1.1.0", ">=2.4"])
def test_downloads_work_with_other_versions(version, tmp_path):
    requirement = f"huggingface_hub{version}"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tmp_path, requirement]
    subprocess.run(install, check=True, capture_output=True)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SHOW, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(version.strip("=>")) and " skipped" not in done.stdout
