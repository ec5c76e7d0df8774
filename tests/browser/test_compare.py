"""Tests of the acceptance map (the widget that shows how an image was decoded) with two runs.

The images of the two runs are side by side, or on top of each other with a line that the user can drag.
"""

import io

from map_reading import (
    compared,
    done,
    expected,
    idle,
    new_seed,
    painted,
    point,
    run_again,
    same_colours,
    settled,
    values,
    wait_for_pictures,
)
from PIL import Image
from test_templates import out_of_place

IN_ONE_PLACE = "panel.panes.length === 2 && panel.panes[0].x === panel.panes[1].x"


def test_two_samplers_side_by_side(tab, workflow):
    """The map of a sampler can also show the run of another sampler, and then which of the two was faster."""
    sampler = workflow.sampler
    plain = workflow.second_sampler("no-drafting")
    tab.load(workflow.data)
    tab.run()
    tab.finished(sampler)
    tab.finished(plain)
    assert set(values(tab, plain)) == {1} and set(values(tab, sampler)) != {1}
    tab.wait(plain, "panel.line.textContent.startsWith('No drafting')")
    assert "fast" not in tab.map(sampler, "(panel.draw(), panel.line.textContent)")
    ratio = tab.map(plain, "run.seconds") / tab.map(sampler, "run.seconds")
    tab.widget(sampler).hover()
    tab.widget(sampler).get_by_label("Compare").select_option(tab.map(plain, "map.tag"))
    tab.wait(sampler, "panel.panes.length === 2")
    ratio_text = f"{ratio:.2f}× as fast as B (measured one after the other)"
    assert ratio_text in tab.map(sampler, "(panel.draw(), panel.line.textContent)")
    tab.widget(sampler).get_by_label("Opacity").fill("100")
    tab.wait(sampler, "map.imageShown()")
    assert len({tuple(colour) for colour in settled(tab, sampler, 1)}) > 20, (
        "the pane of plain decoding must show its image"
    )
    assert same_colours(painted(tab, sampler, 0), expected(tab, sampler))
    tab.page.mouse.move(*point(tab, sampler, 20))
    tab.wait(sampler, "!panel.tip.hidden && panel.tip.textContent.includes('B: 1 token in this pass')")
    tab.screenshot("compared")


def test_both_runs_of_a_comparison_are_shown_side_by_side(tab):
    """This must work during the run, after the run, and in a saved workflow."""
    node = compared(tab)
    tab.wait(node, "panel.panes.length === 2 && map.parts.every((one) => one.state === 'running' && one.done > 20)")
    tab.screenshot("comparing")
    tab.finished(node)
    assert tab.map(node, "map.parts.map((one) => [one.method, one.state, one.done])") == [
        ["auto", "done", 256],
        ["no-drafting", "done", 256],
    ]
    assert set(tab.map(node, "Array.from(map.parts[1].values('acceptance', 0))")) == {1} != set(values(tab, node))
    tab.wait(node, "panel.line.textContent.includes('× as fast as B (measured in turns)')")
    assert "B: No drafting" in tab.map(node, "panel.line.textContent")
    assert len({frame["id"] for _, frame in tab.frames}) == 2
    assert len(tab.frames) <= 10 * (tab.frames[-1][0] - tab.frames[0][0]) + 4
    tab.widget(node).get_by_label("Opacity").fill("0")
    left, right = (settled(tab, node, pane) for pane in range(2))
    assert same_colours(left, right), "the images of both runs must be equal"
    before = values(tab, node)
    tab.widget(node).get_by_role("button", name="Slider").click()
    tab.load(tab.saved())
    tab.wait(node, "panel.panes.length === 2 && run.state === 'done'")
    assert tab.map(node, IN_ONE_PLACE), "the view must be restored"
    assert values(tab, node) == before
    assert tab.map(node, "panel.runs.map((one) => one.method)") == ["auto", "no-drafting"]


TITLES = """(() => {
  const said = [], of = CanvasRenderingContext2D.prototype, { fillText } = of;
  of.fillText = function (text, x, y, room) {
    said.push([text, this.measureText(text).width <= room]);
    return fillText.call(this, text, x, y, room);
  };
  panel.draw();
  of.fillText = fillText;
  return said;
})()"""
"""Returns the titles above both images, and for each title whether it fits without being shortened."""


def test_relaxed_run_is_marked(tab):
    """The title above the image and the text below it must contain "Relaxed" and the share of replaced tokens."""
    node = compared(tab, "ADT-Tree relaxed acceptance (LANTERN)")
    tab.finished(node)
    tab.wait(node, "panel.panes.length === 2")
    share = tab.map(node, "(100 * run.replaced).toFixed(1)")
    assert float(share) > 0
    assert tab.map(node, TITLES) == [[f"A: ADT-Tree, Relaxed {share} %", True], ["B: ADT-Tree", True]]
    tab.wait(node, f"panel.caption.element.textContent.includes('(ADT-Tree, Relaxed, {share} % of tokens replaced)')")


def test_previous_run_can_be_compared(tab, workflow):
    sampler = done(tab, workflow)
    before = values(tab, sampler)
    tab.map(sampler, "map.node.widgets.find((w) => w.name === 'seed').value += 1")
    tab.run()
    tab.wait(sampler, "map.previous && run.state === 'done'")
    tab.widget(sampler).hover()
    tab.widget(sampler).get_by_label("Compare").select_option("previous")
    tab.wait(sampler, "panel.panes.length === 2")
    assert tab.map(sampler, "Array.from(panel.runs[1].values('acceptance', 0))") == before
    assert "fast" not in tab.map(sampler, "(panel.draw(), panel.line.textContent)"), (
        "the speeds of runs at different times must not be compared"
    )


def test_both_images_in_one_place(tab, workflow):
    """A line separates the two images. Keys and the mouse must move it, and it must stay on the image."""
    sampler = done(tab, workflow)
    run_again(tab, sampler, "find((w) => w.name === 'seed').value += 1")
    tab.map(sampler, "app.canvas.centerOnNode(map.node)")
    widget = tab.widget(sampler)
    widget.hover()
    assert not widget.get_by_role("button", name="Slider").is_visible()
    widget.get_by_label("Compare").select_option("previous")
    tab.wait(sampler, "panel.panes.length === 2")
    beside = tab.map(sampler, "panel.panes[0].width")
    widget.get_by_label("Opacity").fill("0")
    widget.get_by_role("button", name="Slider").click()
    tab.wait(sampler, IN_ONE_PLACE)
    assert tab.map(sampler, "panel.panes[0].width") > 1.2 * beside
    line = widget.get_by_role("slider", name="Divider")
    line.press("End")
    own = settled(tab, sampler)
    line.press("Home")
    other = settled(tab, sampler)
    assert not same_colours(own, other)
    drag(tab, line, tab.map(sampler, SPAN), 0.5)
    half = settled(tab, sampler)
    columns = tab.map(sampler, "run.columns")
    assert all(half[cell] == (own if cell % columns < columns // 2 else other)[cell] for cell in range(len(half)))
    tab.screenshot("in_one_place")
    assert [fits for _, fits in tab.map(sampler, TITLES)] == [True, True]
    drag(tab, line, tab.map(sampler, SPAN), 3.0)
    assert tab.map(sampler, "panel.compare.share") == 1
    assert settled(tab, sampler) == own
    widget.get_by_role("button", name="Slider").click()
    tab.wait(sampler, f"!({IN_ONE_PLACE})")
    assert not line.is_visible()


SPAN = """(({ canvas, panes: [box] }) => {
  const outer = canvas.getBoundingClientRect(), zoom = outer.width / canvas.clientWidth;
  return [outer.x + zoom * box.x, zoom * box.width];
})(panel)"""  # left edge of the image on the page, and width of the image


def drag(tab, line, span: tuple[float, float], share: float) -> None:
    """Drag the line to a position on the image. `share` is the distance from the left edge, relative to the width."""
    box = line.bounding_box()
    y = box["y"] + box["height"] / 3
    tab.page.mouse.move(box["x"] + box["width"] / 2, y)
    tab.page.mouse.down()
    tab.page.mouse.move(span[0] + share * span[1], y, steps=3)
    tab.page.mouse.up()


def test_difference_on_request_and_image_in_the_queue(tab, comfy):
    """The queue must show an image of the run, even if a preview node shows the difference of the images."""
    tab.open_template("ADT-Tree compared with no drafting")
    node = tab.node("ADTTreeCompare")
    preview = "app.graph.nodes.find((node) => node.type === 'PreviewImage')"
    tab.page.evaluate(f"(id) => {{ app.graph.getNodeById(id).connect(2, {preview}, 0); }}", node)
    new_seed(tab, node)
    tab.run()
    tab.finished(node)
    wait_for_pictures(tab, node)
    assert idle(comfy)
    (job,) = comfy.get("/api/jobs", limit=1)["jobs"]
    shown = {name: job["preview_output"][name] for name in ("filename", "subfolder", "type")}
    with Image.open(io.BytesIO(comfy.get("/view", **shown))) as picture:
        assert len(picture.convert("RGB").getcolors(10**6)) > 20
    assert not out_of_place(tab), "the node must not show a second image below the map"
    button = tab.widget(node).get_by_role("button", name="Difference")
    button.click()
    tab.wait(node, "panel.settings.difference && panel.panes[0].x === panel.panes[1].x")
    assert {tuple(colour) for colour in painted(tab, node)} == {(0, 0, 0)}
    assert [label for label, _ in tab.map(node, TITLES)] == ["A − B: both images are identical"]
    tab.screenshot("difference")
    tab.load(tab.saved())
    tab.wait(node, "run?.state === 'done' && panel.settings.difference")
    tab.widget(node).get_by_role("button", name="Difference").click()
    assert len({tuple(colour) for colour in settled(tab, node)}) > 20
