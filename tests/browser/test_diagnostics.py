"""Tests of the Diagnostics node on the page. The node must show its progress, and then its report."""

import re

import pytest

HEAR = """(id) => {
  adtTest.text = [];
  adtTest.bar = [];
  app.api.addEventListener('progress_text', ({ detail }) => adtTest.text.push(detail.text));
  app.api.addEventListener('progress', ({ detail: { node, value, max } }) => {
    if (String(node) === String(id)) adtTest.bar.push(value / max);
  });
}"""
ELEMENT = "app.graph.getNodeById(id).widgets.find(({ name }) => name === 'result_text').element"
TITLES = f"[...{ELEMENT}.querySelectorAll('h3')].map((one) => one.innerText)"
SHOWN = f"(id) => {ELEMENT}.checkVisibility() && {TITLES}.includes('Same image')"
VERDICT = (
    r"Same image: yes\. About [\d.]+ times as fast\. (Keep Auto|Set drafting to No drafting)\."
    r"( 95 % interval: [\d.]+ to [\d.]+\.)?"
)


@pytest.mark.every_frontend
def test_check_shows_its_progress_and_report(tab, workflow):
    """The Diagnostics node must show its report without another node.

    A second run must replace the report. Saved workflows must not contain it.
    """
    node = workflow.add("ADTTreeDiagnostics", (480, 80), size=(300, 80), model=(1, 0))
    workflow.data["nodes"] = [one for one in workflow.data["nodes"] if one["id"] in (1, node)]
    workflow.data["links"] = [link for link in workflow.data["links"] if link[3] == node]
    for output in workflow.node("ADTTreeModelLoader")["outputs"]:
        output["links"] = [link for link, *_ in workflow.data["links"] if output["name"] == "model"]
    tab.load(workflow.data)
    box = "(id) => { const [width, height] = app.graph.getNodeById(id).size; return height; }"
    assert tab.page.evaluate(box, node) < 150, "the node must have no empty space"
    assert not tab.page.evaluate(f"(id) => {ELEMENT}.checkVisibility()", node)
    tab.page.evaluate(HEAR, node)
    tab.run()
    tab.page.wait_for_function(SHOWN, arg=node)
    tab.screenshot("check")
    text, bar = tab.page.evaluate("[adtTest.text, adtTest.bar]")
    assert any(line.startswith("1 of ") and line.endswith(" methods, now Auto") for line in text)
    assert re.fullmatch(VERDICT, text[-1])
    assert bar == sorted(bar) and bar[-1] == 1 and len({*bar}) > 3
    first = tab.page.evaluate(f"(id) => {ELEMENT}.innerText", node)
    assert first.splitlines()[0] == text[-1], "the verdict must be first, and without marks of Markdown"
    assert not re.search(r"\*\*|^#|^\|", first, re.M)
    assert tab.page.evaluate(f"(id) => {ELEMENT}.querySelectorAll('table').length", node) == 2
    assert tab.page.evaluate(f"(id) => {ELEMENT}.getBoundingClientRect().height > 100", node)
    assert tab.saved()["nodes"][-1].get("widgets_values", []) == []
    tab.run()
    tab.page.wait_for_function(f"([id, first]) => {ELEMENT}.innerText !== first", arg=[node, first])
    second = tab.page.evaluate(f"(id) => {ELEMENT}.innerText", node)
    saved = tab.saved()
    tab.command("Comfy.ClearWorkflow")
    tab.load(saved)
    tab.show(not tab.vue)
    tab.settle()
    tab.page.wait_for_function(f"([id, text]) => {ELEMENT}.innerText === text", arg=[node, second])
    assert tab.page.evaluate(SHOWN, node), "the report must be there after the graph was cleared and the mode switched"
    tab.show(not tab.vue)
