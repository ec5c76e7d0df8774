"""Does a page of twenty finished maps move as smoothly as one of twenty stock samplers of the same size?

    python -m benchmarks.page [--turns 5] [--frames 120]

Frames a second while the page is dragged, and the longest wait for one, in ComfyUI's canvas and in Nodes 2.0. Both
kinds of nodes take turns in one page of the newest frontend. ComfyUI and Chromium are those of the browser tests; a
browser without a GPU paints on the processor, so nothing else should run beside this.
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

from .turns import in_turns

_TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(_TESTS / "workflow"), str(_TESTS / "browser")]

OURS, STOCK = "ADTTreeSampler", "KSampler"
COUNT = 20
SCALES = {"all in sight": 0.25, "some in sight": 0.6}
"""Of the page: at the first nobody can read a word, at the second all can be read."""
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
"""Draws an image with each of so many samplers; the workflow of these samplers alone."""
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
"""When each frame came, in milliseconds."""


def stock(workflow: str) -> str:
    """The same workflow with stock samplers, as large and in the same places."""
    data = json.loads(workflow)
    places = [{name: node[name] for name in ("id", "pos", "size", "order", "mode", "flags")} for node in data["nodes"]]
    values = [0, "fixed", 20, 8.0, "euler", "simple", 1.0]
    data["nodes"] = [{**one, "type": STOCK, "properties": {}, "widgets_values": values} for one in places]
    return json.dumps({**data, "links": []})


def moved(page, workflow: str, scale: float, frames: int) -> tuple[float, float]:
    """Frames a second while a workflow is dragged, and the longest wait for one in milliseconds."""
    page.evaluate(OPEN, [workflow, scale])
    page.evaluate(PAN, 90)  # what is seen first is painted first
    waits = np.diff(page.evaluate(PAN, frames))
    return 1000 / waits.mean(), waits.max()


def spread(values: list[float]) -> str:
    """The median, the least and the most."""
    return f"{np.median(values):6.1f} ({min(values):.1f} to {max(values):.1f})"


def measure(page, turns: int, frames: int) -> None:
    """Print what a page shows of both kinds, turn by turn."""
    ours = page.evaluate(MAKE, COUNT)
    workflows = {OURS: ours, STOCK: stock(ours)}
    for name, scale in SCALES.items():
        drags = {kind: partial(moved, page, workflow, scale) for kind, workflow in workflows.items()}
        taken = list(in_turns(drags, [frames] * turns))
        found = {kind: [turn[kind] for turn in taken] for kind in workflows}
        for kind, turned in found.items():
            rates, waits = zip(*turned)
            print(f"  {name}, {kind:15} {spread(rates)} frames a second, longest wait {spread(waits)} ms")
        ratios = [one[0] / other[0] for one, other in zip(found[OURS], found[STOCK])]
        print(f"  {name}, ratio of rates  {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main() -> None:
    from comfy_page import ComfyPage, launch
    from comfy_server import NEWEST, NEWEST_FRONTEND, PACKS, Comfy, page
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--frames", type=int, default=120)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        base, browser = Path(folder), launch(playwright)
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
