"""Tests of the space that nodes take: natural sizes, and no overlaps in any template."""

import json

import pytest
from comfy_server import ROOT
from test_sampler import menu
from test_templates import CROWDED, RUNNABLE

NOTE = """() => {
  const node = app.graph.nodes.find((node) => node.type === 'MarkdownNote');
  const limited = (one) => /auto|scroll/.test(getComputedStyle(one).overflowY);
  const scrolls = (one) => limited(one) && one.scrollHeight > one.clientHeight + 1;
  const element = document.querySelector(`.lg-node[data-node-id="${node.id}"]`) ?? document;
  return [...element.querySelectorAll('.ProseMirror, .ProseMirror *, .comfy-markdown-content, .lg-node-content *')]
    .filter(scrolls)
    .map((one) => [one.className, one.scrollHeight, one.clientHeight]);
}"""
"""Returns the elements of the template's note that must be scrolled."""


@pytest.mark.parametrize("language", ["en", "zh"])
def test_first_note_is_visible_without_scrolling(tab, language):
    tab.set_language(language)
    try:
        tab.open_template(RUNNABLE[0])
        tab.settle()
        tab.screenshot(f"note_{language}")
        assert tab.page.evaluate(NOTE) == []
    finally:
        tab.set_language("en")


SIZES = """async () => {
  app.graph.clear();
  const kinds = Object.keys(LiteGraph.registered_node_types).filter((kind) => kind.startsWith('ADTTree'));
  const nodes = kinds.map((kind, index) => {
    const node = LiteGraph.createNode(kind);
    node.pos = [500 * (index % 6), 800 * Math.floor(index / 6)];
    app.graph.add(node);
    return node;
  });
  await new Promise((resolve) => setTimeout(resolve, 500));
  const context = document.createElement('canvas').getContext('2d');
  return nodes.map((node) => {
    context.font = node.titleFontStyle;
    const title = context.measureText(node.getTitle()).width;
    const spare = node.size[1] - node.computeSize()[1];
    return { kind: node.type, room: node.size[0] - 2 * LiteGraph.NODE_TITLE_HEIGHT - title, spare };
  });
}"""
"""Creates every node of the pack. Returns the free width in its title, and the height that its widgets leave free."""


def test_fresh_nodes_have_natural_sizes(tab):
    """Titles must be complete, and no node may reserve space for inputs that are hidden."""
    tab.page.evaluate("app.graph.clear()")
    sizes = tab.page.evaluate(SIZES)
    tab.screenshot("fresh")
    assert len(sizes) == 18
    assert [size for size in sizes if size["room"] < 0 or size["spare"] > 100] == []
    assert [size for size in sizes if size["kind"] == "ADTTreeSettings" and size["spare"] > 1] == []


NEGATIVE = """async () => {
  app.graph.clear();
  const node = LiteGraph.createNode('ADTTreeBatchSampler');
  app.graph.add(node);
  node.setSize([400, node.computeSize()[1] + 400]); // as after a run, which shows images on the node
  const saved = JSON.parse(JSON.stringify(app.graph.serialize()));
  await app.loadGraphData(saved);
  await new Promise((resolve) => setTimeout(resolve, 500));
  const loaded = app.graph.nodes[0];
  const element = document.querySelector('.lg-node textarea') ??
    loaded.widgets.find(({ name }) => name === 'negative').element;
  return [app.canvas.ds.scale, element.getBoundingClientRect().height / app.canvas.ds.scale];
}"""
"""Opens a batch sampler that was saved with images on it. Returns the zoom and the height of its negative prompt."""


def test_negative_of_a_reopened_batch_keeps_its_height(tab):
    scale, negative = tab.page.evaluate(NEGATIVE)
    tab.screenshot("reopened")
    assert scale > 0.1 and 20 < negative <= 125


ADVANCED = """(shown) => {
  for (const node of app.graph.nodes.filter(({ widgets }) => widgets?.some(({ options }) => options?.advanced))) {
    node.showAdvanced = shown;
    node.expandToFitContent?.();
    node.setDirtyCanvas(true, true);
  }
}"""
"""Shows or hides the advanced inputs of all nodes."""


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "workflows").glob("*.json")))
def test_nodes_of_templates_never_overlap(tab, name):
    tab.load(json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8")))
    for shown in (False, True, False):
        tab.page.evaluate(ADVANCED, shown)
        tab.settle()
        tab.page.wait_for_timeout(300)
        assert tab.page.evaluate(CROWDED) == [], f"advanced inputs shown: {shown}"


@pytest.mark.parametrize("entry", ["compare with", "as a batch"])
def test_added_nodes_get_free_space(tab, entry):
    """The sampler has its advanced inputs shown, and a note is below it."""
    tab.open_template(RUNNABLE[0])
    tab.page.evaluate(ADVANCED, True)
    tab.page.evaluate("app.graph.nodes.find(({ type }) => type === 'MarkdownNote').pos = [300, 1000]")
    tab.settle()
    before = tab.page.evaluate("app.graph.nodes.length")
    menu(tab, entry)
    tab.page.wait_for_function("(before) => app.graph.nodes.length > before + 1", arg=before)
    tab.settle()
    tab.page.wait_for_timeout(300)
    tab.screenshot(f"added_{entry}")
    assert tab.page.evaluate(CROWDED) == []
