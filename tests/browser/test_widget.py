"""Tests of the map widget with other parts of ComfyUI: the properties panel, previews, and a small zoom."""

import pytest
from map_reading import done

pytestmark = pytest.mark.every_frontend
PANEL = "[data-testid=properties-panel]"
OWN_PREVIEW = "map.node.imgs?.length > 0 && map.node.widgets.some(({ name }) => name.startsWith('$$'))"
TITLE = """(({ pos }, { ds, canvas }) => {
  const { x, y } = canvas.getBoundingClientRect();
  return [x + (pos[0] + 40 + ds.offset[0]) * ds.scale, y + (pos[1] - 15 + ds.offset[1]) * ds.scale];
})(map.node, app.canvas)"""  # a point in the title of the node
LOOK = "(app.canvas.ds.scale = argument, app.canvas.centerOnNode(map.node), app.canvas.setDirty(true, true))"
COLOURS = """(({ canvas }, [width, height]) => {
  const [w, h] = [Math.floor(0.2 * width), Math.floor(0.1 * height)], zoom = canvas.width / canvas.clientWidth;
  const [x, y] = [(canvas.width - zoom * w) / 2, canvas.height / 2];
  return new Set(new Uint32Array(canvas.getContext('2d').getImageData(x, y, zoom * w, zoom * h).data.buffer)).size;
})(app.canvas, map.node.size)"""  # number of colours in the lower half of the centred node, on ComfyUI's canvas
DRAWN_WHILE_MOVING = """(async () => {
  const { getContext } = OffscreenCanvas.prototype;
  let count = 0;
  OffscreenCanvas.prototype.getContext = function (...args) {
    count += 1;
    return getContext.apply(this, args);
  };
  for (let i = 0; i < 10; i++) {
    app.canvas.ds.offset[0] += 2;
    app.canvas.setDirty(true, true);
    await new Promise(requestAnimationFrame);
  }
  OffscreenCanvas.prototype.getContext = getContext;
  return count;
})()"""  # number of images that are created while the user drags the page


def place(tab, sampler) -> list:
    """Return the map's size on the page, its width without zoom, and the size of its node."""
    return tab.map(
        sampler,
        """(() => {
        const { width, height } = panel.element.getBoundingClientRect();
        return [width, height, panel.element.offsetWidth, ...map.node.size].map(Math.round);
      })()""",
    )


def test_properties_panel_leaves_the_map_on_its_node(tab, workflow):
    sampler = done(tab, workflow)
    tab.wait(sampler, "map.imageShown()")
    before = place(tab, sampler)
    tab.page.mouse.click(*tab.map(sampler, TITLE))
    toggle = tab.page.get_by_label("Toggle properties panel").first
    toggle.click()
    listed = tab.page.locator(PANEL)
    listed.get_by_text("batch_size", exact=True).wait_for()
    assert not listed.get_by_text("acceptance_map").count()
    assert not tab.map(sampler, f"panel.element.closest('{PANEL}')") and place(tab, sampler) == before
    tab.screenshot("panel")
    toggle.click()
    listed.wait_for(state="hidden")
    assert place(tab, sampler) == before


def test_map_replaces_the_preview_when_it_is_shown_again(tab, workflow, prefer):
    """While the map is hidden, ComfyUI shows its own preview."""
    sampler = workflow.batch(48).sampler  # long enough for a preview, even on a fast machine
    tab.load(workflow.data)
    tab.run()
    tab.wait(sampler, "run?.state === 'running' && map.imageShown()")
    tab.finished(sampler)
    size = place(tab, sampler)[3:]
    own = tab.page.locator(f"[data-node-id='{sampler}'] img")
    prefer("ADTTree.Map.Show", False)
    if tab.vue:
        own.first.wait_for()
    else:
        tab.wait(sampler, OWN_PREVIEW)
    prefer("ADTTree.Map.Show", True)
    tab.wait(sampler, "panel.stage.clientHeight > 0")
    tab.settle()
    tab.screenshot("shown_again")
    assert not tab.map(sampler, OWN_PREVIEW) and not own.and_(tab.page.locator(":visible")).count()
    assert place(tab, sampler)[3:] == size


def test_small_zoom_replaces_the_map_by_an_image(tab, workflow):
    """In Nodes 2.0, the browser moves elements without a layout in each frame. There, the map fills its panel."""
    sampler = done(tab, workflow)
    tab.wait(sampler, "map.imageShown()")
    tab.map(sampler, LOOK, 0.3)
    if tab.vue:
        tab.wait(sampler, "panel.stage.clientHeight > 0.95 * panel.element.clientHeight")
    else:
        tab.wait(sampler, "panel.element.getBoundingClientRect().width === 0")
        assert tab.map(sampler, COLOURS) > 20
    for _ in range(10):  # the new size arrives with a delay
        if (drawn := tab.map(sampler, DRAWN_WHILE_MOVING)) == 0:
            break
    assert drawn == 0
    tab.screenshot("zoomed_out")
    tab.map(sampler, LOOK, 0.8)
    tab.wait(sampler, "panel.element.getBoundingClientRect().width > 0 && panel.text.offsetHeight > 0")


LABELS = """() => Object.keys(LiteGraph.registered_node_types).flatMap((kind) => {
  if (!kind.startsWith('ADTTree')) return [];
  const widgets = LiteGraph.createNode(kind).widgets ?? [];
  return widgets.filter(({ name }) => ['acceptance_map', 'result_text'].includes(name)).map(({ label }) => label);
})"""
"""Returns the labels of the widgets that the pack adds to its nodes."""


def test_added_widgets_have_labels(tab):
    """App mode and a subgraph's list of advanced inputs show the label, and otherwise the name of the widget."""
    assert sorted(tab.page.evaluate(LABELS)) == ["Acceptance map", "Acceptance map", "Result", "Result"]
