"""Helpers that run workflows on ComfyUI's page, and read maps as numbers and colours.

A map is the widget that shows how an image was decoded. A pane is the part of the widget that shows one run.
"""

import json
import time


def idle(comfy) -> bool:
    """Wait until the server's queue is empty. Return False if this needs more than half a minute."""
    deadline = time.monotonic() + 30
    while (busy := any(comfy.get("/queue").values())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not busy


def trace_of(comfy) -> dict:
    """Wait for the end of the last prompt. Return its trace, from the output of the probe node."""
    idle(comfy)
    (entry,) = comfy.get("/history", max_items=1).values()
    return json.loads(
        next(
            output["text"][0]
            for output in entry["outputs"].values()
            if "text" in output and "acceptance" in output["text"][0]
        )
    )


def values(tab, node, figure="acceptance", image=0) -> list:
    return tab.map(node, f"Array.from(run.values('{figure}', {image}))")


def flat(rows: list) -> list:
    return [value for row in rows for value in row]


def painted(tab, node, pane=0) -> list:
    """Draw the map. Return the colour [red, green, blue] at the centre of each token, read from the canvas."""
    return tab.map(
        node,
        """(() => {
        panel.draw();
        const { canvas, panes, run: { rows, columns } } = panel;
        const box = panes[argument], zoom = canvas.width / canvas.clientWidth, context = canvas.getContext('2d');
        return Array.from({ length: rows * columns }, (_, i) => {
          const x = box.x + (i % columns + 0.5) * box.width / columns;
          const y = box.y + (Math.floor(i / columns) + 0.5) * box.height / rows;
          return Array.from(context.getImageData(Math.floor(x * zoom), Math.floor(y * zoom), 1, 1).data.slice(0, 3));
        });
      })()""",
        pane,
    )


def settled(tab, node, pane=0) -> list:
    """Wait until all panes show the saved images. Return the painted colours."""
    wait_for_pictures(tab, node)
    return painted(tab, node, pane)


def wait_for_pictures(tab, node) -> None:
    """Wait until all panes show the saved images instead of previews."""
    tab.page.evaluate("async () => { adtTest.picture = (await import('/extensions/ADT-Tree/images.js')).bitmapOf; }")
    tab.wait(node, "panel.runs.every((one) => adtTest.picture(one, 0, panel.redraw) instanceof HTMLImageElement)")


def expected(tab, node, figure="acceptance", image=0) -> list:
    """Return the colour that each value of a token map should have on the map's colour scale."""
    return tab.page.evaluate(
        """async ([numbers, figure]) => {
        const folder = '/extensions/ADT-Tree/';
        const { colourOf } = await import(folder + 'colours.js');
        const { range } = await import(folder + 'map_model.js');
        const [low, high] = range(figure, numbers);
        return numbers.map((value) => colourOf((value - low) / (high - low)));
      }""",
        [values(tab, node, figure, image), figure],
    )


def same_colours(one: list, other: list) -> bool:
    """Compare two lists of colours. Differences from the rounding of the canvas are ignored.

    Tokens without a value, such as the certainty of the first one, have no colour of their own: `other` has None.
    """
    pairs = [pair for pair in zip(one, other, strict=True) if pair[1] is not None]
    return all(abs(a - b) <= 2 for left, right in pairs for a, b in zip(left, right, strict=True))


def point(tab, node, cell: int) -> tuple[float, float]:
    """Return the position (x, y) of a token on the page, in pixels."""
    x, y = tab.map(
        node,
        """(() => {
        const { canvas, panes: [box], run: { rows, columns } } = panel;
        const outer = canvas.getBoundingClientRect(), zoom = outer.width / canvas.clientWidth;
        const x = box.x + (argument % columns + 0.5) * box.width / columns;
        const y = box.y + (Math.floor(argument / columns) + 0.5) * box.height / rows;
        return [outer.x + zoom * x, outer.y + zoom * y];
      })()""",
        cell,
    )
    return x, y


def done(tab, workflow) -> int:
    """Open a workflow and run it to its end. Return the id of its sampler node."""
    tab.load(workflow.data)
    tab.run()
    tab.finished(workflow.sampler)
    return workflow.sampler


def compared(tab, template: str = "ADT-Tree compared with no drafting") -> int:
    """Open a template with a Compare node and run it with a new seed. Return the id of the node."""
    tab.open_template(template)
    node = tab.node("ADTTreeCompare")
    new_seed(tab, node)
    tab.run()
    return node


def run_again(tab, node, change: str) -> str:
    """Change a widget of a node, run, and wait for the new map. Return the id of the new run."""
    before = tab.map(node, "run?.id")
    tab.map(node, f"map.node.widgets.{change}")
    tab.run()
    tab.wait(node, f"run?.state === 'done' && run.id !== '{before}'")
    return tab.map(node, "run.id")


def new_seed(tab, node) -> None:
    """Set a new seed. With an old seed, ComfyUI's cache could contain the result from another test."""
    give(tab, node, "seed", time.time_ns() // 1000)


def give(tab, node, name: str, value) -> None:
    tab.page.evaluate(
        "([id, name, value]) => { app.graph.getNodeById(id).widgets.find((w) => w.name === name).value = value }",
        [node, name, value],
    )
