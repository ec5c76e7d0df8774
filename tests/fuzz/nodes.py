"""Prompts for a real ComfyUI server: any value for any input of our nodes, and links to where they don't belong."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from adt_core.errors import AdtError
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

from .odd import NUMBERS, ODD, TEXTS
from .watch import LONGEST, Hung

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = [
    "ADT-Tree text to image (start here)",
    "ADT-Tree batch of prompts with report",
    "ADT-Tree compared with plain decoding",
    "ADT-Tree continue a picture",
    "ADT-Tree relaxed acceptance (LANTERN)",
]
PLACES = {"output", "temp", "user"}
"""Folders in which a server may write."""
REMAINS = {"comfyui.db", "comfyui.db.lock", "comfyui.db-wal", "comfyui.db-shm", "server.log"}

CYCLE = "DependencyCycleError"
"""ComfyUI's own, of links that go round."""


@contextmanager
def nodes(folder: Path) -> Iterator[Callable]:
    """A server with small models; yields what tries one prompt."""
    sys.path.insert(0, str(ROOT / "tests" / "workflow"))
    from comfy_server import NEWEST, PACKS, Comfy
    from convert import to_prompt

    base = folder / "comfyui"
    target = write_tiny_checkpoint(base / "models" / "ar_image" / "tiny", scale=3.0)
    write_tiny_drafter(base / "models" / "ar_image_drafters" / "tiny", target)
    (base / "input").mkdir()
    (base / "input" / "list.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (base / "secret.txt").write_text("a secret\n", encoding="utf-8")
    with Comfy(NEWEST, base, PACKS) as server:
        server.post("/settings/Comfy.TutorialCompleted", True)
        known = server.get("/object_info")
        prompts = [to_prompt(_small(ROOT / "workflows" / f"{name}.json"), known) for name in WORKFLOWS]
        outputs = {kind: len(node["output"]) for kind, node in known.items()}
        before = _files(base)

        def one(data) -> None:
            try:
                _try(server, changed(data.draw, prompts, outputs))
            finally:
                assert server.process.poll() is None, "the server has gone"
                assert _files(base) == before, f"files appeared or went: {_files(base) ^ before}"

        yield one


def _small(path: Path) -> dict:
    """A shipped workflow with the small models."""
    workflow = json.loads(path.read_text(encoding="utf-8"))
    for node in workflow["nodes"]:
        if node["type"] in ("ADTTreeModelLoader", "ADTTreeDrafterLoader"):
            node["widgets_values"][0] = "tiny"
        if node["type"] == "LoadImage":
            node["widgets_values"][0] = "example.png"
    return workflow


def _files(base: Path) -> set[str]:
    """Everything in the server's folder that is not in a place of its own, and everything beside it."""
    inside = {path for path in base.rglob("*") if path.relative_to(base).parts[0] not in PLACES | REMAINS}
    return {str(path) for path in {*inside, *base.parent.iterdir()} if "custom_nodes" not in path.parts}


SLOW = {"model", "count"}
"""Inputs that stay: what is taken where they are missing draws for minutes, as it should."""


def changed(draw: Callable, prompts: list[dict], outputs: dict[str, int]) -> dict:
    """A prompt in which one or two inputs of our nodes are others, or missing.

    outputs: how many a kind of node has. ComfyUI 0.30.0 itself ends, whatever the nodes, where a link leads beyond.
    """
    prompt = json.loads(json.dumps(draw(st.sampled_from(prompts))))
    ours = sorted(key for key, node in prompt.items() if node["class_type"].startswith("ADTTree"))
    for _ in range(draw(st.integers(1, 2))):
        inputs = prompt[draw(st.sampled_from(ours))]["inputs"]
        name = draw(st.sampled_from(sorted(inputs)) | TEXTS)
        ends = [[key, number] for key, node in prompt.items() for number in range(outputs[node["class_type"]])]
        links = st.sampled_from(ends)
        files = st.sampled_from(["list.txt", "../secret.txt", "missing.txt", "input/list.txt", "list.txt/"])
        value = draw(st.none() | NUMBERS | TEXTS | ODD | links | files | st.integers(0, 300) | st.floats(0, 100))
        if value is None and name in SLOW:
            continue
        if value is None:
            inputs.pop(name, None)
        else:
            inputs[name] = value
    return prompt


def _try(server, prompt: dict) -> None:
    """AdtError if it was refused in words. AssertionError if a node of ours ended otherwise."""
    from comfy_server import Refused

    began = time.monotonic()
    try:
        number = server.queue(prompt)
    except Refused as refused:
        raise AdtError(" ".join(" | ".join(refused.details or ["refused"]).split())[:1000]) from None
    finally:
        assert time.monotonic() - began < LONGEST / 2, "validation keeps everybody waiting"
    while not (entry := server.get(f"/history/{number}").get(number)):
        if time.monotonic() - began > LONGEST:
            server.post("/interrupt", {})
            raise Hung
        time.sleep(0.01)
    failures = [data for kind, data in entry["status"]["messages"] if kind == "execution_error"]
    for data in failures:
        said = f"{data['node_type']}: {data['exception_type']}: {data['exception_message']}"
        ours = data["node_type"].startswith("ADTTree") and not data["exception_type"].endswith(CYCLE)
        assert not ours or data["exception_type"].endswith("AdtError"), f"{said}\n{''.join(data['traceback'][-2:])}"
        raise AdtError(" ".join(said.split())[:1000])
