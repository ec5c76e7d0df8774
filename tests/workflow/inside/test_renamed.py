"""Tests of renamed values. Prompts with the old values must be accepted and give the same results."""

import importlib
import sys

import pytest

from .conftest import info_inputs


@pytest.fixture
def renamed(pack):
    """Return a dict: input id -> old value -> new value."""
    package = sys.modules[pack.nodes["ADTTreeSampler"].__module__].__package__
    return importlib.import_module(f"{package}.renamed").RENAMED


def combos(pack, renamed):
    """Yield (node, input, options of the input, old value, new value)."""
    for kind in pack.ours:
        for name, (_, *options) in info_inputs(pack.nodes[kind], "required", "optional").items():
            if name in renamed and options and "options" in options[0]:
                yield kind, name, options[0], renamed[name]


def test_old_and_new_values_are_accepted_and_new_ones_are_listed(pack, renamed):
    found = list(combos(pack, renamed))
    assert {name for _, name, _, _ in found} == set(renamed)
    for kind, name, options, values in found:
        assert options["renamed"] == values, "the page reads it"
        for old, new in values.items():
            assert new in list(options["options"]) and old not in list(options["options"])
            assert pack.refused(kind, **{name: old}) == pack.refused(kind, **{name: new}), (kind, name, old)
            assert not any(name in error for error in pack.refused(kind, **{name: old}))
        assert any(name in error for error in pack.refused(kind, **{name: "magic"}))


@pytest.mark.parametrize(
    "old, new",
    [
        ({"speed": "Plain"}, {"speed": "No drafting"}),
        ({"preset": "model's own"}, {"preset": "model default"}),
        ({"noise": "upstream"}, {"noise": "original script"}),
        ({"noise": "own"}, {"noise": "ADT-Tree"}),
    ],
)
def test_sampler_draws_the_same_with_either_name(small, old, new):
    (before, trace) = small.sample(**old)
    (after, same) = small.sample(**new)
    assert (before["samples"] == after["samples"]).all()
    assert trace.report()["method"] == same.report()["method"]


def test_list_is_the_same_with_either_name(pack):
    asked = {"file": "(the text below)", "text": "a {red|blue} cat", "count": 0, "caption": "first", "filter": ""}
    asked |= {"start": 0, "shuffle": 0}
    for old, new in (("one by chance", "random"), ("as written", "off")):
        assert pack.run("ADTTreePrompts", **asked, choices=old) == pack.run("ADTTreePrompts", **asked, choices=new)


def test_batch_is_the_same_with_either_name(pack, small):
    prompts = ["a cat", " ", "a cat"]
    batch = {"model": [small.model], "prompts": prompts, "seed": [5], "speed": ["No drafting"], "folder": ["renamed"]}
    old = pack.run("ADTTreeBatchSampler", **batch, seed_of_each=["seed + place in the list"], unfit_prompts=["cut"])
    new = pack.run("ADTTreeBatchSampler", **batch, seed_of_each=["increment"], unfit_prompts=["truncate"])
    assert [row["seed"] for row in old[2].rows] == [row["seed"] for row in new[2].rows] == [5, 7]
    assert old[2].left_out == new[2].left_out and "empty" in old[2].left_out[0]["note"]
