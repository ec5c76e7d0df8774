"""Tests of the nodes that ComfyUI suggests when a link is dropped on the empty canvas.

ComfyUI either opens a menu, whose nodes are in the order of this pack's list of nodes, or a search. The search sorts
nodes that ComfyUI's statistics do not contain by the length of their names. A pack cannot change this.
"""

import pytest
from comfy_page import ComfyPage

FIRST = "ADT-Tree text to image (start here)"

OUTPUT = """() => {
  const loader = app.graph.nodes.find((node) => node.type === 'ADTTreeModelLoader');
  const [x, y] = app.canvas.convertOffsetToCanvas(loader.getConnectionPos(false, 0));
  const canvas = app.canvas.canvas.getBoundingClientRect();
  return [x + canvas.left, y + canvas.top];
}"""
"""Returns the position of the loader's output *model* on the screen."""
FREE = 560, 755  # position on the screen without a node


def drop_model(tab: ComfyPage) -> None:
    """Drag a link from the output *model* to the empty canvas."""
    tab.open_template(FIRST)
    tab.settle()
    mouse = tab.page.mouse
    mouse.move(*tab.page.evaluate(OUTPUT))
    mouse.down()
    mouse.move(*FREE, steps=8)
    mouse.up()


@pytest.mark.every_frontend("in both modes")
def test_menu_offers_the_nodes_of_an_image(tab, prefer):
    prefer("Comfy.LinkRelease.Action", "context menu")
    drop_model(tab)
    menu = tab.page.locator(".litecontextmenu .litemenu-entry")
    menu.filter(has_text="ADTTreeSampler").wait_for()
    ours = [text for text in menu.all_inner_texts() if text.startswith("ADTTree")]
    tab.screenshot("suggestions")
    tab.page.keyboard.press("Escape")
    tab.page.evaluate("document.querySelector('.litecontextmenu')?.remove()")
    assert ours == ["ADTTreeImageSize", "ADTTreeDrafterLoader", "ADTTreeSampler", "ADTTreeCompare"]


@pytest.mark.every_frontend("in both modes")
def test_search_offers_the_sampler_first(tab, prefer):
    prefer("Comfy.LinkRelease.Action", "search box")
    drop_model(tab)
    found = tab.page.get_by_role("option").filter(has_text="ADT-Tree")
    found.filter(has_text="ADT-Tree Sampler").first.wait_for()
    names = [text.splitlines()[0] for text in found.all_inner_texts()]
    tab.screenshot("search")
    tab.page.keyboard.press("Escape")
    assert names.index("ADT-Tree Sampler") <= 1, "only ADT-Tree Diagnostics has a shorter name"
