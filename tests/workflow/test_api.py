"""Tests of the HTTP API: the example in docs/api.md, and warnings about inputs that do not exist."""

import re
import subprocess
import sys

import pytest
from comfy_server import ROOT
from PIL import Image


def test_example_of_the_documentation_runs(comfy, tmp_path):
    """Run the script as the page shows it; only the address and a misspelled input are replaced."""
    (script,) = re.findall("```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.S)
    script = script.replace("127.0.0.1:8188", comfy.address)
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout == ""
    with Image.open(tmp_path / "house.png") as image:
        assert image.size == (128, 128)
    command[-1] = script.replace('"drafting": "Auto"', '"speed": "No drafting"')
    told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert told.startswith("sampler: Ignored, because this node has no such input: 'speed'. Its inputs are model, ")


@pytest.mark.parametrize("kind", ["ADTTreeModelLoader", "ADTTreeSampler"])
def test_unknown_input_is_named_in_the_result(comfy, graph, kind):
    outputs = comfy.run(graph.set(kind, speed="No drafting").prompt)
    (warning,) = outputs[graph.id(kind)]["warnings"]
    assert "'speed'" in warning and f"{'drafting' if kind == 'ADTTreeSampler' else 'dtype'}" in warning
    others = [one for node, one in outputs.items() if node != graph.id(kind)]
    assert not any("warnings" in one for one in others)
