"""Tests of damaged files in the cache folder. Whatever such a file contains, it is ignored."""

import copy
import random

import pytest

from adt_core.drafters.merged import MergedDrafter
from adt_core.engine.device.invariance import VARIANTS, InvarianceReport
from adt_core.messages import TEMPLATES, message
from adt_core.policies.cost_model import CostModel

ODD = [None, True, 0, -1, 1e308, float("nan"), 10**400, "", "x" * 400, "\ud800", [], [[]], {}, {"a": 1}, [1, 2, 3]]
ODD += TEMPLATES.values()
"""Values that replace others. The templates have parameters in braces."""
REPORT = {
    "trust": [64, True],
    "kernels": True,
    "is_drafting": True,
    "differing": [VARIANTS[0]],
    "remark": str(message("device.no_mode")),
}
COSTS = {
    "name": "a device",
    "images": 1,
    "decodings": 3,
    "readings": [["chain", 4, 1.2, 0.5]],
    "sampling": "",
    "gains": [["chain", 0.8, 1.5]],
}
READERS = {
    "report": (lambda value: InvarianceReport.from_json(value, 128), REPORT),
    "costs": (CostModel("a device", 1, MergedDrafter.modes, on_cpu=True).with_json, COSTS),
}


def damaged(value, chosen: random.Random):
    """Return a copy of a JSON value with another value in one place, or without one entry."""
    if not isinstance(value, dict | list) or not value or chosen.random() < 0.2:
        return chosen.choice(ODD)
    key = chosen.choice(list(value)) if isinstance(value, dict) else chosen.randrange(len(value))
    value = copy.copy(value)
    if chosen.random() < 0.1:
        del value[key]
    else:
        value[key] = damaged(value[key], chosen)
    return value


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_ignored(name):
    read, content = READERS[name]
    assert read(content) is not None
    chosen = random.Random(1)
    for _ in range(3000):
        read(damaged(content, chosen))  # must not raise an error


@pytest.mark.parametrize("key", TEMPLATES)
def test_a_remark_that_equals_a_template_is_ordinary_text(key):
    report = InvarianceReport.from_json({**REPORT, "remark": TEMPLATES[key]}, 128)
    assert report is not None and report.remark == TEMPLATES[key]
