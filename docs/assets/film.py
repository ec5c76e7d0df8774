"""Record a workflow (`TEMPLATE`) in ComfyUI and a browser: docs/comfyui.png and the animation docs/comfyui.webp.

    python docs/assets/film.py            run this in the root of the repository, in the environment of the tests

docs/comfyui.png is a screenshot of all nodes after the run. The animation shows the sampler's acceptance map next to
the saved image, first during the run and then during its replay. Chromium sends a frame whenever the page changes. The
animation keeps the time between two frames, but shortens long pauses.
"""

import base64
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT / "tests" / "workflow")]

from comfy_page import ComfyPage, launch  # noqa: E402
from comfy_server import NEWEST, NEWEST_FRONTEND, Comfy, page  # noqa: E402

TEMPLATE = "ADT-Tree text to image (start here)"
VIEW = {"width": 1500, "height": 1300}
SCALE = 1.0
"""Zoom of the workflow."""
MARGIN = (16, 8)
"""Space around the recorded elements in pixels: horizontal, vertical."""
MAX_PAUSE = 0.4
"""Maximum time between two frames of the animation in seconds."""
HOLD = 3.0
"""Time in seconds for which the animation shows the finished image."""
MAX_BYTES = 1_500_000
"""Maximum size of the animation in bytes."""

Box = tuple[int, int, int, int]

_PREPARE = """(scale) => {
  document.querySelector('.minimap-main-container')?.style.setProperty('visibility', 'hidden');
  app.canvas.ds.scale = scale;
  app.canvas.ds.offset = [100, 90];
  app.canvas.setDirty(true, true);
}"""
_ID = "(type) => adtTest.nodes().find(([, node]) => node.type === type)[0]"
_SAVED = r"""(selector) => {
  const image = document.querySelector(selector);
  return image?.naturalWidth > 0 && /\d+ x \d+/.test(image.closest('.lg-node').textContent);
}"""
"""JavaScript function that returns whether a node shows the saved image and its size."""
_BOX = """(selectors) => {
  const elements = selectors.flatMap((selector) => [...document.querySelectorAll(selector)]);
  const boxes = elements.map((element) => element.getBoundingClientRect()).filter((box) => box.width && box.height);
  const most = (side) => Math.max(...boxes.map((box) => box[side]));
  const least = (side) => Math.min(...boxes.map((box) => box[side]));
  return [least('left'), least('top'), most('right'), most('bottom')].map(Math.round);
}"""
"""JavaScript function that returns the left, top, right and bottom of the box around all elements of some selectors."""


class Frame(NamedTuple):
    """Recorded image of the page.

    Attributes:
        time: Time of the frame in seconds since the epoch.
        image: Screenshot of the page.
        hold: Time in seconds for which the animation shows the frame. 0 shows it until the next frame.
    """

    time: float
    image: Image.Image
    hold: float = 0.0


@contextmanager
def recording(tab: ComfyPage) -> Iterator[list[Frame]]:
    """Record the page during the block, and collect a frame for every change of the page."""
    frames: list[Frame] = []
    session = tab.context.new_cdp_session(tab.page)

    def keep(event: dict) -> None:
        image = Image.open(io.BytesIO(base64.b64decode(event["data"]))).convert("RGB")
        frames.append(Frame(event["metadata"]["timestamp"], image))
        session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    session.on("Page.screencastFrame", keep)
    session.send("Page.startScreencast", {"format": "png"})
    yield frames
    session.remove_listener("Page.screencastFrame", keep)
    session.send("Page.stopScreencast")
    session.detach()


def box(tab: ComfyPage, *selectors: str) -> Box:
    """Return the bounding box of all elements of some selectors, enlarged by `MARGIN`."""
    left, top, right, bottom = tab.page.evaluate(_BOX, selectors)
    x, y = MARGIN
    return left - x, top - y, right + x, bottom + y


def screenshot(tab: ComfyPage, part: Box) -> Image.Image:
    """Return a screenshot of a part of the page."""
    tab.settle()
    return Image.open(io.BytesIO(tab.page.screenshot())).convert("RGB").crop(part)


def record(tab: ComfyPage) -> tuple[list[Frame], Image.Image]:
    """Run the template and replay the acceptance map.

    Returns:
        The recorded frames, and a screenshot of the nodes after the run.
    """
    tab.page.set_viewport_size(VIEW)
    tab.open_template(TEMPLATE)
    # Fix the seed. With a new random seed after the run, the page would mark the acceptance map as outdated.
    tab.load(json.loads(json.dumps(tab.saved()).replace('"randomize"', '"fixed"')))
    tab.page.evaluate(_PREPARE, SCALE)
    tab.page.mouse.move(VIEW["width"] - 200, VIEW["height"] - 100)  # no node under the mouse, so no tooltip
    tab.settle()
    sampler, saver = (tab.page.evaluate(_ID, kind) for kind in ("ADTTreeSampler", "SaveImage"))
    image = f'.lg-node[data-node-id="{saver}"] img'
    with recording(tab) as frames:
        tab.run()
        tab.finished(sampler)
        tab.page.wait_for_function(_SAVED, arg=image)
        tab.page.wait_for_timeout(1500)
        nodes = box(tab, ".lg-node")
        shown = box(tab, ".adt-map", image)
        last = screenshot(tab, nodes)
        frames.append(Frame(time.time(), screenshot(tab, (0, 0, *VIEW.values())), HOLD))
        tab.map(sampler, "panel.replay.button.click()")
        tab.wait(sampler, "panel.replay.round === null")
        frames.append(Frame(time.time(), screenshot(tab, (0, 0, *VIEW.values())), HOLD))
    return [frame._replace(image=frame.image.crop(shown)) for frame in frames], last


def animate(frames: list[Frame], path: Path) -> None:
    """Write the frames as an animation that repeats endlessly.

    The first frame of the file shows the finished image, because some viewers show only the first frame.

    Args:
        frames: Recorded frames. The last frame with a `hold` shows the finished image.

    Raises:
        SystemExit: If the file is larger than MAX_BYTES.
    """
    frames = sorted(frames, key=lambda frame: frame.time)
    last = max(number for number, frame in enumerate(frames) if frame.hold)
    pairs = zip([None, *frames[:last]], frames)
    changed = [now for before, now in pairs if before is None or now.hold or before.image != now.image]
    ends = [frame.time for frame in changed[1:]] + [0.0]
    seconds = [frame.hold or min(MAX_PAUSE, end - frame.time) for frame, end in zip(changed, ends)]
    seconds = seconds[-1:] + seconds[:-1]
    changed = changed[-1:] + changed[:-1]
    first, *others = [frame.image for frame in changed]
    options = {"quality": 80, "method": 6, "minimize_size": True, "loop": 0}
    durations = [round(1000 * duration) for duration in seconds]
    first.save(path, save_all=True, append_images=others, duration=durations, **options)
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; the maximum is {MAX_BYTES}")


def main() -> None:
    """Start ComfyUI and a browser, record the workflow, and write the screenshot and the animation."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        options = ("--front-end-root", str(page(NEWEST_FRONTEND)))
        with Comfy(NEWEST, Path(folder), {"ADT-Tree": ROOT}, options) as comfy:
            browser = launch(playwright)
            frames, last = record(ComfyPage(browser, comfy.address, Path(folder), vue=True))
            browser.close()
    last.convert("RGB").quantize(256).save(ROOT / "docs" / "comfyui.png", optimize=True)
    animate(frames, ROOT / "docs" / "comfyui.webp")


if __name__ == "__main__":
    main()
