"""Measure how fast ComfyUI's page scrolls with twenty finished acceptance maps, compared with twenty KSampler nodes.

    python -m benchmarks.page [--turns 5] [--frames 120]

The benchmark drags the page and reports two figures: frames per second, and the longest time between two frames. It
measures both in ComfyUI's canvas and in Nodes 2.0. The runs with the two kinds of nodes are interleaved, in one browser
tab with the newest frontend. ComfyUI and Chromium are set up as in the browser tests. A browser without a GPU renders
on the CPU, so run nothing else at the same time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from tests.tiny import write_tiny_checkpoint

from .interleaving import interleave

_TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(_TESTS / "workflow"), str(_TESTS / "browser")]

OURS = "ADTTreeSampler"
STOCK = "KSampler"
COUNT = 20  # number of sampler nodes on the page
SCALES = {"all in sight": 0.25, "some in sight": 0.6}
"""Name in the results -> zoom of the page.

At 0.25, all nodes are visible, and their text is too small to read. At 0.6, the text is readable."""
MAKE = """async (count) => {
  app.graph.clear();
  const add = (kind, pos) => {
    const node = Object.assign(LiteGraph.createNode(kind), { pos });
    app.graph.add(node);
    return node;
  };
  const far = [-9000, -9000];
  const [loader, prompt] = [add('ADTTreeModelLoader', far), add('CLIPTextEncode', far)];
  loader.widgets.find(({ name }) => name === 'model').value = 'tiny';
  prompt.widgets[0].value = 'A red house.';
  loader.connect(1, prompt, 0);
  const helpers = [loader, prompt];
  for (let i = 0; i < count; i++) {
    const sampler = add('ADTTreeSampler', [(i % 5) * 400, Math.floor(i / 5) * 720]);
    const [decode, show] = [add('VAEDecode', far), add('PreviewImage', far)];
    loader.connect(0, sampler, 0);
    prompt.connect(0, sampler, 1);
    sampler.connect(0, decode, 0);
    loader.connect(2, decode, 1);
    decode.connect(0, show, 0);
    sampler.widgets.find(({ name }) => name === 'seed').value = i;
    helpers.push(decode, show);
  }
  await app.queuePrompt(0);
  const widget = (node) => node.widgets?.find(({ name }) => name === 'acceptance_map');
  const maps = app.graph.nodes.filter(widget).map((node) => widget(node).map);
  const wait = (milliseconds) => new Promise((next) => setTimeout(next, milliseconds));
  while (!maps.every((map) => map.run?.state === 'done' && map.pictureShown())) await wait(200);
  for (const one of helpers) app.graph.remove(one);
  return JSON.stringify(app.graph.serialize());
}"""
"""JavaScript function that runs `count` samplers to the end, and returns a workflow with only these samplers."""
OPEN = """async ([workflow, scale]) => {
  await app.loadGraphData(JSON.parse(workflow));
  await new Promise((next) => setTimeout(next, 3000));
  [app.canvas.ds.scale, app.canvas.ds.offset] = [scale, [100, 150]];
  app.canvas.setDirty(true, true);
  await new Promise((next) => setTimeout(next, 2000));
}"""
PAN = """async (frames) => {
  const times = [];
  for (let i = 0; i < frames; i++) {
    times.push(await new Promise(requestAnimationFrame));
    app.canvas.ds.offset[0] += i % 40 < 20 ? 4 : -4;
    app.canvas.setDirty(true, true);
  }
  return times;
}"""
"""JavaScript function that drags the page for `frames` frames, and returns the time of each frame in milliseconds."""


def with_stock_samplers(workflow: str) -> str:
    """Return a copy of the workflow in which a KSampler of the same size and position replaces every node."""
    data = json.loads(workflow)
    kept = ("id", "pos", "size", "order", "mode", "flags")
    values = [0, "fixed", 20, 8.0, "euler", "simple", 1.0]
    stock = {"type": STOCK, "properties": {}, "widgets_values": values}
    data["nodes"] = [{name: node[name] for name in kept} | stock for node in data["nodes"]]
    return json.dumps({**data, "links": []})


def drag(page, workflow: str, scale: float, frames: int) -> tuple[float, float]:
    """Open a workflow and drag the page.

    Returns:
        Frames per second, and the longest time between two frames in milliseconds.
    """
    page.evaluate(OPEN, [workflow, scale])
    page.evaluate(PAN, 90)  # warm-up: the first frames render every node for the first time
    intervals = np.diff(page.evaluate(PAN, frames))
    return 1000 / intervals.mean(), intervals.max()


def spread(values: list[float]) -> str:
    """Format the median, the minimum and the maximum of some values."""
    return f"{np.median(values):6.1f} ({min(values):.1f} to {max(values):.1f})"


def measure(page, turns: int, frames: int) -> None:
    """Print the frame rates of both kinds of nodes at every zoom."""
    ours = page.evaluate(MAKE, COUNT)
    workflows = {OURS: ours, STOCK: with_stock_samplers(ours)}
    for name, scale in SCALES.items():
        drags = {kind: partial(drag, page, workflow, scale) for kind, workflow in workflows.items()}
        results = list(interleave(drags, [frames] * turns))
        for kind in workflows:
            rates, waits = zip(*(result[kind] for result in results))
            print(f"  {name}, {kind:15} {spread(rates)} frames per second, longest interval {spread(waits)} ms")
        ratios = [result[OURS][0] / result[STOCK][0] for result in results]
        print(f"  {name}, ratio of rates  {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main() -> None:
    """Run the command line of this benchmark."""
    from comfy_page import ComfyPage, launch
    from comfy_server import NEWEST, NEWEST_FRONTEND, PACKS, Comfy, page
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--frames", type=int, default=120)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        base = Path(folder)
        browser = launch(playwright)
        write_tiny_checkpoint(base / "models" / "ar_image" / "tiny", scale=3.0, resolution=96, max_positions=512)
        options = ("--preview-method", "auto", "--front-end-root", str(page(NEWEST_FRONTEND)))
        with Comfy(NEWEST, base, PACKS, options) as server:
            server.post("/settings/Comfy.TutorialCompleted", True)
            for vue in (False, True):
                tab = ComfyPage(browser, server.address, base, vue)
                print("Nodes 2.0" if vue else "canvas", flush=True)
                measure(tab.page, args.turns, args.frames)
                tab.context.close()


if __name__ == "__main__":
    main()
