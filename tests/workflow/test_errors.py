"""Tests of how ComfyUI shows node errors. The tests in ``inside/`` check the text of the messages."""

import math

import pytest
from comfy_server import Failed, Refused


def failed(comfy, graph, node: str) -> Failed:
    """Run a prompt that must fail in the given node. Check that no file is written, and return the error."""
    before = set((comfy.base / "output").rglob("*"))
    with pytest.raises(Failed) as error:
        comfy.run(graph.prompt)
    assert error.value.kind == "execution_error"
    assert error.value.node_type == node
    assert set((comfy.base / "output").rglob("*")) == before, "something was written"
    return error.value


@pytest.mark.parametrize("value", [pytest.param(math.nan, marks=pytest.mark.smoke), 1e9, "abc", None])
def test_invalid_number_is_reported_for_its_input_only(comfy, graph, value):
    with pytest.raises(Refused) as error:
        comfy.queue(graph.set("ADTTreeSampler", guidance=value).prompt)
    (shown,) = error.value.details
    assert shown.startswith("guidance")


def test_errors_are_shown_with_their_public_name(comfy, graph):
    """ComfyUI shows users the module of an exception's class. For a custom node, this would be a path on their disk."""
    shown = failed(comfy, graph.set("CLIPTextEncode", text="a red house " * 500), "ADTTreeSampler")
    assert shown.message.startswith("Prompt too long: ") and shown.data["exception_type"] == "adt_core.AdtError"


@pytest.mark.small_models
def test_input_name_that_no_log_can_print(comfy, graph):
    """The name is an unpaired surrogate. If an error message contained it unescaped, ComfyUI's worker would stop."""
    link = graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    shown = failed(comfy, graph.set("ADTTreeSampler", **{"\ud800": link}), "ADTTreeSampler")
    assert r"'\ud800' is no input of this node" in shown.message
    assert comfy.files(comfy.run(graph.drop("ADTTreeSampler", "\ud800").prompt)), "the server still runs"
