"""A page of twenty samplers in Nodes 2.0 moves as if their maps were not there."""

from collections.abc import Callable

import pytest
from comfy_page import ComfyPage

FRAMES = 40
OURS, STOCK = "ADTTreeSampler", "KSampler"
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
    """A function: the work of the page and its layers while it moves over samplers, whose maps may be hidden.

    TaskDuration: seconds of processor time for a frame.
    """
    page = ComfyPage(browser, comfy.address, tmp_path, vue=True)
    page.settle()
    tools = page.context.new_cdp_session(page.page)
    layers: list[int] = []
    tools.on("LayerTree.layerTreeDidChange", lambda event: layers.append(len(event.get("layers") or [])))
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time, whatever else the machine does
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
        return {**found, "layers": layers[-1]}  # once nothing moves

    yield measure
    page.context.close()


def test_a_map_without_a_run_is_not_laid_out_with_each_frame_and_has_no_layer(crowd):
    with_maps, without = crowd(), crowd(hidden=True)
    assert with_maps["LayoutCount"] < 0.5
    each = (with_maps["layers"] - without["layers"]) / 20  # it also depends on their sizes how nodes share layers
    assert each < 0.5


@pytest.mark.alone
def test_twenty_maps_cost_a_frame_hardly_anything(crowd):
    assert least_ratio(crowd, lambda: crowd(hidden=True)) < 1.15


@pytest.mark.alone
@pytest.mark.long
def test_twenty_samplers_move_like_stock_samplers(crowd):
    assert least_ratio(crowd, lambda: crowd(STOCK)) < 1.25


def least_ratio(one: Callable[[], dict], other: Callable[[], dict]) -> float:
    """The least work for a frame of the one, by that of the other. They take turns; what disturbs them only adds."""
    turns = [(one()["TaskDuration"], other()["TaskDuration"]) for _ in range(3)]
    ours, theirs = map(min, zip(*turns))
    return ours / theirs
