"""Tests of maps in images and workflows.

A map is the widget that shows how an image was decoded. If the user drops an image on the page, the page must show the
image's map. Undo and reload must not remove the map.
"""

import json

import pytest
from comfy_page import ComfyPage
from comfy_server import NEWEST, PACKS, Comfy
from map_reading import done, run_again, values

DROP = """([bytes, name]) => {
  const files = new DataTransfer();
  files.items.add(new File([new Uint8Array(bytes)], name, { type: 'image/png' }));
  const where = { bubbles: true, cancelable: true, clientX: 600, clientY: 700, dataTransfer: files };
  app.canvasEl.dispatchEvent(new DragEvent('drop', where));
}"""
SAMPLER = "app.graph.nodes.find((node) => node.type === 'ADTTreeSampler')"


def drop(tab, png: bytes, name: str = "image.png") -> int:
    """Drop a PNG on the page and wait for its workflow. Return the id of its sampler node."""
    tab.page.evaluate("app.graph.clear()")
    tab.page.evaluate(DROP, [list(png), name])
    tab.page.wait_for_function(SAMPLER)
    return tab.page.evaluate(f"{SAMPLER}.id")


def last_image(comfy, tab, sampler) -> bytes:
    """Return the image that the page's last run saved."""
    prompt = tab.map(sampler, "run.reference.prompt")
    return comfy.files(comfy.wait(prompt))[0]


def widget(tab, node, name: str):
    return tab.map(node, "map.node.widgets.find((w) => w.name === argument).value", name)


@pytest.fixture(scope="session")
def other_server(browser, tmp_path_factory):
    """Running server without the model and without history."""
    with Comfy(NEWEST, tmp_path_factory.mktemp("other_server"), PACKS) as server:
        server.post("/settings/Comfy.TutorialCompleted", True)
        yield server


def test_png_dropped_on_another_server_restores_map_prompt_and_seed(tab, comfy, other_server, browser, workflow):
    workflow.node("CLIPTextEncode")["widgets_values"] = ["a barn in the snow"]
    sampler = done(tab, workflow)
    wanted = (values(tab, sampler), widget(tab, sampler, "seed"))
    png = last_image(comfy, tab, sampler)
    assert len(png) < 120_000
    other = ComfyPage(browser, other_server.address, tab.artefacts, vue=tab.vue)
    try:
        node = drop(other, png)
        other.finished(node)
        assert (values(other, node), widget(other, node, "seed")) == wanted
        assert other.map(node, "run.seed") == str(wanted[1])
        prompts = other.page.evaluate(
            "app.graph.nodes.filter((n) => n.type === 'CLIPTextEncode').map((n) => n.widgets[0].value)"
        )
        assert "a barn in the snow" in prompts
        other.wait(node, "map.imageShown()")
        assert f"seed {wanted[1]}" in other.map(node, "(panel.draw(), panel.caption.element.textContent)")
        other.screenshot("dropped")
        graph = json.dumps(other.page.evaluate("app.graph.serialize()"))
        assert "adt_tree_maps" not in graph and len(graph) < 60_000, "undo steps must not contain maps"
        other.page.wait_for_timeout(1500)  # ComfyUI saves its draft of the workflow with a delay
        other.open()
        other.finished(node)
        assert values(other, node) == wanted[0]
        assert other.messages_about_our_code() == []
    finally:
        other.context.close()


def test_each_png_has_its_own_map(tab, comfy, workflow):
    """An image from a cached sampler must also have a map. For an image without a map, the page must show none."""
    sampler = done(tab, workflow)
    seed = widget(tab, sampler, "seed")
    first = values(tab, sampler)
    one = last_image(comfy, tab, sampler)
    run_again(tab, sampler, "find((w) => w.name === 'seed').value += 1")
    second = values(tab, sampler)
    two = last_image(comfy, tab, sampler)
    for png, wanted, of in ((one, first, seed), (two, second, seed + 1), (one, first, seed)):
        node = drop(tab, png)
        tab.finished(node)
        assert values(tab, node) == wanted and widget(tab, node, "seed") == of
    saved = tab.saved()
    damaged = {str(sampler): {"parts": [{"id": "x", "images": 1, "grid": [2, 2], "data": "?"}]}}
    for maps in ({}, damaged):  # an image without a map, and an image that another program changed
        saved["extra"]["adt_tree_maps"] = maps
        tab.load(saved)
        tab.settle()
        assert tab.map(sampler, "run") is None
        assert "Run the workflow" in tab.map(sampler, "(panel.draw(), panel.line.textContent)")


@pytest.mark.parametrize("odd", [None, "", "text", 0, 5, [], [1], {"PART": [5]}, {"PART": "x"}], ids=repr)
def test_invalid_maps_and_properties_are_ignored(tab, workflow, odd):
    """A file can contain any workflow. This test fails if there is an error in the console."""
    sampler = workflow.sampler
    maps = {str(sampler): {"parts": odd["PART"]}} if isinstance(odd, dict) else odd
    property = {"figure": "toString", "opacity": [], "tag": 7, "runs": odd} if isinstance(odd, dict) else odd
    workflow.data["extra"] = {"adt_tree_maps": maps}
    for node in workflow.data["nodes"]:
        node["properties"] = {"adt_tree_map": property}
    for extra in (workflow.data["extra"], {}):
        tab.load(workflow.data | {"extra": extra})
        assert tab.map(sampler, "(panel.draw(), run)") is None
        assert "Run the workflow" in tab.map(sampler, "panel.line.textContent")
        own = tab.map(sampler, "map.node.properties.adt_tree_map")
        assert (own["figure"], own["opacity"], own["runs"]) == ("acceptance", 0.4, [])
    assert "adt_tree_maps" not in tab.page.evaluate("JSON.stringify(app.graph.serialize())")


def test_run_reference_named_like_a_method_is_ignored(tab, workflow):
    """This test fails if there is an error in the console while the page searches for runs."""
    reference = {"id": "toString", "prompt": "toString", "node": "toString"}
    workflow.node("ADTTreeSampler")["properties"] = {"adt_tree_map": {"tag": "of its own", "runs": [reference]}}
    tab.load(workflow.data)
    tab.settle()
    assert tab.map(workflow.sampler, "(panel.draw(), run)") is None


def test_undo_of_another_change_keeps_the_map(tab, workflow):
    sampler = done(tab, workflow)
    run_again(tab, sampler, "find((w) => w.name === 'seed').value += 1")
    shown = tab.map(sampler, "run.id")
    tracker = "app.extensionManager.workflow.activeWorkflow.changeTracker"
    tab.page.evaluate(
        f"""() => {{
        const note = LiteGraph.createNode('Note');
        app.graph.add(note);
        {tracker}.captureCanvasState();
      }}"""
    )
    count = tab.page.evaluate("app.graph.nodes.length")
    tab.page.evaluate(f"{tracker}.undo()")
    tab.page.wait_for_function(f"app.graph.nodes.length === {count - 1}")
    tab.wait(sampler, "run?.state === 'done'")
    assert tab.map(sampler, "run.id") == shown
    assert tab.map(sampler, "map.previous !== null")


def test_reload_shows_the_last_run(tab, workflow):
    sampler = done(tab, workflow)
    tab.widget(sampler).locator("button[data-figure=depth]").click()
    tab.wait(sampler, "map.node.properties.adt_tree_map.figure === 'depth'")
    tab.drafted(tab.map(sampler, "run.id"))
    run_again(tab, sampler, "find((w) => w.name === 'seed').value += 1")
    run_again(tab, sampler, "find((w) => w.name === 'seed').value += 1")
    shown = tab.map(sampler, "run.id")
    before = values(tab, sampler)
    tab.page.wait_for_timeout(1500)
    tab.open()
    tab.finished(sampler)
    assert tab.map(sampler, "run.id") == shown and values(tab, sampler) == before
    tab.wait(sampler, "map.imageShown()")
    assert tab.map(sampler, "panel.settings.figure") == "depth"
    tab.screenshot("restored")


def test_caption_shows_seeds_of_the_map_and_the_node(tab, workflow):
    sampler = done(tab, workflow)
    seed = widget(tab, sampler, "seed")
    caption = f"Made with seed {seed} (ADT-Tree)."
    assert tab.map(sampler, "(panel.draw(), panel.caption.own.textContent)") == caption
    tab.map(sampler, "map.node.widgets.find((w) => w.name === 'seed').value += 5")
    capture_state(tab)
    tab.wait(sampler, f"panel.caption.own.firstChild.data === '{caption} Seed is now {seed + 5}.'")
    tab.screenshot("differs")
    tab.widget(sampler).get_by_role("button", name=f"Restore seed {seed}").click()
    tab.wait(sampler, f"panel.caption.own.textContent === '{caption}'")
    assert widget(tab, sampler, "seed") == seed


@pytest.mark.smoke
def test_caption_reports_a_changed_prompt_and_restores_it(tab, workflow):
    sampler = done(tab, workflow)
    caption = tab.map(sampler, "(panel.draw(), panel.caption.own.textContent)")
    text = "map.node.getInputNode(map.node.inputs.findIndex((i) => i.name === 'positive')).widgets[0]"
    before = tab.map(sampler, f"{text}.value")
    tab.map(sampler, f"({text}.value = '{{a red|a blue}} house', 0)")
    capture_state(tab)
    tab.settle()
    assert tab.map(sampler, "panel.caption.own.textContent") == caption, (
        "the prompt may be the same, depending on the choices"
    )
    tab.map(sampler, f"({text}.value = 'another house', 0)")
    capture_state(tab)
    tab.wait(sampler, f"panel.caption.own.firstChild.data === '{caption} The prompt has changed.'")
    tab.widget(sampler).get_by_role("button", name="Restore prompt").click()
    tab.wait(sampler, f"panel.caption.own.textContent === '{caption}'")
    assert tab.map(sampler, f"{text}.value") == before


LOOK_AT_PROMPT = """(({ node }) => {
  const prompt = node.getInputNode(node.inputs.findIndex(({ name }) => name === 'positive'));
  app.canvas.ds.scale = 1;
  app.canvas.centerOnNode(prompt);
  app.canvas.setDirty(true, true);
  return prompt.widgets[0].value;
})(map)"""
"""Moves the view to the text node of the sampler's prompt. Returns the text."""


def test_changed_prompt_is_noticed_while_typing(tab, workflow):
    """The text field has the focus, as immediately before a click on Run."""
    sampler = done(tab, workflow)
    text = tab.map(sampler, LOOK_AT_PROMPT)
    tab.settle()
    (field,) = (one for one in tab.page.locator("textarea:visible").all() if one.input_value() == text)
    field.press_sequentially("!")
    tab.wait(sampler, "panel.caption.element.textContent.includes('prompt has changed')", timeout=5)
    assert field.evaluate("(field) => document.activeElement === field")


SECOND_PROMPT = """(({ node }, text) => {
  const loader = app.graph.nodes.find(({ type }) => type === 'ADTTreeModelLoader');
  const prompt = LiteGraph.createNode('CLIPTextEncode');
  app.graph.add(prompt);
  loader.connect(1, prompt, 0);
  prompt.widgets[0].value = text;
  prompt.connect(0, node, 'positive');
  return prompt.id;
})(map, argument)"""
"""Links another text node to the sampler. Returns the id of this node."""


def test_caption_compares_the_prompt_of_another_node(tab, workflow):
    sampler = done(tab, workflow)
    caption = tab.map(sampler, "(panel.draw(), panel.caption.own.textContent)")
    text = tab.map(sampler, "Object.values(run.texts)[0].text")
    second = tab.map(sampler, SECOND_PROMPT, text)
    capture_state(tab)
    tab.settle()
    assert tab.map(sampler, "panel.caption.own.textContent") == caption, "the text of the other node is the same"
    tab.map(sampler, "(app.graph.getNodeById(argument).widgets[0].value = 'another house', 0)", second)
    capture_state(tab)
    tab.wait(sampler, f"panel.caption.own.textContent === '{caption} The prompt has changed.'")


def capture_state(tab) -> None:
    """Make ComfyUI compare the workflow with its saved state. This usually happens after a click or a key press."""
    tab.page.evaluate("app.extensionManager.workflow.activeWorkflow.changeTracker.captureCanvasState()")


def test_page_reloaded_during_a_run_handles_its_messages(tab, workflow):
    """ComfyUI logs messages without a listener, so listeners must be registered before the page is connected."""
    sampler = workflow.batch(64).sampler
    tab.load(workflow.data)
    tab.run()
    tab.wait(sampler, "run && run.done > 2")
    tab.console.clear()
    tab.frames.clear()
    tab.open()
    tab.page.wait_for_function("app.graph.nodes.length > 0")
    tab.wait(sampler, "run && run.done > 2")
    assert tab.frames, "the run ended before the page was loaded"
    assert not [line for line in tab.console if "Unknown message" in line or "Unhandled message" in line]
    tab.page.evaluate("app.api.interrupt()")
