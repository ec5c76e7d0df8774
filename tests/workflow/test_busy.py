"""Tests of requests that once kept the server from answering others, and of downloads in a real ComfyUI."""

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
from comfy_server import NEWEST, PACKS, Comfy, Failed
from reference import draw_graph
from small import SMALL

from tests.hub import COMMIT, Hub
from tests.hub_models import JANUS, publish
from tests.odd_answers import silent

LIMIT = 1.0  # longest time in seconds until the server answers another request


@dataclass
class Watch:
    """Measurements of a server while a block runs.

    Attributes:
        silence: Longest time in seconds until it answered a request.
        growth: Highest growth of its resident memory in bytes.
    """

    silence: float = 0.0
    growth: int = 0


@contextmanager
def watched(comfy):
    """Ask the server for its state again and again in the block, and print the longest silence."""
    watch = Watch()
    is_over = threading.Event()
    process = psutil.Process(comfy.process.pid)
    before = process.memory_info().rss

    def ask():
        while not is_over.is_set():
            began = time.monotonic()
            comfy.get("/system_stats")
            watch.silence = max(watch.silence, time.monotonic() - began)
            watch.growth = max(watch.growth, process.memory_info().rss - before)
            time.sleep(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield watch
    finally:
        is_over.set()
        asking.join()
    print(f"longest silence: {watch.silence:.2f} s, memory: {watch.growth / 1e6:.0f} MB")


@contextmanager
def answering(comfy):
    """Check that the server always answers within `LIMIT` in the block."""
    with watched(comfy) as watch:
        yield watch
    assert watch.silence < LIMIT


@pytest.mark.smoke
def test_a_prompt_with_many_samplers(comfy, graph):
    """A prompt of 4 MB with 500 samplers, whose maps are looked up when it is queued."""
    comfy.run(graph.prompt)
    text = next(key for key, node in graph.prompt.items() if node["class_type"] == "CLIPTextEncode")
    sampler = graph.id("ADTTreeSampler")
    prompt = dict(graph.prompt)
    prompt[text]["inputs"]["text"] = "a red house " * 350_000
    for number in range(500):
        inputs = {**graph.prompt[sampler]["inputs"], "seed": number, "positive": [text, 0]}
        prompt[f"{sampler}{number}"] = {"class_type": "ADTTreeSampler", "inputs": inputs}
    workflow = {"id": "w", "nodes": [{"id": key, "properties": {}} for key in prompt], "extra": {}}
    with answering(comfy):
        prompt_id = comfy.queue(prompt, extra_pnginfo={"workflow": workflow})
        comfy.post("/queue", {"delete": [prompt_id]})
        comfy.post("/interrupt", {})


@pytest.mark.long
@pytest.mark.small_models
def test_64_clients(comfy, graph):
    """Each gets its own messages and image. Silence has no limit: a busy ComfyUI collects garbage for seconds."""
    clients = 64
    expected = [draw_graph(comfy.base, graph.set("ADTTreeSampler", seed=seed), SMALL) for seed in range(clients)]
    comfy.run(graph.set("ADTTreeSampler", seed=clients).prompt)  # loads the model
    with ExitStack() as stack, watched(comfy) as watch:
        browsers = [stack.enter_context(comfy.socket()) for _ in range(clients)]
        queued = []
        for seed, browser in enumerate(browsers):
            graph.set("ADTTreeSampler", seed=seed)
            queued.append(comfy.queue(graph.prompt, browser.id))
        given_up = queued[3::4]
        comfy.post("/queue", {"delete": given_up})
        for seed, (browser, prompt_id) in enumerate(zip(browsers, queued, strict=True)):
            if prompt_id in given_up:
                continue
            (image,) = comfy.images(comfy.wait(prompt_id))
            np.testing.assert_array_equal(image, expected[seed])
            browser.wait_for(lambda message: message.type == "execution_success")
    for prompt_id, browser in zip(queued, browsers, strict=True):
        theirs = {m.data["prompt_id"] for m in browser.messages if m.type == "executing" and m.data.get("node")}
        assert theirs == {prompt_id} - {*given_up}
    assert watch.growth < 200e6


@pytest.mark.smoke
@pytest.mark.parametrize(
    "text, words",
    [
        ("{a|b}" * 16 + "y" * 19_000, "to more than 50000000 characters"),
        ("{a|b}" * 40, "to more than 100000 prompts"),
        ("{a|b" * 4_000 + "}" * 4_000, "nests braces more than 50 deep"),
    ],
    ids=["long", "many", "deep"],
)
def test_too_many_combinations_of_alternatives(comfy, text, words):
    prompt = {"1": prompts(text), "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}}
    before = psutil.Process(comfy.process.pid).memory_info().rss
    with answering(comfy), pytest.raises(Failed) as failed:
        comfy.run(prompt)
    assert words in failed.value.message
    assert psutil.Process(comfy.process.pid).memory_info().rss < before + 200e6


def prompts(text: str = "", file: str = "(the text below)") -> dict:
    """Return a node with all combinations of a text, or with a file."""
    inputs = {"file": file, "text": text, "caption": "first", "filter": "", "start_index": 0, "count": 8}
    more = {"shuffle_seed": 0, "choices": "all combinations", "choice_seed": 0}
    return {"class_type": "ADTTreePrompts", "inputs": inputs | more}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with Hub() as hub:
        publish(hub, tmp_path_factory.mktemp("hub") / "models")
        yield hub


@pytest.fixture(scope="module")
def empty(hub, tmp_path_factory, meter):
    """Running server that has only the bundled model, and downloads from the local Hub server."""
    variables = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path_factory.mktemp("hf"))}
    yield from Comfy.started(meter, NEWEST, tmp_path_factory.mktemp("empty"), PACKS, (), variables)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "ends",
    [(), ("model.safetensors",), ("/revision/main", f"/revision/{COMMIT}")],
    ids=["slow", "silent file", "silent list"],
)
def test_downloads_are_cancelled_and_start_no_process(empty, hub, graph, ends):
    """The download of a node is cancelled within two seconds, also while the server is silent."""
    heard, until = threading.Event(), threading.Event()
    hub.rate = 200_000
    hub.odd = dict.fromkeys(ends, silent(heard, until))
    graph.set("ADTTreeModelLoader", model=JANUS, if_missing="download")
    with answering(empty):
        prompt_id = empty.queue(graph.prompt)
        while not (heard.is_set() if ends else hub.now):
            time.sleep(0.02)
        assert psutil.Process(empty.process.pid).children(recursive=True) == []
        asked = time.monotonic()
        empty.post("/interrupt", {})
        with pytest.raises(Failed) as failed:
            empty.wait(prompt_id)
        assert failed.value.kind == "execution_interrupted" and time.monotonic() - asked < 2
    until.set()
    hub.odd = {}
    hub.rate = None
