"""Tests of messages. Each is an English text with a key and parameters, and needs a translation into every language."""

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


def test_joined_messages_keep_their_parts():
    done = message("check.same")
    line = join((done, "", "plain text"))
    assert line == "Same image: yes. plain text"
    assert [part.key for part in line.parts] == ["check.same", "space", None]
    assert [part.key for part in join((done, done), "").parts] == ["check.same", "check.same"]
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
