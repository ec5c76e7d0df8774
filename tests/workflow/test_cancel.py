"""Tests of cancelling: any work must stop within half a second, and the server must run the next prompt.

test_batch.py also cancels on the oldest ComfyUI, without measuring the time.
"""

import time
from collections.abc import Callable

import pytest
from comfy_server import Failed
from messages import Message, lines_under

LIMIT = 0.5
pytestmark = pytest.mark.alone


def interrupt_and_time(comfy, browser, prompt_id) -> float:
    """Interrupt a prompt. Return the seconds until the browser receives the message that the prompt has stopped."""
    asked = time.monotonic()
    comfy.post("/interrupt", {})
    stopped = browser.wait_for(
        lambda m: m.type == "execution_interrupted" and m.data["prompt_id"] == prompt_id, timeout=30
    )
    with pytest.raises(Failed) as failed:
        comfy.wait(prompt_id)
    assert failed.value.kind == "execution_interrupted"
    return stopped.at - asked


def cancel(comfy, prompt: dict, reached: Callable[[Message], bool], pause: float = 0.0) -> list[Message]:
    """Cancel a prompt some seconds after a message, check that it stops within `LIMIT`, and return all messages."""
    with comfy.socket() as browser:
        prompt_id = comfy.queue(prompt, browser.id)
        browser.wait_for(reached)
        time.sleep(pause)
        assert interrupt_and_time(comfy, browser, prompt_id) < LIMIT
        return list(browser.messages)


def begins(node: str) -> Callable[[Message], bool]:
    return lambda message: message.type == "executing" and message.data["node"] == node


def assert_next_prompt_runs(comfy, graph) -> None:
    graph.set("ADTTreeSampler", batch_size=1).set("ADTTreeSettings", method="adt-tree")
    assert comfy.files(comfy.run(graph.prompt))


def test_cancel_while_tokens_are_decoded(comfy, graph):
    graph.set("ADTTreeSampler", seed=901, batch_size=16).set("ADTTreeSettings", method="no-drafting")
    cancel(comfy, graph.prompt, lambda m: m.type == "progress" and 0 < m.data["value"] < m.data["max"], pause=0.3)
    assert_next_prompt_runs(comfy, graph)


def test_cancel_while_the_prompt_is_read(comfy, graph):
    """Cancel immediately after the start of the sampler, before the first token."""
    assert_next_prompt_runs(comfy, graph)
    graph.set("ADTTreeSampler", seed=902, batch_size=64)
    messages = cancel(comfy, graph.prompt, begins(graph.id("ADTTreeSampler")))
    assert not [m for m in messages if m.type == "progress" and m.data["value"] == m.data["max"]]
    assert_next_prompt_runs(comfy, graph)


@pytest.mark.parametrize("loader", ["ADTTreeModelLoader", "ADTTreeDrafterLoader"])
def test_cancel_while_weights_are_loaded(comfy, graph, loader):
    comfy.free()
    graph.set("ADTTreeSampler", seed=903, batch_size=64)
    cancel(comfy, graph.prompt, begins(graph.id(loader)))
    assert_next_prompt_runs(comfy, graph)


@pytest.mark.small_models
def test_cancel_while_a_batch_is_made(comfy, graph):
    prompts = graph.add("ADTTreePrompts", text="\n".join(f"{number} foxes" for number in range(30)))
    links = {"model": graph.link("ADTTreeModelLoader"), "prompts": prompts}
    node, _ = graph.add("ADTTreeBatchSampler", **links, seed=905)
    prompt = {key: graph.prompt[key] for key in (node, prompts[0], graph.id("ADTTreeModelLoader"))}
    cancel(comfy, prompt, lambda m: m.type == "executed" and m.data["node"] == node)
    assert_next_prompt_runs(comfy, graph)


def test_cancel_while_a_benchmark_runs_and_resume_it(comfy, graph):
    others = set(comfy.base.glob("output/adt_tree_benchmark/*/runs.jsonl"))
    values = {"prompts": "a cat\na dog", "count": 2, "methods": "jacobi", "guidance": 3.0, "temperature": 1.0}
    values["seed"] = 904 + len(others)  # a new folder even if this test runs again
    node, _ = graph.add("ADTTreeBenchmark", model=graph.link("ADTTreeModelLoader"), **values)
    prompt = {key: graph.prompt[key] for key in (node, graph.id("ADTTreeModelLoader"))}
    line = lines_under(cancel(comfy, prompt, lambda m: m.type == "progress" and m.data["value"] >= 2), node)[-1]
    (runs,) = set(comfy.base.glob("output/adt_tree_benchmark/*/runs.jsonl")) - others
    where = f"The results are in output/adt_tree_benchmark/{runs.parent.name}."
    assert line == f"1 of 2 prompts kept. Press Run to continue. {where}"
    before = runs.read_text(encoding="utf-8").splitlines()
    assert len(before) == 2
    comfy.run(prompt)
    after = runs.read_text(encoding="utf-8").splitlines()
    assert after[:2] == before and len(after) == 3
    assert_next_prompt_runs(comfy, graph)


@pytest.mark.parametrize("node", ["VAEEncode", "VAEDecode"])
def test_cancel_while_pixels_are_coded(comfy, graph, node):
    vae = graph.link("ADTTreeModelLoader", 2)
    pixels = graph.add("EmptyImage", width=256, height=256, batch_size=64, color=0x336699)
    latent = graph.add("VAEEncode", pixels=pixels, vae=vae)
    if node == "VAEDecode":
        small = graph.add("EmptyImage", width=256, height=256, batch_size=1, color=0x336699)
        latent = graph.add("RepeatLatentBatch", samples=graph.add("VAEEncode", pixels=small, vae=vae), amount=64)
    graph.set("VAEDecode", samples=latent)
    cancel(comfy, graph.prompt, begins(latent[0] if node == "VAEEncode" else graph.id("VAEDecode")), pause=0.3)
    graph.set("VAEDecode", samples=graph.link("ADTTreeSampler"))
    assert_next_prompt_runs(comfy, graph)
