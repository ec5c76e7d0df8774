"""Random requests for a soak test. A seed determines the requests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adt_core.app.continuation import prefix_length
from adt_core.drafters import DRAFTERS, WITH_WINDOW
from adt_core.models.target import Target
from adt_core.policies import PLAIN, POLICIES
from adt_core.settings import Lantern

from .models import BUNDLED, WITH_TEXT_ENCODER, WRITERS

KINDS = {"images": 10, "continue": 3, "list": 2, "compare": 1, "mistake": 3}
"""Weights of the kinds of requests: images of a prompt, images with a given prefix, a list of prompts, a comparison of
two settings, and an invalid request."""
MODELS = {**dict.fromkeys(WRITERS, 10), BUNDLED: 1}
"""Weights of the models, for requests that don't keep the model of the previous request."""
KEEP_MODEL = 0.6
CANCELLED = 0.2
WATCHED = 0.25
RELAXED = 0.15
"""Probabilities that a request uses the model of the previous request, is cancelled, has a browser connected to it, and
uses LANTERN."""
VALID = (WITH_TEXT_ENCODER, "a long prompt")
"""Model and mistake for which a request is valid, because this model truncates long prompts."""
NETWORK = "network"  # placeholder for the drafter network of the model
PROMPTS = ("a red house", "two boats on a lake", "fog", "a cat that sleeps in the sun", "rain over a green field")
TREES: tuple[dict[str, Any], ...] = ({}, {}, {"depth": 3, "width": 2, "drafts": 6}, {"drafts": 12, "expand_above": 0.1})
LANTERNS = Lantern(20, 0.3), Lantern(20, factor=3.0), Lantern(10, 0.5, max_substitution=0.2)


@dataclass(frozen=True)
class Request:
    """Request of one run."""

    number: int  # of the run
    kind: str  # key of KINDS
    model: str
    dtype: str
    drafter: str | None  # NETWORK (with or without a window), the name of a drafter without files, or None
    drafting: dict[str, Any]  # options of ``Drafting``
    sampling: dict[str, Any]  # options of ``Sampling``
    negative: str  # prompt
    lantern: Lantern | None
    prompts: tuple[str, ...]  # several prompts for a list, else one
    batch: int  # number of images of the prompt, or the batch size of a list
    keep: float  # share of the image's rows that are given
    cancel: float | None  # time of the cancellation, relative to the usual duration of a run, or None
    watched: bool  # whether a browser is connected
    mistake: str | None  # key of the player's mistakes, or None for a valid request

    @property
    def texts(self) -> list[str]:
        """Prompt of each image."""
        return list(self.prompts if len(self.prompts) > 1 else self.prompts * self.batch)

    @property
    def indices(self) -> list[int]:
        """Index of each image's noise: its number in the batch of its prompt, or in the list."""
        return list(range(len(self.texts)))

    def kept(self, target: Target) -> int:
        """Return the number of given tokens of an image."""
        return prefix_length(target.grid, self.keep)

    @property
    def outcomes(self) -> set[str]:
        """Permitted outcomes."""
        if self.mistake:
            return {"refused"}
        return {"finished"} if self.cancel is None else {"finished", "cancelled"}


def requests(seed: int, count: int, dtypes: Sequence[str], mistakes: Sequence[str]) -> Iterator[Request]:
    """Yield random requests.

    Args:
        dtypes: Dtypes to choose from; the bundled model always uses the first.
    """
    draw = random.Random(seed)
    model = dtype = ""
    for number in range(count):
        if not model or draw.random() > KEEP_MODEL:
            (model,) = draw.choices(list(MODELS), list(MODELS.values()))
            dtype = dtypes[0] if model == BUNDLED else draw.choice(dtypes)
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        method, drafter = _method_and_drafter(draw)
        drafting = {"method": method, "proposal": draw.choice(["coupled", "top-k"]), **draw.choice(TREES)}
        yield Request(
            number,
            kind,
            model,
            dtype,
            drafter,
            drafting,
            _sampling(draw, kind),
            draw.choice(["", "", "a dog"]),
            draw.choice(LANTERNS) if draw.random() < RELAXED else None,
            tuple(draw.sample(PROMPTS, draw.randint(2, 4) if kind == "list" else 1)),
            1 if kind == "compare" else draw.randint(1, 4),
            draw.uniform(0.1, 0.95) if kind == "continue" else 0.0,
            draw.random() if kind != "mistake" and draw.random() < CANCELLED else None,
            draw.random() < WATCHED,
            draw.choice([one for one in mistakes if (model, one) != VALID]) if kind == "mistake" else None,
        )


def _method_and_drafter(draw: random.Random) -> tuple[str, str | None]:
    """Return a drafting method and a drafter that it supports."""
    method = draw.choice(list(POLICIES))
    if POLICIES[method].needs_network:
        return method, NETWORK
    return method, draw.choice([NETWORK, NETWORK + WITH_WINDOW, *DRAFTERS, *([None] if method == PLAIN else [])])


def _sampling(draw: random.Random, kind: str) -> dict[str, Any]:
    """Return options of ``Sampling``. Lists have few variants, so that some resume an earlier batch folder."""
    if kind == "list":
        return {"seed": draw.randrange(3), "guidance_scale": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return {
        "seed": draw.randrange(2**63),
        "guidance_scale": draw.choice([1.0, 1.5, 3.0, 3.0]),
        "temperature": draw.choice([0.0, 0.8, 1.0, 1.0]),
        "top_k": draw.choice([0, 0, 20]),
        "top_p": draw.choice([1.0, 1.0, 0.9]),
    }
