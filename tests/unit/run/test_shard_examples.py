"""Runs the examples for Slurm, GNU parallel and Kubernetes in docs/distributed.md, with the documented environment."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from PIL import Image

from tests.command import words

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = [f"a cat number {number}" for number in range(1, 12)]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform == "win32", reason="the examples are for bash"),
]


def example(text: str) -> str:
    """Return the indented block of the page that contains a text."""
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"(?:^    .*\n)+", page, re.MULTILINE) if text in block]
    return textwrap.dedent(block)


@pytest.fixture
def run(tiny, tmp_path):
    """Return a function that runs a script with the tiny model in the test's folder, with variables added."""
    (tmp_path / "captions.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    usual = {"method": "adt-tree", "dtype": "float64", "device": "cpu"}
    models = words("generate", model=tiny / "target", drafter="jacobi", **usual)

    def run(script: str, **variables: str) -> None:
        script = script.replace("python adt.py generate", " ".join([sys.executable, str(ROOT / "adt.py"), *models]))
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, **variables}, check=True)

    return run


@pytest.fixture
def check(run, tmp_path):
    """Return a function that compares the folder "coco" with an uninterrupted run without shards."""

    def check() -> None:
        run("python adt.py generate --prompts captions.txt --output whole")
        folders = tmp_path / "whole", tmp_path / "coco"
        whole, shards = ({path.name: content(path) for path in folder.glob("*.png")} for folder in folders)
        assert shards == whole and len(whole) == len(PROMPTS)

    return check


def content(path: Path) -> tuple[bytes, dict]:
    """Return the pixels and the record of a PNG without its statistics, which depend on the machine and the batch."""
    with Image.open(path) as image:
        return image.tobytes(), {**json.loads(image.info["adt_tree"]), "figures": None}


def test_slurm_array(run, check):
    """Slurm sets these variables: https://slurm.schedmd.com/job_array.html#env_vars."""
    script = example("SLURM_ARRAY_TASK_ID")
    assert "#SBATCH --array=1-8" in script
    for task in ("3", "1", "2"):
        job = {"SLURM_ARRAY_JOB_ID": "36", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "3"}
        run(script, SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="3", SLURM_JOB_ID=f"3{task}", **job)
    check()


@pytest.mark.skipif(shutil.which("parallel") is None, reason="GNU parallel is not installed")
def test_gnu_parallel(run, check):
    run(example("seq 4 | parallel"))
    check()


def test_kubernetes_indexed_job(run, check):
    """Kubernetes sets this variable: https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/."""
    job = pytest.importorskip("yaml").safe_load(example("kind: Job"))["spec"]
    assert job["completionMode"] == "Indexed"
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["bash", "-c"] and len(container["args"]) == 1
    for index in range(job["completions"]):
        run(container["args"][0], JOB_COMPLETION_INDEX=str(index))
    check()
