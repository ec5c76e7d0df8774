"""Tests that the page uses the values of the nodes: a value that a list of a node lacks would be ignored silently."""

import re
from pathlib import Path

from adt_tree_pack.nodes.lantern import LANTERN, LANTERN_PLUS
from adt_tree_pack.nodes.prompts import TYPED
from adt_tree_pack.nodes.sampling import CUSTOM, NOISES

from adt_core.app.prompts import FILES
from adt_core.policies import CHOICES, DEFAULT, PLAIN, POLICIES
from adt_core.version import FORMAT

PAGE = Path(__file__).resolve().parents[2] / "js"


def constant(file: str, name: str) -> str:
    """Return the JavaScript expression of a constant."""
    (found,) = re.findall(rf"^const {name} = (.+?);", (PAGE / file).read_text(encoding="utf-8"), re.M)
    return found


def texts(expression: str) -> list[str]:
    return re.findall(r'"([^"]+)"', expression)


def test_choices_of_drafting():
    assert texts(constant("preferences.js", "WAYS")) == list(CHOICES)
    assert texts(constant("sampler.js", "AUTO")) == [next(iter(CHOICES))]
    methods = re.findall(r'"?([\w-]+)"?: "([^"]+)"', constant("recipes.js", "METHODS"))
    assert {CHOICES[choice]: choice for _, choice in methods} == dict(methods), "a PNG opens with its own method"
    named = {method for method, _ in methods} | {DEFAULT}
    assert named == set(CHOICES.values()) & set(POLICIES) and PLAIN in named


def test_other_values_of_the_nodes():
    assert texts(constant("recipes.js", "CUSTOM")) == [CUSTOM]
    assert (
        re.findall(r'(\w+): "([^"]+)"', constant("recipes.js", "NOISES"))
        == [(NOISES[name], name) for name in NOISES][1:]
    )
    recipes = (PAGE / "recipes.js").read_text(encoding="utf-8")
    assert f'"{LANTERN_PLUS}" : "{LANTERN}"' in recipes
    assert texts(constant("prompts.js", "TYPED")) == [TYPED] and texts(constant("prompts.js", "ENDINGS")) == list(FILES)
    assert constant("format.js", "FORMAT") == str(FORMAT)
