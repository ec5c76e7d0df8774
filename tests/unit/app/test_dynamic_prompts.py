"""Tests of alternatives such as {red|blue} in prompts: one by seed, all combinations, or no expansion."""

import random
import re
import time
import tracemalloc

import numpy as np
import pytest
import torch
from adt_tree_pack.adt_core.app.prompts import PromptEntry, parse_lines
from adt_tree_pack.adt_core.errors import AdtError
from adt_tree_pack.nodes import dynamic_prompts
from adt_tree_pack.nodes.dynamic_prompts import ALL, MAX_CHARACTERS, MAX_PROMPTS, OFF, RANDOM, expand_prompts

from tests.raising import raises_key


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


def test_weights_of_alternatives():
    """Weights change how often an alternative is chosen. The default weight is 1."""
    text = "a {3::red|{0::dark|2.5::light} blue| 0.0::green} house"
    assert texts(text, ALL) == ["a red house", "a dark blue house", "a light blue house", "a green house"]
    chosen = [texts(text, RANDOM, seed)[0] for seed in range(400)]
    assert set(chosen) == {"a red house", "a light blue house"}
    assert 0.68 < chosen.count("a red house") / 400 < 0.82
    assert texts("{0::a|0::b}", RANDOM)[0] in ("a", "b"), "if all weights are 0, they count as equal"
    for literal in ("{3::house}", "3::a house", "a::b house"):
        assert texts(literal, ALL) == [literal]


def test_equal_weights_choose_like_no_weights():
    """The choices of a seed must stay the same."""
    for seed in range(20):
        assert texts("{2::a|2::b|2::c}", RANDOM, seed) == texts("{a|b|c}", RANDOM, seed)


@pytest.mark.parametrize("mode", [RANDOM, ALL])
@pytest.mark.parametrize(
    "text, mark",
    [
        ("{2$$red|blue} house", "{2$$"),
        ("a {1-2$$ and $$red|blue} house", "{1-2$$"),
        ("{-2$$red|blue}", "{-2$$"),
        ("a __color__ house", "__color__"),
        ("a {red|__colors/dark*__} house", "__colors/dark*__"),
        ("${x=red} house", "${x"),
    ],
)
def test_marks_of_other_packs_are_refused(mode, text, mark):
    """The model would read them as words."""
    with raises_key("choices.mark", id="2", text=repr(text), mark=mark):
        texts(f"a cat\n{text}", mode)
    assert texts(text, OFF) == [text]


@pytest.mark.parametrize("text", ["a price of $$ 5", "snake__case", "fill in ____ here", "{$5|$6}", "_a_", r"\{2$$"])
def test_similar_texts_are_no_marks(text):
    assert texts(text, ALL) == (["$5", "$6"] if "|" in text else [text.replace("\\", "")])


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
    """Equal lines get different choices, which don't depend on other lines or on global random generators."""
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
    with raises_key("choices.too_many", input="prompt '2'", most=MAX_PROMPTS):
        expand_prompts([PromptEntry("1", "a cat"), PromptEntry("2", "{a|b}" * 40)], ALL)
    monkeypatch.setattr(dynamic_prompts, "MAX_PROMPTS", 100)
    half = "{a|b}" * 6
    assert len(expand_prompts([PromptEntry("1", half)], ALL)) == 64
    with raises_key("choices.too_many", input="'2'"):
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


@pytest.mark.parametrize(
    "text, key, most",
    [
        ("{a|b}" * 16 + "y" * 19_000, "choices.too_long", 50_000_000),
        ("{a|b}" * 16 + r"\{" * 9_900, "choices.too_long", 50_000_000),
        ("{a|b}" * 16 + "{c}" * 6_600, "choices.too_long", 50_000_000),
        ("{a|b}" * 16 + "{c|" * 6_600, "choices.too_long", 50_000_000),
        ("{a|b" * 4_000 + "}" * 4_000, "choices.too_deep", 50),
        ("{" * 51 + "a|b}" + "|c}" * 50, "choices.too_deep", 50),
    ],
    ids=["long", "escapes", "pairs", "open", "deep", "51 deep"],
)
def test_large_results_are_rejected_before_they_are_created(text, key, most):
    """The peak is in bytes. The results would have gigabytes."""
    prompt = PromptEntry("7", text)
    assert len(expand_prompts([prompt], RANDOM)) == 1
    tracemalloc.start()
    with raises_key(key, input="prompt '7'", most=most):
        expand_prompts([prompt], ALL)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_the_characters_of_all_prompts_count(monkeypatch):
    monkeypatch.setattr(dynamic_prompts, "MAX_TOTAL", 100)
    prompts = [PromptEntry(str(number), "{a|b}" * 3) for number in range(5)]  # 8 texts of 3 characters each
    assert len(expand_prompts(prompts[:4], ALL)) == 32
    with raises_key("choices.too_long", input="prompt '4'", most=100):
        expand_prompts(prompts, ALL)


@pytest.mark.parametrize("mode", [RANDOM, ALL])
def test_expansion_is_cancelled(mode):
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt

    prompts = [PromptEntry("1", "{a|b}" * 16)] if mode == ALL else [PromptEntry("1", "{a|b}")] * 10
    with pytest.raises(KeyboardInterrupt):
        expand_prompts(prompts, mode, check=check)


def test_combinations_of_nested_groups_are_those_of_a_simple_parser():
    """Compare random texts with a parser that expands the first group again and again."""
    chosen = random.Random(3)
    for _ in range(300):
        text = "".join(chosen.choice(["{a|b}", "{c|{d|e} f|}", "x", " ", "{y}", "{z{g|h}|i}"]) for _ in range(4))
        assert set(texts(text, ALL)) == {one.strip() for one in simple(text)}, text


def simple(text: str) -> list[str]:
    """Return the combinations of a text whose groups contain bars, or no braces."""
    inner = re.search(r"\{([^{}|]*(?:\|[^{}|]*)+)\}", text)
    if not inner:
        return [text]
    outer = text[: inner.start()], text[inner.end() :]
    found = [(simple(outer[0] + one + outer[1])) for one in inner[1].split("|")]
    return [one for group in found for one in group]
