"""Tests of masks that are painted in ComfyUI's MaskEditor: only the painted part is generated, and the map shows it."""

import pytest

TEMPLATE = "ADT-Tree inpaint with MaskEditor"
SAMPLER = "app.graph.nodes.find((n) => n.type === 'ADTTreeSampler')"
BOX = """(() => {
  const box = document.querySelector('[role=dialog] canvas')?.getBoundingClientRect();
  return box?.width > 100 && box.width === box.height ? [box.x, box.y, box.width, box.height] : null;
})()"""
"""Box of MaskEditor's square canvas in the page; null until the editor has fitted the image into its window."""
LOAD = "app.graph.nodes.find((n) => n.type === 'LoadImage')"


def paint(tab) -> None:
    """Open MaskEditor on the image to load, paint a stroke in its upper half, and save."""
    page = tab.page
    page.wait_for_function(f"{LOAD}.imgs?.length")
    page.evaluate(f"app.canvas.select({LOAD})")
    page.evaluate("app.extensionManager.command.execute('Comfy.MaskEditor.OpenMaskEditor')")
    dialog = page.get_by_role("dialog")
    save = dialog.get_by_text("Save", exact=True)
    save.wait_for()
    page.wait_for_function(BOX)
    tab.settle()
    x, y, width, height = page.evaluate(BOX)
    page.mouse.move(x + 0.3 * width, y + 0.4 * height)
    page.mouse.down()
    for step in range(11):
        page.mouse.move(x + (0.3 + 0.04 * step) * width, y + 0.4 * height, steps=3)
    page.mouse.up()
    tab.screenshot("mask-painted")
    save.click()
    dialog.wait_for(state="hidden")


@pytest.mark.smoke
def test_only_the_painted_part_is_generated(tab):
    tab.open_template(TEMPLATE)
    tab.page.evaluate("document.activeElement?.blur()")
    paint(tab)
    tab.run()
    sampler = tab.page.evaluate(f"{SAMPLER}.id")
    tab.finished(sampler)
    kept, tokens, drawn = tab.map(
        sampler, "[run.keptCells(0), run.total, [...run.roundOf[0]].map((round) => round !== -1)]"
    )
    tab.screenshot("inpainted")
    painted = kept.count(False)
    assert 3 < painted < len(kept) // 2 and tokens == 4 * painted, "the template makes four images"
    assert drawn == [not is_kept for is_kept in kept], "the map must colour exactly the generated tokens"
