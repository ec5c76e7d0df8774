"""Tests of the README's steps from a first visit to the first image, on both frontends.

On a first visit, ComfyUI opens the template browser. Its search is limited to the tab "Getting started".
"""

import re

import pytest
from comfy_page import SIZE
from comfy_server import NEWEST, NEWEST_FRONTEND, PACKS, ROOT, Comfy
from comfy_server import page as page_of

RUN = """async () => {
  for (;;) {
    const [run] = Object.values(await (await fetch('/history')).json());
    if (run) return [run.status.status_str, Object.values(run.outputs).flatMap(({ images }) => images ?? []).length];
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}"""
"""Waits for the end of the first run. Returns the status of the run and its number of images."""


IN_VIEW = """() => {
  const { ds, canvas } = app.canvas, [left, top] = ds.offset.map((offset) => -offset);
  const right = left + canvas.clientWidth / ds.scale, bottom = top + canvas.clientHeight / ds.scale;
  return app.graph.nodes.length > 0 && app.graph.nodes.every(({ boundingRect: [x, y, width, height] }) =>
    left <= x && top <= y && x + width <= right && y + height <= bottom);
}"""
"""Whether all nodes are in view."""
LAPTOP = {"width": 1366, "height": 680}


TITLE = "ADT-Tree text to image (start here)"


def first_image() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8").split("\n## First image\n")[1].split("\n## ")[0]


@pytest.fixture(scope="module", params=[None, NEWEST_FRONTEND], ids=["own-page", "newest-page"])
def visitor(request, browser, tmp_path_factory):
    """Page of a ComfyUI server that has never been opened."""
    options = ("--front-end-root", str(page_of(request.param))) if request.param else ()
    with Comfy(NEWEST, tmp_path_factory.mktemp("new"), PACKS, options) as server:
        context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
        context.set_default_timeout(90_000)
        page = context.new_page()
        page.goto(f"http://{server.address}/")
        yield page
        context.close()


def test_readme_steps_lead_to_an_image(visitor):
    pack, entry, button = re.findall(r"\*\*(.+?)\*\*", first_image())
    dialog = visitor.get_by_role("dialog")
    dialog.get_by_role("textbox").first.wait_for()  # on a first visit, the template browser is open
    visitor.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    visitor.set_viewport_size(LAPTOP)
    logo = visitor.get_by_test_id("comfy-menu-button").or_(visitor.locator(".comfy-menu-button-wrapper"))
    logo.first.click()
    visitor.get_by_role("menuitem", name=pack, exact=True).hover()
    visitor.get_by_role("menuitem", name=entry).click()
    visitor.wait_for_function("app.graph.nodes.some((node) => node.type === 'ADTTreeSampler')")
    visitor.wait_for_function(IN_VIEW)
    visitor.get_by_role("button", name=button, exact=True).first.click()
    assert visitor.evaluate(RUN) == ["success", 1]
    visitor.set_viewport_size(SIZE)


def test_template_browser_has_the_first_template(visitor):
    *_, opener, heading, category = re.findall(r"\*(Templates|Extensions|ADT-Tree)\*", first_image())
    visitor.evaluate("app.graph.clear()")
    dialog = visitor.get_by_role("dialog")
    visitor.get_by_role("button", name=opener).first.click()
    dialog.get_by_text(re.compile(f"^{heading}$", re.IGNORECASE)).first.scroll_into_view_if_needed()
    dialog.get_by_text(category, exact=True).first.click()
    dialog.get_by_text(TITLE, exact=True).first.click()
    visitor.wait_for_function("app.graph.nodes.some((node) => node.type === 'ADTTreeSampler')")
