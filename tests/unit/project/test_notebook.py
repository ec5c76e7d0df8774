"""Test that the notebook of the documentation runs, cell by cell, and is stored without outputs."""

import json
from pathlib import Path

import pytest
from PIL import Image

NOTEBOOK = json.loads((Path(__file__).resolve().parents[3] / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_stored_without_outputs():
    assert NOTEBOOK["nbformat"] == 4 and len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)


@pytest.mark.long
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Its cells share variables, as in a kernel."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in CODE:
        exec("".join(cell["source"]), names)  # noqa: S102
    assert names["result"]._repr_png_().startswith(b"\x89PNG")
    assert "without: 255 passes, 1.00 tokens per pass" in capsys.readouterr().out
    with Image.open("image-0.png") as image:
        assert image.tobytes() == names["again"].image.tobytes()
