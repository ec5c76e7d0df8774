"""One running ComfyUI per supported end of the version range, shared by all tests of this folder, and for the tests
that ask for it one with every model that templates name.

Of the tests that need a server, the default tier runs those marked ``smoke``, on the newest ComfyUI. With ``--all``
both run every test.
"""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from comfy_server import FLOOR, NEWEST, NEWEST_FRONTEND, PACKS, ROOT, Comfy  # noqa: E402
from convert import text_to_image  # noqa: E402
from small import with_small_models, write_picture, write_small, write_upscaler  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "small_models: the graph is of the small models, see small.py")


def pytest_itemcollected(item):
    """Of the tests that need a server, only those marked ``smoke`` are in the default tier."""
    release = item.callspec.params.get("release") if hasattr(item, "callspec") else None
    if release is not None and (release != NEWEST or not item.get_closest_marker("smoke")):
        item.add_marker("long")


@pytest.fixture(scope="session", params=[NEWEST, FLOOR], ids=lambda release: f"comfyui-{release.version}")
def release(request):
    return request.param


@pytest.fixture(scope="session")
def comfy(release, served):
    """A server that sends previews. The test fails, and is not skipped, if there cannot be one."""
    return served(release, NEWEST_FRONTEND if release == NEWEST else None)


@pytest.fixture(scope="session")
def stocked(release, tmp_path_factory, meter):
    """A server with a model and a drafter wherever users have them: small random ones of every published model, under
    its name, and the bundled one in the user's own folders.

    Its weights move as they do where there is a GPU, and it writes no metadata into images.
    """
    from adt_core import load_target
    from tests.drafted import write_drafter
    from tests.layouts.llamagen import write_upstream
    from tests.layouts.published import LUMINA, write_published

    base, extra = (tmp_path_factory.mktemp(f"{name}-{release.version}") for name in ("stocked", "extra"))
    models, bundled = base / "models", ROOT / "adt_core" / "bundled"
    write_published(models / "ar_image")
    write_upstream(models / "ar_image")
    write_drafter(models / "ar_image_drafters" / f"LANTERN-{LUMINA}", load_target(models / "ar_image" / LUMINA))
    write_picture(base)
    write_small(models)
    write_upscaler(models / "upscale_models")
    shutil.copytree(bundled / "target", models / "ar_image" / "someone" / "copy")
    (models / "LLM" / "llama").mkdir(parents=True)
    (models / "LLM" / "llama" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    shutil.copytree(bundled / "drafter", extra / "drafters" / "mine")
    shutil.copytree(bundled / "target", extra / "targets" / "deep" / "er" / "elsewhere")
    listed = f"tests:\n  ar_image_models: {extra / 'targets'}\n  ar_image_drafters: {extra / 'drafters'}\n"
    (extra / "paths.yaml").write_text(listed, encoding="utf-8")
    options = "--preview-method", "auto", "--disable-metadata", "--extra-model-paths-config", str(extra / "paths.yaml")
    with ExitStack() as stack:
        with meter.uncounted():
            server = stack.enter_context(Comfy(release, base, {**PACKS, "moving": HERE / "moving_nodes"}, options))
        yield server


@pytest.fixture(scope="session")
def stocked_info(stocked):
    return stocked.get("/object_info")


@pytest.fixture(scope="session")
def object_info(comfy):
    return comfy.get("/object_info")


@pytest.fixture
def graph(request):
    """A prompt whose nodes can be reached by type. Tests may set its sampling's numbers."""
    small = request.node.get_closest_marker("small_models")
    return with_small_models(text_to_image()) if small else text_to_image()


@pytest.fixture(scope="session")
def template(object_info):
    """A function: a shipped workflow as a prompt."""
    from test_workflows import prompt_of

    return lambda name: prompt_of(name, object_info)
