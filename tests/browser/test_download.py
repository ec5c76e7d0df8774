"""Tests of downloads on the page. With an empty model folder, three steps must lead to an image.

The steps are: open the template of a model, set *if_missing* to *download*, press Run. The server
downloads from the local Hub server (tests/hub.py).
"""

import itertools
import re
import shutil

import pytest
from comfy_page import ComfyPage
from comfy_server import NEWEST, PACKS, Comfy, page

from tests.hub import Hub
from tests.hub_models import JANUS, LLAMAGEN, publish

TEMPLATES = {JANUS: "ADT-Tree Janus-Pro text to image", LLAMAGEN: "ADT-Tree LlamaGen text to image"}
SEEDS = itertools.count(700)
LOADER = "app.graph.nodes.find((n) => n.type === 'ADTTreeModelLoader')"
WIDGET = f"{LOADER}.widgets.find((w) => w.name === '{{}}')"
LABEL = f"(() => {{ const w = {WIDGET.format('model')}; return w.options.getOptionLabel(w.value); }})()"
LINE = f"adtTest.line({LOADER})"


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    with Hub() as hub:
        publish(hub, tmp_path_factory.mktemp("hub") / "models")
        yield hub


@pytest.fixture(scope="session")
def comfy(browser, frontend, hub, tmp_path_factory, meter):
    served = ("--front-end-root", str(page(frontend))) if frontend else ()
    variables = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path_factory.mktemp("hf"))}
    for server in Comfy.started(meter, NEWEST, tmp_path_factory.mktemp("empty"), PACKS, served, variables):
        server.post("/settings/Comfy.TutorialCompleted", True)
        yield server


@pytest.fixture(scope="session")
def tab(request, browser, comfy, tmp_path_factory, meter):
    with meter.uncounted():
        tab = ComfyPage(browser, comfy.address, tmp_path_factory.getbasetemp() / "screenshots", vue=request.param)
    yield tab
    tab.context.close()


@pytest.fixture(autouse=True)
def empty(comfy, hub):
    """Delete all downloaded models, and empty ComfyUI's cache."""
    comfy.free()
    for name in ("ar_image", "ar_image_drafters"):
        shutil.rmtree(comfy.base / "models" / name, ignore_errors=True)
    hub.rate = None
    hub.requests.clear()
    hub.starts.clear()
    yield
    hub.rate = None


def choose_download(tab) -> None:
    tab.page.evaluate(f"{WIDGET.format('if_missing')}.value = 'download'")


def new_seed(tab) -> None:
    """Set a new seed, so that the result isn't in ComfyUI's cache."""
    seed = next(SEEDS)
    tab.page.evaluate(
        "(seed) => app.graph.nodes.flatMap((n) => n.widgets ?? [])"
        ".filter((w) => w.name === 'seed').forEach((w) => { w.value = seed; })",
        seed,
    )


def until(tab, expression: str, pattern: str) -> str:
    """Wait until the value of a JavaScript expression matches a regular expression. Return the value."""
    tab.page.wait_for_function(f"(pattern) => new RegExp(pattern).test({expression})", arg=pattern)
    return tab.page.evaluate(expression)


def finished(tab) -> str:
    """Wait for the end of the run. Return the name of the event that ended the run."""
    return tab.page.evaluate("adtTest.end")


def run(tab) -> None:
    """Press Run, and record the event that ends the run."""
    tab.page.evaluate("""() => {
      adtTest.end = new Promise((resolve) => {
        for (const event of ['execution_success', 'execution_error', 'execution_interrupted'])
          app.api.addEventListener(event, ({ detail }) => resolve(`${event} ${detail.exception_message ?? ''}`));
      });
      app.queuePrompt(0);
    }""")


@pytest.mark.every_frontend("in both modes")
@pytest.mark.parametrize("model", TEMPLATES)
def test_three_steps_from_nothing_to_an_image(tab, comfy, hub, model):
    """Before the download, the list of models must show the size of the download; afterwards, not."""
    tab.open()
    tab.open_template(TEMPLATES[model])  # step 1
    assert re.fullmatch(r".*\(download, \d+ GB; needs \d+ GB.*\)", tab.page.evaluate(LABEL))
    choose_download(tab)  # step 2
    new_seed(tab)
    run(tab)  # step 3
    assert finished(tab) == "execution_success "
    label = tab.page.evaluate(LABEL)
    assert re.fullmatch(r"[^(]+, \d+ px \(needs \d+ GB; .+\)", label)
    if tab.vue:
        tab.page.locator(".lg-node", has_text="Model Loader").get_by_text(label, exact=True).first.wait_for()
    tab.screenshot(f"downloaded_{model}")
    outputs = list((comfy.base / "output").glob("*.png"))
    assert outputs
    listed = comfy.get("/object_info/ADTTreeModelLoader")["ADTTreeModelLoader"]["input"]["optional"]["model"][1]
    assert model in listed["options"] and model not in listed["downloads"]
    hub.requests.clear()
    new_seed(tab)
    run(tab)
    assert finished(tab) == "execution_success " and hub.requests == []


@pytest.mark.every_frontend("in both modes")
@pytest.mark.parametrize("model", TEMPLATES)
def test_cancel_in_the_middle_and_run_again(tab, comfy, hub, model):
    hub.rate = 300_000 if model == LLAMAGEN else 2_000_000
    tab.open()
    tab.open_template(TEMPLATES[model])
    choose_download(tab)
    new_seed(tab)
    run(tab)
    line = until(tab, LINE, r"Downloading: [1-9]\d*\.\d\d of \d+\.\d\d MB, \d+\.\d MB/s, \d+:\d\d left")
    tab.screenshot(f"downloading_{model}")
    assert line.startswith("Downloading: ")
    tab.page.evaluate("app.api.interrupt()")
    assert finished(tab).startswith("execution_interrupted")
    folder = comfy.base / "models" / "ar_image"
    assert not (folder / model / "config.json").exists(), "an incomplete model must not be listed"
    kept = sum(path.stat().st_size for path in (comfy.base / "models").rglob(".*.adt-tree.download"))
    tab.settle()
    assert tab.page.evaluate(LINE) == f"{kept / 1e6:.1f} MB kept. Press Run to resume." and kept > 0
    tab.screenshot(f"cancelled_{model}")
    hub.rate = None
    hub.starts.clear()
    run(tab)
    assert finished(tab) == "execution_success " and max(hub.starts.values()) > 0, "the download was not resumed"
    label = tab.page.evaluate(LABEL)
    assert label.startswith(f"{model}, ") and "download" not in label


def close_error(tab) -> None:
    tab.page.keyboard.press("Escape")
    tab.page.evaluate("app.extensionManager.setting.set('Comfy.RightSidePanel.IsOpen', false)")


@pytest.mark.every_frontend("in both modes")
def test_a_failed_download_is_explained_under_the_node(tab, hub):
    """The explanation must disappear when the user runs the workflow again."""
    (repository,) = (name for name in hub.repositories if name.endswith(JANUS))
    hub.gated.add(repository)
    tab.open()
    tab.open_template(TEMPLATES[JANUS])
    choose_download(tab)
    run(tab)
    message = finished(tab).removeprefix("execution_error ").strip()
    tab.settle()
    tab.screenshot("failed_download")
    assert tab.page.evaluate(LINE) == message and repository in message
    hub.gated.clear()
    close_error(tab)
    run(tab)
    assert finished(tab) == "execution_success " and tab.page.evaluate(LINE) == ""


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString"])
def test_names_that_every_object_inherits_stay_names(tab, name):
    """A workflow with such a model once turned the value of the widget into a function."""
    tab.open()
    tab.open_template(TEMPLATES[JANUS])
    saved = tab.saved()
    loader = next(node for node in saved["nodes"] if node["type"] == "ADTTreeModelLoader")
    loader["widgets_values"][0] = name
    tab.load(saved)
    assert tab.page.evaluate(f"{WIDGET.format('model')}.value") == name
    assert tab.page.evaluate(LABEL) == name
