"""What is asked for: as many different requests as one likes, all chosen by one seeded generator."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adt_core.app.continuation import prefix_length
from adt_core.drafters import DRAFTERS, WITH_WINDOW
from adt_core.models.target import Target
from adt_core.policies import PLAIN, POLICIES
from adt_core.rules.settings import Lantern

from .models import BUNDLED, WITH_TEXT_ENCODER, WRITERS

KINDS = {"images": 10, "continue": 3, "list": 2, "compare": 1, "mistake": 3}
"""What a request may be for, and how often: images of a prompt, images that begin with given tokens, a list of prompts,
the same image in two ways, and something that can't be had."""
MODELS = {**dict.fromkeys(WRITERS, 10), BUNDLED: 1}
"""How often each model is switched to."""
STAY = 0.6
"""Share of requests that stay with the model of the one before."""
CANCELLED, WATCHED, RELAXED = 0.2, 0.25, 0.15
"""Shares of requests that are cancelled, that a browser watches, and that LANTERN serves."""
FORGIVEN = WITH_TEXT_ENCODER, "a long prompt"
"""A model, and what is no mistake for it: it reads the beginning."""
NETWORK = "network"
"""Stands for the drafter network of the model."""
PROMPTS = ("a red house", "two boats on a lake", "fog", "a cat that sleeps in the sun", "rain over a green field")
TREES: tuple[dict[str, Any], ...] = ({}, {}, {"depth": 3, "width": 2, "nodes": 6}, {"nodes": 12, "expand_above": 0.1})
LANTERNS = Lantern(20, 0.3), Lantern(20, factor=3.0), Lantern(10, 0.5, max_substitution=0.2)


@dataclass(frozen=True)
class Request:
    """One run.

    kind: a key of KINDS. drafter: NETWORK, with a window or not, or a drafter without files; None for none. drafting,
    sampling: options by their names. prompts: several for a list, else one. batch: images of the prompt, or how many of
    a list are drawn at once. keep: share of the rows that are given. cancel: when, as a share of what such runs usually
    take; None for never. mistake: what is wrong with it, if something is.
    """

    number: int
    kind: str
    model: str
    dtype: str
    drafter: str | None
    drafting: dict[str, Any]
    sampling: dict[str, Any]
    negative: str
    lantern: Lantern | None
    prompts: tuple[str, ...]
    batch: int
    keep: float
    cancel: float | None
    watched: bool
    mistake: str | None

    @property
    def texts(self) -> list[str]:
        """The prompt of each image."""
        return list(self.prompts if len(self.prompts) > 1 else self.prompts * self.batch)

    @property
    def indices(self) -> list[int]:
        """The number of each image within its prompt's batch."""
        return [0] * len(self.prompts) if len(self.prompts) > 1 else list(range(self.batch))

    def kept(self, target: Target) -> int:
        """How many cells of an image are given."""
        return prefix_length(target.grid, self.keep)

    @property
    def outcomes(self) -> set[str]:
        """How it may end."""
        if self.mistake:
            return {"refused"}
        return {"finished"} if self.cancel is None else {"finished", "cancelled"}


def requests(seed: int, count: int, dtypes: Sequence[str], mistakes: Sequence[str]) -> Iterator[Request]:
    """dtypes: to choose from, for all models but the bundled one, which has the first. mistakes: that can be made."""
    draw = random.Random(seed)
    model = dtype = ""
    for number in range(count):
        if not model or draw.random() > STAY:
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
            draw.choice([one for one in mistakes if (model, one) != FORGIVEN]) if kind == "mistake" else None,
        )


def _method_and_drafter(draw: random.Random) -> tuple[str, str | None]:
    """A method of the table, and a drafter that it works with."""
    method = draw.choice(list(POLICIES))
    if POLICIES[method].needs_network:
        return method, NETWORK
    return method, draw.choice([NETWORK, NETWORK + WITH_WINDOW, *DRAFTERS, *([None] if method == PLAIN else [])])


def _sampling(draw: random.Random, kind: str) -> dict[str, Any]:
    """Options of ``Sampling``. Lists have few different ones, so that some go on with what is there already."""
    if kind == "list":
        return {"seed": draw.randrange(3), "guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return {
        "seed": draw.randrange(2**63),
        "guidance": draw.choice([1.0, 1.5, 3.0, 3.0]),
        "temperature": draw.choice([0.0, 0.8, 1.0, 1.0]),
        "top_k": draw.choice([0, 0, 20]),
        "top_p": draw.choice([1.0, 1.0, 0.9]),
    }
