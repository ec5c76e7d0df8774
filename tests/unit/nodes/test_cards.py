"""Tests of the workflow templates' cards (preview images). Each card must show its workflow."""

import importlib.util
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(ROOT.glob("workflows/*.jpg"))


@pytest.fixture(scope="module")
def cards():
    """Import docs/assets/cards.py, which adds the repository to ``sys.path``, and restore ``sys.path``."""
    before = [*sys.path]
    spec = importlib.util.spec_from_file_location("cards", ROOT / "docs" / "assets" / "cards.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def pixels(image: Image.Image, side: int = 128) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((side, side)), dtype=float)


def test_cards_look_different():
    shown = {path.stem: pixels(Image.open(path)) for path in SHIPPED}
    assert set(shown) == {path.stem for path in ROOT.glob("workflows/*.json")}
    alike = [(one, other) for one, other in combinations(shown, 2) if np.abs(shown[one] - shown[other]).mean() < 8]
    assert alike == []


def test_no_card_has_a_black_area():
    """A black square, such as the difference of two equal images, tells nothing about the workflow."""
    for path in SHIPPED:
        black = pixels(Image.open(path)).max(-1) < 16
        assert black.mean() < 0.2, path.stem


def test_cards_show_their_current_workflow(cards):
    """If this test fails after a change of a workflow's prompt or model, run docs/assets/cards.py."""
    for name, title in cards.CARDS.items():
        current = pixels(cards.card(title, cards.Workflow(name)))
        shipped = pixels(Image.open(ROOT / "workflows" / f"{name}.jpg"))
        assert np.abs(current - shipped).mean() < 2, name
