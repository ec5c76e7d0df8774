"""Tests of invalid values. ComfyUI must refuse them by the name of the input, before any node runs."""

import math

import pytest

from tests.raising import check_error

from .conftest import info_inputs

TYPED = "(the text below)"
OUTSIDE = "is outside ComfyUI's input folder"
K_SAMPLER = {"seed": 0, "steps": 1, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
REFUSED = [
    ("ADTTreeSampler", {"temperature": -1.0}, "temperature"),
    ("ADTTreeSampler", {"top_p": 0.0}, "top_p"),
    ("ADTTreeSampler", {"top_k": -1}, "top_k"),
    ("ADTTreeSampler", {"batch_size": 0}, "batch_size"),
    ("ADTTreeSampler", {"seed": -1}, "seed"),
    ("ADTTreeSampler", {"seed": 2**64}, "seed"),
    ("ADTTreeSampler", {"keep_top": -0.5}, "keep_top"),
    ("ADTTreeSampler", {"keep_top": 2.0}, "keep_top"),
    ("ADTTreeSampler", {"keep_left": -0.5}, "keep_left"),
    ("ADTTreeSampler", {"keep_left": 2.0}, "keep_left"),
    ("ADTTreeSettings", {"depth_min": 300}, "depth_min"),
    ("ADTTreeSettings", {"drafts": -1}, "drafts"),
    ("ADTTreeSettings", {"method": "magic"}, "magic"),
    ("ADTTreeSettings", {"depth_min": 200, "depth_max": 6}, "depth_min is 200, above depth_max 6"),
    ("ADTTreeModelLoader", {"model": "no/such-model"}, "no/such-model"),
    ("ADTTreeModelLoader", {"dtype": "int3"}, "int3"),
    ("ADTTreeDrafterLoader", {"drafter": "nobody"}, "nobody"),
    ("ADTTreeLANTERN", {"neighbours": 0}, "neighbours"),
    ("ADTTreeLANTERN", {"factor": 0.5}, "factor"),
    ("ADTTreeLANTERN", {"max_replaced": 2.0}, "max_replaced"),
    ("ADTTreeLANTERN", {"rule": "magic"}, "rule"),
    ("ADTTreeBenchmark", {"prompts": "a cat", "methods": "eagle2,magic"}, "methods: 'magic'"),
    ("ADTTreeBenchmark", {"prompts": "nowhere.json", "methods": "jacobi"}, "prompts: "),
    ("ADTTreeBenchmark", {"count": 0}, "count"),
    ("ADTTreePrompts", {"file": "nowhere.json"}, "file: "),
    ("ADTTreePrompts", {"file": TYPED, "text": "nowhere.tsv"}, "text: "),
    ("ADTTreePrompts", {"file": "/etc/prompts.txt"}, f"file: '/etc/prompts.txt' {OUTSIDE}"),
    ("ADTTreePrompts", {"file": "../outside.txt"}, OUTSIDE),
    ("ADTTreePrompts", {"file": "C:\\prompts.txt"}, OUTSIDE),
    ("ADTTreePrompts", {"file": "\\\\host\\share\\p.txt"}, OUTSIDE),
    ("ADTTreePrompts", {"file": TYPED, "text": "a/../../outside.json"}, f"text: 'a/../../outside.json' {OUTSIDE}"),
    ("ADTTreePrompts", {"file": TYPED, "text": "a\n" * 600_000}, "text has 1200000 characters"),
    ("ADTTreePrompts", {"count": -1}, "count"),
    ("ADTTreePrompts", {"caption": "shortest"}, "caption"),
    ("ADTTreeBatchSampler", {"invalid_prompts": "guess"}, "invalid_prompts"),
    ("ADTTreeBatchSampler", {"batch_size": 0}, "batch_size"),
    *(
        ("ADTTreeBatchReport", {"filename": name}, f"filename: '{name[:30]}")
        for name in ("../report", "", "a/b", "a:b", "nul", "x" * 101)
    ),
    ("ADTTreeTrainDrafter", {"name": "a/b"}, "name: 'a/b'"),
    ("ADTTreeTrainDrafter", {"name": "jacobi"}, "name: 'jacobi' is a drafter that comes with the pack"),
    ("ADTTreeTrainDrafter", {"prompts": "nowhere.txt"}, "prompts: "),
    ("ADTTreeTrainDrafter", {"minutes": 0.0}, "minutes"),
    ("ADTTreeSampler", {"positive": None}, "positive"),
    ("ADTTreeSampler", {"model": ["theirs", 0]}, "model"),
    ("KSampler", {**K_SAMPLER, "model": ["loader", 0]}, "model"),
]


@pytest.mark.parametrize("kind, inputs, words", REFUSED)
def test_wrong_inputs_are_refused_before_the_run(pack, kind, inputs, words):
    """Inputs that are checked together with the invalid input must also be reported."""
    errors = pack.refused(kind, **inputs)
    assert errors and all(words in error for error in errors), errors


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "abc"])
def test_invalid_number_is_reported_for_its_input_only(pack, value):
    found = [(kind, name) for kind in pack.ours for name, (type, *_) in inputs(pack, kind).items() if type == "FLOAT"]
    assert len(found) > 15
    for kind, name in found:
        (error,) = pack.refused(kind, **{name: value})
        assert error.startswith(name)


def inputs(pack, kind: str) -> dict[str, list]:
    return info_inputs(pack.nodes[kind], "required", "optional")


def test_defaults_are_accepted(pack):
    """If the defaults were refused, the tests above could fail for another reason."""
    for kind in pack.ours:
        assert pack.refused(kind) == [], kind


@pytest.mark.parametrize("kind, name", [("ADTTreePrompts", "file"), ("ADTTreeBenchmark", "prompts")])
def test_long_list_is_not_read_during_validation(pack, model, kind, name):
    """The server answers no other request meanwhile. Errors of long lists are found when the node runs."""
    message = "does not have the format of its file extension"
    for file, wrong in (("short.json", 3), ("long.json", 10**6)):
        (pack.base / "input" / file).write_text("[" + "1, " * wrong + "1]", encoding="utf-8")
    assert any(f"short.json' {message}" in error for error in pack.refused(kind, **{name: "short.json"}))
    assert pack.refused(kind, **{name: "long.json"}) == []
    others = {"model": model, "methods": "jacobi"} if kind == "ADTTreeBenchmark" else {}
    check_error(pack.fails(kind, **others, **{name: "long.json"}), "prompts.bad_format", path="long.json")


@pytest.mark.parametrize("kind", ["ADTTreeSettings", "ADTTreeLANTERN", "ADTTreeDrafterLoader"])
def test_a_node_names_inputs_of_an_api_prompt_that_do_not_exist(pack, model, kind):
    """ComfyUI does not pass such an input to the node, so a misspelled name would have no effect."""
    hidden = {"UNIQUE_ID": "7", "PROMPT": {"7": {"class_type": kind, "inputs": {"speed": "fast"}}}}
    inputs = {"model": model, "drafter": "jacobi"} if kind == "ADTTreeDrafterLoader" else {}
    node = pack.nodes[kind]
    output = node.PREPARE_CLASS_CLONE({"hidden_inputs": hidden}).execute(**inputs)
    (warning,) = output.ui["warnings"]
    assert "'speed'" in warning and all(name in warning for name in info_inputs(node, "required", "optional"))


def test_every_node_looks_for_inputs_that_do_not_exist(pack):
    """The functions that run a node call `with_warning` themselves, or the wrapper of `checked` does."""
    for name in pack.ours:
        functions = [getattr(value, "__func__", None) for value in vars(pack.nodes[name]).values()]
        called = {used for function in functions if function for used in function.__code__.co_names}
        assert "with_warning" in called, name
