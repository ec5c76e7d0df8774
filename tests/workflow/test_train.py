"""Tests of the node Train Drafter on a server: cancelling, resuming, and using the trained drafter."""

import re

import numpy as np
import pytest
from messages import lines_under
from small import QUICK
from test_cancel import interrupt_and_time


@pytest.mark.small_models
def test_trained_drafter_is_listed_and_used(stocked, graph):
    """Before the training, another run loads the weights in inference mode."""
    comfy = stocked
    node, _ = graph.add("ADTTreeTrainDrafter", model=graph.link("ADTTreeModelLoader"), name="trained", **QUICK)
    prompt = {key: graph.prompt[key] for key in (node, graph.id("ADTTreeModelLoader"))}
    del graph.prompt[node]
    (before,) = comfy.draw(graph.prompt)
    with comfy.socket() as browser:
        prompt_id = comfy.queue(prompt, browser.id)
        browser.wait_for(lambda m: m.type == "progress" and 0 < m.data["value"] < m.data["max"])
        interrupt_and_time(comfy, browser, prompt_id)
        kept = lines_under(browser.messages, node)[-1]
    assert re.fullmatch(r"\d+ (of \d+ images|steps) kept\. Press Run to continue\.", kept)
    outputs, messages = comfy.watch(prompt)
    begin, first, *_, last = lines_under(messages, node)
    assert begin == "Measuring how long the training takes"
    assert first.startswith("The training takes about ") and first.endswith(" GiB of disk.")
    assert last.startswith("'trained' drafts ") and last.endswith(
        " tokens a pass after 10 steps; the Drafter Loader has it."
    )
    (curve,) = comfy.images(outputs, node)
    assert curve.shape == (400, 640, 3)
    listed = comfy.get("/object_info/ADTTreeDrafterLoader")["ADTTreeDrafterLoader"]["input"]["optional"]["drafter"]
    assert "trained" in listed[1]["options"]
    graph.set("ADTTreeDrafterLoader", drafter="trained").set("ADTTreeSettings", method="eagle2")
    (after,) = comfy.draw(graph.prompt)
    np.testing.assert_array_equal(after, before)
