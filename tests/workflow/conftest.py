"""One running ComfyUI per supported end of the version range, shared by all tests of this folder."""

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


@pytest.fixture(scope="session", params=[NEWEST, FLOOR], ids=lambda release: f"comfyui-{release.version}")
def release(request):
    return request.param


@pytest.fixture(scope="session")
def comfy(release, tmp_path_factory):
    """A server that sends previews. The test fails, and is not skipped, if there cannot be one."""
    base = tmp_path_factory.mktemp(f"comfyui-{release.version}")
    with Comfy(release, base, PACKS, ("--preview-method", "auto")) as server:
        yield server


@pytest.fixture
def object_info(comfy):
    return comfy.get("/object_info")


@pytest.fixture
def workflow():
    return json.loads((HERE / "every_socket.json").read_text(encoding="utf-8"))


@pytest.fixture
def graph(workflow, object_info):
    """The shipped workflow as a prompt whose nodes can be reached by type. Tests may set its sampling's numbers.

    It saves under a new name, because the older version does not name the files of an output that it has cached.
    """
    prompt = Graph(to_prompt(workflow, object_info)).set("ADTTreeSampler", preset="custom")
    return prompt.set("SaveImage", filename_prefix=uuid.uuid4().hex)


@pytest.fixture(scope="session")
def reference():
    """A function: what the engine alone gives for a request (see reference.py), each request worked out once."""
    known = {}

    def ask(**request) -> dict[str, np.ndarray]:
        key = json.dumps(request, sort_keys=True)
        if key not in known:
            known[key] = draw(**request)
        return known[key]

    return ask
