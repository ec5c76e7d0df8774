"""Player that runs requests in this process, with the public interface of ``adt_core``."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from adt_core import AdtError, Drafting, Pipeline, Recipe, Sampling, load_drafter
from adt_core.drafters import DRAFTERS as WITHOUT_FILES
from adt_core.drafters import Drafter
from adt_core.errors import Check
from adt_core.models.target import Target

from .loop import Outcome
from .mix import NETWORK, Request
from .models import DRAFTERS, drafter_name, load, path_of

MAX_CALLS = 150
"""Maximum number of calls of ``check`` before a cancellation. The cancellation can happen during loading, during
decoding or after the end."""
LONG_PROMPT = "long " * 100
MISTAKES = {
    "no text": ("prompt", lambda request: replace(request, prompts=(" ",), batch=1)),
    "a long prompt": ("shorten it", lambda request: replace(request, prompts=(LONG_PROMPT,), batch=1)),
    "no drafter": ("needs a drafter", lambda request: replace(request, drafter=None, drafting={"method": "adt-tree"})),
    "no such method": ("choose one of", lambda request: replace(request, drafting={"method": "magic"})),
    "guidance that is no number": (
        "guidance",
        lambda request: replace(request, sampling={**request.sampling, "guidance_scale": float("nan")}),
    ),
}
"""Mistake -> (words of the error message, function that adds the mistake to a request)."""


class Cancelled(BaseException):
    """Cancellation. It isn't a subclass of Exception, as in newer versions of ComfyUI."""


class Engine:
    """Player for the engine (:class:`.loop.Player`). Like a server, it keeps one model at a time."""

    pid = os.getpid()
    dtypes = ("float64", "bfloat16")
    mistakes = {name: words for name, (words, _) in MISTAKES.items()}

    def __init__(self, folder: Path):
        self._folder = folder
        self._model: tuple[str, str] = "", ""
        self._target: Target | None = None
        self._drafters: dict[str, Drafter] = {}
        self._random_states = _random_states()

    def play(self, request: Request) -> Outcome:
        if request.mistake:
            request = MISTAKES[request.mistake][1](request)
        try:
            return Outcome("finished", codes=self._draw(request, _check(request.cancel)))
        except Cancelled:
            return Outcome("cancelled")
        except AdtError as error:
            return Outcome("refused", str(error))

    def target(self, request: Request, check: Check | None = None) -> Target:
        if self._target is None or self._model != (request.model, request.dtype):
            self.rest()
            self._target = load(self._folder, request.model, request.dtype, check)
            self._model = request.model, request.dtype
        return self._target

    def rest(self) -> None:
        self._target = None
        self._drafters.clear()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # otherwise, resident memory would stay at its peak

    def errors(self) -> list[str]:
        names = [name for name, state in _random_states().items() if state != self._random_states[name]]
        return [f"The global random state of {name} has changed." for name in names]

    def _draw(self, request: Request, check: Check) -> torch.Tensor:
        """Return the codes [B, tokens] of a request's images."""
        target = self.target(request, check)
        sampling = Sampling(**request.sampling)
        drafting = Drafting.of(request.drafting)
        recipe = Recipe(sampling, drafting, request.lantern, negative_prompt=request.negative)
        pipeline = Pipeline(target, recipe, self._drafter(request, target, check))
        generator = torch.Generator().manual_seed(request.number)
        kept = torch.randint(target.num_codes, (len(request.texts), request.kept(target)), generator=generator)
        decoding = pipeline.decoding(request.texts, request.indices, request.batch, kept, check)
        with closing(decoding.finished()) as running:
            for finished in running:
                for image in finished[:1]:
                    pipeline.target.pixels(decoding.grid_codes()[image][None], check)
        return decoding.grid_codes().flatten(1)

    def _drafter(self, request: Request, target: Target, check: Check) -> Drafter | None:
        name = request.drafter
        if name is not None and name not in self._drafters:
            network = path_of(self._folder, DRAFTERS, drafter_name(request.model))
            path = name if name in WITHOUT_FILES else name.replace(NETWORK, network)
            self._drafters[name] = load_drafter(path, target, check)
        return None if name is None else self._drafters[name]


def _check(cancel: float | None) -> Check:
    """Return a function that cancels after `cancel` * MAX_CALLS calls. If `cancel` is None, it never cancels."""
    remaining = itertools.repeat(None) if cancel is None else iter(range(int(cancel * MAX_CALLS)))

    def check() -> None:
        if next(remaining, Cancelled) is Cancelled:
            raise Cancelled

    return check


def _random_states() -> dict[str, str]:
    """Return the global random states. The library must not change them."""
    states = {"torch": torch.get_rng_state().tolist(), "numpy": np.random.get_state(), "Python": random.getstate()}
    return {name: repr(state) for name, state in states.items()}
