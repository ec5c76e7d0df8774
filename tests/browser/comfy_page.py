"""A person at ComfyUI's page: opens workflows, runs them, looks at maps, and hears what the console says."""

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

REQUIRED = "ADT_TREE_REQUIRE_BROWSER"  # set where a missing browser is a failure and not a reason to skip
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZE = {"width": 1280, "height": 800}
# In the page, `maps(type)` are the maps of all nodes of the open workflow and its subgraphs, by execution id.
_HELPERS = """
window.adtTest = {
  nodes(graph = app.rootGraph ?? app.graph, path = '') {
    const inside = (n) => (n.subgraph ? this.nodes(n.subgraph, path + n.id + ':') : []);
    return graph.nodes.flatMap((n) => [[path + n.id, n], ...inside(n)]);
  },
  box(node) { // its place in the workflow; in Nodes 2.0 that of its element, since the graph's own may be outdated
    const element = document.querySelector(`.lg-node[data-node-id="${node.id}"]`);
    const { offsetWidth: width, offsetHeight: height } = element ?? {};
    return height ? [node.pos[0], node.pos[1] - LiteGraph.NODE_TITLE_HEIGHT, width, height] : [...node.getBounding()];
  },
  map(id) {
    return this.nodes().find(([key]) => key === String(id))?.[1].widgets?.find((w) => w.name === 'acceptance_map')?.map;
  },
  line(node) { // what the server says under it
    const widget = (name) => node?.widgets?.find((w) => w.name === name);
    return widget('adt_tree_line')?.value || widget('acceptance_map')?.map.panel.caption.message || '';
  },
  watch(id) { // notes every state that the map goes through while its run goes on
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
    """Chromium from the system, or playwright's own.

    Where there is neither, the test is skipped, or fails if a browser is required.
    """
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    own = Path(playwright.chromium.executable_path)
    if system is None and not own.exists():
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)("no Chromium (apt install chromium)")
    return playwright.chromium.launch(executable_path=system or str(own), args=_FLAGS)


class ComfyPage:
    """One tab. ``artefacts`` is where its screenshots go; ``vue`` switches Nodes 2.0 on."""

    def __init__(self, browser: Browser, address: str, artefacts: Path, vue: bool):
        self.address, self.artefacts, self.vue = address, artefacts, vue
        self.said: list[str] = []
        self.frames: list[tuple[float, dict]] = []  # our messages, as they arrive
        # Drawing ComfyUI's animations without a GPU takes more time than all that the tests are about.
        self.context = browser.new_context(viewport=SIZE, device_scale_factor=1, reduced_motion="reduce")
        self.context.set_default_timeout(90_000)  # machines that run tests may be slow
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.said.append(f"page error: {error} {error.stack or ''}"))
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._receive))
        self.open()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.said.append(f"{message.text} at {message.location.get('url')}")

    def _receive(self, frame) -> None:
        if isinstance(frame, str) and '"adt_tree.map"' in frame:
            self.frames.append((time.monotonic(), json.loads(frame)["data"]))

    def complaints(self) -> list[str]:
        """What the console said about our code."""
        return [said for said in self.said if re.search(_OURS, said)]

    def speak(self, locale: str) -> None:
        """Load the page again in a language, such as "zh"."""
        self.page.evaluate("async (locale) => { await app.api.storeSetting('Comfy.Locale', locale) }", locale)
        self.open()

    def open(self) -> None:
        """Open ComfyUI, or load its page again."""
        self.page.goto(f"http://{self.address}/")
        known = "window.LiteGraph?.registered_node_types['ADTTreeSampler']"
        self.page.wait_for_function(f"window.app?.extensionManager && {known} && window.app.graph", timeout=90_000)
        self.page.evaluate(_HELPERS)
        self.show(self.vue)

    def show(self, vue: bool) -> None:
        """Go on in Nodes 2.0, or in canvas mode."""
        self.vue = vue
        self.page.evaluate("(on) => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", vue)

    def load(self, workflow: dict) -> None:
        """Open a workflow as a file is opened, and look at all of it."""
        self.page.evaluate("async (workflow) => { await app.loadGraphData(workflow) }", workflow)
        self.page.wait_for_function("app.graph.nodes.length > 0")

    def saved(self) -> dict:
        """The open workflow as its file has it: without what is undefined, which newer pages would not load as null."""
        return json.loads(self.page.evaluate("JSON.stringify(app.graph.serialize())"))

    def open_template(self, name: str) -> None:
        """Choose one of our workflows in the template browser, and wait until it is open: it may have been before."""
        self.page.evaluate("app.graph.extra.before = true")
        self._choose_template(name)
        nodes = json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
        kinds = json.dumps(sorted(node["type"] for node in nodes), separators=(",", ":"))
        self.page.wait_for_function(
            "(kinds) => !app.graph.extra.before && JSON.stringify(app.graph.nodes.map((n) => n.type).sort()) === kinds",
            arg=kinds,
        )

    def _choose_template(self, name: str) -> None:
        """A person would open the browser again if it did not answer."""
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
        """Until the page has done what it was about to do: some frames have been drawn, and it has an idle moment."""
        self.page.evaluate(_SETTLED)

    def drafted(self, text: str) -> None:
        """Until ComfyUI's own draft of the open workflow, which a reload opens, has a text in it."""
        self.page.wait_for_function(_DRAFTED, arg=text)

    def command(self, name: str) -> None:
        """Run one of ComfyUI's commands."""
        self.page.evaluate("(name) => app.extensionManager.command.execute(name)", name)
        self.settle()

    def run(self) -> None:
        """Press Run."""
        self.page.evaluate("app.queuePrompt(0)")

    def map(self, node: int | str, expression: str, argument=None):
        """The value of an expression about the map of a node.

        In it, ``map`` is the widget's data, ``run`` its run and ``panel`` its controls.
        """
        return self.page.evaluate(_ask(expression), [str(node), argument])

    def wait(self, node: int | str, expression: str, timeout: float = 90) -> None:
        """Until the expression about a map is true."""
        self.page.wait_for_function(_ask(f"!!({expression})"), arg=[str(node), None], timeout=1000 * timeout)

    def finished(self, node: int | str) -> None:
        self.wait(node, "run?.state === 'done'")

    def canvas(self, node: int | str) -> Locator:
        """The canvas of a node's map, marked on the way so that it can be found."""
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
