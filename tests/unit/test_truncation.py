"""Prompts of a list that can't be drawn: they stop it, are cut, or are left out, and a note says so."""

import pickle
from dataclasses import replace

import pytest

from adt_core.app.jobs import Job
from adt_core.app.truncation import INVALID_MODES, RAISE, SKIP, TRUNCATE, fit_prompt
from adt_core.errors import AdtError, PromptTooLongError

LONG = "a red house behind a blue lake, " * 60


@pytest.fixture
def job(models):
    return Job(models[0])


@pytest.mark.parametrize("way", INVALID_MODES)
def test_a_prompt_that_fits_stays_as_it_is(job, way):
    assert fit_prompt(job.check_prompt, "a red house", way) == ("a red house", "")


def test_a_prompt_that_is_too_long_stops_the_list(job):
    with pytest.raises(PromptTooLongError, match=r"Prompt too long: \d+ tokens; .* accepts \d+; shorten it"):
        fit_prompt(job.check_prompt, LONG, RAISE)
    with pytest.raises(AdtError, match="empty"):
        fit_prompt(job.check_prompt, "", RAISE)


@pytest.mark.parametrize(
    "prompt",
    [LONG, "x" + LONG, "房子" * 900, LONG.replace(" ", ""), LONG * 10],
    ids=["words", "x", "Chinese", "one word", "too many characters"],
)
def test_a_prompt_is_cut_to_what_fits(job, prompt):
    text, note = fit_prompt(job.check_prompt, prompt, TRUNCATE)
    job.check_prompt(text)
    assert prompt.startswith(text)
    assert note.startswith(f"truncated to its first {len(text)} of {len(prompt)} characters: ")
    assert (" tokens; " in note or "10000 at most are read" in note) and "shorten" not in note
    further = prompt[len(text) :]
    if " " in prompt:  # whole words, and not one word more would fit
        assert further.startswith(" ") and not text.endswith(" ")
        further = further[: further.index(" ", 1)]
    else:
        further = further[:1]
    with pytest.raises(PromptTooLongError):
        job.check_prompt(text + further)


@pytest.mark.parametrize(
    "prompt, way, reason",
    [(LONG, SKIP, "too long"), ("", SKIP, "empty"), ("", TRUNCATE, "empty"), ("a \ud800", TRUNCATE, "half")],
)
def test_a_prompt_is_left_out(job, prompt, way, reason):
    text, note = fit_prompt(job.check_prompt, prompt, way)
    assert text is None and note.lower().startswith("left out: prompt ") and reason in note


def test_what_no_beginning_of_it_would_fit_is_left_out(job):
    crowded = replace(job, recipe=replace(job.recipe, suffix=LONG))
    assert fit_prompt(crowded.check_prompt, "a red house", TRUNCATE).text is None


def test_errors_can_be_sent_to_other_processes():
    error = pickle.loads(pickle.dumps(PromptTooLongError("`prompt` is too long; shorten it.")))
    assert type(error) is PromptTooLongError and error.template == "`prompt` is too long; shorten it."
