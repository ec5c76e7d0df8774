"""Tests of text that the server shows for a node.

A map is the widget that shows how an image was decoded. The text must be above the node's map, or below the
node if it has no map. The text must stay until the node runs again.
"""

import itertools

import pytest
from map_reading import done, give
from test_templates import MISSING, RUN, RUNNABLE, out_of_place

SEEDS = itertools.count(7000)  # seeds that no other test uses with the first template

PROMPT = "app.graph.nodes.find(({ type }) => type === 'CLIPTextEncode')"
FITS = "[panel.element, panel.text].every((one) => one.scrollHeight <= one.clientHeight)"
"""Returns whether the complete text is visible without scrolling."""


def ask(tab, text: str) -> str:
    """Enter a prompt in the first template, which is open. Return the id of the template's sampler."""
    tab.page.evaluate(f"(text) => {{ {PROMPT}.widgets[0].value = text; }}", text)
    sampler = tab.node("ADTTreeSampler")
    give(tab, sampler, "seed", next(SEEDS))
    give(tab, sampler, "drafting", "ADT-Tree")  # with Auto, a busy machine may not draft
    return sampler


def line_of(tab, node) -> str:
    return tab.page.evaluate("(id) => adtTest.line(app.graph.getNodeById(id))", node)


@pytest.mark.every_frontend
def test_text_disappears_with_the_next_run_and_the_map_keeps_its_size(tab):
    """The complete sampler must be visible on a small screen. A run with a cached image must not remove the text."""
    tab.open_template(RUNNABLE[0])
    sampler = ask(tab, "an astronaut")
    tab.run()
    tab.wait(sampler, "run?.done > 0 && panel.panes.length")
    sizes = [tab.map(sampler, "panel.stage.clientHeight")]
    tab.finished(sampler)
    tab.page.wait_for_function("(id) => adtTest.line(app.graph.getNodeById(id)).includes('astronaut')", arg=sampler)
    tab.settle()
    tab.screenshot("line")
    sizes += [tab.map(sampler, "panel.stage.clientHeight")]
    assert tab.map(sampler, FITS)
    assert out_of_place(tab) == []
    assert not tab.page.evaluate(
        "app.graph.nodes.some((n) => n.widgets?.some((w) => w.name === '$$node-text-preview'))"
    )
    give(tab, sampler, "seed", int(tab.map(sampler, "run.seed")))
    assert tab.page.evaluate(RUN)["end"] == ["execution_success", None]
    assert "astronaut" in line_of(tab, sampler)
    before = tab.map(sampler, "run.id")
    ask(tab, "A red house on the left of a grassy field under a cloudy sky.")
    tab.run()
    tab.wait(sampler, f"run.id !== '{before}' && run.done > 0")
    assert line_of(tab, sampler) == ""
    tab.finished(sampler)
    tab.settle()
    sizes += [tab.map(sampler, "panel.stage.clientHeight")]
    assert line_of(tab, sampler) == "" and max(sizes) - min(sizes) <= 1, sizes


def end_of_run(tab) -> str | None:
    """Run the workflow. Return the event that ended the run, or None if the server has rejected the prompt."""
    return (tab.page.evaluate(RUN)["end"] or [None])[0]


@pytest.mark.every_frontend("in both modes")
def test_an_error_is_shown_under_its_node_until_the_next_run(tab, workflow):
    """ComfyUI's own message says only that a node has failed."""
    tab.load(workflow.data)
    sampler = ask(tab, "")
    assert end_of_run(tab) == "execution_error"
    tab.settle()
    tab.screenshot("empty_prompt")
    assert line_of(tab, sampler) == "prompt is empty; describe the image in a few words."
    tab.page.keyboard.press("Escape")
    ask(tab, "a red house")
    assert end_of_run(tab) == "execution_success"
    tab.settle()
    assert line_of(tab, sampler) == ""


@pytest.mark.every_frontend("in both modes")
def test_a_rejected_input_is_explained_under_its_node(tab):
    """The server checks some inputs before it accepts the prompt."""
    tab.open_template("ADT-Tree batch of prompts with report")
    write = """(text) => {
      const node = app.graph.nodes.find(({ type }) => type === 'ADTTreePrompts');
      node.widgets.find(({ name }) => name === 'text').value = text;
      app.graph.nodes.find(({ type }) => type === 'ADTTreeModelLoader').widgets[0].value = 'tiny';
      return node.id;
    }"""
    node = tab.page.evaluate(write, "missing.csv")
    assert end_of_run(tab) is None
    tab.settle()
    tab.screenshot("rejected_input")
    line = line_of(tab, node)
    assert line.startswith("text: '") and "missing.csv' can't be read" in line and line.count("can't be read") == 1
    tab.page.keyboard.press("Escape")
    tab.page.evaluate(write, f"a fox {next(SEEDS)}")
    assert end_of_run(tab) == "execution_success"
    assert line_of(tab, node) == ""


@pytest.mark.every_frontend("in both modes")
def test_a_cancelled_batch_states_what_is_kept(tab, comfy):
    tab.open_template("ADT-Tree batch of prompts with report")
    setup = """([prompts, folder]) => {
      const widget = (type, wanted) =>
        app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === wanted);
      widget('ADTTreePrompts', 'text').value = prompts;
      widget('ADTTreePrompts', 'count').value = 0;
      widget('ADTTreeModelLoader', 'model').value = 'tiny';
      widget('ADTTreeBatchSampler', 'folder').value = folder;
      widget('ADTTreeBatchSampler', 'batch_size').value = 2;
      const { id } = app.graph.nodes.find((node) => node.type === 'ADTTreeBatchSampler');
      app.api.addEventListener('executed', ({ detail }) => {
        if (String(detail.node) === String(id)) app.api.interrupt();
      });
      return id;
    }"""
    name = f"cancelled-{next(SEEDS)}"
    node = tab.page.evaluate(setup, ["\n".join(f"{number} foxes" for number in range(40)), name])
    assert end_of_run(tab) == "execution_interrupted"
    tab.settle()
    tab.screenshot("cancelled_batch")
    (folder,) = comfy.base.glob(f"output/adt_tree_batches/{name}-*")
    count = len(list(folder.glob("*.png")))
    where = f"They are in output/adt_tree_batches/{folder.name}."
    assert 0 < count < 40
    assert line_of(tab, node) == f"{count} of 40 images kept. Press Run to continue. {where}"


CUT = "(one) => one.scrollHeight > one.clientHeight + 1"
INSIDE = """(one) => {
  const { bottom } = one.getBoundingClientRect();
  const loader = app.graph.nodes.find(({ type }) => type === 'ADTTreeModelLoader');
  return bottom <= app.canvasPosToClientPos([0, loader.pos[1] + loader.size[1]])[1] + 1;
}"""
"""Returns whether the text ends inside of the model loader's box."""


@pytest.mark.every_frontend
def test_a_long_message_above_a_map_is_cut_after_what_matters_and_opens(tab):
    """Objects that are not drawn must come first. The tooltip must have the complete text, also of a cut message."""
    tab.open_template(RUNNABLE[0])
    sampler = ask(tab, "a lighthouse, " + ", ".join(letter * 9 for letter in "bcdefghijk") + ", two sailboats " * 3)
    tab.run()
    tab.finished(sampler)
    line = tab.widget(sampler).locator(".adt-line-text")
    tab.page.wait_for_function("(one) => one.textContent", arg=line.element_handle())
    assert (
        line.text_content().startswith("Not drawn: lighthouse, bbb")
        and line.get_attribute("title") == line.text_content()
    )
    tab.settle()
    assert line.evaluate(CUT)
    before = tab.map(sampler, "panel.stage.clientHeight")
    line.locator("..").get_by_role("button", name="more").click()
    tab.settle()
    tab.screenshot("open_message")
    assert not line.evaluate(CUT)
    assert tab.map(sampler, "panel.stage.clientHeight") >= before - 1
    assert tab.map(sampler, FITS)


@pytest.mark.parametrize("name", ["ADT-Tree Janus-Pro text to image", "ADT-Tree GLM-Image edit a picture"])
def test_long_text_below_a_node_covers_no_other_node(tab, name):
    """The page was reloaded during the run, so it has not received the start of the run."""
    assert name in MISSING
    tab.open()
    tab.open_template(name)
    tab.settle()
    height = "app.graph.nodes.find(({ type }) => type === 'ADTTreeModelLoader').size[1]"
    before = tab.page.evaluate(height)
    say = """(text) => {
      const { id } = app.graph.nodes.find(({ type }) => type === 'ADTTreeModelLoader');
      app.api.dispatchEvent(new CustomEvent('progress_text', { detail: { nodeId: String(id), text } }));
    }"""
    long = "A line of many words, which is too long for any node. " * 8
    tab.page.evaluate(say, long)
    tab.settle()
    assert out_of_place(tab) == []
    tab.screenshot("long_line")
    line = tab.page.locator(".adt-line-below .adt-line-text")
    assert line.get_attribute("title") == long
    assert line.evaluate(CUT) and line.evaluate("(one) => one.clientHeight >= 30")
    line.locator("..").get_by_role("button", name="more").click()
    tab.settle()
    tab.screenshot("long_line_open")
    assert not line.evaluate(CUT) and line.evaluate(INSIDE)
    cached = "app.api.dispatchEvent(new CustomEvent('execution_cached', { detail: { nodes: [] } }))"
    tab.page.evaluate(f"void {cached}")
    line.wait_for(state="detached")
    tab.settle()
    assert tab.page.evaluate(height) == pytest.approx(before, abs=1)


READ_LINKS = """(id) => {
  const { node, panel, run } = adtTest.map(id);
  const input = Object.getPrototypeOf(node.inputs[0]);
  const own = Object.getOwnPropertyDescriptor(input, 'link');
  if (!own?.get) return []; // pages before the deprecation
  const readers = [];
  const get = function () { readers.push(new Error().stack); return own.get.call(this); };
  Object.defineProperty(input, 'link', { ...own, get });
  adtTest.map(id).differences(run);
  app.extensions.find(({ name }) => name === 'adttree.sampler').getNodeMenuItems(node);
  node.onConnectionsChange?.();
  Object.defineProperty(input, 'link', own);
  return readers.filter((stack) => /extensions\\/ADT-Tree.*\\n/.test(stack.split('\\n')[2]));
}"""
"""Returns stack traces of calls in our code that read the link of an input. Newer pages deprecate this."""


@pytest.mark.every_frontend
def test_deprecated_input_links_are_not_read(tab, workflow):
    done(tab, workflow)
    assert tab.page.evaluate(READ_LINKS, str(workflow.sampler)) == []
