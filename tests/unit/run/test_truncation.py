"""Tests of lists with invalid prompts: such a prompt must raise an error, be truncated, or be skipped with a note."""

from dataclasses import replace

import pytest

from adt_core import Pipeline
from adt_core.run.truncation import INVALID_MODES, RAISE, SKIP, TRUNCATE, fit_prompt
from tests.raising import raises_key

LONG = "a red house behind a blue lake, " * 60


@pytest.fixture
def pipeline(models):
    return Pipeline(models[0])


@pytest.mark.parametrize("mode", INVALID_MODES)
def test_a_prompt_that_fits_is_unchanged(pipeline, mode):
    assert fit_prompt(pipeline.check_prompt, "a red house", mode) == ("a red house", "")


def test_invalid_prompts_raise_an_error(pipeline):
    with raises_key("prompt.too_long"):
        fit_prompt(pipeline.check_prompt, LONG, RAISE)
    with raises_key("prompt.empty"):
        fit_prompt(pipeline.check_prompt, "", RAISE)


@pytest.mark.parametrize(
    "prompt",
    [LONG, "x" + LONG, "房子" * 900, LONG.replace(" ", ""), LONG * 10],
    ids=["words", "x", "Chinese", "one word", "too many characters"],
)
def test_a_long_prompt_is_truncated_to_the_longest_prefix(pipeline, prompt):
    text, note = fit_prompt(pipeline.check_prompt, prompt, TRUNCATE)
    pipeline.check_prompt(text)
    assert prompt.startswith(text)
    assert note.startswith(f"truncated to its first {len(text)} of {len(prompt)} characters: ")
    assert (" tokens; " in note or "10000 at most are read" in note) and "shorten" not in note
    further = prompt[len(text) :]
    if " " in prompt:  # the text ends with a complete word, and one more word would not fit
        assert further.startswith(" ") and not text.endswith(" ")
        further = further[: further.index(" ", 1)]
    else:
        further = further[:1]
    with raises_key("prompt.too_long"):
        pipeline.check_prompt(text + further)


@pytest.mark.parametrize(
    "prompt, mode, key",
    [
        (LONG, SKIP, "prompt.too_long"),
        ("", SKIP, "prompt.empty"),
        ("", TRUNCATE, "prompt.empty"),
        ("a \ud800", TRUNCATE, "prompt.half_character"),
    ],
)
def test_invalid_prompts_are_skipped_with_a_note(pipeline, prompt, mode, key):
    """The note is the error without its remedy, and can be translated."""
    text, note = fit_prompt(pipeline.check_prompt, prompt, mode)
    assert text is None and note.lower().startswith("left out: prompt ") and "shorten" not in note
    assert note.parts[0].key == "prompt.left_out" and note.parts[0].parameters["reason"].parts[0].key == key


def test_a_prompt_without_a_prefix_that_fits_is_skipped(pipeline):
    crowded = replace(pipeline, recipe=replace(pipeline.recipe, suffix=LONG))
    assert fit_prompt(crowded.check_prompt, "a red house", TRUNCATE).text is None
