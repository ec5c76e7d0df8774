"""Tests of the workflow templates in ComfyUI's App mode, which shows a form instead of the nodes.

A template chooses the inputs of the form (``linearData``). It opens with its nodes; a click opens the form.
"""

import json

import pytest
from comfy_page import ComfyPage
from comfy_server import NEWEST, NEWEST_FRONTEND, PACKS, ROOT, Comfy, page
from playwright.sync_api import expect
from small import write_picture, write_upscaler
from test_templates import SEEDS, SMALL

NAMES = sorted(path.stem for path in (ROOT / "workflows").glob("*.json"))
FIRST = "ADT-Tree text to image (start here)"
LONGEST = 400
"""Maximum duration of a run in seconds. An image of Emu3 has 8,190 tokens."""
TOGGLE = "Comfy.ToggleLinear"
SHOWN = """() => {
  const image = document.querySelector('[data-testid="linear-image-output"]');
  const images = [image, ...(image?.querySelectorAll('img') ?? [])];
  const text = document.querySelector('article.whitespace-pre-wrap')?.textContent;
  const running = document.querySelector('[data-testid="linear-cancel-run"]');
  return !running && (Boolean(text?.trim()) || images.some((one) => one?.naturalWidth > 0));
}"""
"""Returns whether the run has ended and the form shows its image or its text."""
ACTIVE = "(name) => app.extensionManager.workflow.activeWorkflow.path.includes(name)"
"""Returns whether the workflow is the open one. ComfyUI sets it after it has created the nodes."""
PROMPTS = {"en": "Prompt", "zh": "提示词"}
BATCH = "ADT-Tree batch of prompts with report"
LABELS = {
    FIRST: ["Prompt", "seed", "model", "if_missing", "drafting", "Acceptance map"],
    BATCH: ["file", "Prompts", "count", "seed", "model", "if_missing", "batch_size", "drafting"],
}
"""Template -> labels of its form."""
OTHER = {
    "version": 0.4,
    "last_node_id": 1,
    "last_link_id": 0,
    "nodes": [{"id": 1, "type": "ADTTreeSettings", "pos": [60, 80], "size": [300, 80], "order": 0, "mode": 0}],
    "links": [],
}
"""Workflow without the inputs of any form."""


def inputs_of(name: str) -> list[tuple[int, str]]:
    """Return the inputs (node, widget) of a template's form."""
    data = json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))["extra"]["linearData"]
    return [(node, widget) for node, widget, *_ in data["inputs"]]


@pytest.fixture(scope="session")
def stocked(tmp_path_factory, meter):
    """Running server with a small random model for every model that the templates name."""
    from tests.layouts.llamagen import write_upstream
    from tests.layouts.published import write_published

    base = tmp_path_factory.mktemp("every-model")
    write_published(base / "models" / "ar_image")
    write_upstream(base / "models" / "ar_image")
    write_upscaler(base / "models" / "upscale_models")
    write_picture(base)
    options = "--preview-method", "auto", "--front-end-root", str(page(NEWEST_FRONTEND))
    with meter.uncounted():
        server = Comfy(NEWEST, base, {"ADT-Tree": PACKS["ADT-Tree"]}, options).__enter__()
    server.post("/settings/Comfy.TutorialCompleted", True)
    yield server
    server.__exit__()


@pytest.fixture(scope="session")
def app(browser, stocked, tmp_path_factory, meter):
    """Tab that opens the templates of the stocked server."""
    with meter.uncounted():
        tab = ComfyPage(browser, stocked.address, tmp_path_factory.getbasetemp() / "screenshots", vue=False)
    yield tab
    tab.context.close()


def enter(tab: ComfyPage) -> None:
    """Switch from the nodes to the form. On the first visit, ComfyUI covers the form with an offer of a tour."""
    tab.page.evaluate("localStorage.setItem('Comfy.OnboardingCoachmarks.Seen', 'true')")
    tab.command(TOGGLE)
    tab.page.get_by_test_id("linear-widgets").wait_for()
    tab.settle()
    skip = tab.page.get_by_role("button", name="Skip")
    if skip.count():
        skip.click()


SIZES = """() => {
  const form = document.querySelector('[data-testid="linear-widgets"]');
  const all = (selector) => [...form.querySelectorAll(selector)].filter((one) => one.offsetHeight);
  return {
    boxes: all('textarea').map((box) => box.offsetHeight),
    ramps: all('.adt-map-ramp').map((ramp) => ramp.offsetWidth),
    cut: all('.adt-map-text, .adt-map-bar, .adt-map').filter((one) =>
      one.scrollHeight > one.clientHeight + 1 || one.scrollWidth > one.clientWidth + 1).map((one) => one.className),
  };
}"""
"""Returns the heights of text boxes, the widths of colour bars, and the parts of maps that do not fit their boxes."""


def assert_map_wraps(tab: ComfyPage) -> None:
    """The form is narrower than a node, so controls and texts of the map need several lines."""
    sizes = tab.page.evaluate(SIZES)
    assert all(height >= 80 for height in sizes["boxes"]), sizes
    assert all(width >= 100 for width in sizes["ramps"]), sizes
    assert sizes["cut"] == [], sizes


@pytest.mark.timeout(LONGEST + 200)
@pytest.mark.parametrize("name", NAMES)
def test_template_runs_as_an_app(app, name):
    """The form must show every chosen input, the result, and the map of the sampler."""
    inputs = inputs_of(name)
    app.open()
    app.open_template(name)
    app.page.evaluate(SMALL, next(SEEDS))
    app.console.clear()
    enter(app)
    form = app.page.get_by_test_id("linear-widgets")
    fields = form.get_by_test_id("app-mode-widget-item")
    expect(fields).to_have_count(len(inputs))
    keys = fields.evaluate_all("(all) => all.map((one) => one.dataset.widgetKey.split(':').slice(-2))")
    assert [(int(node), widget) for node, widget in keys] == inputs, "the order of the form is the template's"
    app.screenshot(f"app_{name}_before")
    app.page.get_by_test_id("linear-run-button").get_by_role("button", name="Run", exact=True).click()
    app.page.wait_for_function(SHOWN, timeout=LONGEST * 1000)
    for node in {node for node, widget in inputs if widget == "acceptance_map"}:
        app.finished(node)
        assert form.locator("canvas").first.bounding_box()["width"] > 100
    assert_map_wraps(app)
    assert not form.locator(".adt-map-measure").and_(app.page.locator(":visible")).count(), "its nodes would be hidden"
    app.screenshot(f"app_{name}")
    if (maps := form.locator(".adt-map")).count():
        maps.last.scroll_into_view_if_needed()
        app.screenshot(f"app_map_{name}")
    app.command(TOGGLE)
    assert app.messages_about_our_code() == []


@pytest.mark.every_frontend("in both modes")
@pytest.mark.parametrize("name", LABELS)
def test_form_is_complete_and_is_left_without_warnings(tab, name):
    """When another workflow is opened, ComfyUI must not warn about inputs of the form, as it does for ids of nodes."""
    tab.open_template(name)
    tab.page.wait_for_function(ACTIVE, arg=name)
    tab.settle()
    data = tab.saved()
    assert {node.split(":")[0] for node, *_ in data["extra"]["linearData"]["inputs"]} == {data["id"]}
    enter(tab)
    labels = tab.page.get_by_test_id("builder-widget-label")
    expect(labels).to_have_text(LABELS[name])
    tab.screenshot("form")
    tab.command(TOGGLE)
    tab.show(tab.vue)  # ComfyUI 0.30 switches to Nodes 2.0 for the form
    tab.load(OTHER)
    assert [line for line in tab.console if "selectedInput" in line] == []


@pytest.mark.parametrize("locale", PROMPTS)
def test_labels_are_translated(app, locale):
    app.set_language(locale)
    app.open_template(FIRST)
    enter(app)
    labels = app.page.get_by_test_id("builder-widget-label")
    expect(labels.first).to_have_text(PROMPTS[locale])
    assert "acceptance_map" not in labels.all_inner_texts()
    app.command(TOGGLE)
    app.open_template(BATCH)
    enter(app)
    assert PROMPTS[locale] in labels.nth(1).inner_text() and "text" not in labels.all_inner_texts()
    app.command(TOGGLE)
    app.set_language("en")
