"""Tests of the Check node on the page. The node must show its progress, and then its report."""

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
SHOWN = f"(id) => {ELEMENT}.checkVisibility() && {ELEMENT}.value.includes('## Same image')"


@pytest.mark.every_frontend
def test_check_shows_its_progress_and_report(tab, workflow):
    """The Check node must show its report without another node.

    A second run must replace the report. Saved workflows must not contain it.
    """
    node = workflow.add("ADTTreeCheck", (480, 80), size=(300, 80), model=(1, 0))
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
    assert any(line.startswith("1 of ") and line.endswith(" methods, now auto") for line in text)
    assert text[-1] == "Checked; the report is on this node"
    assert bar == sorted(bar) and bar[-1] == 1 and len({*bar}) > 3
    first = tab.page.evaluate(f"(id) => {ELEMENT}.value", node)
    assert first.splitlines()[0].endswith(": tiny on this machine")
    assert tab.page.evaluate(f"(id) => {ELEMENT}.getBoundingClientRect().height > 100", node)
    assert tab.saved()["nodes"][-1].get("widgets_values", []) == []
    tab.run()
    tab.page.wait_for_function(f"([id, first]) => {ELEMENT}.value !== first", arg=[node, first])
