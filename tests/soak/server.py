"""Player that runs requests as prompts in a ComfyUI server.

During some requests a browser is connected. Some requests are interrupted.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path

import safetensors.torch
import torch
from comfy_server import NEWEST, PACKS, Comfy, Failed, Refused
from convert import Graph

from adt_core.models.target import Target
from adt_core.run.images import read_settings

from .loop import ROUNDED, Outcome
from .mix import Request
from .models import load
from .prompts import MISTAKES, graph_of

STOCK = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
    "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
}
"""Prompt without nodes of this pack."""


class Server:
    """Player for a server (:class:`.loop.Player`)."""

    dtypes = ("float32", "bfloat16", "int8 weights")
    mistakes = {name: words for name, (words, _) in MISTAKES.items()}

    def __init__(self, folder: Path):
        self._comfy = Comfy(NEWEST, folder, PACKS, ("--preview-method", "auto"))
        self._targets: dict[tuple[str, str], Target] = {}
        self._usual_seconds = 1.0  # moving average of the duration of a run

    def __enter__(self) -> Server:
        self._comfy.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._comfy.__exit__(*error)

    @cached_property
    def pid(self) -> int:
        return self._comfy.process.pid

    def play(self, request: Request) -> Outcome:
        graph = graph_of(request)
        began = time.monotonic()
        try:
            with self._comfy.socket() if request.watched else nullcontext() as browser:
                prompt_id = self._comfy.queue(graph.prompt, browser and browser.id)
                if request.cancel is not None:
                    time.sleep(request.cancel * self._usual_seconds)
                    self._comfy.post("/interrupt", {})
                outputs = self._comfy.wait(prompt_id)
        except Refused as refused:
            return Outcome("refused", " ".join(refused.details) or str(refused))
        except Failed as failed:
            return Outcome("cancelled" if failed.kind == "execution_interrupted" else "refused", failed.message)
        self._usual_seconds += 0.1 * (time.monotonic() - began - self._usual_seconds)
        return self._finished(request, graph, outputs)

    def _finished(self, request: Request, graph: Graph, outputs: dict) -> Outcome:
        if request.kind == "compare":
            report = outputs[graph.id("PreviewAny")]["text"][0]
            may_differ = request.lantern is not None or request.dtype in ROUNDED
            passed = "every token is the same" in report or may_differ
            return Outcome("finished" if passed else "failed", report)
        if request.kind == "list":
            folder = self._comfy.base / "output"
            files = outputs[graph.id("ADTTreeBatchSampler")]["images"]
            paths = [folder / file["subfolder"] / file["filename"] for file in files]
            tokens = torch.tensor([read_settings(path)["tokens"] for path in paths])
            return Outcome("finished", codes=tokens.flatten(1))
        (latent,) = self._comfy.files(outputs, "latents")
        vectors = safetensors.torch.load(latent)["latent_tensor"]
        return Outcome("finished", codes=self.target(request).codec.nearest(vectors).flatten(1))

    def target(self, request: Request) -> Target:
        key = (request.model, request.dtype)
        if key not in self._targets:
            self._targets[key] = load(self._comfy.base / "models", *key)
        return self._targets[key]

    def rest(self) -> None:
        """Clear the server's history and cache.

        The server frees memory when it is idle and after each prompt. Therefore, two prompts are run.
        """
        self._comfy.post("/history", {"clear": True})
        self._comfy.post("/free", {"unload_models": True, "free_memory": True})
        for _ in range(2):
            self._comfy.run(STOCK)
        self._comfy.get("/probe/trim")

    def errors(self) -> list[str]:
        return []
