"""How long the acceptance map takes to draw itself: 96 by 96 tokens, over a picture and with a cursor, in a headless Chromium.

    python -m benchmarks.redraw [--frames 100]

A frame of the page lasts 16 ms. Measured is everything from the run's data to the pixels (``getImageData`` waits for them; a machine
without a GPU draws them on the CPU); every frame comes right after new tokens, as while decoding.
"""

from __future__ import annotations

import argparse
import http.server
import shutil
import threading
from functools import partial
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SIDE = 96
SCRIPT = """async ([side, frames]) => {
  const [{ Run, range }, { draw, layout }] = await Promise.all([import('/js/map_model.js'), import('/js/map_view.js')]);
  const run = new Run({ method: 'adt-tree', seed: '0', comparable: '', images: 1, grid: [side, side], prefill: 50 });
  const rounds = [];
  for (let at = 0, i = 0; at < side * side - 1; i++) {
    const accepted = Math.min((i * 7) % 5, side * side - 2 - at);
    rounds.push([20, 5, [0, at, 4, 2, accepted + 1, 2, 8, accepted, 0]]);
    at += accepted + 1;
  }
  const canvas = document.createElement('canvas');
  const size = { width: 480, height: 480 };
  [canvas.width, canvas.height] = [960, 960]; // a large node on a high-density screen
  const context = canvas.getContext('2d');
  context.scale(2, 2);
  const picture = await createImageBitmap(new ImageData(512, 512));
  const [box] = layout(size.width, size.height, side, side, 1);
  const times = [];
  for (let frame = 0; frame < frames; frame++) {
    const from = Math.floor((frame * rounds.length) / frames), to = Math.floor(((frame + 1) * rounds.length) / frames);
    const started = performance.now();
    run.append(from, rounds.slice(from, to));
    const values = run.values('acceptance', 0);
    const pane = { box, rows: side, columns: side, values, range: range('acceptance', values), picture, opacity: 0.6, label: '', cursor: 0, together: [0, 2] };
    draw(context, size, [pane]);
    context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - started);
  }
  return times.sort((a, b) => a - b);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100)
    frames = parser.parse_args().frames
    handler = partial(_Quiet, directory=str(ROOT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/js/colours.js")
        times = page.evaluate(SCRIPT, [SIDE, frames])
        browser.close()
        server.shutdown()
    median, late = times[len(times) // 2], times[int(0.95 * len(times))]
    print(f"{SIDE} by {SIDE} tokens: median {median:.1f} ms, 95th percentile {late:.1f} ms, slowest {times[-1]:.1f} ms")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


if __name__ == "__main__":
    main()
