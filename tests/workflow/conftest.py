"""Fixtures with running ComfyUI servers, which all tests of this folder share.

The tests run on the oldest and the newest supported version of ComfyUI. The fixture ``comfy`` is a server with small
models. The fixture ``stocked`` is a second server, with every model that the templates name. In the default tier, only
tests marked ``smoke`` run, on the newest version. With ``--all``, every test runs on both versions.
"""

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from comfy_server import FLOOR, NEWEST, NEWEST_FRONTEND, PACKS, ROOT, Comfy  # noqa: E402
from convert import text_to_image  # noqa: E402
from small import with_small_models, write_picture, write_small, write_upscaler  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "small_models: use the small models instead of the bundled ones, see small.py")


def pytest_itemcollected(item):
    """Mark tests that need a server as ``long``, except ``smoke`` tests on the newest ComfyUI."""
    release = item.callspec.params.get("release") if hasattr(item, "callspec") else None
    if release is not None and (release != NEWEST or not item.get_closest_marker("smoke")):
        item.add_marker("long")


@pytest.fixture(scope="session", params=[NEWEST, FLOOR], ids=lambda release: f"comfyui-{release.version}")
def release(request):
    return request.param


@pytest.fixture(scope="session")
def comfy(release, served):
    """Running server that sends previews. If the server can't start, the test fails; it isn't skipped."""
    return served(release, NEWEST_FRONTEND if release == NEWEST else None)


@pytest.fixture(scope="session")
def stocked(release, tmp_path_factory, meter):
    """Running server with models and drafters in all folders where users can store them.

    The server has a small random model for every published model, with the published name. It also has copies of the
    bundled model in the user's folders. Weights are loaded and unloaded as on a GPU. Images contain no metadata.
    """
    from adt_core import load_target
    from tests.drafted import write_drafter
    from tests.layouts.llamagen import write_upstream
    from tests.layouts.published import LUMINA, write_published

    base, extra = (tmp_path_factory.mktemp(f"{name}-{release.version}") for name in ("stocked", "extra"))
    models = base / "models"
    bundled = ROOT / "adt_core" / "bundled"
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
    yield from Comfy.started(meter, release, base, {**PACKS, "moving": HERE / "moving_nodes"}, options)


@pytest.fixture(scope="session")
def stocked_info(stocked):
    return stocked.get("/object_info")


@pytest.fixture(scope="session")
def object_info(comfy):
    return comfy.get("/object_info")


@pytest.fixture
def graph(request):
    """Text-to-image prompt as a `Graph`, which finds nodes by their type."""
    small = request.node.get_closest_marker("small_models")
    return with_small_models(text_to_image()) if small else text_to_image()


@pytest.fixture(scope="session")
def template(object_info):
    from test_workflows import prompt_of

    return lambda name: prompt_of(name, object_info)
