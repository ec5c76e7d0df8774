"""Tests of the workflows that need only the pack. The tests open them from the template browser, and run them.

Before and after a run, nodes may not overlap other nodes or the frames of other groups.
"""

import itertools
import json
import re

import pytest
from comfy_server import ROOT
from test_workflows import TO_INSTALL

RUNNABLE = [
    "ADT-Tree text to image (start here)",
    "ADT-Tree compared with no drafting",
    "ADT-Tree relaxed acceptance (LANTERN)",
    "ADT-Tree continue a picture",
    "ADT-Tree batch of prompts with report",
]
INPAINT = "ADT-Tree inpaint with MaskEditor"
"""Template that generates nothing until the user paints a mask; test_masks.py does."""

MISSING = [name for name, (node, *_) in TO_INSTALL.items() if node == "ADTTreeModelLoader"]
"""Templates whose models aren't installed."""

SEEDS = itertools.count(50)
"""New seeds. Otherwise, results could be in ComfyUI's cache, from a test with the same workflow."""

RUN = """async () => {
  const shown = [], frames = { maps: 0, previews: 0 };
  const hear = {
    executed: ({ detail: { node, display_node, output } }) => {
      if (output?.images) shown.push([String(display_node ?? node), output.images.length]);
    },
    'adt_tree.map': () => { frames.maps += 1; },
    b_preview_with_metadata: () => { frames.previews += 1; },
  };
  for (const [event, listener] of Object.entries(hear)) app.api.addEventListener(event, listener);
  const ended = new Promise((resolve) => {
    const begin = () => {
      for (const event of ['execution_success', 'execution_error', 'execution_interrupted']) {
        const stop = ({ detail }) => resolve([event, detail.exception_message ?? null]);
        app.api.addEventListener(event, stop, { once: true });
      }
    };
    app.api.addEventListener('execution_start', begin, { once: true }); // an earlier run may not have ended yet
  });
  const end = (await app.queuePrompt(0)) && (await ended);
  for (const [event, listener] of Object.entries(hear)) app.api.removeEventListener(event, listener);
  return { end, shown: Object.fromEntries(shown), ...frames };
}"""
"""Runs the workflow. `end` is the event that ended the run and its message, or false if the server has rejected it."""


CROWDED = """() => {
  const boxes = app.graph.nodes.map((node) => ({ name: `${node.type} ${node.id}`, box: adtTest.box(node) }));
  const meet = ([x, y, w, h], [X, Y, W, H]) => x < X + W - 1 && X < x + w - 1 && y < Y + H - 1 && Y < y + h - 1;
  const inside = ([x, y, w, h], [X, Y, W, H]) => x >= X - 1 && y >= Y - 1 && x + w <= X + W + 1 && y + h <= Y + H + 1;
  const names = (a) => (b) => [a.name, b.name];
  const pairs = boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a.box, b.box)).map(names(a)));
  const frames = (app.graph.groups ?? []).map((group) => ({ name: group.title, box: [...group._bounding] }));
  const sticksOut = (a) => (b) => meet(a.box, b.box) && !inside(a.box, b.box);
  const cut = boxes.flatMap((a) => frames.filter(sticksOut(a)).map(names(a)));
  return [...pairs, ...cut];
}"""
"""Returns the pairs of overlapping nodes, and the pairs (node, group) in which the node isn't completely inside."""


HIDDEN = """() => {
  const { scale, offset } = app.canvas.ds;
  const place = ([x, y, w, h]) => [(x + offset[0]) * scale, (y + offset[1]) * scale, w * scale, h * scale];
  const meet = ([x, y, w, h], [X, Y, W, H]) => x < X + W && X < x + w && y < Y + H && Y < y + h;
  const map = document.querySelector('.minimap-main-container').getBoundingClientRect();
  const beyond = ([x, y, w, h]) => x < 60 || y < 38 || x + w > innerWidth || y + h > innerHeight;
  const hidden = (box) => beyond(box) || meet(box, [map.x, map.y, map.width, map.height]);
  return app.graph.nodes.filter((node) => hidden(place(adtTest.box(node)))).map((node) => `${node.type} ${node.id}`);
}"""
"""Returns the nodes that are outside of the window, or covered by ComfyUI's bars or minimap."""


def out_of_place(tab, patience=50) -> list:
    """Wait until the layout of the page is stable. Return the nodes that overlap or are hidden."""
    tab.settle()
    while (found := [*tab.page.evaluate(CROWDED), *tab.page.evaluate(HIDDEN)]) and patience:
        tab.settle()
        patience -= 1
    return found


SMALL = """(seed) => {
  const widgets = app.graph.nodes.flatMap((n) => n.widgets ?? []);
  widgets.filter((w) => w.name === 'seed').forEach((w) => { w.value = seed; });
  for (const many of ['count', 'batch_size']) // prompts of a batch, and images per prompt
    widgets.filter((w) => w.name === many && w.value > 2).forEach((w) => { w.value = 2; });
  const training = app.graph.nodes.find((n) => n.type === 'ADTTreeTrainDrafter')?.widgets ?? [];
  for (const [name, value] of Object.entries({ training_images: 4, validation_prompts: 2, steps: 10 }))
    training.filter((w) => w.name === name).forEach((w) => { w.value = value; });
}"""
"""Sets a seed, small numbers of images, and a short training."""


HEAR_TEXT = """() => {
  adtTest.text = [];
  app.api.addEventListener('progress_text', ({ detail }) => adtTest.text.push(detail.text), { once: true });
}"""
"""Records the next line of text that the server shows under a node."""


STAYS = """(line) => app.graph.nodes.some((node) => adtTest.line(node) === line)"""
"""Returns whether a node still shows this line."""


def model_of(nodes: list[dict]) -> str:
    return next(node["widgets_values"][0] for node in nodes if node["type"] == "ADTTreeModelLoader")


def nodes_of(name: str) -> list[dict]:
    return json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))["nodes"]


def test_first_template_fits_the_screen(tab):
    """In ComfyUI's initial view, and after the command Fit View. At zooms below 0.57, the canvas draws no text."""
    for width, height in ((1920, 1080), (1280, 800)):
        tab.page.set_viewport_size({"width": width, "height": height})
        tab.open()  # if a template was open before, ComfyUI restores its view, which may be for another screen
        tab.open_template(RUNNABLE[0])
        tab.settle()
        assert tab.page.evaluate("app.canvas.ds.scale") > 0.9
        tab.command("Comfy.Canvas.FitView")
        tab.screenshot(f"first_{width}")
        assert tab.page.evaluate("app.canvas.ds.scale") > 0.75


LISTED = """() => [...document.querySelectorAll('[role=dialog] h3')].map(({ textContent }) => textContent.trim())"""
"""Returns the titles in the template browser, in their order."""


def test_templates_are_listed_in_the_order_in_which_an_artist_needs_them(tab):
    """The server lists files in the order of its file system, and ComfyUI shows them in this order."""
    tab.page.evaluate("app.extensionManager.command.execute('Comfy.BrowseTemplates')")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_text("ADT-Tree", exact=True).first.click()
    dialog.get_by_text(RUNNABLE[0], exact=True).first.wait_for()
    tab.screenshot("template_browser")
    listed = [title for title in tab.page.evaluate(LISTED) if title.startswith("ADT-Tree ")]
    tab.page.keyboard.press("Escape")
    assert listed[:4] == [RUNNABLE[0], "ADT-Tree continue a picture", INPAINT, "ADT-Tree batch of prompts with report"]
    known = tab.page.evaluate("async () => (await import('/extensions/ADT-Tree/templates.js')).ORDER")
    assert known == [*listed, *known[len(listed) :]]  # the browser loads further titles when the user scrolls
    assert sorted(known) == sorted([RUNNABLE[0], *OTHERS])


OTHERS = sorted({path.stem for path in (ROOT / "workflows").glob("*.json")} - {RUNNABLE[0]})


@pytest.mark.parametrize("name", [pytest.param(RUNNABLE[0], marks=pytest.mark.smoke), *OTHERS])
def test_template_opens_with_every_node_visible(tab, name):
    tab.open_template(name)
    assert not tab.page.evaluate("app.graph.nodes.filter((node) => node.has_errors).map((node) => node.type)")
    assert out_of_place(tab) == []
    tab.screenshot(f"template_{name}")


@pytest.mark.parametrize("name", RUNNABLE)
def test_template_runs(tab, name):
    """Nodes must show images, and maps must be complete. All nodes must stay visible when maps grow."""
    nodes = nodes_of(name)
    tab.open_template(name)
    tab.page.evaluate(SMALL, next(SEEDS))
    run = tab.page.evaluate(RUN)
    assert run["end"] == ["execution_success", None]
    shown = {str(node["id"]) for node in nodes if node["type"] in ("SaveImage", "PreviewImage")}
    assert set(run["shown"]) >= shown and all(run["shown"].values())
    mapped = [node["id"] for node in nodes if node["type"] in ("ADTTreeSampler", "ADTTreeCompare")]
    assert run["maps"] > 1 or not mapped
    for node in mapped:
        tab.finished(node)
        tab.wait(node, "map.imageShown()")
        # Kept tokens have no value.
        assert tab.map(node, "Math.max(...run.values('acceptance', 0).filter(Number.isFinite))") > 1
    tab.screenshot(f"run_{name}")
    assert out_of_place(tab) == []


QUICK = """() => {
  const set = (name, value) => app.graph.nodes.flatMap((n) => n.widgets ?? []).filter((w) => w.name === name)
    .forEach((w) => { w.value = value; });
  for (const [name, value] of [['model', 'tiny'], ['count', 1], ['compare', 'Auto']]) set(name, value);
}"""


@pytest.mark.timeout(300)
def test_tables_of_benchmark_and_diagnostics_stay_on_their_nodes(tab):
    tab.open_template("ADT-Tree benchmark and diagnostics of this machine")
    tab.page.evaluate(QUICK)
    assert tab.page.evaluate(RUN)["end"] == ["execution_success", None]
    tab.settle()
    tab.screenshot("benchmark_and_diagnostics")
    assert tab.page.evaluate(CROWDED) == []


@pytest.fixture
def without_errors_after(tab):
    """Close the error panel after the test, because ComfyUI keeps it open."""
    yield
    tab.page.evaluate("app.extensionManager.setting.set('Comfy.RightSidePanel.IsOpen', false)")
    tab.open()


def test_template_without_its_model_explains_the_download(tab, without_errors_after):
    """The note must name the input, the error the command, and a line under the loader both."""
    nodes = nodes_of(MISSING[0])
    tab.open_template(MISSING[0])
    note = next(node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote")
    assert "*if_missing*" in note
    shown = "app.graph.nodes.find((n) => n.type === 'MarkdownNote').widgets[0].value"
    tab.page.wait_for_function(f"(note) => {shown} === note", arg=note)
    tab.page.evaluate(HEAR_TEXT)
    tab.run()
    tab.page.get_by_role("button", name="View details").click()
    error = re.compile(f"is not installed; .* run `.* download {model_of(nodes)} ")
    tab.page.get_by_text(error).first.wait_for(state="attached")
    tab.screenshot("missing")
    message = f"{model_of(nodes)} is not installed; set if_missing to 'download' and run again"
    assert tab.page.evaluate("adtTest.text") == [message]
    tab.page.wait_for_function(STAYS, arg=message)
    assert tab.page.evaluate(CROWDED) == []
    tab.page.keyboard.press("Escape")


def test_missing_files_of_a_workflow_are_offered_for_download(tab, without_errors_after):
    """GLM-Image's two loaders read single files from four folders, one of which belongs to the pack."""
    named = {
        "ADTTreeModelLoader": {"glm_image_ar.safetensors": "ar_image"},
        "ADTTreeGLMImageDecoderLoader": {
            "glm_image_transformer.safetensors": "diffusion_models",
            "glm_image_text_encoder.safetensors": "text_encoders",
            "glm_image_vae.safetensors": "vae",
        },
    }
    workflow = json.loads((ROOT / "workflows" / "ADT-Tree GLM-Image text to image.json").read_text(encoding="utf-8"))
    for node in workflow["nodes"]:
        if files := named.get(node["type"]):
            node["widgets_values"][: len(files)] = files
            url = "https://huggingface.co/someone/GLM-Image/resolve/main/"
            node["properties"]["models"] = [
                {"name": name, "url": url + name, "directory": folder} for name, folder in files.items()
            ]
    tab.load(workflow)
    tab.page.get_by_role("button", name="View details").click()
    for files in named.values():
        for name, folder in files.items():
            tab.page.get_by_role("button", name=name).first.wait_for(state="visible")
            assert tab.page.get_by_text(folder, exact=True).count() > 0
    assert tab.page.get_by_text("Download", exact=True).count() == 4
