"""Tests of messages. Each is an English text with a key and parameters, and needs a translation into every language."""

import ast
import json
import pickle
import re
from pathlib import Path

import pytest

from adt_core.messages import TEMPLATES, Message, Part, find_message, join, message, parts_of

ROOT = Path(__file__).resolve().parents[3]
LOCALES = sorted(path.name for path in (ROOT / "locales").iterdir())


def placeholders(template: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", template))


def test_a_message_is_its_english_text():
    done = message("download.done", model="Janus-Pro-1B")
    assert done == "Janus-Pro-1B is downloaded" and f"{done}." == "Janus-Pro-1B is downloaded."
    assert done.parts == (Part(str(done), "download.done", {"model": "Janus-Pro-1B"}),)
    assert json.loads(json.dumps({"line": done})) == {"line": str(done)}


def test_one_thing_is_singular():
    assert message("prompts.all", count=1) == "All 1 prompt."
    assert message("prompts.all", count=11) == "All 11 prompts."
    assert "3 steps, 2.1 tokens a pass" == message("training.steps_and_tau", steps=3, tau="2.1")


def test_joined_messages_keep_their_parts():
    done = message("diagnostics.same")
    line = join((done, "", "plain text"))
    assert line == "Same image: yes. plain text"
    assert [part.key for part in line.parts] == ["diagnostics.same", "space", None]
    assert [part.key for part in join((done, done), "").parts] == ["diagnostics.same", "diagnostics.same"]
    assert join(("", "")) == "" and parts_of("plain text") == (Part("plain text"),)


def test_workers_pass_messages_on():
    line = pickle.loads(pickle.dumps(message("training.steps", steps=3)))
    assert isinstance(line, Message) and line.parts == message("training.steps", steps=3).parts


def test_a_stored_text_is_found_again():
    assert find_message(str(message("device.no_mode"))).parts == message("device.no_mode").parts
    assert find_message("Text of an earlier version.") == "Text of an earlier version."


@pytest.mark.parametrize("language", LOCALES)
def test_every_message_is_translated(language):
    texts = json.loads((ROOT / "locales" / language / "main.json").read_text(encoding="utf-8"))
    translated = texts["adtTree"]["messages"]
    assert translated.keys() == TEMPLATES.keys()
    wrong = [key for key in TEMPLATES if placeholders(translated[key]) != placeholders(TEMPLATES[key])]
    assert not wrong


OF_COMFYUI = ("Required input is missing", "Value ", "No such file or directory")
"""Beginnings of errors of ComfyUI and Python."""


def spoken(node: ast.AST) -> str:
    r"""Return the text of a string in the source, with \0 for each value that is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(spoken(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "\0"


@pytest.fixture(scope="module")
def said() -> list[list[str]]:
    """Return all strings of the package and the nodes, each as its pieces between the values that are filled in."""
    files = [*ROOT.glob("nodes/*.py"), *ROOT.glob("adt_core/**/*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    texts = {spoken(node).replace("`", "") for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant)}
    return [[piece.strip(" .") for piece in text.split("\0")] for text in texts]


@pytest.mark.parametrize("language", LOCALES)
def test_every_translated_error_is_one_of_the_package(language, said):
    """The page finds errors by their English text, so a changed sentence would lose its translation.

    A sentence can be made of several strings of the source. The longest of them must be a large part of it.
    """
    texts = json.loads((ROOT / "locales" / language / "main.json").read_text(encoding="utf-8"))["adtTree"]["errors"]
    for english, translated in texts.items():
        assert placeholders(translated) <= placeholders(english), english
        if not english.startswith(OF_COMFYUI):
            found = max(len("".join(pieces)) for pieces in said if all(piece in english for piece in pieces))
            assert found > 0.3 * len(re.sub(r"\{\w+\}", "", english)), english
