"""One running ComfyUI per supported end of the version range, shared by all tests of this folder.

The newest runs every test. The oldest runs those marked ``contract``: what touches what differs between versions of
ComfyUI. The others run there with ``dev.py test --all``.
"""

import json
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from comfy_server import FLOOR, NEWEST, PACKS, Comfy  # noqa: E402
from convert import Graph, to_prompt  # noqa: E402
from reference import draw  # noqa: E402
from small import SMALL, with_small_models, write_small  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "small_models: graph and reference are of the small models, see small.py")
    config.addinivalue_line("markers", "contract: rests on what differs between versions of ComfyUI")


def pytest_itemcollected(item):
    release = item.callspec.params.get("release") if hasattr(item, "callspec") else None
    if release == FLOOR and not item.get_closest_marker("contract"):
        item.add_marker("long")


@pytest.fixture(scope="session", params=[NEWEST, FLOOR], ids=lambda release: f"comfyui-{release.version}")
def release(request):
    return request.param


@pytest.fixture(scope="session")
def comfy(release, tmp_path_factory):
    """A server that sends previews. The test fails, and is not skipped, if there cannot be one."""
    base = tmp_path_factory.mktemp(f"comfyui-{release.version}")
    write_small(base / "models")
    with Comfy(release, base, PACKS, ("--preview-method", "auto")) as server:
        yield server


@pytest.fixture
def object_info(comfy):
    return comfy.get("/object_info")


@pytest.fixture
def workflow():
    return json.loads((HERE / "every_socket.json").read_text(encoding="utf-8"))


@pytest.fixture
def graph(request, workflow, object_info):
    """The shipped workflow as a prompt whose nodes can be reached by type. Tests may set its sampling's numbers.

    It saves under a new name, because the older version does not name the files of an output that it has cached.
    """
    prompt = Graph(to_prompt(workflow, object_info)).set("ADTTreeSampler", preset="custom")
    prompt.set("SaveImage", filename_prefix=uuid.uuid4().hex)
    return with_small_models(prompt) if request.node.get_closest_marker("small_models") else prompt


@pytest.fixture(scope="session")
def drawn():
    """What the engine alone gives for a request (see reference.py), each request worked out once."""
    known = {}

    def ask(**request) -> dict[str, np.ndarray]:
        key = json.dumps(request, sort_keys=True)
        if key not in known:
            known[key] = draw(**request)
        return known[key]

    return ask


@pytest.fixture
def reference(request, drawn, comfy):
    """The same for the models of the graph."""
    if not request.node.get_closest_marker("small_models"):
        return drawn
    folders = {"model": "ar_image", "network": "ar_image_drafters"}
    places = {name: str(comfy.base / "models" / folder / SMALL) for name, folder in folders.items()}
    return lambda **asked: drawn(**places, **asked)
