"""Tests that the page uses the values of the nodes: a value that a list of a node lacks would be ignored silently."""

import re
from pathlib import Path

from adt_core.app.prompts import PROMPT_FILES
from adt_core.policies import CHOICES, DEFAULT, PLAIN, POLICIES
from adt_core.settings import ORIGINAL_SCRIPT
from adt_core.version import WORKFLOW_FORMAT

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "js"


def constant(file: str, name: str) -> str:
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
    """The nodes are read as text, because they need ComfyUI."""
    sampling, lantern, prompts = (
        (ROOT / "nodes" / name).read_text(encoding="utf-8") for name in ("sampling.py", "lantern.py", "prompts.py")
    )
    (custom,) = texts(constant("recipes.js", "CUSTOM"))
    value, noise = texts(constant("recipes.js", "NOISES"))
    assert value == ORIGINAL_SCRIPT and f'"{noise}": ORIGINAL_SCRIPT' in sampling
    assert f'MODEL_DEFAULT, CUSTOM = "model default", "{custom}"' in sampling
    rules = re.search(r'"(factor [^"]+)" : "(delta [^"]+)"', (PAGE / "recipes.js").read_text(encoding="utf-8"))
    assert 'LANTERN, LANTERN_PLUS = "{1}", "{0}"'.format(*rules.groups()) in lantern
    (typed,) = texts(constant("prompts.js", "TYPED"))
    assert f'TYPED = "{typed}"' in prompts and texts(constant("prompts.js", "ENDINGS")) == list(PROMPT_FILES)
    assert constant("format.js", "FORMAT") == str(WORKFLOW_FORMAT)
