"""Fixtures with one ComfyUI server and one browser, which all tests of this folder share.

ComfyUI draws nodes on a canvas (canvas mode, the page's default), or as elements of the page (Nodes 2.0). In the
default tier, only tests marked ``smoke`` run, in canvas mode. With ``--all``, all tests run in both modes.

Tests run on the newest frontend, which users get with their next update. Some tests depend on details of the page and
are marked ``every_frontend``. With ``--all``, they also run on the frontend of ComfyUI's newest release, in the default
mode of this frontend.
"""

import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "workflow")]

from comfy_page import ComfyPage, launch  # noqa: E402
from comfy_server import NEWEST, NEWEST_FRONTEND  # noqa: E402
from tiny_workflow import Workflow  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "every_frontend: runs on the page of the newest release, too; with an argument in both modes"
    )


def pytest_generate_tests(metafunc):
    """Parametrize tests with a frontend and a mode.

    The frontend None is the default frontend of ComfyUI's release. The mode False is canvas mode; True is Nodes 2.0.
    """
    if "tab" in metafunc.fixturenames:
        pages = [(NEWEST_FRONTEND, False), (NEWEST_FRONTEND, True)]
        if mark := metafunc.definition.get_closest_marker("every_frontend"):
            pages += [(None, False), *([(None, True)] if mark.args else [])]
        names = [f"{_name(frontend)}-{'nodes2' if nodes2 else 'canvas'}" for frontend, nodes2 in pages]
        metafunc.parametrize("frontend, tab", pages, ids=names, indirect=True, scope="session")
    elif "frontend" in metafunc.fixturenames:
        metafunc.parametrize("frontend", [NEWEST_FRONTEND], ids=_name, indirect=True, scope="session")


def _name(frontend) -> str:
    return f"frontend-{frontend.version}" if frontend else f"frontend-of-{NEWEST.version}"


def pytest_itemcollected(item):
    """Mark browser tests as ``long``, except ``smoke`` tests in canvas mode on the newest frontend."""
    if "browser" in item.fixturenames:
        params = item.callspec.params
        if not (item.get_closest_marker("smoke") and params["frontend"] and not params.get("tab")):
            item.add_marker("long")


@pytest.fixture(scope="session")
def frontend(request):
    """Frontend that the server uses; None for the default frontend of the release."""
    return request.param


@pytest.fixture(scope="session")
def browser(meter):
    with sync_playwright() as playwright:
        with meter.uncounted():
            browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def comfy(browser, frontend, served):
    return served(NEWEST, frontend)


@pytest.fixture(scope="session")
def tab(request, browser, comfy, tmp_path_factory, meter):
    """Tab with ComfyUI's page. The page is loaded once for each mode."""
    with meter.uncounted():
        tab = ComfyPage(browser, comfy.address, tmp_path_factory.getbasetemp() / "screenshots", vue=request.param)
    yield tab
    tab.context.close()


CLOSE = """() => {
  const buttons = '[aria-label^=Notifications] button, .p-toast-close-button';
  document.querySelectorAll(buttons).forEach((button) => button.click());
}"""
"""Closes notifications of earlier tests, which could cover buttons."""


@pytest.fixture(autouse=True)
def console(request):
    """Fail a test if, after the test, the console contains an error or a warning about the pack's code."""
    if "tab" not in request.fixturenames:
        yield
        return
    tab = request.getfixturevalue("tab")
    tab.console.clear()
    tab.frames.clear()
    tab.page.evaluate(CLOSE)
    yield
    assert tab.messages_about_our_code() == []


@pytest.fixture
def workflow():
    return Workflow()


@pytest.fixture
def prefer(tab):
    """Return a function that changes one of the pack's settings. The setting is restored at the end of the test."""
    usual = {}

    def set(name: str, value) -> None:
        usual.setdefault(name, tab.page.evaluate("(name) => app.extensionManager.setting.get(name)", name))
        tab.page.evaluate("([name, value]) => app.extensionManager.setting.set(name, value)", [name, value])

    yield set
    for name, value in usual.items():
        set(name, value)
