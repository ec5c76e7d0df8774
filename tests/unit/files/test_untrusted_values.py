"""Tests of the schemas that check untrusted JSON."""

import math

import pytest

from adt_core.untrusted import (
    SWITCH,
    label,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    record,
    row,
    text,
    whole_number,
)

SIZE = whole_number(1, 9)
KINDS = {
    "whole_number": (SIZE, [1, 9], [0, 10, 1.0, True, "1", None, math.nan, 10**5000]),
    "number": (number(0, 1), [0, 1, 0.5], [-0.1, 1.1, math.nan, math.inf, -math.inf, True, "0", None, [0]]),
    "switch": (SWITCH, [True, False], [0, 1, None, "true"]),
    "text": (text(1, 3), ["a", "abc", "\n"], ["", "abcd", 1, None, ["a"], b"a"]),
    "label": (label(3), ["a", "é b"], ["", "abcd", "\n", "\ud800", 1]),
    "one_of": (one_of("silu", "relu"), ["silu", "relu"], ["", "gelu", None, ["silu"], {}, 1]),
    "optional": (optional(SIZE), [None, 1], [0, "", False]),
    "list_of": (list_of(SIZE, 1, 2), [[1], [1, 2]], [[], [1, 2, 3], [0], [[1]], (1,), {1: 1}, "1", None, 1]),
    "empty list": (list_of(SIZE, 0, 2), [[]], [{}, "", None]),
    "row": (row(SIZE, SWITCH), [[1, True]], [[True, 1], [1], [1, True, 1], (1, True), "1t", None, {}]),
    "mapping": (
        mapping(label(3), SIZE, 1, 2),
        [{"a": 1}],
        [{}, {"a": 0}, {"abcd": 1}, {1: 1}, dict.fromkeys("abc", 1)],
    ),
    "record": (record({"a": SIZE, "b": SWITCH}), [{"a": 1, "b": True, "c": 2}], [{"a": 1}, {"a": 1, "b": 1}, [], None]),
    "nested": (record({"a": list_of(row(SIZE), 1, 1)}), [{"a": [[1]]}], [{"a": [[0]]}, {"a": [1]}, {"a": {}}]),
}


@pytest.mark.parametrize("name", KINDS)
def test_valid_and_invalid_values(name):
    kind, good, bad = KINDS[name]
    assert [value for value in good if not kind.fits(value)] == []
    assert [value for value in bad if kind.fits(value)] == []


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (SIZE, 1, ""),
        (SIZE, 0, "x is 0, but a whole number from 1 to 9 was expected"),
        (SIZE, 10**5000, "x is too long to show, but a whole number from 1 to 9 was expected"),
        (number(0, 0.1), "1", "x is '1', but a number from 0 to 0.1 was expected"),
        (SWITCH, None, "x is None, but true or false was expected"),
        (one_of("a", "b"), "c", "x is 'c', but a or b was expected"),
        (text(0, 3), "abcd", "x is 'abcd', but a text of 0 to 3 characters was expected"),
        (list_of(SIZE, 1, 12), [0], "x is [0], but a list of 1 to 12 whole numbers from 1 to 9 was expected"),
        (list_of(number(0, 1), 2, 2), [], "x is [], but a list of 2 numbers from 0 to 1 was expected"),
        (record({"a": SIZE, "b": SIZE}), {}, "x is {}, but an object with a, b was expected"),
    ],
    ids=range(10),
)
def test_descriptions_of_errors(kind, value, problem):
    assert kind.problem("x", value) == problem


def test_long_values_are_shortened():
    assert len(SIZE.problem("x", "y" * 10**6)) < 100
