"""Tests of the image on the map: it must form row by row, and the user can show or hide the map's cells over it."""

import pytest
from map_reading import compared, done, expected, painted, same_colours, settled

pytestmark = pytest.mark.every_frontend(True)
ROWS = 12  # rows and columns of tokens of the tiny model's image
RECORD = """([id, rows]) => {
  const seen = [];
  const lit = ({ panel }) => { // number of rows of the shown image that are not blank
    panel.draw();
    const { canvas, panes: [box] } = panel;
    const zoom = canvas.width / canvas.clientWidth, context = canvas.getContext('2d');
    const isLit = (row) => Array.from({ length: rows }, (_, column) => {
      const x = box.x + (column + 0.5) * box.width / rows, y = box.y + (row + 0.5) * box.height / rows;
      const [red, green, blue] = context.getImageData(Math.floor(x * zoom), Math.floor(y * zoom), 1, 1).data;
      return Math.abs(red - 22) + Math.abs(green - 24) + Math.abs(blue - 29) > 30;
    }).some(Boolean);
    return Array.from({ length: rows }, (_, row) => isLit(row)).lastIndexOf(true) + 1;
  };
  const timer = setInterval(() => {
    const map = adtTest.map(id);
    if (map?.run?.state === 'done') clearInterval(timer);
    if (map?.run?.state !== 'running' || !map.imageShown() || !map.panel.panes.length) return;
    const rows = lit(map);
    if (rows !== seen.at(-1)) seen.push(rows);
  }, 50);
  return (adtTest.rows = seen);
}"""
"""Records how many rows of the image the map shows during the run of a node."""


SWITCH = "Show the map over the image"


@pytest.fixture
def slow(comfy):
    """Let the tiny model take about 9 s for an image without drafts: 0.75 s for a row."""
    comfy.get("/probe/pace", seconds=0.0625)
    yield
    comfy.get("/probe/pace", seconds=0)


def watch(tab, workflow) -> int:
    """Run a workflow and record the rows that its sampler shows. Return the id of the sampler."""
    sampler = workflow.sampler
    tab.load(workflow.data)
    tab.map(sampler, "panel.cells.click()")  # hide the map; the switch is visible during a run
    tab.page.evaluate(RECORD, [str(sampler), ROWS])
    tab.run()
    return sampler


def test_image_forms_row_by_row(tab, workflow, slow):
    """At least four states of the image must be seen in 9 s."""
    sampler = watch(tab, workflow.method("no-drafting"))
    tab.wait(sampler, "run?.state === 'running' && map.imageShown() && run.done > 60")
    tab.screenshot("forming")
    tab.finished(sampler)
    rows = tab.page.evaluate("adtTest.rows")
    assert rows == sorted(rows) and len(rows) >= 4
    assert 0 < rows[0] <= 3 and rows[-1] <= ROWS


def test_each_image_of_a_batch_forms(tab, workflow, slow):
    sampler = watch(tab, workflow.method("no-drafting").batch(3))
    tab.wait(sampler, "run?.state === 'running' && map.imageShown() && run.done > 3 * 60")
    for image in (1, 2):
        tab.widget(sampler).get_by_label("Image of the batch").select_option(str(image))
        assert tab.map(sampler, "map.imageShown()")
        # Previews may use only a share of the time, so on a busy machine the next one takes a while.
        while len({tuple(colour) for colour in painted(tab, sampler)[: 2 * ROWS]}) <= 2:
            assert tab.map(sampler, "run.state") == "running", f"image {image} has not formed during the run"
            tab.page.wait_for_timeout(100)
    tab.finished(sampler)


def test_switch_shows_and_hides_the_cells(tab, workflow):
    """It is a checkbox that the keyboard reaches. Its state is saved in the workflow."""
    sampler = done(tab, workflow)
    switch = tab.widget(sampler).get_by_label(SWITCH)
    assert switch.is_checked(), "the map is shown by default"
    switch.press("Space")
    image = settled(tab, sampler)
    assert not switch.is_checked()
    assert tab.widget(sampler).locator("button[aria-pressed=true]").count() == 0
    assert tab.map(sampler, "getComputedStyle(panel.legend.element).visibility") == "hidden"
    switch.press("Space")
    assert switch.is_checked() and not same_colours(painted(tab, sampler), image)
    tab.widget(sampler).get_by_label("Opacity").fill("100")
    assert same_colours(painted(tab, sampler), expected(tab, sampler))
    tab.screenshot("cells")
    switch.press("Space")
    assert same_colours(painted(tab, sampler), image)
    tab.widget(sampler).locator("button[data-figure=depth]").click()
    assert switch.is_checked() and same_colours(painted(tab, sampler), expected(tab, sampler, "depth"))
    switch.press("Space")
    tab.load(tab.saved())
    tab.wait(sampler, "run?.state === 'done'")
    assert not tab.widget(sampler).get_by_label(SWITCH).is_checked()


def test_comparison_shows_both_images_without_cells(tab):
    node = compared(tab)
    tab.finished(node)
    tab.widget(node).get_by_label(SWITCH).uncheck()
    left, right = (settled(tab, node, pane) for pane in range(2))
    assert same_colours(left, right) and len({tuple(colour) for colour in left}) > 20
    tab.widget(node).get_by_label(SWITCH).check()
    assert not same_colours(painted(tab, node, 0), painted(tab, node, 1)), "drafts of A, and none of B"
