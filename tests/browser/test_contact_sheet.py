"""Tests of the contact sheet of a batch on the map, and of the button that keeps a seed."""

import io

from map_reading import done, give
from PIL import Image

COUNT = 4
CONTROL = 1  # index of the sampler's value *control after generate*
BOXES = "panel.panes.map(({ clip }) => [clip.x, clip.y, clip.width, clip.height])"
VALUES = """(id) => ['seed', 'control_after_generate'].map((name) =>
  app.graph.getNodeById(id).widgets.find((widget) => widget.name === name).value)"""


def show_all(tab, sampler: int) -> None:
    tab.map(sampler, "(panel.images.value = 'all', panel.images.onchange(), 0)")
    tab.settle()


def test_all_images_of_a_batch_are_shown_and_a_click_opens_one(tab, workflow):
    sampler = done(tab, workflow.batch(COUNT))
    assert tab.map(sampler, "panel.images.options[0].text") == "All 4"
    show_all(tab, sampler)
    tab.wait(sampler, "map.imageShown()")
    tab.settle()
    tab.screenshot("contact_sheet")
    boxes = tab.map(sampler, BOXES)
    width, height = tab.map(sampler, "[panel.stage.clientWidth, panel.stage.clientHeight]")
    assert len(boxes) == COUNT and all(w > 100 for _, _, w, _ in boxes)
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and y >= 0 and x + w <= width + 1 and y + h <= height + 1
        assert all(x + w <= X or X + W <= x or y + h <= Y or Y + H <= y for X, Y, W, H in boxes[:i])
    assert tab.map(sampler, "panel.zoom.hidden && panel.compare.button.hidden && panel.tip.hidden")
    x, y, w, h = boxes[2]
    scale = tab.canvas(sampler).bounding_box()["width"] / width
    tab.canvas(sampler).click(position={"x": scale * (x + w / 2), "y": scale * (y + h / 2)})
    tab.settle()
    state = "[panel.isSheet, panel.image, panel.images.value, panel.panes.length]"
    assert tab.map(sampler, state) == [False, 2, "2", 1]


def test_the_contact_sheet_is_saved_as_an_image(tab, workflow, tmp_path):
    sampler = done(tab, workflow.batch(COUNT))
    show_all(tab, sampler)
    with tab.page.expect_download() as download:
        tab.map(sampler, "(panel.save(), 0)")
    download.value.save_as(tmp_path / "sheet.png")
    with Image.open(io.BytesIO((tmp_path / "sheet.png").read_bytes())) as image:
        assert image.width > 2000 and image.height > 2000, "two images side by side and below each other"


def test_a_run_with_a_single_image_leaves_the_contact_sheet(tab, workflow):
    sampler = done(tab, workflow.batch(2))
    show_all(tab, sampler)
    give(tab, sampler, "batch_size", 1)
    first = tab.map(sampler, "run.id")
    tab.run()
    tab.wait(sampler, f"run?.state === 'done' && run.id !== '{first}'")
    tab.settle()
    assert tab.map(sampler, "[panel.isSheet, panel.images.hidden, panel.panes.length]") == [False, True, 1]


def test_the_seed_of_an_image_is_kept(tab, workflow):
    """A seed that changes after each run is set back and fixed."""
    values = workflow.widgets("ADTTreeSampler")
    values[CONTROL] = "increment"
    seed = values[0]
    sampler = done(tab, workflow)
    tab.wait(sampler, "panel.caption.own.textContent.includes('Keep')")
    assert tab.page.evaluate(VALUES, sampler) == [seed + 1, "increment"]
    tab.widget(sampler).get_by_role("button", name=f"Keep seed {seed}").click()
    tab.settle()
    assert tab.page.evaluate(VALUES, sampler) == [seed, "fixed"]
    assert "Keep" not in tab.map(sampler, "panel.caption.own.textContent")
