"""The ordinary prompts ask for all that the model can draw, in words of their own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from model_making import quality
from model_making.asking import PROMPTS, TEMPLATES
from model_making.scenes import (
    BACKDROPS,
    COLOURS,
    GROUNDS,
    PLACES,
    PLANTS,
    SKIES,
    THINGS,
    WALLS,
    describe,
    sample_scene,
)


def words(text: str) -> set[str]:
    return {word.strip(".,").lower() for word in text.split()}


def test_there_are_sixty_different_prompts_of_several_kinds():
    assert len({prompt.text.lower() for prompt in PROMPTS}) == len(PROMPTS) == 60
    assert 6 <= len({prompt.group for prompt in PROMPTS}) <= 8
    assert min(Counter(prompt.group for prompt in PROMPTS).values()) >= 5


def test_everything_that_can_be_drawn_is_asked_for():
    wanted = [thing for prompt in PROMPTS for thing in prompt.things]
    kinds = Counter(thing.kinds[0] for thing in wanted if len(thing.kinds) == 1)
    assert set(kinds) == {*THINGS, *PLANTS} and min(kinds.values()) >= 2
    assert {thing.colour for thing in wanted} == {None, *COLOURS}
    assert {thing.place for thing in wanted} == {None, *PLACES}
    for field, names in (("sky", SKIES), ("ground", GROUNDS), ("wall", WALLS), ("backdrop", BACKDROPS[1:])):
        assert {name for prompt in PROMPTS for name in getattr(prompt, field)} == set(names)
    assert any(prompt.table for prompt in PROMPTS) and any(not prompt.things for prompt in PROMPTS)
    assert all(prompt.things or prompt.sky or prompt.ground or prompt.backdrop for prompt in PROMPTS)


def test_they_are_not_all_in_the_words_of_the_grammar():
    rng = np.random.default_rng(0)
    grammar = set().union(*(words(describe(sample_scene(rng), rng)) for _ in range(400)))
    strange = [prompt for prompt in PROMPTS if words(prompt.text) - grammar]
    assert 30 <= len(strange) < 60


def test_a_few_of_them_are_of_all_kinds():
    assert quality.chosen_prompts(60) == list(PROMPTS)
    assert len({prompt.group for prompt in quality.chosen_prompts(8)}) >= 6
    assert quality.chosen_prompts(0) == []


def test_a_bar_that_is_missed_is_named(capsys):
    results = {"captions": [True] * 9 + [False], "ordinary prompts": [True], "kind and colour": [], "not twice": [True]}
    assert quality.verdict(results) == ["captions"]
    assert "captions: 9 of 10 (90.0%; the bar is 96%)" in capsys.readouterr().out


def nodes_of(graph: object) -> Iterator[dict]:
    """All nodes of a workflow, those of subgraphs included."""
    if isinstance(graph, dict):
        if "widgets_values" in graph:
            yield graph
        graph = list(graph.values())
    for part in graph if isinstance(graph, list) else ():
        yield from nodes_of(part)


def test_the_prompts_of_templates_and_blueprints_are_known():
    """Of those that draw with the bundled model."""
    texts, root = set(), Path(__file__).parents[2]
    for path in (*root.glob("workflows/*.json"), *root.glob("subgraphs/*.json")):
        nodes = list(nodes_of(json.loads(path.read_text(encoding="utf-8"))))
        loaders = [node["widgets_values"] for node in nodes if node.get("type") == "ADTTreeModelLoader"]
        if loaders and all(values[0].startswith("bundled") for values in loaders):
            texts |= {node["widgets_values"][0] for node in nodes if node.get("type") == "CLIPTextEncode"}
    assert texts == {prompt.text for prompt in TEMPLATES}
