"""Tests of the Sampler node on the page.

A preset must disable the numbers that it overrides. Commands of the context menu must create other nodes.
"""

import copy
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from comfy_server import ROOT
from PIL import Image
from test_language import DRAWN

from adt_core import Pipeline
from adt_core.policies import CHOICES
from adt_core.version import WORKFLOW_FORMAT

FIRST = "ADT-Tree text to image (start here)"
PNG_END = b"IEND\xaeB`\x82"
NUMBERS = ["guidance", "temperature", "top_k", "top_p"]
DECIDED = ["drafting"]  # widgets that the linked Settings node decides
SHOWN = ["seed", "control_after_generate", "guidance", "batch_size", "drafting", "preset", "acceptance_map"]
VUE_GRAY = """(names) => {
  const inputs = document.querySelectorAll('[data-widget-name] [role=spinbutton]:disabled');
  return [...inputs].map((one) => one.closest('[data-widget-name]').dataset.widgetName).join() === names.join();
}"""


def evaluate(tab, expression: str, kind: str = "ADTTreeSampler"):
    """Evaluate a JavaScript expression about ``node``, the first of this type, and ``widget(name)`` of it."""
    found = f"const node = app.graph.nodes.find((one) => one.type === '{kind}');"
    widget = "const widget = (name) => node.widgets.find((one) => one.name === name);"
    return tab.page.evaluate(f"(async () => {{ {found} {widget} return {expression}; }})()")


def shown(tab) -> list[str]:
    return evaluate(tab, "node.widgets.filter((one) => node.isWidgetVisible(one)).map((one) => one.name)")


def disabled(tab, kind: str = "ADTTreeSampler") -> list[str]:
    found = "node.widgets.filter((one) => one.computedDisabled).map((one) => one.name)"
    return evaluate(tab, f"(node.updateComputedDisabled(), {found})", kind)


def sent(tab, kind: str = "ADTTreeSampler") -> dict:
    """Return the inputs of the node that the page would send for a run."""
    prompt = tab.page.evaluate("async () => (await app.graphToPrompt()).output")
    return next(node["inputs"] for node in prompt.values() if node["class_type"] == kind)


def wait_for_label(tab, text: str) -> None:
    if tab.vue:
        node = tab.page.locator("[data-node-id]").filter(has_text="ADT-Tree Sampler")
        node.get_by_text(text, exact=True).wait_for()
    else:
        assert text in tab.page.evaluate(DRAWN)


def choose(tab, name: str, value: str) -> None:
    """Set a widget in the same way as a user who chooses a value."""
    tab.page.evaluate(
        """([name, value]) => {
          const node = app.graph.nodes.find((one) => one.type === 'ADTTreeSampler');
          const widget = node.widgets.find((one) => one.name === name);
          widget.value = value;
          widget.callback?.(value);
        }""",
        [name, value],
    )


@pytest.fixture
def default_workflow(workflow):
    """Return a workflow whose sampler uses the model's default preset."""
    assert workflow.widgets("ADTTreeSampler")[-2:] == ["Auto", "model default"]
    return copy.deepcopy(workflow.data)


@pytest.mark.smoke
@pytest.mark.every_frontend
def test_preset_disables_the_numbers_that_it_overrides(tab, default_workflow):
    """Guidance must stay visible, with the preset in its label. The other numbers must be hidden."""
    tab.load(default_workflow)
    wait_for_label(tab, "guidance (set by preset)")
    assert set(shown(tab)) == {*SHOWN}
    assert disabled(tab) == NUMBERS + DECIDED
    if tab.vue:
        tab.page.wait_for_function(VUE_GRAY, arg=NUMBERS[:1], timeout=20_000)
    tab.screenshot("sampler_default")
    choose(tab, "preset", "custom")
    assert disabled(tab) == DECIDED and set(shown(tab)) == {*SHOWN, *NUMBERS}
    wait_for_label(tab, "guidance")
    assert "set by preset" not in json.dumps(tab.saved())
    if tab.vue:
        tab.page.wait_for_function(VUE_GRAY, arg=[], timeout=20_000)
    tab.screenshot("sampler_custom")
    choose(tab, "preset", "model default")
    assert disabled(tab) == NUMBERS + DECIDED and set(shown(tab)) == {*SHOWN}
    wait_for_label(tab, "guidance (set by preset)")
    assert "set by preset" not in json.dumps(tab.saved())


def test_node_of_another_format_is_refused_and_kept(tab, default_workflow):
    tab.load(default_workflow)
    saved = tab.saved()
    node = next(node for node in saved["nodes"] if node["type"] == "ADTTreeSampler")
    assert node["properties"]["adt_tree_format"] == WORKFLOW_FORMAT
    node["properties"]["adt_tree_format"] = WORKFLOW_FORMAT + 1
    node["widgets_values"] = ["values", "of", "later", "versions"]
    tab.load(saved)
    tab.page.get_by_text(
        f"format {WORKFLOW_FORMAT + 1}, but this ADT-Tree reads format {WORKFLOW_FORMAT}; open the workflow"
    ).first.wait_for()
    kept = next(kept for kept in tab.saved()["nodes"] if kept["type"] == "ADTTreeSampler")
    assert [kept[name] == node[name] for name in ("properties", "widgets_values", "mode")] == [True] * 3
    prompt = tab.page.evaluate("async () => (await app.graphToPrompt()).output")
    assert "ADTTreeSampler" not in {node["class_type"] for node in prompt.values()}


@pytest.mark.smoke
def test_keep_inputs_are_shown_with_a_latent_image(tab, default_workflow):
    tab.load(default_workflow)
    before = sent(tab)
    evaluate(tab, "(widget('keep_top').value = 0.25, widget('guidance').value = 9, 0)")
    assert sent(tab) == before, "disabled or hidden values must not cause another run"
    latent = "LiteGraph.createNode('EmptyLatentImage')"
    evaluate(tab, f"((latent) => (app.graph.add(latent), latent.connect(0, node, 'latent_image'), 0))({latent})")
    assert {"keep_top", "keep_left"} <= set(shown(tab)) and sent(tab)["keep_top"] == 0.25
    link(tab, "SetLatentNoiseMask", "latent_image")
    assert shown(tab) == SHOWN, "the mask sets what is kept"
    assert sent(tab)["keep_top"] == 0.25, "the server needs the value if the mask's node is bypassed"
    evaluate(tab, "(node.disconnectInput(node.inputs.findIndex((one) => one.name === 'latent_image')), 0)")
    assert shown(tab) == SHOWN and sent(tab) == before


def menu(tab, name: str) -> None:
    """Choose a command in the sampler's context menu."""
    extension = "app.extensions.find((one) => one.name === 'adttree.sampler')"
    evaluate(
        tab, f"({extension}.getNodeMenuItems(node).find((item) => item?.content.includes('{name}')).callback(), 0)"
    )


def link(tab, kind: str, name: str, target: str = "node") -> None:
    """Create a node, and link an input of the sampler or of another node to it."""
    slot = f"to.inputs.findIndex((one) => one.name === '{name}')"
    made = f"LiteGraph.createNode('{kind}')"
    evaluate(tab, f"((from, to) => (app.graph.add(from), from.connect(0, to, {slot}), 0))({made}, {target})")


def wait_for_selection_in_view(tab, *kinds: str) -> None:
    """Wait until only these new nodes are selected, and all of them are visible."""
    tab.page.wait_for_function(
        """(kinds) => {
          const nodes = [...app.canvas.selectedItems];
          const [x, y, width, height] = app.canvas.visible_area;
          const seen = ({ pos, size }) =>
            pos[0] >= x && pos[1] >= y && pos[0] + size[0] <= x + width && pos[1] + size[1] <= y + height;
          return nodes.every(seen) && nodes.map(({ type }) => type).sort().join() === kinds.sort().join();
        }""",
        arg=list(kinds),
        timeout=30_000,
    )


@pytest.mark.smoke
def test_compare_with_plain_copies_the_samplers_inputs(tab, default_workflow):
    tab.load(default_workflow)
    choose(tab, "drafting", "Auto + LANTERN")
    link(tab, "PrimitiveInt", "seed")
    menu(tab, "compare with no drafting")
    ours = sent(tab)
    made = sent(tab, "ADTTreeCompare")
    same = ("model", "positive", "negative", "drafter", "seed", "preset", "drafting")
    assert isinstance(ours["seed"], list)
    assert {name: made[name] for name in same} == {name: ours[name] for name in same}
    assert made["settings_a"] == ours["settings"] and "settings_b" not in made
    wait_for_selection_in_view(tab, "ADTTreeCompare", "PreviewImage")
    tab.screenshot("compare_added")


@pytest.mark.smoke
def test_open_as_a_batch_copies_the_samplers_inputs(tab, default_workflow):
    tab.load(default_workflow)
    menu(tab, "open as a batch")
    ours = sent(tab)
    made = sent(tab, "ADTTreeBatchSampler")
    assert all(made[name] == ours[name] for name in ("model", "drafter", "settings", "seed", "preset", "drafting"))
    assert sent(tab, "ADTTreePrompts")["text"].startswith("A red house") and made["ids"][1] == 1
    assert sent(tab, "ADTTreeBatchReport")["results"][1] == 2
    wait_for_selection_in_view(tab, "ADTTreePrompts", "ADTTreeBatchSampler", "ADTTreeBatchReport")
    tab.screenshot("batch_added")


TEXT = "node.getInputNode(node.inputs.findIndex((one) => one.name === '{0}'))"


def test_open_as_a_batch_copies_both_prompts(tab, default_workflow):
    """A prompt of two lines must become one prompt of the batch. A linked text must be linked."""
    tab.load(default_workflow)
    link(tab, "CLIPTextEncode", "negative")
    for name, text in (("positive", "a fox\nin the snow"), ("negative", "night\nrain")):
        evaluate(tab, f"({TEXT.format(name)}.widgets[0].value = {text!r}, 0)")
    menu(tab, "open as a batch")
    assert sent(tab, "ADTTreePrompts")["text"] == "a fox in the snow"
    assert sent(tab, "ADTTreeBatchSampler")["negative"] == "night\nrain"
    tab.load(default_workflow)
    link(tab, "PrimitiveStringMultiline", "text", TEXT.format("positive"))
    menu(tab, "open as a batch")
    assert sent(tab, "ADTTreePrompts")["text"] == sent(tab, "CLIPTextEncode")["text"]


def test_sampler_with_a_hidden_map_shows_comfyuis_preview(tab, workflow, prefer):
    sampler = workflow.batch(64).sampler
    tab.load(workflow.data)
    prefer("ADTTree.Map.Show", False)
    tab.run()
    if tab.vue:
        tab.page.locator(f"[data-node-id='{sampler}'] img").first.wait_for()
    else:
        tab.page.wait_for_function("(id) => app.graph.getNodeById(id).imgs?.length", arg=sampler)
    tab.page.evaluate("app.api.interrupt()")


@pytest.mark.smoke
@pytest.mark.every_frontend
def test_preferences(tab, default_workflow, prefer):
    """The user can hide the map at any time. The other preferences are defaults of new samplers."""
    tab.load(default_workflow)
    line = tab.page.get_by_text("Run the workflow to see")
    line.wait_for()
    prefer("ADTTree.Map.Show", False)
    line.wait_for(state="hidden")
    assert shown(tab) == SHOWN[:-1]
    prefer("ADTTree.Map.Show", True)
    line.wait_for()
    assert shown(tab) == SHOWN
    prefer("ADTTree.Sampler.Drafting", "No drafting")
    prefer("ADTTree.Map.Opacity", 25)
    prefer("ADTTree.Map.Cells", False)
    made = """() => {
      const node = LiteGraph.createNode('ADTTreeSampler');
      app.graph.add(node);
      const widget = (name) => node.widgets.find((one) => one.name === name);
      const { cells, opacity } = widget('acceptance_map').map.panel.settings;
      return [widget('drafting').value, cells, opacity];
    }"""
    assert tab.page.evaluate(made) == ["No drafting", False, 0.25]
    assert sent(tab)["drafting"] == "Auto", "existing samplers must not change"


@pytest.mark.smoke
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sockets_of_our_types_have_colours(tab, theme):
    tab.page.evaluate("(theme) => app.extensionManager.setting.set('Comfy.ColorPalette', theme)", theme)
    tab.settle()
    colours = tab.page.evaluate(
        """() => ['ADT_MODEL', 'ADT_DRAFTER', 'ADT_SETTINGS', 'ADT_LANTERN', 'ADT_TRACE', 'ADT_RESULTS'].map((type) => [
          app.canvas.default_connection_color_byType[type],
          LGraphCanvas.link_type_colors[type],
          getComputedStyle(document.documentElement).getPropertyValue(`--color-datatype-${type}`),
        ])"""
    )
    assert all(len(set(three)) == 1 and three[0].startswith("#") for three in colours)
    assert len({three[0] for three in colours}) == 6


@pytest.mark.every_frontend
def test_canvas_mode_is_the_pages_default(tab):
    """The default tier tests only this mode (conftest.py)."""
    defaults = "({ defaultValue, defaultsByInstallVersion: by }) => [defaultValue, ...Object.values(by ?? {})]"
    setting = "app.ui.settings.settingsLookup['Comfy.VueNodes.Enabled']"
    assert set(tab.page.evaluate(f"({defaults})({setting})")) == {False}


OURS = "app.graph.nodes.filter(({ type }) => type.startsWith('ADTTree'))"
FOUND = (
    f"() => Object.fromEntries({OURS}.map("
    """(node) => [node.id, {
  values: node.widgets.filter((w) => w.serialize !== false).map(({ value }) => value),
  links: Object.fromEntries([...node.inputs.keys()].filter((slot) => node.isInputConnected(slot)).map((slot) => {
    const { origin_id, origin_slot } = node.getInputLink(slot);
    return [node.inputs[slot].name, [String(origin_id), origin_slot]];
  })),
}]))"""
)


def test_saved_workflows_restore_every_value_and_link(tab, default_workflow):
    """Values must be saved in the order of the inputs: first the required inputs, then the optional inputs."""
    templates = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in ROOT.glob("workflows/*.json")}
    for name, saved in {"all sockets": default_workflow, **templates}.items():
        origins = {link[0]: [str(link[1]), link[2]] for link in saved["links"]}
        tab.load(saved)
        found = tab.page.evaluate(FOUND)
        for node in saved["nodes"]:
            if node["type"].startswith("ADTTree"):
                here = found[str(node["id"])]
                values = node.get("widgets_values", [])
                assert here["values"][: len(values)] == values, (name, node["type"])
                links = {one["name"]: origins[one["link"]] for one in node["inputs"] if one["link"] is not None}
                assert here["links"] == links, (name, node["type"])


def pick(tab, name: str, value: str) -> None:
    if tab.vue:
        place = tab.page.locator(f"[data-node-id] [data-widget-name='{name}']")
        place.get_by_role("combobox").click()
        tab.page.get_by_role("option", name=value, exact=True).click()
        return
    x, y, width = evaluate(tab, f"[node.pos[0], node.pos[1] + widget('{name}').y, node.size[0]]")
    at = tab.page.evaluate("([x, y]) => app.canvasPosToClientPos([x, y])", [x + width / 2, y + 10])
    tab.page.mouse.click(*at)
    entries = tab.page.locator(".litecontextmenu .litemenu-entry")
    entries.filter(has_text=re.compile(f"^{re.escape(value)}$")).click()


def new_image(tab, folder: Path, known: set[Path]) -> np.ndarray:
    tab.run()
    end = time.monotonic() + 120
    new: set[Path] = set()
    while not (new and all(path.read_bytes().endswith(PNG_END) for path in new)) and time.monotonic() < end:
        tab.page.wait_for_timeout(100)
        new = set(folder.rglob("*.png")) - known
    (path,) = new
    known.add(path)
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.timeout(900)
def test_choices_of_drafting_make_the_images_of_the_command(tab, comfy):
    """All choices, chosen with the mouse in the node. Equal tokens give equal pixels, and LANTERN changes tokens."""
    tab.open_template(FIRST)
    choose(tab, "control_after_generate", "fixed")
    seed = 40 + tab.vue  # not the one of the other mode, whose result the server has cached
    choose(tab, "seed", seed)
    evaluate(tab, "node.widgets.find((one) => one.name === 'scale_by').value = 1", "ImageScaleBy")
    output = comfy.base / "output"
    known = set(output.rglob("*.png"))
    text = sent(tab, "CLIPTextEncode")["text"]
    pipe = Pipeline.load("bundled", device="cpu")
    drawn: list[np.ndarray] = []
    for name, method in CHOICES.items():
        pick(tab, "drafting", name)
        assert sent(tab)["drafting"] == name
        drawn.append(new_image(tab, output, known))
        expected = np.asarray(pipe.generate(text, seed=seed, method=method).image, dtype=int)
        assert np.abs(drawn[-1] - expected).max() <= 1, name
        assert (drawn[-1] != drawn[0]).any() == ("LANTERN" in name), name
    tab.screenshot("choices")
