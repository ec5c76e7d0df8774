"""What people read beside the schema itself: help pages and translations cover every node, input and output, and
nothing that is gone.

English needs no locale: it is what ComfyUI shows of the schema.
"""

import json
import re

import pytest
from comfy_server import ROOT

PAGES = ROOT / "js" / "docs"
LOCALES = [path.name for path in (ROOT / "locales").iterdir()]
LANGUAGES = ["en", *LOCALES]


@pytest.fixture
def ours(object_info):
    """The pack's nodes: name -> definition."""
    return {
        name: node for name, node in object_info.items() if node["python_module"].startswith("custom_nodes.ADT-Tree")
    }


def inputs(node: dict) -> dict:
    return {**node["input"]["required"], **node["input"].get("optional", {})}


@pytest.mark.contract
@pytest.mark.parametrize("language", LOCALES)
def test_every_word_is_translated(language, comfy, ours):
    translated = json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
    assert comfy.get("/i18n")[language]["nodeDefs"].items() >= translated.items()
    assert set(translated) == set(ours)
    for name, words in translated.items():
        node = ours[name]
        assert set(words["inputs"]) == set(inputs(node)), name
        assert set(words["outputs"]) == {str(i) for i in range(len(node["output"]))}, name
        assert words["display_name"].startswith("ADT-Tree ") and words["description"] != node["description"]
        for label, entry in {**words["inputs"], **words["outputs"]}.items():
            assert set(entry) - {"options"} == {"name", "tooltip"} and all(entry.values()), (name, label)
        for label, entry in words["inputs"].items():
            kind, options = inputs(node)[label]
            choices = kind if isinstance(kind, list) else options.get("options", [])
            assert set(entry.get("options", choices)) == set(choices), (name, label)


@pytest.mark.parametrize("language", LOCALES)
@pytest.mark.parametrize("template", sorted((ROOT / "workflows").glob("*.json")), ids=lambda path: path.stem)
def test_what_templates_say_is_translated(language, template):
    """Titles and notes, each beside its text; the commands of a note are the same."""
    workflow = json.loads(template.read_text(encoding="utf-8"))
    for part in [*workflow["nodes"], *workflow["groups"]]:
        words, note = part.get(language, {}), part.get("type") == "MarkdownNote"
        assert set(words) == {*(["title"] if "title" in part else []), *(["note"] if note else [])}, part["title"]
        if note:
            own, other = part["widgets_values"][0], words["note"]
            commands = re.compile("^(?:hf|.*pip) .*$", re.M)
            assert commands.findall(own) == commands.findall(other) and own.count("\n- ") == other.count("\n- ")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_node_has_its_page(language, comfy, ours):
    assert {folder.name for folder in PAGES.iterdir()} == set(ours)
    for name, node in ours.items():
        page = comfy.get(f"/extensions/ADT-Tree/docs/{name}/{language}.md").decode()
        if language == "en":
            assert page.startswith(f"# {node['display_name']}\n")
            plain = page.replace("*", "")
            for label, (_, options) in inputs(node).items():
                assert f"| `{label}` | {options['tooltip']} |\n" in plain, (name, label)
        ins, outs = (re.findall(r"^\| `([^`]+)`", table, re.M) for table in page.split("\n## ")[-2:])
        assert sorted(ins) == sorted(inputs(node)) and outs == node["output_name"], name


def test_simplified_chinese_is_there():
    assert "zh" in LANGUAGES
