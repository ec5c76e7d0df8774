"""Tests that a workflow never shows differences from, or writes into, the nodes of another workflow.

ComfyUI reuses results of other workflows. The nodes of such a cached run have the ids of the other workflow.
"""

import re

import pytest
from comfy_page import ComfyPage
from test_templates import INPAINT, RUN, RUNNABLE, SMALL

EVERY = [*RUNNABLE, INPAINT, "ADT-Tree map and statistics of a run"]
"""Templates that run without further models, within seconds."""
SEED = 4711
FIX = """() => app.graph.nodes.flatMap((n) => n.widgets ?? [])
  .filter((w) => w.name === 'control_after_generate').forEach((w) => { w.value = 'fixed'; })"""
TINY = """() => app.graph.nodes.some((n) => n.type === 'LoadImage') ||
  app.graph.nodes.filter((n) => n.type === 'ADTTreeModelLoader').forEach((n) => { n.widgets[0].value = 'tiny'; })"""
"""Chooses a quick model, unless the template loads an image, which has the size of the bundled model's images."""
VALUES = """() => app.graph.nodes.flatMap((n) => (n.widgets ?? [])
  .filter((w) => w.name !== 'acceptance_map' && w.serialize !== false && !w.name.startsWith('$$'))
  .map((w) => [n.id, w.name, String(w.value)]))"""
"""Returns the values of all widgets."""
CAPTIONS = "() => adtTest.nodes().map(([id]) => adtTest.map(id)?.panel.caption.own.textContent).filter(Boolean)"
BUTTONS = "() => adtTest.nodes().flatMap(([id]) => [...adtTest.map(id)?.panel.caption.own.children ?? []])"
TEXTS = "() => app.graph.nodes.filter((n) => n.type === 'CLIPTextEncode').map((n) => [n.id, n.widgets[0].value])"


def every_pair(names: list[str]) -> list[str]:
    """Return a sequence in which every ordered pair of different names occurs one after the other."""
    left = {a: [b for b in names if b != a] for a in names}
    path, done = [names[0]], []
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            done.append(path.pop())
    return done[::-1]


def open_and_run(tab: ComfyPage, name: str) -> None:
    tab.open_template(name)
    tab.page.evaluate(SMALL, SEED)
    tab.page.evaluate(TINY)
    tab.page.evaluate(FIX)
    before = tab.page.evaluate(VALUES)
    assert tab.page.evaluate(RUN)["end"] == ["execution_success", None]
    tab.page.wait_for_function(
        "() => adtTest.nodes().every(([id]) => (adtTest.map(id)?.run?.state ?? 'done') === 'done')"
    )
    tab.settle()
    assert tab.page.evaluate(VALUES) == before
    captions = tab.page.evaluate(CAPTIONS)
    assert captions or "batch" in name, "only the batch has no map"
    assert not re.search("changed|is now|Restore", " ".join(captions)), (name, captions)


@pytest.fixture
def second(browser, comfy, tab, tmp_path):
    """Another tab of the same server, in the same mode."""
    another = ComfyPage(browser, comfy.address, tmp_path, vue=tab.vue)
    yield another
    another.context.close()


@pytest.mark.timeout(900)
def test_templates_one_after_the_other_in_one_tab(tab):
    sequence = every_pair(EVERY)
    pairs = set(zip(sequence, sequence[1:]))
    assert len(pairs) == len(EVERY) * (len(EVERY) - 1)
    for name in sequence:
        open_and_run(tab, name)


@pytest.mark.timeout(900)
def test_templates_one_after_the_other_in_two_tabs(tab, second):
    for turn, name in enumerate(every_pair(EVERY)):
        open_and_run((tab, second)[turn % 2], name)


def test_restoring_a_prompt_of_a_cached_run_changes_only_this_prompt(tab):
    open_and_run(tab, RUNNABLE[0])
    open_and_run(tab, "ADT-Tree continue a picture")
    texts = tab.page.evaluate(TEXTS)
    edit = """(id) => { const w = app.graph.getNodeById(id).widgets[0]; w.value = 'a boat'; w.callback?.('a boat');
      for (const [id] of adtTest.nodes()) adtTest.map(id)?.panel.redraw(); }"""
    for node, _ in texts:
        tab.page.evaluate(edit, node)
        tab.page.wait_for_function(f"() => ({BUTTONS})().length > 0")
        tab.page.evaluate(f"() => ({BUTTONS})().forEach((button) => button.click())")
        tab.settle()
        assert tab.page.evaluate(TEXTS) == texts
