"""One ComfyUI and one browser for all tests of this folder.

Each test runs in canvas mode, which is the page's default. Those marked ``both_modes``, about what looks or behaves
otherwise there, run in Nodes 2.0 as well, and the others with ``dev.py test --all``.

The page is the newest frontend's, which users get with their next update. What a frontend could break by itself, the
tests marked ``every_frontend``, runs on the page of the newest release as well, in its default mode.
"""

import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "workflow")]

from comfy_page import ComfyPage, launch  # noqa: E402
from comfy_server import NEWEST, NEWEST_FRONTEND, PACKS, Comfy, page  # noqa: E402
from small import write_picture  # noqa: E402
from tiny_workflow import Workflow  # noqa: E402

from tests.tiny import write_tiny_checkpoint  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "every_frontend: runs on the page of the newest release, too")
    config.addinivalue_line("markers", "both_modes: is about what differs between canvas mode and Nodes 2.0")


def pytest_itemcollected(item):
    params = item.callspec.params if hasattr(item, "callspec") else {}
    both = item.get_closest_marker("both_modes") and params.get("frontend") == NEWEST_FRONTEND
    if params.get("tab") and not both:
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
    write_picture(base)
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
