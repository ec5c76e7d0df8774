"""Tests of the map's controls: replay, pins, files of a replay, and Measure."""

import io

import map_reading
import pytest
from comfy_page import ComfyPage
from PIL import Image

LARGEST = 2 * 10**6  # maximum size in bytes of the file of a replay
COMPARE = "app.graph.nodes.find((n) => n.type === 'ADTTreeCompare')"
PLAYS = """async (bytes) => {
  const src = URL.createObjectURL(new Blob([Uint8Array.from(bytes)], { type: 'video/webm' }));
  const video = Object.assign(document.createElement('video'), { src, muted: true });
  await new Promise((resolve, reject) => { video.onloadeddata = resolve; video.onerror = reject; });
  return [video.videoWidth, video.videoHeight];
}"""

FRAMES = """async (bytes) => {
  const decoder = new ImageDecoder({ data: Uint8Array.from(bytes), type: 'image/webp' });
  await Promise.all([decoder.tracks.ready, decoder.completed]);
  const { frameCount } = decoder.tracks.selectedTrack;
  await decoder.decode({ frameIndex: frameCount - 1 });
  return frameCount;
}"""
"""Decodes an animated WebP in the browser. Returns the number of frames."""


@pytest.fixture
def done(tab, workflow) -> int:
    """Run the workflow, and return the id of its sampler."""
    sampler = map_reading.done(tab, workflow)
    tab.settle()
    return sampler


def test_text_of_the_replay_is_outside_of_the_image(tab, done):
    tab.map(done, "(panel.replay.slider.value = 3, panel.replay.slider.oninput(), 0)")
    tab.settle()
    assert tab.map(done, "panel.replay.label.textContent").startswith("Pass 4 of ")
    assert tab.map(done, "!panel.stage.contains(panel.replay.label) && panel.about.hidden")
    tab.map(done, "(panel.replay.slider.value = 999, panel.replay.slider.oninput(), 0)")
    tab.settle()
    assert not tab.map(done, "panel.about.hidden")


BEGIN = """(id) => {
  const tell = (event, detail) => app.api.dispatchEvent(new CustomEvent(event, { detail }));
  tell('execution_start', { prompt_id: 'not-queued-here' });
  tell('executing', String(id));
}"""
"""Lets a node begin to run. The model is loaded until the node's first message."""


def test_a_sampler_says_that_its_model_is_loading(tab, workflow):
    tab.load(workflow.data)
    tab.page.evaluate(BEGIN, workflow.sampler)
    text = "panel.line.textContent"
    tab.wait(workflow.sampler, f"/^Loading the model, measuring this device: [1-9] s$/.test({text})")
    tab.page.evaluate("app.api.dispatchEvent(new CustomEvent('executing', { detail: null }))")
    tab.wait(workflow.sampler, f"{text}.startsWith('Run the workflow')")


LIST = """() => {
  const prompts = LiteGraph.createNode('ADTTreePrompts');
  app.graph.add(prompts);
  prompts.widgets.find(({ name }) => name === 'text').value = 'a fox\\na boat\\na tent';
  const text = app.graph.nodes.find(({ type }) => type === 'CLIPTextEncode');
  prompts.connect(0, text, text.inputs.findIndex(({ name }) => name === 'text'));
}"""
"""Connects a list of three prompts to the text."""


def test_the_map_of_a_list_says_which_item_it_shows(tab, workflow):
    """The Sampler runs once per item, and its map shows the last one. A reload must keep this text."""
    tab.load(workflow.data)
    tab.page.evaluate(LIST)
    tab.run()
    listed = "run?.state === 'done' && panel.caption.own.textContent.includes('). Item 3 of 3 of the list.')"
    tab.wait(workflow.sampler, listed)
    tab.screenshot("list")
    tab.drafted("adt_tree_map")
    tab.open()
    tab.wait(workflow.sampler, listed)


def test_double_click_zooms_and_clicks_unpin(tab, done):
    canvas = tab.canvas(done)
    canvas.dblclick()
    tab.settle()
    assert tab.map(done, "[panel.pinned, panel.view.scale]") == [None, 2]
    canvas.click()
    tab.settle()
    assert tab.map(done, "panel.pinned")
    canvas.click()
    tab.settle()
    assert tab.map(done, "panel.pinned") is None
    canvas.click()
    tab.page.mouse.click(640, 60)
    tab.settle()
    assert tab.map(done, "panel.pinned") is None


@pytest.mark.parametrize("kind", ["webp", "webm"])
def test_replay_is_saved_as_a_file_that_plays(tab: ComfyPage, done, tmp_path, kind):
    with tab.page.expect_download() as download:
        tab.map(done, "(panel.saveReplay(argument), 0)", kind)
    path = tmp_path / f"replay.{kind}"
    download.value.save_as(path)
    data = path.read_bytes()
    assert 1000 < len(data) < LARGEST
    if kind == "webp":
        with Image.open(io.BytesIO(data)) as image:
            assert image.n_frames == 85
            durations = [(image.seek(frame), image.load(), image.info["duration"])[-1] for frame in range(85)]
        assert sum(durations) == pytest.approx(8000, abs=50)
        assert tab.page.evaluate(FRAMES, list(data)) == 85
    else:
        page = tab.context.new_page()  # without API nodes, ComfyUI's page may not play videos from memory
        width, height = page.evaluate(PLAYS, list(data))
        page.close()
        assert width > height > 300


def test_measure_reuses_its_nodes_and_measures_again(tab, done):
    counts, runs = [], []
    for _ in range(2):
        tab.map(done, "(panel.measure.click(), 0)")
        compare = tab.page.evaluate(f"{COMPARE}.id")
        tab.wait(compare, f"run?.state === 'done' && run.id !== '{runs[-1] if runs else ''}'", timeout=180)
        runs.append(tab.map(compare, "run.id"))
        counts.append(len(tab.saved()["nodes"]))
    tab.screenshot("measured_twice")
    assert counts[0] == counts[1] and runs[0] != runs[1]
    assert "Ignored" not in tab.map(compare, "panel.caption.message")
    assert tab.map(compare, "panel.line.textContent").count("\n") == 1


def test_drafting_is_dimmed_while_settings_decide(tab, done):
    drafting = f"app.graph.getNodeById({done}).widgets.find((w) => w.name === 'drafting')"
    assert tab.page.evaluate(f"[{drafting}.disabled, {drafting}.label]") == [True, "drafting (from settings)"]
    tab.page.evaluate(f"app.graph.getNodeById({done}).disconnectInput('settings')")
    assert tab.page.evaluate(f"[{drafting}.disabled, {drafting}.label]") == [False, "drafting"]
