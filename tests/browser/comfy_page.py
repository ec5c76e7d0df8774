"""Page object for ComfyUI. It opens workflows, runs them, reads maps and collects console messages.

A map is the widget that shows how an image was decoded. ComfyUI draws nodes in one of two modes: on a canvas (canvas
mode), or as elements of the page (Nodes 2.0).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from comfy_server import ROOT
from playwright.sync_api import Browser, ConsoleMessage, Locator, Playwright, TimeoutError

# if there is no browser, tests fail if this environment variable is set, and are skipped otherwise
REQUIRED = "ADT_TREE_REQUIRE_BROWSER"
_FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
_FLAGS += ["--disable-background-networking", "--disable-component-update"]
SIZE = {"width": 1280, "height": 800}
# `adtTest.map(id)` finds the map of a node by the node's execution id, in the open workflow and in its subgraphs.
_HELPERS = """
window.adtTest = {
  nodes(graph = app.rootGraph ?? app.graph, path = '') {
    const inside = (n) => (n.subgraph ? this.nodes(n.subgraph, path + n.id + ':') : []);
    return graph.nodes.flatMap((n) => [[path + n.id, n], ...inside(n)]);
  },
  box(node) { // position and size; in Nodes 2.0 from its element, since the graph's values may be outdated
    const element = document.querySelector(`.lg-node[data-node-id="${node.id}"]`);
    const { offsetWidth: width, offsetHeight: height } = element ?? {};
    return height ? [node.pos[0], node.pos[1] - LiteGraph.NODE_TITLE_HEIGHT, width, height] : [...node.getBounding()];
  },
  map(id) {
    return this.nodes().find(([key]) => key === String(id))?.[1].widgets?.find((w) => w.name === 'acceptance_map')?.map;
  },
  line(node) { // text that the server shows for the node
    const widget = (name) => node?.widgets?.find((w) => w.name === name);
    return widget('adt_tree_line')?.value || widget('acceptance_map')?.map.panel.caption.message || '';
  },
  watch(id) { // records the states of the map during its run
    const seen = [], note = () => {
      const map = this.map(id);
      if (map?.run?.state === 'running') seen.push([map.run.done, map.imageShown()]);
    };
    for (const event of ['adt_tree.map', 'b_preview_with_metadata', 'executed'])
      app.api.addEventListener(event, () => setTimeout(note));
    setInterval(note, 20);
    return (this.seen = seen);
  },
};
"""
_OURS = r"extensions/ADT-Tree|adt_tree|acceptance_map|map_(model|panel|view)"
_SETTLED = """async () => {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  await new Promise((resolve) => requestIdleCallback(resolve));
}"""
_DRAFTED = """(text) =>
  Object.entries(localStorage).some(([key, value]) => key.startsWith('Comfy.Workflow.Draft') && value.includes(text))"""


def launch(playwright: Playwright) -> Browser:
    """Launch Chromium.

    Use the system's Chromium if there is one, else the copy that playwright installs. If there is no browser, skip
    the test, or fail if the environment variable REQUIRED is set.
    """
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    own = Path(playwright.chromium.executable_path)
    if system is None and not own.exists():
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)("no Chromium (apt install chromium)")
    return playwright.chromium.launch(executable_path=system or str(own), args=_FLAGS)


class ComfyPage:
    """Browser tab with ComfyUI.

    Args:
        vue: Whether Nodes 2.0 is on. Otherwise the page is in canvas mode.

    Attributes:
        console: Errors and warnings in the browser's console.
        frames: Arrival time and data of each map message.
    """

    def __init__(self, browser: Browser, address: str, artefacts: Path, vue: bool):
        self.address = address
        self.artefacts = artefacts
        self.vue = vue
        self.console: list[str] = []
        self.frames: list[tuple[float, dict]] = []
        # Without a GPU, ComfyUI's animations would need more time than everything else in the tests.
        self.context = browser.new_context(viewport=SIZE, device_scale_factor=1, reduced_motion="reduce")
        self.context.set_default_timeout(90_000)  # test machines may be slow
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.console.append(f"page error: {error} {error.stack or ''}"))
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._receive))
        self.open()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.console.append(f"{message.text} at {message.location.get('url')}")

    def _receive(self, frame) -> None:
        if isinstance(frame, str) and '"adt_tree.map"' in frame:
            self.frames.append((time.monotonic(), json.loads(frame)["data"]))

    def messages_about_our_code(self) -> list[str]:
        """Return the console messages that mention the pack's code."""
        return [line for line in self.console if re.search(_OURS, line)]

    def set_language(self, locale: str) -> None:
        """Set the language of the page, for example "zh", and reload the page."""
        self.page.evaluate("async (locale) => { await app.api.storeSetting('Comfy.Locale', locale) }", locale)
        self.open()

    def open(self) -> None:
        """Open ComfyUI. If it is open already, reload the page."""
        self.page.goto(f"http://{self.address}/")
        known = "window.LiteGraph?.registered_node_types['ADTTreeSampler']"
        self.page.wait_for_function(f"window.app?.extensionManager && {known} && window.app.graph", timeout=90_000)
        self.page.evaluate(_HELPERS)
        self.show(self.vue)

    def show(self, vue: bool) -> None:
        """Switch to Nodes 2.0 or to canvas mode."""
        self.vue = vue
        self.page.evaluate("(on) => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", vue)

    def load(self, workflow: dict) -> None:
        """Open a workflow in the same way as from a file."""
        self.page.evaluate("async (workflow) => { await app.loadGraphData(workflow) }", workflow)
        self.page.wait_for_function("app.graph.nodes.length > 0")

    def saved(self) -> dict:
        """Return the open workflow as the page would save it.

        Undefined values are removed, because newer pages don't load them as null.
        """
        return json.loads(self.page.evaluate("JSON.stringify(app.graph.serialize())"))

    def open_template(self, name: str) -> None:
        """Choose a workflow of the pack in the template browser, and wait until it is open.

        This also works if the same template was open before.
        """
        self.page.evaluate("app.graph.extra.before = true")
        self._choose_template(name)
        nodes = json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
        kinds = json.dumps(sorted(node["type"] for node in nodes), separators=(",", ":"))
        self.page.wait_for_function(
            "(kinds) => !app.graph.extra.before && JSON.stringify(app.graph.nodes.map((n) => n.type).sort()) === kinds",
            arg=kinds,
        )

    def _choose_template(self, name: str) -> None:
        """Choose a template. If the template browser doesn't respond, open it again."""
        for patience in (4_000, 20_000, 90_000):
            self.page.evaluate("app.extensionManager.command.execute('Comfy.BrowseTemplates')")
            dialog = self.page.get_by_role("dialog")
            try:
                dialog.get_by_text("ADT-Tree", exact=True).first.click(timeout=patience)
                return dialog.get_by_text(name, exact=True).first.click(timeout=patience)
            except TimeoutError:
                self.page.keyboard.press("Escape")
        raise TimeoutError(f"the template browser shows no {name}")

    def settle(self) -> None:
        """Wait until the page has rendered some frames and is idle."""
        self.page.evaluate(_SETTLED)

    def drafted(self, text: str) -> None:
        """Wait until ComfyUI's stored draft of the open workflow contains a text. A reload opens this draft."""
        self.page.wait_for_function(_DRAFTED, arg=text)

    def command(self, name: str) -> None:
        """Run a command of ComfyUI's page."""
        self.page.evaluate("(name) => app.extensionManager.command.execute(name)", name)
        self.settle()

    def run(self) -> None:
        """Press the Run button."""
        self.page.evaluate("app.queuePrompt(0)")

    def node(self, kind: str) -> int:
        """Return the id of the first node of a type."""
        return self.page.evaluate("(kind) => app.graph.nodes.find(({ type }) => type === kind).id", kind)

    def map(self, node: int | str, expression: str, argument=None):
        """Evaluate a JavaScript expression about the map of a node.

        In the expression, ``map`` is the data of the widget, ``run`` is the run that the map shows, and ``panel`` is
        the map's controls.
        """
        return self.page.evaluate(_ask(expression), [str(node), argument])

    def wait(self, node: int | str, expression: str, timeout: float = 90) -> None:
        """Wait until a JavaScript expression about a map is true."""
        self.page.wait_for_function(_ask(f"!!({expression})"), arg=[str(node), None], timeout=1000 * timeout)

    def finished(self, node: int | str) -> None:
        self.wait(node, "run?.state === 'done'")

    def canvas(self, node: int | str) -> Locator:
        """Return the canvas element of a node's map."""
        self.map(node, "panel.canvas.id = 'map-of-' + argument", str(node).replace(":", "-"))
        return self.page.locator(f"#map-of-{str(node).replace(':', '-')}")

    def widget(self, node: int | str) -> Locator:
        return self.canvas(node).locator("xpath=ancestor::*[contains(@class, 'adt-map ') or @class='adt-map']")

    def screenshot(self, name: str) -> None:
        self.settle()
        self.page.screenshot(path=self.artefacts / f"{name}-{'nodes2' if self.vue else 'canvas'}.png")


def _ask(expression: str) -> str:
    names = "const map = adtTest.map(id); const run = map?.run; const panel = map?.panel;"
    return f"([id, argument]) => {{ {names} return {expression}; }}"
