"""Tests of the bounds of all settings. The error for an invalid value must begin with the name of the setting."""

import math

import pytest

from adt_core import AdtError, Loading, Recipe
from adt_core.app import args
from adt_core.policies import POLICIES, DraftSettings
from adt_core.settings import Lantern, Option, Sampling, Settings

ARGUMENTS = [kind for kind in vars(args).values() if isinstance(kind, type) and issubclass(kind, Settings)]
DRAFTS = dict.fromkeys([DraftSettings, *(policy.settings_type for policy in POLICIES.values())])
TABLES = [Sampling, Lantern, Loading, Recipe, *DRAFTS, *ARGUMENTS]


def invalid_values(option: Option) -> list:
    if option.choices:
        return ["magic", 1]
    if option.repeated:
        return [1, "a.png", ["a.png"], math.nan]
    if option.kind is tuple:
        return [(-2, 8), (1.5, 8), "12"]
    if option.kind not in (int, float):
        return [1, [], math.nan]
    below = [] if option.low is None else [option.low - 1]
    above = [] if option.high is None else [option.high + 1]
    return [math.nan, math.inf, -math.inf, "1", True, *below, *above, *([1.5] if option.kind is int else [])]


@pytest.mark.parametrize(
    "table, field",
    [pytest.param(kind, name, id=f"{kind.__name__} {name}") for kind in TABLES for name in kind.fields()],
)
def test_errors_name_the_setting_with_an_invalid_value(table, field):
    option = table.fields()[field]
    for value in invalid_values(option):
        with pytest.raises(AdtError) as raised:
            table(**{field: value})
        assert raised.value.key.startswith("setting.") and raised.value.parameters["input"] == (option.name or field)
