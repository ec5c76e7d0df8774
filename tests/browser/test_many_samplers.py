"""Performance test of a page with twenty samplers in Nodes 2.0.

It compares visible maps with hidden maps and with stock samplers.
"""

from collections.abc import Callable

import pytest
from comfy_page import ComfyPage

FRAMES = 40
OURS = "ADTTreeSampler"
STOCK = "KSampler"
FILL = """async ([kind, count, hidden]) => {
  document.getElementById('adt-test-hidden')?.remove();
  const style = document.createElement('style');
  style.id = 'adt-test-hidden';
  style.textContent = hidden ? '.adt-map { display: none !important; }' : '';
  document.head.append(style);
  app.graph.clear();
  for (let i = 0; i < count; i++) {
    const node = LiteGraph.createNode(kind);
    node.pos = [(i % 5) * 420, Math.floor(i / 5) * 1000];
    app.graph.add(node);
  }
  [app.canvas.ds.scale, app.canvas.ds.offset] = [0.3, [100, 200]];
  app.canvas.setDirty(true, true);
  await new Promise((resolve) => setTimeout(resolve, 1000));
}"""
PAN = """async (frames) => {
  for (let i = 0; i < frames; i++) {
    await new Promise(requestAnimationFrame);
    app.canvas.ds.offset[0] += i % 20 < 10 ? 2 : -2;
    app.canvas.setDirty(true, true);
  }
}"""


@pytest.fixture
def crowd(browser, comfy, tmp_path):
    """Return a function that moves the page over samplers, and returns metrics per frame (times in s) and layers."""
    page = ComfyPage(browser, comfy.address, tmp_path, vue=True)
    page.settle()
    tools = page.context.new_cdp_session(page.page)
    layers: list[int] = []
    tools.on("LayerTree.layerTreeDidChange", lambda event: layers.append(len(event.get("layers") or [])))
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time doesn't depend on other processes
    tools.send("DOM.enable")
    tools.send("LayerTree.enable")

    def numbers() -> dict[str, float]:
        return {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}

    def measure(kind: str = OURS, hidden: bool = False) -> dict[str, float]:
        page.page.evaluate(FILL, [kind, 20, hidden])
        before = numbers()
        page.page.evaluate(PAN, FRAMES)
        after = numbers()
        page.settle()
        found = {name: (after[name] - before[name]) / FRAMES for name in ("TaskDuration", "LayoutCount")}
        return {**found, "layers": layers[-1]}  # measured after the page has stopped moving

    yield measure
    page.context.close()


def test_map_without_a_run_causes_no_layout_per_frame_and_no_layer(crowd):
    with_maps = crowd()
    without = crowd(hidden=True)
    assert with_maps["LayoutCount"] < 0.5
    each = (with_maps["layers"] - without["layers"]) / 20  # nodes may share a layer, depending on their sizes
    assert each < 0.5


@pytest.mark.alone
def test_twenty_maps_add_little_work_per_frame(crowd):
    assert least_ratio(crowd, lambda: crowd(hidden=True)) < 1.15


@pytest.mark.alone
@pytest.mark.long
def test_twenty_samplers_are_as_fast_as_stock_samplers(crowd):
    assert least_ratio(crowd, lambda: crowd(STOCK)) < 1.25


def least_ratio(one: Callable[[], dict], other: Callable[[], dict]) -> float:
    """Return the ratio of the lowest work per frame, the most reliable value: disturbances only add work."""
    turns = [(one()["TaskDuration"], other()["TaskDuration"]) for _ in range(3)]
    first, second = map(min, zip(*turns))
    return first / second
