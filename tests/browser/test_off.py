"""Tests of the maps of muted and bypassed nodes.

ComfyUI does not run these nodes, so their maps are from an earlier run. The map must say so as soon as the user mutes
the node, and until a run includes the node again.
"""

import pytest
from map_reading import done, idle

MUTED = "The node is muted, so the map is from an earlier run."
BYPASSED = "The node is bypassed, so the map is from an earlier run."
LEFT_OUT = "The node was not part of the last run, so the map is from an earlier run."
KEYS = {"Control+m": MUTED, "Control+b": BYPASSED}

FIRST_BRANCH = "[app.graph.getNodeById(%d), ...app.graph.nodes.filter((n) => n.type === 'SaveImage')]"
"""The first sampler and the node that saves its image. Without the sampler, ComfyUI would refuse to save an image."""
SELECT = "(id) => { app.canvas.deselectAll(); app.canvas.selectItems([app.graph.getNodeById(id)]); }"
CAPTION = "panel.caption.element.textContent"


def press(tab, node: int, keys: str) -> None:
    """Select a node and press keys, as a user does. The canvas has the focus."""
    tab.page.evaluate(SELECT, node)
    tab.page.evaluate("app.canvas.canvas.focus()")
    tab.page.keyboard.press(keys)


PALE = "panel.element.classList.contains('adt-map-off')"


def wait_for(tab, node, message: str) -> None:
    tab.wait(node, f"{CAPTION}.endsWith('{message}')", timeout=20)
    assert tab.map(node, PALE)


def wait_until_current(tab, node) -> None:
    tab.wait(node, f"!{CAPTION}.includes('earlier run')", timeout=20)
    assert not tab.map(node, PALE)


@pytest.mark.every_frontend("in both modes")
def test_muted_or_bypassed_node_marks_its_map_as_old(tab, workflow):
    sampler = done(tab, workflow)
    for keys, message in KEYS.items():
        press(tab, sampler, keys)
        wait_for(tab, sampler, message)
        assert float(tab.map(sampler, "getComputedStyle(panel.stage).opacity")) < 1
        tab.screenshot(keys)
        press(tab, sampler, keys)
        wait_until_current(tab, sampler)


@pytest.mark.every_frontend("in both modes")
def test_map_is_old_until_a_run_includes_its_node_again(tab, comfy, workflow):
    sampler = workflow.sampler
    other = workflow.second_sampler("adt-tree")
    tab.load(workflow.data)
    tab.run()
    tab.finished(sampler)
    tab.finished(other)
    first, before = tab.map(sampler, "run.id"), tab.map(other, "run.id")

    branch = FIRST_BRANCH % sampler
    tab.page.evaluate(f"{branch}.forEach((node) => {{ node.mode = 2; }})")
    tab.map(other, "(map.node.widgets.find((w) => w.name === 'seed').value += 1)")
    tab.run()
    tab.wait(other, f"run?.state === 'done' && run.id !== '{before}'")
    assert idle(comfy)
    wait_for(tab, sampler, MUTED)

    tab.page.evaluate(f"{branch}.forEach((node) => {{ node.mode = 0; }})")
    tab.page.keyboard.press("Shift")
    wait_for(tab, sampler, LEFT_OUT)
    assert tab.map(sampler, "run.id") == first
    wait_until_current(tab, other)

    tab.run()  # the server has the result of the first run
    wait_until_current(tab, sampler)


@pytest.mark.every_frontend("in both modes")
def test_node_in_a_muted_subgraph_does_not_run(tab, workflow):
    sampler = done(tab, workflow)
    inner, host = tab.page.evaluate(
        """(id) => {
        const before = new Set(app.graph.nodes.map((node) => node.id));
        app.canvas.graph.convertToSubgraph(new Set([app.graph.getNodeById(id)]));
        const host = app.graph.nodes.find((node) => !before.has(node.id));
        return [`${host.id}:${host.subgraph.nodes[0].id}`, host.id];
      }""",
        sampler,
    )
    tab.wait(inner, "run")
    press(tab, host, "Control+m")
    tab.wait(inner, f"map.off === '{MUTED}'", timeout=20)
    press(tab, host, "Control+m")
    tab.wait(inner, "map.off === ''", timeout=20)
