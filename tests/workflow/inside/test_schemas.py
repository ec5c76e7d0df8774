"""Tests of the nodes' texts: schemas, help pages and translations.

They must cover every input and output, and no others. English needs no locale file, because ComfyUI shows the texts of
the schema.
"""

import json
import os
import re

import pytest

from .conftest import ROOT, info_inputs

NODES = {
    *("ADTTreeModelLoader", "ADTTreeDrafterLoader", "ADTTreeImageSize", "ADTTreeSettings", "ADTTreeLANTERN"),
    *("ADTTreeSampler", "ADTTreeCompare", "ADTTreeMapToImage", "ADTTreeRunStats", "ADTTreeBenchmark"),
    "ADTTreeMapToVideo",
    *("ADTTreeDiagnostics", "ADTTreeTrainDrafter"),
    *("ADTTreePrompts", "ADTTreeBatchSampler", "ADTTreeBatchReport"),
    *("ADTTreeGLMImageDecoderLoader", "ADTTreeGLMImageDecode"),
}
PAGES = ROOT / "js" / "docs"
LOCALES = [path.name for path in (ROOT / "locales").iterdir()]


@pytest.fixture
def inputs(pack):
    return {name: info_inputs(pack.nodes[name], "required", "optional") for name in NODES}


def test_nodes_have_descriptions_and_tooltips(pack, inputs):
    assert set(pack.ours) == NODES
    for name, node in pack.ours.items():
        assert node["category"] == "ADT-Tree" and node["display_name"].startswith("ADT-Tree ")
        assert len(node["description"]) > 40
        for label, (_, options) in inputs[name].items():
            assert len(options["tooltip"]) > 15, f"{name}.{label}"
        assert len(node["output_tooltips"]) == len(node["output"])
        assert all(len(tip or "") > 15 for tip in node["output_tooltips"]), name


def test_ids_are_the_names_that_users_see(pack, inputs):
    """API prompts use ids. "ADT-Tree Map to Image" has the id ADTTreeMapToImage, and all inputs have no second name."""
    for name, node in pack.ours.items():
        words = re.findall(r"\w+", node["display_name"])
        assert name == "".join(word[0].upper() + word[1:] for word in words)
        for label, (_, options) in inputs[name].items():
            assert re.fullmatch(r"[a-z]+(_[a-z]+)*", label), (name, label)
            assert options.get("display_name") in (None, label), (name, label)


def test_search_finds_the_nodes_in_both_languages(pack):
    """Users who know other models of this kind search for these terms."""
    found = {name: node["search_aliases"] for name, node in pack.ours.items()}
    for words in ("image tokens", "vqgan", "图像 token"):
        assert {name for name in NODES if words in found[name]} == {"ADTTreeModelLoader", "ADTTreeSampler"}
    for name in NODES:
        assert any(word.isascii() for word in found[name]) and not all(word.isascii() for word in found[name]), name


def test_defaults_of_seeds_and_lists(inputs):
    _, seed = inputs["ADTTreeSampler"]["seed"]
    assert seed["max"] == 2**64 - 1 and seed["control_after_generate"] is True
    _, models = inputs["ADTTreeModelLoader"]["model"]
    _, drafters = inputs["ADTTreeDrafterLoader"]["drafter"]
    assert models["options"][0] == models["default"] == "bundled"
    assert drafters["options"][:3] == ["auto", "bundled", "jacobi"] and drafters["default"] == "auto"


def test_inputs_with_a_default_are_optional(pack):
    """API prompts may omit them. The page creates required widgets first, so saved values would change places."""
    for name in NODES:
        needed = info_inputs(pack.nodes[name], "required")
        assert [label for label, (_, *options) in needed.items() if options and "default" in options[0]] == [], name


@pytest.fixture(params=LOCALES)
def language(request):
    return request.param


@pytest.fixture
def translated(language):
    return json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))


METRICS = {"clip", "hps", "aesthetic", "inception", "real_images"}
FILES = {"model", "drafter", "file", "transformer", "text_encoder", "vae", *METRICS}
"""Inputs that list files, whose names are not translated."""


def test_all_texts_are_translated(pack, inputs, translated):
    assert set(translated) == NODES
    for name, words in translated.items():
        node = pack.ours[name]
        assert set(words["inputs"]) == set(inputs[name]), name
        assert set(words["outputs"]) == {str(i) for i in range(len(node["output"]))}, name
        assert words["display_name"].startswith("ADT-Tree ") and words["description"] != node["description"]
        for label, entry in {**words["inputs"], **words["outputs"]}.items():
            assert set(entry) - {"options"} == {"name", "tooltip"} and all(entry.values()), (name, label)
        for label, entry in words["inputs"].items():
            kind, options = inputs[name][label]
            choices = kind if isinstance(kind, list) else options.get("options", [])
            files = set(choices) - {"none"} if label in FILES else set()
            assert set(entry.get("options", choices)) - files == set(choices) - files, (name, label)


NAMES = {"float32", "float64", "bfloat16", "float16"}  # choices that are names in every language


def test_choices_are_translated(inputs, translated):
    """A choice with an English word must have a label in the language of the user."""
    missing = {}
    for name, words in translated.items():
        for label, entry in words["inputs"].items():
            kind, options = inputs[name][label]
            choices = kind if isinstance(kind, list) else options.get("options", [])
            english = {choice for choice in choices if re.search("[a-z]{3}", str(choice))} - NAMES
            if label not in FILES and (left := sorted(english - set(entry.get("options", {})))):
                missing[name, label] = left
    assert missing == {}


@pytest.mark.parametrize("language", ["en", *LOCALES])
def test_every_node_has_its_page(pack, inputs, language):
    assert {folder.name for folder in PAGES.iterdir()} == NODES
    for name, node in pack.ours.items():
        page = (PAGES / name / f"{language}.md").read_text(encoding="utf-8")
        ins, outs = (re.findall(r"^\| `([^`]+)`", table, re.M) for table in page.split("\n## ")[-2:])
        seen = sorted(inputs[name])
        assert sorted(ins) == seen and outs == node["output_name"], name


def test_help_pages_end_with_the_tables_of_the_schemas(pack):
    """If the environment variable ADT_TREE_WRITE_PAGES is 1, the test first writes the tables."""
    help_tables = pack.package(".nodes.schema").help_tables
    for name, node in pack.ours.items():
        file = PAGES / name / "en.md"
        text, _, _ = file.read_text(encoding="utf-8").partition("## Inputs\n")
        page = text + help_tables(pack.nodes[name].GET_SCHEMA())
        if os.environ.get("ADT_TREE_WRITE_PAGES"):
            file.write_text(page, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == page, f"{name}: set ADT_TREE_WRITE_PAGES=1 to write its tables"
        assert page.startswith(f"# {node['display_name']}\n")


def test_translated_pages_contain_the_tooltips(pack, inputs, translated, language):
    for name, words in translated.items():
        page = (PAGES / name / f"{language}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {words['display_name']}\n")
        for label, entry in words["inputs"].items():
            title = "" if entry["name"] == label else f" {entry['name']}"
            assert f"| `{label}`{title} | {entry['tooltip']} |\n" in page, (name, label)


def test_tooltips_are_short(pack, inputs):
    lists = {("ADTTreeBenchmark", "methods"), ("ADTTreeSettings", "method")}
    tips = {(name, label): options["tooltip"] for name in NODES for label, (_, options) in inputs[name].items()}
    assert {where for where, tip in tips.items() if len(tip) > 250} == lists
    assert all(len(pack.ours[name]["description"]) <= 250 for name in NODES)


def test_simplified_chinese_exists():
    assert "zh" in LOCALES
