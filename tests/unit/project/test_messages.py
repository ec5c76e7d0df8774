"""Tests of messages and errors.

Each is an English text with a key and parameters, and needs a translation into every language.
"""

import ast
import json
import pickle
import re
from pathlib import Path

import pytest

from adt_core.errors import AdtError, PromptTooLongError
from adt_core.messages import ERRORS, TEMPLATES, Message, Part, find_message, join, message, parts_of

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
    foreign = texts["adtTree"]["sentences"]
    assert all(placeholders(translation) <= placeholders(english) for english, translation in foreign.items())
    # translated errors are sentences like the English ones
    assert [key for key, text in ERRORS.items() if text.endswith(".") != translated[key].endswith(("。", "."))] == []


def test_an_error_spells_its_settings_as_each_surface_does():
    error = AdtError("keep.everything", keep="0.9", rows=8)
    assert str(error) == "keep is 0.9, which keeps all 8 rows of tokens; choose a smaller number."
    assert error.with_inputs("--{}".format).startswith("--keep is 0.9,")
    assert str(error.renamed(keep="keep_top")).startswith("keep_top is 0.9,")
    assert (error.key, error.parameters) == ("keep.everything", {"keep": "0.9", "rows": 8})
    crossed = AdtError("bounds.crossed", input="depth_min", low=9, other="depth_max", high=8)
    assert crossed.with_inputs(str.upper).startswith("DEPTH_MIN is 9, above DEPTH_MAX 8;")


def test_an_error_can_be_a_part_of_another():
    """The parts stay translatable, and the inner sentence loses its period."""
    inner = AdtError("keep.everything", keep=1, rows=8)
    error = AdtError("prompts.in_row", id="'7'", error=inner)
    assert str(error) == f"prompts: in the row of '7', {inner}"
    assert error.parameters["error"].parts == inner.message.parts
    assert error.with_inputs("--{}".format).startswith("--prompts: in the row of '7', --keep is 1,")


def test_other_packages_may_raise_their_own_sentence():
    """Its text is shown as it is."""
    error = AdtError("my policy: {depth} is no number, {}; use `depth` 3.")
    assert (error.key, str(error)) == ("", "my policy: {depth} is no number, {}; use depth 3.")


def test_values_are_shown_in_one_line_without_control_characters():
    """They may come from files of somebody else."""
    error = AdtError("png.no_settings", path="a\n\x1b[2Jb.png")
    assert str(error).startswith(r"a \u001b[2Jb.png has no") and error.parameters["path"] == r"a \u001b[2Jb.png"


def test_workers_pass_errors_on():
    error = PromptTooLongError("prompt.too_long", tokens=9, model="M", limit=5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is PromptTooLongError and copy.message.parts == error.message.parts
    assert (copy.tokens, copy.limit, copy.model) == (9, 5, "M")


PARTS = ("kind.", "limit.", "remedy.", "stored.", "title.")  # beginnings of the keys of texts that are values in errors
NO_REMEDY = "conditioning.is_text", "download.no_name", "hub.gated", "output.not_png", "path.not_png"
"""Errors that say what to do without a semicolon."""


def test_an_error_is_one_short_sentence_that_says_what_to_do():
    """It can be copied: a command at the end has no period. Errors with another error in them leave the rest to it."""
    for key, text in ERRORS.items():
        assert len(text) < 300 and text == text.strip() and "\n" not in text, key
        if key.startswith(PARTS):
            assert not text.endswith((".", ";")), key
        else:
            assert text.endswith((".", "run {command}")) and not text.endswith(".."), key
            assert "; " in text or "{error}" in text or key in NO_REMEDY, key


SOURCES = [*ROOT.glob("nodes/*.py"), *ROOT.glob("adt_core/**/*.py")]
RAISING = ("AdtError", "PromptTooLongError", "UnknownFormatError")
CALLS = dict.fromkeys((*RAISING, "message"), frozenset()) | {"wrap_library_errors": {"reason"}}
"""Functions whose first argument is a key, and the parameters that they add."""


@pytest.fixture(scope="module")
def nodes() -> list[ast.AST]:
    """Return all nodes of the syntax trees of the package and the nodes."""
    return [node for file in SOURCES for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


def test_every_key_has_a_use_and_a_template(nodes):
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert [key for key in ERRORS if key not in texts] == []


def test_errors_are_raised_with_a_key_and_exactly_its_parameters(nodes):
    """A key in a variable comes from a table or a condition; `message` then raises KeyError for a missing parameter."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", None) in CALLS]
    keyed = [call for call in calls if call.args and isinstance(call.args[0], ast.Constant)]
    for call in keyed:
        template = TEMPLATES[call.args[0].value]
        given = {keyword.arg for keyword in call.keywords}
        expected = placeholders(template) - CALLS[call.func.id]
        assert None in given or given == expected, (call.args[0].value, given, expected)
    raised = [call for call in calls if call.func.id != "message"]
    written = [ast.unparse(call) for call in raised if isinstance(call.args[0], ast.JoinedStr)]
    assert not written, "the sentence belongs into errors.json"
