"""Every workflow that needs nothing but the pack, opened from the template browser and run as a user does.
They are legible: nodes overlap neither each other nor the frames of other groups, before a run and after it.
"""

import itertools
import json
import re

import pytest
from comfy_page import SIZE
from comfy_server import ROOT

RUNNABLE = [
    "ADT-Tree text to image (start here)",
    "ADT-Tree compared with plain decoding",
    "ADT-Tree relaxed acceptance (LANTERN)",
    "ADT-Tree continue a picture",
    "ADT-Tree batch of prompts with report",
]

SEEDS = itertools.count(50)
"""New ones, so that nothing comes from ComfyUI's cache: other tests of the session may have run the same workflow."""

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
  const end = await new Promise((resolve) => {
    for (const event of ['execution_success', 'execution_error', 'execution_interrupted']) {
      const stop = ({ detail }) => resolve([event, detail.exception_message ?? null]);
      app.api.addEventListener(event, stop, { once: true });
    }
    app.queuePrompt(0);
  });
  for (const [event, listener] of Object.entries(hear)) app.api.removeEventListener(event, listener);
  return { end, shown: Object.fromEntries(shown), ...frames };
}"""


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
"""Pairs of nodes that overlap, and of nodes and groups that they stick out of."""


HIDDEN = """() => {
  const { scale, offset } = app.canvas.ds;
  const place = ([x, y, w, h]) => [(x + offset[0]) * scale, (y + offset[1]) * scale, w * scale, h * scale];
  const meet = ([x, y, w, h], [X, Y, W, H]) => x < X + W && X < x + w && y < Y + H && Y < y + h;
  const map = document.querySelector('.minimap-main-container').getBoundingClientRect();
  const beyond = ([x, y, w, h]) => x < 60 || y < 38 || x + w > innerWidth || y + h > innerHeight;
  const hidden = (box) => beyond(box) || meet(box, [map.x, map.y, map.width, map.height]);
  return app.graph.nodes.filter((node) => hidden(place(adtTest.box(node)))).map((node) => `${node.type} ${node.id}`);
}"""
"""Nodes that are beyond the window or behind ComfyUI's bars or its minimap."""


def out_of_place(tab, patience=50) -> list:
    """Nodes that overlap or are hidden, once a page that is laid out anew behind a run has settled."""
    while (found := [*tab.page.evaluate(CROWDED), *tab.page.evaluate(HIDDEN)]) and patience:
        tab.page.wait_for_timeout(100)
        patience -= 1
    return found


HEAR_TEXT = """() => {
  adtTest.text = [];
  app.api.addEventListener('progress_text', ({ detail }) => adtTest.text.push(detail.text), { once: true });
}"""
"""Notes the next line that the server shows under a node."""


STAYS = """(line) => app.graph.nodes.some(({ widgets }) => widgets?.some(({ name, value }) =>
  name === '$$node-text-preview' && value === line))"""
"""Whether a line still stands under a node."""


def model_of(nodes: list[dict]) -> str:
    """The model that a template asks for."""
    return next(node["widgets_values"][0] for node in nodes if node["type"] == "ADTTreeModelLoader")


def nodes_of(name: str) -> list[dict]:
    """The nodes of a template."""
    return json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))["nodes"]


@pytest.fixture
def screen(tab):
    """A function: the tab on a screen of a size, for the time of a test."""
    yield lambda width, height: tab.page.set_viewport_size({"width": width, "height": height})
    tab.page.set_viewport_size(SIZE)
    tab.open()  # ComfyUI opens what it has shown before as it was seen: on another screen


@pytest.mark.both_modes
@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)], ids=str)
def test_the_first_workflow_fits_the_screen(tab, screen, size):
    """As ComfyUI opens it, and as it fits it. At a zoom below 0.57 its canvas draws no text."""
    screen(*size)
    tab.open_template(RUNNABLE[0])
    tab.page.wait_for_timeout(500)
    assert tab.page.evaluate("app.canvas.ds.scale") > 0.9
    tab.page.evaluate("app.extensionManager.command.execute('Comfy.Canvas.FitView')")
    tab.page.wait_for_timeout(500)
    tab.screenshot(f"first_{size[0]}")
    assert tab.page.evaluate("app.canvas.ds.scale") > 0.75


@pytest.mark.both_modes
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_workflow_from_the_template_browser(tab, name):
    """It opens without a missing node and runs to its end. Every node that shows pictures has some.

    Every sampler's map is finished and painted. All nodes are in sight as it opens, and stay so as maps grow.
    """
    nodes = nodes_of(name)
    tab.open_template(name)
    assert not tab.page.evaluate("app.graph.nodes.filter((node) => node.has_errors).map((node) => node.type)")
    tab.page.evaluate(
        """(seed) => {
          const widgets = app.graph.nodes.flatMap((n) => n.widgets ?? []);
          widgets.filter((w) => w.name === 'seed').forEach((w) => { w.value = seed; });
          for (const many of ['count', 'batch_size']) // of a batch's prompts, and of images at once
            widgets.filter((w) => w.name === many && w.value > 2).forEach((w) => { w.value = 2; });
        }""",
        next(SEEDS),
    )
    tab.page.wait_for_timeout(500)
    assert tab.page.evaluate(CROWDED) == tab.page.evaluate(HIDDEN) == []
    run = tab.page.evaluate(RUN)
    assert run["end"] == ["execution_success", None]
    assert set(run["shown"]) >= {
        str(node["id"]) for node in nodes if node["type"] in ("SaveImage", "PreviewImage")
    } and all(run["shown"].values())
    mapped = [node["id"] for node in nodes if node["type"] in ("ADTTreeSampler", "ADTTreeCompare")]
    assert run["maps"] > 1 or not mapped
    for node in mapped:
        tab.finished(node)
        tab.wait(node, "map.pictureShown()")
        # Tokens that were kept have no figure.
        assert tab.map(node, "Math.max(...run.values('acceptance', 0).filter(Number.isFinite))") > 1
    tab.screenshot(f"run_{name}")
    assert out_of_place(tab) == []
    tab.page.evaluate("app.canvas.ds.reset(); app.extensionManager.command.execute('Comfy.Canvas.FitView')")
    tab.page.wait_for_timeout(500)
    tab.screenshot(f"template_{name}")


@pytest.fixture(scope="module")
def without_errors_after(tab):
    """What says that runs failed is gone after these tests: a panel at the right, which ComfyUI keeps open."""
    yield
    tab.page.evaluate("app.extensionManager.setting.set('Comfy.RightSidePanel.IsOpen', false)")
    tab.open()


@pytest.mark.both_modes
@pytest.mark.parametrize(
    "name",
    [
        "ADT-Tree Anole 7B text to image",
        "ADT-Tree Lumina-mGPT text to image",
        "ADT-Tree LlamaGen text to image",
        "ADT-Tree Janus-Pro text to image",
        "ADT-Tree Emu3 text to image",
    ],
)
def test_a_template_without_its_model_tells_how_to_get_it(tab, without_errors_after, name):
    """Its note has the commands. Run says under the loader, which has room for two lines, that the error has them."""
    nodes = nodes_of(name)
    tab.open_template(name)
    note = next(node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote")
    own = next(line for line in note.splitlines() if line.startswith("hf download")).split(" --local-dir")[0]
    shown = "app.graph.nodes.find((n) => n.type === 'MarkdownNote').widgets[0].value"
    tab.page.wait_for_function(f"(note) => {shown} === note", arg=note)
    tab.page.evaluate(HEAR_TEXT)
    tab.run()
    tab.page.get_by_role("button", name="View details").click()
    tab.page.get_by_text(re.compile(f"is not installed; to get it, run `{own} ")).first.wait_for(state="attached")
    tab.screenshot(f"missing_{name}")
    assert tab.page.evaluate("adtTest.text") == [f"{model_of(nodes)} is not installed; the error says how to get it"]
    tab.page.wait_for_function(STAYS, arg=f"{model_of(nodes)} is not installed; the error says how to get it")
    assert tab.page.evaluate(CROWDED) == []
    tab.page.keyboard.press("Escape")
