"""Tests of the map of a finished run: replay of rounds, summary, zoom, export as an image, and plain decoding.

A map is the widget that shows how an image was decoded.
"""

import io
import re

import pytest
from map_reading import done, expected, painted, point, same_colours, settled, values
from PIL import Image
from test_templates import CROWDED

GREEN = (47, 191, 113)  # colour of an accepted draft
ORANGE = (255, 138, 61)  # colour of a rejected draft
BACKGROUND = (22, 24, 29)


def near(colour, wanted) -> bool:
    return all(abs(a - b) <= 3 for a, b in zip(colour, wanted))


def moment(tab, sampler, rounds: int) -> None:
    """Move the slider to the state after this number of rounds."""
    tab.widget(sampler).get_by_label("Replay the run").and_(tab.page.locator("input")).fill(str(rounds))


def has_edge(tab, sampler, cell: int, colour: tuple) -> bool:
    """Return whether a token's top edge has this colour in one of three rows; its position is fractional."""
    pixels = tab.map(
        sampler,
        """(() => {
        panel.draw();
        const { canvas, panes: [box], run: { rows, columns } } = panel;
        const zoom = canvas.width / canvas.clientWidth;
        const x = box.x + (argument % columns + 0.3) * box.width / columns;
        const y = box.y + Math.floor(argument / columns) * box.height / rows;
        return Array.from(canvas.getContext('2d').getImageData(Math.floor(x * zoom), Math.floor(y * zoom), 1, 3).data);
      })()""",
        cell,
    )
    return any(near(tuple(pixels[at : at + 3]), colour) for at in range(0, len(pixels), 4))


def test_slider_shows_every_round(tab, workflow):
    """Later tokens must be covered. Colours must mark accepted and rejected drafts of the round's tree."""
    sampler = done(tab, workflow)
    tab.wait(sampler, "map.imageShown()")
    settled(tab, sampler)
    tab.widget(sampler).get_by_label("Opacity").fill("100")
    complete = painted(tab, sampler)
    rounds = tab.map(sampler, "run.roundsOf(0).map((i) => run.rounds[i].records.get(0))")
    at = next(i for i, one in enumerate(rounds) if one["position"] > 30 and 0 < one["accepted"] < one["depth"] < 12)
    moment(tab, sampler, at)
    record = rounds[at]
    now = painted(tab, sampler)
    root = record["position"]
    assert same_colours(now[: root + 1], complete[: root + 1])
    tree = range(root + 1, root + 1 + record["depth"])
    assert all(near(colour, BACKGROUND) for cell, colour in enumerate(now) if cell > max(tree))
    assert all(has_edge(tab, sampler, cell, GREEN if cell - root <= record["accepted"] else ORANGE) for cell in tree), (
        record
    )
    counts = f"{record['accepted']} drafts accepted (green), {record['drafts'] - record['accepted']} rejected (orange)"
    message = f"Pass {at + 1} of {len(rounds)}: {counts}"
    assert tab.map(sampler, "panel.replay.label.textContent") == message
    tab.screenshot("replayed")
    moment(tab, sampler, len(rounds))
    assert same_colours(painted(tab, sampler), complete)


WATCHED = """(async ({ replay }) => {
  const seen = [];
  do {
    seen.push([replay.slider.value, replay.button.getAttribute('aria-label')]);
    await new Promise(requestAnimationFrame);
  } while (replay.round !== null);
  return [...seen, [replay.slider.value, replay.button.getAttribute('aria-label')]];
})(panel)"""
"""Returns the slider's position and the button's label in each frame, until the replay ends."""


def test_play_replays_to_the_end(tab, workflow):
    sampler = done(tab, workflow)
    button = tab.widget(sampler).get_by_role("button", name="Play")
    button.click()
    seen = tab.map(sampler, WATCHED)
    steps = [int(value) for value, _ in seen]
    assert steps == sorted(steps) and len(set(steps)) > 5
    assert seen[0][1] == "Pause" and seen[-1][1] == "Play"
    assert steps[-1] == len(tab.map(sampler, "run.roundsOf(0)"))
    button.click()
    tab.wait(sampler, "panel.replay.round > 2")
    tab.widget(sampler).get_by_role("button", name="Pause").click()
    stopped = tab.map(sampler, "panel.replay.round")
    tab.settle()
    assert tab.map(sampler, "panel.replay.round") == stopped is not None


def test_summary_and_table_of_details(tab, workflow):
    sampler = done(tab, workflow)
    tab.map(sampler, "panel.draw()")
    message = tab.map(sampler, "panel.sentence.textContent")
    places = "top left|top|top right|left|center|right|bottom left|bottom|bottom right"
    assert re.fullmatch(
        rf"Fastest: ({places}) \([\d.]+ per pass\)\. Slowest: ({places}) \([\d.]+\)\.|Details", message
    ), message
    assert not tab.map(sampler, "panel.table.checkVisibility()")
    size = tab.map(sampler, "[map.node.size[1], panel.stage.clientHeight]")
    tab.widget(sampler).locator("summary").press("Enter")
    tab.wait(sampler, "panel.table.checkVisibility() && panel.table.rows.length > 9")
    tab.wait(sampler, f"map.node.size[1] > {size[0]} + 85 && Math.abs(panel.stage.clientHeight - {size[1]}) < 3")
    rows = tab.map(sampler, "Array.from(panel.table.rows, (row) => row.textContent)")
    assert f"Passes of the model{tab.map(sampler, 'run.rounds.length')}" in rows
    assert any(row.startswith("Center") for row in rows) and any(row.startswith("seed") for row in rows)
    scale = tab.page.evaluate("app.canvas.ds.scale")
    # in Nodes 2.0, the table must have the focus
    tab.widget(sampler).locator("table").click(position={"x": 20, "y": 5})
    tab.page.mouse.wheel(0, 60)
    tab.wait(sampler, "panel.table.parentElement.scrollTop > 0")
    assert tab.page.evaluate("app.canvas.ds.scale") == scale, "the wheel must scroll the table, not zoom the page"
    tab.widget(sampler).locator("summary").press("Enter")
    tab.wait(
        sampler, f"Math.abs(map.node.size[1] - {size[0]}) < 3 && Math.abs(panel.stage.clientHeight - {size[1]}) < 3"
    )


def test_map_can_be_enlarged_and_moved(tab, workflow):
    sampler = done(tab, workflow)
    tab.widget(sampler).get_by_label("Opacity").fill("100")
    size = "panel.panes[0].width / run.columns"
    before = tab.map(sampler, size)
    tab.widget(sampler).get_by_role("button", name="Zoom in").click()
    tab.wait(sampler, f"{size} > {1.99 * before}")
    middle = point(tab, sampler, 6 * 12 + 6)
    colours = expected(tab, sampler)
    tab.page.mouse.move(*middle)
    tab.wait(sampler, "!panel.tip.hidden")
    assert "Row 7, column 7" in tab.map(sampler, "panel.tip.textContent")
    tab.page.mouse.down()
    tab.page.mouse.move(middle[0] + 40, middle[1] + 30, steps=5)
    tab.page.mouse.up()
    moved = point(tab, sampler, 6 * 12 + 6)
    assert (moved[0] - middle[0], moved[1] - middle[1]) == pytest.approx((40, 30), abs=1)
    assert tab.map(sampler, "panel.pinned") is None, "dragging must not pin a token"
    assert near(painted(tab, sampler)[5 * 12 + 5], colours[5 * 12 + 5])
    tab.screenshot("enlarged")
    tab.canvas(sampler).focus()
    tab.page.keyboard.press("+")
    tab.wait(sampler, f"{size} > {3.9 * before}")
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Shift+End")
    tab.wait(sampler, "panel.view.x > 0.85 && panel.view.y > 0.85")  # the view follows the keyboard cursor
    tab.page.keyboard.press("0")
    tab.wait(sampler, f"Math.abs({size} - {before}) < 0.1")


def test_map_is_saved_as_an_image(tab, workflow):
    """The test uses the command in the node's context menu."""
    sampler = done(tab, workflow)
    tab.wait(sampler, "map.imageShown()")
    if tab.vue:
        tab.page.locator(f'[data-node-id="{sampler}"]').get_by_text("ADT-Tree Sampler").click(button="right")
    else:
        x, y = tab.map(sampler, "app.canvas.ds.convertOffsetToCanvas([map.node.pos[0] + 150, map.node.pos[1] - 12])")
        left, top = tab.page.evaluate("(({ x, y }) => [x, y])(app.canvasEl.getBoundingClientRect())")
        tab.page.mouse.click(left + x, top + y, button="right")
    with tab.page.expect_download() as download:
        tab.page.get_by_text("Save map as image").first.click()
    assert re.fullmatch(r"acceptance-map-seed-\d+\.png", download.value.suggested_filename)
    with open(download.value.path(), "rb") as file:
        image = Image.open(io.BytesIO(file.read())).convert("RGB")
    assert image.width == 1024 and image.height > 1024
    assert len({image.getpixel((43 + 85 * i, 43 + 85 * j)) for i in range(12) for j in range(12)}) > 20
    scale = [sum(image.getpixel((x, 1024 + 22))) for x in range(200, 860, 20)]
    assert scale == sorted(scale) and scale[-1] > scale[0] + 200, (
        "the scale must go from dark to light between its labels"
    )


def test_plain_decoding_shows_the_time_of_each_token(tab, workflow):
    sampler = done(tab, workflow.method("no-drafting"))
    tab.widget(sampler).get_by_label("Opacity").fill("100")
    assert len({tuple(colour) for colour in painted(tab, sampler)}) > 20
    moments = values(tab, sampler, "moment")
    assert moments == sorted(moments) and moments[0] < moments[-1]
    assert re.fullmatch(r"[\d.]+ ?[\d.]+ s elapsed", tab.map(sampler, "panel.legend.element.textContent"))
    assert tab.map(sampler, "panel.legend.element.title") == "seconds from the start of the run"
    assert tab.map(sampler, "panel.sentence.textContent") == "Details", (
        "all regions are equally fast, so no region may be named"
    )
    tab.screenshot("plain")


def test_headline_says_how_much_faster_and_a_button_compares(tab, workflow):
    """Details must have the tokens per pass. The button must run a comparison that no other node covers."""
    sampler = done(tab, workflow.method("auto"))
    tab.map(sampler, "panel.draw()")
    faster = r"About [\d.]+ times as fast as without drafts, same image|Same image as without drafts"
    headline = rf"({faster})( · \d+ tokens at a time)? · 144 tokens drawn in [\d.]+ s"
    assert re.fullmatch(headline, tab.map(sampler, "panel.line.textContent"))
    assert not re.search(r"per pass|tokens/s", tab.map(sampler, "panel.line.textContent"))
    tab.map(sampler, "(panel.details.open = true, panel.draw())")
    assert re.search(r"Tokens per pass[\d.]+Tokens per second[\d.]+", tab.map(sampler, "panel.table.textContent"))
    seed = tab.map(sampler, "run.seed")
    tab.widget(sampler).get_by_role("button", name="Measure", exact=True).click()
    compare = tab.node("ADTTreeCompare")
    tab.finished(compare)
    assert tab.map(compare, "run.seed") == seed
    assert re.search(r"times as fast|× as fast as B", tab.map(compare, "panel.line.textContent"))
    tab.settle()
    tab.screenshot("compared")
    crowded = tab.page.evaluate(CROWDED)
    assert not [pair for pair in crowded if any(name.startswith(("ADTTreeCompare", "PreviewImage")) for name in pair)]
    bottom = f"[app.graph.getNodeById({compare}).boundingRect].map(([, y, , height]) => y + height)[0]"
    view = "app.canvas.canvas.clientHeight / app.canvas.ds.scale - app.canvas.ds.offset[1]"
    assert tab.page.evaluate(f"{bottom} <= {view}"), "the result must be in view"
    texts = tab.map(sampler, "map.node.widgets.map((w) => String(w.value)).filter((text) => /per second/.test(text))")
    assert texts == []
