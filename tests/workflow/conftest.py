"""One running ComfyUI per supported end of the version range, shared by all tests of this folder."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from comfy_server import FLOOR, NEWEST, ROOT, Comfy  # noqa: E402
from convert import to_prompt  # noqa: E402

PACKS = {"ADT-Tree": ROOT, "probe": Path(__file__).parent / "probe_nodes"}


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
    return json.loads((ROOT / "workflows" / "text_to_image.json").read_text(encoding="utf-8"))


@pytest.fixture
def graph(workflow, object_info):
    """The shipped workflow as a prompt whose nodes can be reached by type."""
    return Graph(to_prompt(workflow, object_info))


class Graph:
    """A prompt in API format, with short ways to change it."""

    def __init__(self, prompt: dict):
        self.prompt = prompt

    def id(self, class_type: str, which: int = 0) -> str:
        return [key for key, node in self.prompt.items() if node["class_type"] == class_type][which]

    def inputs(self, class_type: str, which: int = 0) -> dict:
        return self.prompt[self.id(class_type, which)]["inputs"]

    def set(self, class_type: str, **inputs) -> "Graph":
        self.inputs(class_type).update(inputs)
        return self

    def drop(self, class_type: str, *inputs: str) -> "Graph":
        for name in inputs:
            del self.inputs(class_type)[name]
        return self

    def add(self, class_type: str, **inputs) -> list:
        """Add a node; returns a link to its first output."""
        key = str(max(map(int, self.prompt)) + 1)
        self.prompt[key] = {"class_type": class_type, "inputs": inputs}
        return [key, 0]

    def link(self, class_type: str, output: int = 0) -> list:
        return [self.id(class_type), output]
