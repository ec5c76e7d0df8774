"""Tests of the blueprints in ComfyUI's node library. A blueprint is a chain of nodes in one node; it must run."""

import itertools

import pytest
from comfy_server import ROOT
from test_templates import RUN

NAMES = sorted(path.stem for path in (ROOT / "subgraphs").glob("*.json"))
SEEDS = itertools.count(7000)

OPEN = """async ([name, seed]) => {
  const known = await (await app.api.fetchApi('/global_subgraphs')).json();
  const [id] = Object.entries(known).find(([, entry]) => entry.name === name);
  const { data } = await (await app.api.fetchApi(`/global_subgraphs/${id}`)).json();
  await app.loadGraphData(JSON.parse(data));
  const [node] = app.graph.nodes;
  for (const inner of node.subgraph.nodes) {
    for (const widget of inner.widgets ?? []) {
      if (widget.name === 'seed') widget.value = seed;
      if (widget.name === 'model') widget.value = 'tiny';
      if (widget.name === 'count') widget.value = 2;
    }
  }
  node.widgets.find((widget) => widget.name === 'text').value = 'a cat';
  node.outputs.forEach((output, slot) => {
    if (output.type !== 'IMAGE') return;
    const preview = LiteGraph.createNode('PreviewImage');
    app.graph.add(preview);
    node.connect(slot, preview, 0);
  });
  const shown = node.widgets.map((widget) => widget.name);
  return { shown, label: node.widgets[0].label, pictures: app.graph.nodes.length - 1 };
}"""
"""Opens a blueprint in an empty workflow. The blueprint uses the tiny model; each IMAGE output gets a preview."""


@pytest.mark.parametrize("name", NAMES)
def test_blueprint_runs(tab, name):
    opened = tab.page.evaluate(OPEN, [name, next(SEEDS)])
    assert opened["shown"][:2] == ["text", "model"] and {"seed", "drafting"} <= set(opened["shown"])
    tab.screenshot(f"blueprint_{name}")
    run = tab.page.evaluate(RUN)
    assert run["end"] == ["execution_success", None]
    assert len(run["shown"]) >= opened["pictures"] >= 1 and all(run["shown"].values())


@pytest.mark.every_frontend("in both modes")
@pytest.mark.parametrize("name", NAMES)
def test_prompt_of_a_blueprint_has_a_label(tab, name):
    opened = tab.page.evaluate(OPEN, [name, next(SEEDS)])
    label = "Prompts" if "batch" in name else "Prompt"
    assert opened["label"] == label
    tab.settle()
    if tab.vue:
        tab.page.locator(".lg-node").get_by_text(label, exact=True).first.wait_for()


def test_names_of_the_blueprints():
    assert NAMES == ["ADT-Tree batch with report", "ADT-Tree text to image", "ADT-Tree text to image and upscale"]
