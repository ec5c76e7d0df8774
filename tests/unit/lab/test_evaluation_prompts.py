"""Tests for the evaluation prompts and the reports of model_making.quality."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from model_making import quality, scenes
from model_making.prompts import PROMPTS, TEMPLATES

ROOT = Path(__file__).parents[3]


def words(text: str) -> set[str]:
    return {word.strip(".,").lower() for word in text.split()}


def test_sixty_different_prompts_in_several_groups():
    assert len({prompt.text.lower() for prompt in PROMPTS}) == len(PROMPTS) == 60
    groups = Counter(prompt.group for prompt in PROMPTS)
    assert 6 <= len(groups) <= 8
    assert min(groups.values()) >= 5


def test_prompts_cover_all_objects():
    specs = [spec for prompt in PROMPTS for spec in prompt.objects]
    kinds = Counter(spec.kinds[0] for spec in specs if len(spec.kinds) == 1)
    assert set(kinds) == {*scenes.COLOURED_OBJECTS, *scenes.PLANTS}
    assert min(kinds.values()) >= 2
    assert {spec.colour for spec in specs} == {None, *scenes.COLOURS}
    assert {spec.place for spec in specs} == {None, *scenes.PLACES}
    assert any(not prompt.objects for prompt in PROMPTS)


def test_prompts_cover_all_backgrounds():
    names = {"sky": scenes.SKIES, "ground": scenes.GROUNDS, "wall": scenes.WALLS, "backdrop": scenes.BACKDROPS[1:]}
    for field, expected in names.items():
        assert {name for prompt in PROMPTS for name in getattr(prompt, field)} == set(expected)
    assert any(prompt.table for prompt in PROMPTS)


def test_each_prompt_names_something():
    assert all(prompt.objects or prompt.sky or prompt.ground or prompt.backdrop for prompt in PROMPTS)


def test_half_of_the_prompts_use_words_outside_the_grammar():
    rng = np.random.default_rng(0)
    grammar = set().union(*(words(scenes.describe(scenes.sample_scene(rng), rng)) for _ in range(400)))
    outside = [prompt for prompt in PROMPTS if words(prompt.text) - grammar]
    assert 30 <= len(outside) < 60


def test_select_prompts_covers_the_groups():
    assert quality.select_prompts(60) == list(PROMPTS)
    assert len({prompt.group for prompt in quality.select_prompts(8)}) >= 6
    assert quality.select_prompts(0) == []


def test_report_thresholds_returns_missed_thresholds(capsys):
    results = {"captions": [True] * 9 + [False], "ordinary prompts": [True], "kind and colour": [], "not twice": [True]}
    assert quality.report_thresholds(results) == ["captions"]
    assert "captions: 9 of 10 (90.0%; at least 96% required)" in capsys.readouterr().out


def all_nodes(graph: object) -> Iterator[dict]:
    """Yield all nodes of a workflow, including the nodes of its subgraphs."""
    if isinstance(graph, dict):
        if "widgets_values" in graph:
            yield graph
        graph = list(graph.values())
    for part in graph if isinstance(graph, list) else ():
        yield from all_nodes(part)


def test_templates_are_the_prompts_of_workflows_with_the_bundled_model():
    texts = set()
    for path in (*ROOT.glob("workflows/*.json"), *ROOT.glob("subgraphs/*.json")):
        nodes = list(all_nodes(json.loads(path.read_text(encoding="utf-8"))))
        loaders = [node["widgets_values"] for node in nodes if node.get("type") == "ADTTreeModelLoader"]
        if loaders and all(values[0].startswith("bundled") for values in loaders):
            texts |= {node["widgets_values"][0] for node in nodes if node.get("type") == "CLIPTextEncode"}
    assert texts == {prompt.text for prompt in TEMPLATES}
