"""Tests of alternatives such as {red|blue} in prompts.

The user can choose one alternative by seed, all combinations, or no expansion.
"""

import random
import time

import numpy as np
import pytest
import torch

from adt_core.app import dynamic_prompts
from adt_core.app.dynamic_prompts import ALL, MAX_CHARACTERS, MAX_PROMPTS, OFF, RANDOM, expand_prompts
from adt_core.app.prompts import PromptEntry, parse_lines
from adt_core.errors import AdtError


def texts(text: str, mode: str, seed: int = 0) -> list[str]:
    return [prompt.text for prompt in expand_prompts(parse_lines(text), mode, seed)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a {red|blue} house", ["a red house", "a blue house"]),
        ("{a|b} {c|d}", ["a c", "a d", "b c", "b d"]),
        ("a {big {red|blue}|small} house", ["a big red house", "a big blue house", "a small house"]),
        ("a house{| at night}", ["a house", "a house at night"]),
        ("{red|red|blue} house", ["red house", "blue house"]),
        (r"a \{red\|blue\} {house|tree}", ["a {red|blue} house", "a {red|blue} tree"]),
        ("{house}", ["{house}"]),
        ("{a {b|c}}", ["{a b}", "{a c}"]),
        ("a {red|blue house", ["a {red|blue house"]),
        ("a {red {b|c} house", ["a {red b house", "a {red c house"]),
        ("red|blue} house", ["red|blue} house"]),
        (r"C:\pictures \ {a|b}", [r"C:\pictures \ a", r"C:\pictures \ b"]),
    ],
)
def test_all_combinations(text, expected):
    assert texts(text, ALL) == expected
    assert texts(text, OFF) == [text]
    chosen = {texts(text, RANDOM, seed)[0] for seed in range(50)}
    assert chosen == set(expected), "every combination must be chosen with some seed"


def test_combinations_become_prompts_with_numbered_ids():
    prompts = [PromptEntry("7", "{a|b} cat", 5), PromptEntry("x", "a dog"), PromptEntry("9", "{only|only} one")]
    assert expand_prompts(prompts, ALL) == [
        PromptEntry("7.1", "a cat", 5),
        PromptEntry("7.2", "b cat", 5),
        PromptEntry("x", "a dog"),
        PromptEntry("9", "only one"),
    ]
    assert expand_prompts(prompts, OFF) == prompts


def test_random_choices_depend_only_on_the_seed_and_the_position():
    """Equal lines of a list must get different choices.

    The choice of a line must not depend on other lines. Global random generators must not be used.
    """
    line = "{a|b|c|d|e|f} {a|b|c|d|e|f}"
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    first = texts("\n".join([line] * 20), RANDOM, 3)
    assert first == texts("\n".join([line] * 20), RANDOM, 3) != texts("\n".join([line] * 20), RANDOM, 4)
    assert len(set(first)) > 5
    assert texts("\n".join([line] * 10 + ["x"] * 10), RANDOM, 3)[:10] == first[:10]
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert (np.random.get_state()[1] == states[2]).all()
    assert expand_prompts([PromptEntry("1", line)], RANDOM, 2**64 - 1)


def test_too_many_combinations_are_rejected_before_they_are_created(monkeypatch):
    with pytest.raises(AdtError, match=f"choices: prompt '2', .* more than {MAX_PROMPTS} prompts; choose 'random'"):
        expand_prompts([PromptEntry("1", "a cat"), PromptEntry("2", "{a|b}" * 40)], ALL)
    monkeypatch.setattr(dynamic_prompts, "MAX_PROMPTS", 100)
    half = "{a|b}" * 6
    assert len(expand_prompts([PromptEntry("1", half)], ALL)) == 64
    with pytest.raises(AdtError, match="'2'"):
        expand_prompts([PromptEntry("1", half), PromptEntry("2", half)], ALL)


@pytest.mark.parametrize(
    "text",
    [
        "{" * MAX_CHARACTERS,
        "{a|" * (MAX_CHARACTERS // 3),
        "|" * MAX_CHARACTERS,
        "{a|b}" * (MAX_CHARACTERS // 5),
        "{|" * 10**6,
    ],
)
@pytest.mark.parametrize("mode", [RANDOM, ALL])
def test_malicious_texts_are_parsed_quickly(text, mode):
    started = time.perf_counter()
    try:
        expand_prompts([PromptEntry("1", text)], mode)
    except AdtError as error:
        assert mode == ALL and "choices" in str(error)
    assert time.perf_counter() - started < 20
