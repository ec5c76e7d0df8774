"""One ComfyUI and one browser for all tests of this folder.

Each test runs in canvas mode, which is the page's default. Those marked ``both_modes``, about what looks or behaves
otherwise there, run in Nodes 2.0 as well, and the others with ``dev.py test --all``.

The page is the newest frontend's, which users get with their next update. What a frontend could break by itself, the
tests marked ``every_frontend``, runs on the page of the newest release as well.
"""

import copy
import itertools
import json
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "workflow")]

from comfy_page import ComfyPage, launch  # noqa: E402
from comfy_server import NEWEST, NEWEST_FRONTEND, PACKS, ROOT, Comfy, page  # noqa: E402

from tests.tiny import write_tiny_checkpoint  # noqa: E402

_seeds = itertools.count(1000, 10)  # tests count on from theirs


def pytest_configure(config):
    config.addinivalue_line("markers", "every_frontend: runs on the page of the newest release, too")
    config.addinivalue_line("markers", "both_modes: is about what differs between canvas mode and Nodes 2.0")


def pytest_itemcollected(item):
    nodes2 = item.callspec.params.get("tab") if hasattr(item, "callspec") else None
    if nodes2 and not item.get_closest_marker("both_modes"):
        item.add_marker("long")


def pytest_generate_tests(metafunc):
    if "frontend" in metafunc.fixturenames:
        own = [None] if metafunc.definition.get_closest_marker("every_frontend") else []
        metafunc.parametrize("frontend", [NEWEST_FRONTEND, *own], ids=_name, indirect=True, scope="session")


def _name(frontend) -> str:
    return f"frontend-{frontend.version}" if frontend else f"frontend-of-{NEWEST.version}"


@pytest.fixture(scope="session")
def frontend(request):
    """The page that ComfyUI serves; None for its own."""
    return request.param


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def comfy(browser, frontend, tmp_path_factory):
    """A server with previews. Beside the bundled model it has a tiny random one: 12 by 12 tokens in about a second."""
    base = tmp_path_factory.mktemp("comfyui")
    write_tiny_checkpoint(base / "models" / "ar_image" / "tiny", scale=3.0, resolution=96, max_positions=512)
    options = ("--front-end-root", str(page(frontend))) if frontend else ()
    with Comfy(NEWEST, base, PACKS, ("--preview-method", "auto", *options)) as server:
        server.post("/settings/Comfy.TutorialCompleted", True)
        yield server


@pytest.fixture(scope="session", params=[False, True], ids=["canvas", "nodes2"])
def tab(request, browser, comfy, tmp_path_factory):
    """ComfyUI's page, loaded once for each mode."""
    tab = ComfyPage(browser, comfy.address, tmp_path_factory.getbasetemp() / "screenshots", vue=request.param)
    yield tab
    tab.context.close()


@pytest.fixture(autouse=True)
def console(request):
    """No test may leave an error or a warning about our code in the console."""
    if "tab" not in request.fixturenames:
        yield
        return
    tab = request.getfixturevalue("tab")
    tab.said.clear()
    tab.frames.clear()
    yield
    assert tab.complaints() == []


class Workflow:
    """A workflow with the tiny model and ADT-Tree, and short ways to change it before it is opened."""

    def __init__(self):
        self.data = json.loads((ROOT / "tests" / "workflow" / "every_socket.json").read_text(encoding="utf-8"))
        self.widgets("ADTTreeModelLoader")[0] = "tiny"
        self.widgets("ADTTreeDrafterLoader")[0] = "jacobi"
        self.method("adt-tree")
        self.sampler = self.node("ADTTreeSampler")["id"]
        self.widgets("ADTTreeSampler")[:2] = [next(_seeds), "fixed"]

    def node(self, kind: str) -> dict:
        return next(node for node in self.data["nodes"] if node["type"] == kind)

    def widgets(self, kind: str) -> list:
        return self.node(kind)["widgets_values"]

    def batch(self, count: int) -> "Workflow":
        self.widgets("ADTTreeSampler")[6] = count
        return self

    def method(self, name: str) -> "Workflow":
        self.widgets("ADTTreeSettings")[0] = name
        return self

    def reading_the_trace(self) -> "Workflow":
        """With a node of the tests that shows the trace."""
        self.add("ProbeReadTrace", [("trace", "ADT_TRACE")], [], [900, 900])
        self.link(self.sampler, 1, self.data["last_node_id"], 0, "ADT_TRACE")
        return self

    def second_sampler(self, method: str) -> int:
        """A copy of the sampler that decodes by another method, for the same model; its node number."""
        values = copy.deepcopy(self.widgets("ADTTreeSettings"))
        values[0] = method
        settings = self.add("ADTTreeSettings", [], [("settings", "ADT_SETTINGS")], [1800, 80], values)
        first = copy.deepcopy(self.node("ADTTreeSampler"))
        kept = [(socket["name"], socket["type"]) for socket in first["inputs"]]
        second = self.add(
            "ADTTreeSampler",
            kept,
            [(o["name"], o["type"]) for o in first["outputs"]],
            [2200, 80],
            first["widgets_values"],
        )
        for slot, socket in enumerate(first["inputs"]):
            link = next((link for link in self.data["links"] if link[0] == socket["link"]), None)
            if link:
                self.link(*((settings, 0) if socket["name"] == "settings" else link[1:3]), second, slot, socket["type"])
        decode = self.add("VAEDecode", [("samples", "LATENT"), ("vae", "VAE")], [("IMAGE", "IMAGE")], [2600, 80])
        preview = self.add("PreviewImage", [("images", "IMAGE")], [], [2600, 200])
        self.link(second, 0, decode, 0, "LATENT")
        self.link(self.node("ADTTreeModelLoader")["id"], 2, decode, 1, "VAE")
        self.link(decode, 0, preview, 0, "IMAGE")
        return second

    def add(self, kind: str, inputs: list, outputs: list, pos: list, values: list | None = None) -> int:
        self.data["last_node_id"] += 1
        sockets = {
            "inputs": [{"name": n, "type": t, "link": None} for n, t in inputs],
            "outputs": [{"name": n, "type": t, "links": []} for n, t in outputs],
        }
        node = {
            "id": self.data["last_node_id"],
            "type": kind,
            "pos": pos,
            "size": [330, 100],
            "flags": {},
            "order": 99,
            "mode": 0,
            "properties": {},
        }
        self.data["nodes"].append(node | sockets | {"widgets_values": values or []})
        return node["id"]

    def link(self, source: int, output: int, target: int, slot: int, kind: str) -> None:
        self.data["last_link_id"] += 1
        number = self.data["last_link_id"]
        nodes = {node["id"]: node for node in self.data["nodes"]}
        nodes[source]["outputs"][output].setdefault("links", []).append(number)
        nodes[target]["inputs"][slot]["link"] = number
        self.data["links"].append([number, source, output, target, slot, kind])


@pytest.fixture
def workflow():
    return Workflow()


@pytest.fixture
def prefer(tab):
    """Sets one of our settings, until the end of the test."""
    usual = {}

    def set(name: str, value) -> None:
        usual.setdefault(name, tab.page.evaluate("(name) => app.extensionManager.setting.get(name)", name))
        tab.page.evaluate("([name, value]) => app.extensionManager.setting.set(name, value)", [name, value])

    yield set
    for name, value in usual.items():
        set(name, value)
