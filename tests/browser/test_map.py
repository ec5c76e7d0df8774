"""Tests of the acceptance map on the page: the widget that shows how many drafts were accepted for each token.

The map must follow a run, agree with the trace, and be restored after a reload.
"""

import json
import time

import pytest
from map_reading import done, expected, flat, give, new_seed, painted, point, same_colours, settled, trace_of, values

FIGURES = ("acceptance", "depth", "width", "time", "certainty")


def test_first_template_runs_and_shows_its_map(tab):
    tab.open_template("ADT-Tree text to image (start here)")
    sampler = tab.node("ADTTreeSampler")
    new_seed(tab, sampler)
    give(tab, sampler, "drafting", "ADT-Tree")  # with Auto, a busy machine may not draft
    tab.run()
    tab.wait(sampler, "run && run.done > 0 && run.done < run.total")
    tab.screenshot("live")
    tab.finished(sampler)
    numbers = values(tab, sampler)
    assert len(numbers) == 256 and min(numbers) >= 1 and max(numbers) > 2
    tab.wait(sampler, "map.imageShown()")
    tab.page.mouse.move(*point(tab, sampler, 100))
    tab.screenshot("finished")


@pytest.mark.alone
def test_tokens_appear_while_they_are_decoded(tab, workflow):
    """At most ten messages per second may arrive. The map must show previews."""
    done(tab, workflow)  # the first previews of a server and a page are slow
    tab.frames.clear()
    sampler = workflow.batch(64).sampler  # the run must be long enough for previews
    tab.load(workflow.data)
    tab.page.evaluate("(id) => { adtTest.watch(id) }", str(sampler))
    started = time.monotonic()
    tab.run()
    tab.finished(sampler)
    took = time.monotonic() - started  # a busy page receives the first messages late
    seen = tab.page.evaluate("adtTest.seen")
    assert any(picture for _, picture in seen)
    assert len({done for done, _ in seen if done < 64 * 144}) > 3
    assert 3 < len(tab.frames) <= 10 * took + 2
    firsts = [frame["first"] for _, frame in tab.frames]
    assert firsts[0] == 0 and firsts == sorted(set(firsts))
    assert sum(len(json.dumps(frame)) for _, frame in tab.frames) < 40 * 64 * 144, (
        "each message contains only new tokens, in a few bytes each"
    )


def test_finished_map_agrees_with_the_trace(tab, comfy, workflow):
    """Compare every value of every token and image: in the data of the widget, and in the colours of its canvas."""
    sampler = done(tab, workflow.batch(2).reading_the_trace())
    tab.wait(sampler, "run.reference")
    trace = trace_of(comfy)
    for image in range(2):
        assert values(tab, sampler, image=image) == flat(trace["acceptance"][image])
        records = {
            (i, record["position"]): (one, record)
            for i, one in enumerate(trace["rounds"])
            for record in one["images"]
            if record["image"] == image
        }
        for (index, position), (one, record) in records.items():
            token = tab.map(sampler, f"run.token({image}, argument)", position + 1)
            assert token["round"] == index and token["ms"] == pytest.approx(1000 * one["seconds"], abs=0.01)
            assert (token["depthAsked"], token["widthAsked"]) == (record["depth_asked"], record["width_asked"])
            for name in ("depth", "width", "drafts", "accepted"):
                assert token[name] == record[name], (name, index)
    report = trace["report"]
    figures = tab.map(sampler, "run.figures()")
    assert figures["tau"] == pytest.approx(report["tau"]) and figures["rate"] == pytest.approx(
        report["tokens_per_second"], rel=0.01
    )


def test_canvas_shows_the_selected_figure_and_image(tab, workflow):
    sampler = done(tab, workflow.batch(2))
    widget = tab.widget(sampler)
    widget.get_by_label("Opacity").fill("100")
    for figure in FIGURES:
        widget.locator(f"button[data-figure={figure}]").click()
        assert same_colours(painted(tab, sampler), expected(tab, sampler, figure)), figure
        assert widget.locator("button[aria-pressed=true]").get_attribute("data-figure") == figure
    tab.screenshot("time")
    widget.locator("button[data-figure=acceptance]").click()
    widget.get_by_label("Image of the batch").select_option("1")
    assert values(tab, sampler, image=1) != values(tab, sampler, image=0)
    assert same_colours(painted(tab, sampler), expected(tab, sampler, image=1))
    widget.get_by_label("Image of the batch").select_option("0")
    tab.wait(sampler, "map.imageShown()")
    widget.get_by_label("Opacity").fill("0")
    bare = settled(tab, sampler)
    assert len({tuple(colour) for colour in bare}) > 20, "the image is nearly uniform"
    widget.get_by_label("Opacity").fill("50")
    mixed = [[(a + b) / 2 for a, b in zip(*pair)] for pair in zip(bare, expected(tab, sampler))]
    assert same_colours(painted(tab, sampler), mixed)


def test_tooltip_and_table_describe_the_round(tab, comfy, workflow):
    sampler = done(tab, workflow.reading_the_trace())
    trace = trace_of(comfy)
    index, record = next(
        (i, one["images"][0]) for i, one in enumerate(trace["rounds"]) if one["images"][0]["drafts"] > 1
    )
    cell = record["position"] + 1
    tab.settle()  # in Nodes 2.0, other nodes move when the map grows
    tab.page.mouse.move(*point(tab, sampler, cell))
    tab.wait(sampler, "!panel.tip.hidden")
    message = tab.map(sampler, "panel.tip.textContent")
    tokens = record["accepted"] + 1
    for part in (
        f"Row {cell // 12 + 1}, column {cell % 12 + 1}",
        f"{tokens} token{'s' * (tokens > 1)} in this pass",
        f"{record['accepted']} of {record['drafts']} drafts accepted",
        " ms",
    ):
        assert part in message, (part, message)
    assert tip_is_beside(tab, sampler, cell), "the tooltip hides the tokens that it describes"
    tab.page.mouse.move(5, 5)
    tab.widget(sampler).locator("summary").press("Enter")
    tab.settle()  # the map shrinks, because the table is shown
    tab.page.mouse.move(*point(tab, sampler, cell))
    tab.wait(sampler, "panel.table.textContent.includes('alpha')")
    table = tab.map(sampler, "Array.from(panel.table.rows, (row) => Array.from(row.cells, (one) => one.textContent))")
    alpha = record["accepted"] / record["depth"]
    for row in (
        [f"Token {cell + 1}", f"pass {index + 1}"],
        ["depth", f"{record['depth']} ({record['depth_asked']} requested)"],
        ["width", f"{record['width']} ({record['width_asked']} requested)"],
        ["drafts", str(record["drafts"])],
        ["accepted", str(record["accepted"])],
        ["alpha", f"{alpha:.2f}"],
        ["Passes of the model", str(len(trace["rounds"]))],
    ):
        assert row in table, (row, table)
    tab.screenshot("numbers")
    tab.page.mouse.move(5, 5)
    tab.wait(sampler, "panel.tip.hidden")


def tip_is_beside(tab, node, cell: int) -> bool:
    """Return whether the tooltip covers none of the rows with tokens of this token's round."""
    return tab.map(
        node,
        """(() => {
        const [tip, outer] = [panel.tip.getBoundingClientRect(), panel.canvas.getBoundingClientRect()];
        const zoom = outer.width / panel.canvas.clientWidth, [box] = panel.panes, side = zoom * box.height / run.rows;
        const rows = run.together(0, argument).map((one) => Math.floor(one / run.columns));
        const [top, bottom] = [outer.y + zoom * box.y + rows[0] * side, outer.y + zoom * box.y + (rows[1] + 1) * side];
        return tip.top >= bottom || tip.bottom <= top;
      })()""",
        cell,
    )


def test_keyboard_reaches_every_token_and_control(tab, workflow):
    sampler = done(tab, workflow)
    before = tab.map(sampler, "Array.from(map.node.pos)")
    tab.canvas(sampler).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):  # the first key press shows the cursor
        tab.page.keyboard.press(key)
    assert "Row 2, column 1" in tab.map(sampler, "(panel.draw(), panel.tip.textContent)")
    tab.page.keyboard.press("Shift+End")
    tab.page.keyboard.press("ArrowDown")
    assert "Row 12, column 12" in tab.map(sampler, "(panel.draw(), panel.tip.textContent)")
    tab.page.keyboard.press("Escape")
    assert tab.map(sampler, "(panel.draw(), panel.tip.hidden)")
    assert tab.map(sampler, "Array.from(map.node.pos)") == before, "the keys also reached the graph"
    controls = "Array.from(panel.element.querySelectorAll('button, select, input, canvas'))"
    assert tab.map(sampler, f"{controls}.filter((e) => !(e.textContent || e.ariaLabel) || e.tabIndex < 0).length") == 0


def test_map_is_sharp_at_every_zoom_and_grows_with_the_node(tab, workflow):
    sampler = done(tab, workflow)
    height = tab.map(sampler, "panel.stage.clientHeight")
    redraw = "app.canvas.setDirty(true, true)"  # an idle page doesn't draw
    tab.map(sampler, f"(map.node.setSize([700, map.node.size[1] + 300]), {redraw})")
    tab.wait(
        sampler, f"panel.stage.clientHeight > {height} + 100 && panel.stage.clientWidth > 600"
    )  # the text below the image needs some of the height
    for zoom in (0.75, 1, 2):  # at smaller zooms, an image replaces the map (test_widget.py)
        tab.map(sampler, f"(app.canvas.ds.scale = argument, app.canvas.centerOnNode(map.node), {redraw})", zoom)
        tab.wait(
            sampler, f"Math.abs(panel.canvas.getBoundingClientRect().width / panel.canvas.clientWidth - {zoom}) < 0.02"
        )
        tab.map(sampler, "panel.draw()")
        assert tab.map(sampler, "panel.canvas.width / panel.canvas.clientWidth") == pytest.approx(
            max(1, zoom), rel=0.02
        )


@pytest.mark.every_frontend
def test_saved_workflow_restores_its_map_without_storing_it(tab, workflow):
    sampler = done(tab, workflow)
    before = values(tab, sampler)
    saved = tab.saved()
    node = next(node for node in saved["nodes"] if node["id"] == sampler)
    assert len(json.dumps(node["properties"])) < 500
    assert len(node["widgets_values"]) == len(workflow.widgets("ADTTreeSampler")) + 2
    assert node["widgets_values"][-2:] == ["ADT-Tree", "error"]
    sent = tab.page.evaluate("app.graphToPrompt()")["output"][str(sampler)]["inputs"]
    assert "acceptance_map" not in sent
    tab.load(saved)
    tab.wait(sampler, "run?.state === 'done'")
    assert values(tab, sampler) == before


def test_cached_result_shows_its_map_on_a_new_node(tab, workflow):
    sampler = done(tab, workflow)
    before = values(tab, sampler)
    tab.frames.clear()
    done(tab, workflow)
    assert values(tab, sampler) == before and tab.frames == []


def test_copied_node_shows_the_map_until_either_runs(tab, workflow):
    sampler = done(tab, workflow)
    before = values(tab, sampler)
    tab.map(sampler, "(app.canvas.copyToClipboard([map.node]), app.canvas.pasteFromClipboard())")
    is_copy = "(n) => n.type === 'ADTTreeSampler' && String(n.id) !== String(id)"
    (copy,) = tab.page.evaluate(f"(id) => app.graph.nodes.filter({is_copy}).map((n) => n.id)", sampler)
    tab.wait(copy, "run?.state === 'done'")
    assert values(tab, copy) == before
    tab.map(sampler, "map.node.widgets.find((w) => w.name === 'seed').value += 1")
    tab.run()
    tab.wait(sampler, "map.previous && run.state === 'done'")
    assert values(tab, sampler) != before and values(tab, copy) == before


@pytest.mark.every_frontend
def test_sampler_in_a_subgraph_has_a_map(tab, workflow):
    sampler = workflow.sampler
    tab.load(workflow.data)
    outer = tab.map(sampler, "app.graph.convertToSubgraph(new Set([map.node])).node.id")
    (inner,) = tab.page.evaluate("adtTest.nodes().filter(([, n]) => n.type === 'ADTTreeSampler').map(([id]) => id)")
    assert inner.startswith(f"{outer}:")
    tab.run()
    tab.finished(inner)
    assert len(values(tab, inner)) == 144 and not any(value is None for value in values(tab, inner))
    assert {frame["node"] for _, frame in tab.frames} == {inner}
    tab.page.evaluate(
        "(id) => app.canvas.openSubgraph(app.graph.getNodeById(id).subgraph, app.graph.getNodeById(id))", outer
    )
    tab.wait(inner, "panel.canvas.getBoundingClientRect().width > 0")
    tab.screenshot("subgraph")
    tab.page.evaluate("app.canvas.setGraph(app.rootGraph)")


LEGEND = """(() => {
  const { element } = panel.legend, legend = element.getBoundingClientRect();
  const ramp = element.querySelector('.adt-map-ramp').offsetWidth;
  return [ramp, panel.opacity.getBoundingClientRect().right - legend.left, element.scrollWidth - element.clientWidth];
})()"""
"""Returns the width of the legend's colours, its overlap with the slider, and the width outside of its box."""


def test_legend_of_a_stopped_map_fits_beside_the_slider(tab, workflow):
    sampler = workflow.batch(64).sampler
    tab.load(workflow.data)
    tab.run()
    tab.wait(sampler, "run?.state === 'running' && run.done > 10")
    tab.page.evaluate("app.api.interrupt()")
    tab.wait(sampler, "run.state === 'stopped' && panel.legend.element.querySelector('.adt-map-none')")
    ramp, overlap, excess = tab.map(sampler, LEGEND)
    assert ramp > 40 and overlap <= 1 and excess <= 1


@pytest.mark.alone
def test_cancel_stops_within_half_a_second_and_the_next_run_works(tab, workflow):
    sampler = done(tab, workflow.method("no-drafting"))  # a new server and a new page are slow
    give(tab, sampler, "batch_size", 8)
    tab.run()
    tab.wait(sampler, "run?.state === 'running' && run.done > 50")
    seconds = tab.page.evaluate(
        """async (id) => {
        const asked = performance.now();
        await app.api.interrupt();
        while (adtTest.map(id).run.state === 'running') await new Promise((resolve) => setTimeout(resolve, 5));
        return (performance.now() - asked) / 1000;
      }""",
        str(sampler),
    )
    assert seconds < 0.5
    assert tab.map(sampler, "run.state") == "stopped" and tab.map(sampler, "run.done < run.total")
    tab.wait(sampler, "panel.line.textContent.includes('stopped')")
    tab.widget(sampler).get_by_label("Opacity").fill("100")
    tab.screenshot("stopped")
    legend = "panel.legend.element.querySelector('.adt-map-none')"
    dark = tab.map(sampler, f"getComputedStyle({legend}).backgroundColor.match(/\\d+/g).map(Number)")
    moments = values(tab, sampler, "moment")
    for cell, colour in enumerate(painted(tab, sampler)):
        if moments[cell] is None:
            assert same_colours([colour], [dark]), "the colour is not in the legend"
    give(tab, sampler, "batch_size", 1)
    tab.run()
    tab.finished(sampler)
    assert tab.map(sampler, "run.done") == 144
