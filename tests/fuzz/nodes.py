"""Fuzzer for prompts to a ComfyUI server.

It tries any value of any input of this pack's nodes, and links to wrong outputs.
"""

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

from .strategies import NUMBERS, ODD, TEXTS
from .watch import TIMEOUT, Hung

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = [
    *("text to image (start here)", "batch of prompts with report", "compared with no drafting"),
    *("continue a picture", "relaxed acceptance (LANTERN)"),
]
WRITABLE = {"output", "temp", "user"}  # folders in which the server may write
SERVER_FILES = {"comfyui.db", "comfyui.db.lock", "comfyui.db-wal", "comfyui.db-shm", "server.log"}
CYCLE = "DependencyCycleError"  # ComfyUI's error for a prompt with cyclic links


@contextmanager
def nodes(folder: Path) -> Iterator[Callable]:
    """Start a server with small models and yield a function that tries one prompt."""
    sys.path.insert(0, str(ROOT / "tests" / "workflow"))
    from comfy_server import NEWEST, PACKS, Comfy
    from convert import to_prompt

    base = folder / "comfyui"
    target = write_tiny_checkpoint(base / "models" / "ar_image" / "tiny", scale=3.0)
    write_tiny_drafter(base / "models" / "ar_image_drafters" / "tiny", target)
    (base / "input").mkdir()
    (folder / "cache").mkdir()  # the folder for learned costs, which the server may write
    (base / "input" / "list.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (base / "secret.txt").write_text("a secret\n", encoding="utf-8")
    with Comfy(NEWEST, base, PACKS) as server:
        server.post("/settings/Comfy.TutorialCompleted", True)
        known = server.get("/object_info")
        prompts = [to_prompt(_small(ROOT / "workflows" / f"ADT-Tree {name}.json"), known) for name in WORKFLOWS]
        outputs = {kind: len(node["output"]) for kind, node in known.items()}
        before = _files(base)

        def try_input(data) -> None:
            try:
                _try(server, changed(data.draw, prompts, outputs))
            finally:
                assert server.process.poll() is None, "the server has ended"
                assert _files(base) == before, f"files were created or deleted: {_files(base) ^ before}"

        yield try_input


def _small(path: Path) -> dict:
    """Return a workflow of the pack with the small models."""
    workflow = json.loads(path.read_text(encoding="utf-8"))
    for node in workflow["nodes"]:
        if node["type"] in ("ADTTreeModelLoader", "ADTTreeDrafterLoader"):
            node["widgets_values"][0] = "tiny"
        if node["type"] == "LoadImage":
            node["widgets_values"][0] = "example.png"
    return workflow


def _files(base: Path) -> set[str]:
    """Return all files that the server must not change, in the server's folder and next to this folder."""
    inside = {path for path in base.rglob("*") if path.relative_to(base).parts[0] not in WRITABLE | SERVER_FILES}
    return {str(path) for path in {*inside, *base.parent.iterdir()} if "custom_nodes" not in path.parts}


SLOW = {"model", "count"}  # inputs that are never removed, because with their defaults a run needs minutes


def changed(draw: Callable, prompts: list[dict], outputs: dict[str, int]) -> dict:
    """Return a prompt with one or two replaced or missing inputs of this pack's nodes.

    Args:
        draw: Hypothesis's ``draw``.
        outputs: Number of outputs of each kind of node. Links go only to outputs that exist, because ComfyUI 0.30.0
            crashes on links to an output with a higher number.
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
        if value is not None:
            inputs[name] = value
        elif name not in SLOW:
            inputs.pop(name, None)
    return prompt


def _try(server, prompt: dict) -> None:
    """Run a prompt.

    Raises:
        AdtError: If the prompt was refused or failed with an error message.
        AssertionError: If a node of this pack failed in another way.
        Hung: If the prompt was not finished in time.
    """
    from comfy_server import Refused

    began = time.monotonic()
    try:
        number = server.queue(prompt)
    except Refused as refused:
        raise AdtError(" ".join(" | ".join(refused.details or ["refused"]).split())[:1000]) from None
    finally:
        assert time.monotonic() - began < TIMEOUT / 2, "validation blocked the server"
    while not (entry := server.get(f"/history/{number}").get(number)):
        if time.monotonic() - began > TIMEOUT:
            server.post("/interrupt", {})
            raise Hung
        time.sleep(0.01)
    failures = [data for kind, data in entry["status"]["messages"] if kind == "execution_error"]
    for data in failures:
        message = f"{data['node_type']}: {data['exception_type']}: {data['exception_message']}"
        ours = data["node_type"].startswith("ADTTree") and not data["exception_type"].endswith(CYCLE)
        assert not ours or data["exception_type"].endswith("AdtError"), f"{message}\n{''.join(data['traceback'][-2:])}"
        raise AdtError(" ".join(message.split())[:1000])
