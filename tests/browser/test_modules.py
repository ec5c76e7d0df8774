"""Tests of the map's JavaScript modules (data, colours and texts). They run in playwright's Node.js."""

import subprocess

import numpy as np
from adt_tree_pack.nodes.colours import scale
from comfy_server import ROOT
from playwright._impl._driver import compute_driver_executable


def node(*arguments: str) -> str:
    executable = compute_driver_executable()[0]
    finished = subprocess.run([executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_javascript_modules():
    assert "# fail 0" in node("--test", "--test-reporter=tap", *map(str, sorted(ROOT.glob("tests/js/*.test.mjs"))))


def test_python_and_the_browser_have_the_same_colours():
    text = node(
        "--input-type=module",
        "-e",
        f"import {{ SCALE }} from '{(ROOT / 'js' / 'colours.js').as_uri()}'; console.log(SCALE.flat().join(' '))",
    )
    np.testing.assert_allclose(np.array(text.split(), int).reshape(256, 3), scale(), atol=1)
