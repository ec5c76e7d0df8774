"""Computed tables of docs/models.md: models whose layers are streamed to a graphics card.

    python -m benchmarks.streamed           print both tables
    python -m benchmarks.streamed --write   write them into docs/models.md

No time here was measured. The first table says what happens with each published model on cards of several sizes. The
second table is a model of time: the real order of copies and computations (`LayerStream`) runs on a clock that only
counts. A layer computes as long as the card needs to read its weights or to multiply, whichever takes longer. The
method *auto* chooses with its built-in estimates, and its tokens per pass are those that these estimates expect.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from torch import nn

from adt_core.drafters.jacobi import JacobiDrafter
from adt_core.drafters.merged import MergedDrafter
from adt_core.files import write
from adt_core.models.batch_invariance import TILE
from adt_core.models.load import find_published
from adt_core.models.streamed import BANDWIDTH, LayerStream, spread
from adt_core.policies import DraftMode
from adt_core.policies.auto import SIZES, STREAMED_SIZE, Auto, sizes_of
from adt_core.policies.cost_model import IDLE, CostModel

from .harness import ROOT
from .tables import table

DOCUMENT = ROOT / "docs" / "models.md"
WEIGHTS = {"bfloat16": 2.0, "int8": 8.11 / 8, "int4": 4.5 / 8}  # weights -> bytes per weight of the layers' matrices
LAYERS = {"Janus-Pro-1B": 24, "Janus-Pro-7B": 30, "Lumina-mGPT-7B-768": 32, "Emu3-Gen-hf": 32, "GLM-Image": 40}
"""Models of the first table -> number of layers."""
CARDS = 6, 8, 12, 16, 24
RESERVED = 1.0
"""Memory of cards in GiB, and how much of it is not available: for the system, and what ComfyUI keeps free. It is an
assumption."""
BATCH_ROWS = 2  # rows of a batch per image with guidance


class Card(NamedTuple):
    """Published figures of a card: bytes per second of its memory, and operations per second of its matrix products."""

    memory: float
    products: float


READ_SHARE = 0.8  # assumed share of the published memory bandwidth that a pass reaches
PRODUCT_SHARE = 0.5  # assumed share of the published matrix products
GPUS = {"RTX 3060": Card(360e9, 25.6e12), "RTX 4090": Card(1008e9, 165.2e12)}


class Weights(NamedTuple):
    """Weights of a model in GiB."""

    layers: int  # their number
    layer: float  # size of a layer
    total: float  # memory that the model needs with all weights on the card, with caches and all other modules
    parameters: float  # of a layer

    def streamed(self, available: float) -> int | None:
        """Return how many layers are streamed with an available memory in GiB; None if it is too small."""
        if self.total <= available:
            return 0
        count = max(3, ceil((self.total - available) / self.layer) + 2)  # two layers are the buffers
        return count if count <= self.layers else None


def weights_of(name: str, kind: str) -> Weights:
    """Return the weights of a published model. The size of its layers follows from the table of docs/models.md."""
    row = find_published(name)
    assert row is not None
    total = dict(zip(WEIGHTS, row.memory))
    matrices = (total["bfloat16"] - total["int4"]) / (WEIGHTS["bfloat16"] - WEIGHTS["int4"]) / LAYERS[name]
    return Weights(LAYERS[name], matrices * WEIGHTS[kind], total[kind], matrices * 2**30)


# ---- what happens on which card --------------------------------------------------------------------------------------


def cards_table() -> str:
    """Return the table of models, weights and cards in Markdown."""
    names = "model", "weights", *(f"{size} GB" for size in CARDS), "streamed layers need in main memory"
    rows = []
    for name in LAYERS:
        for kind in WEIGHTS:
            weights = weights_of(name, kind)
            cells = [_what_happens(weights, size) for size in CARDS]
            counts = [weights.streamed(size - RESERVED) or 0 for size in CARDS]
            most = f"up to {max(counts) * weights.layer:.1f} GiB" if any(counts) else ""
            rows.append((name, kind, *cells, most))
    return table(names, rows)


def _what_happens(weights: Weights, size: float) -> str:
    count = weights.streamed(size - RESERVED)
    if count is None:
        return "too small"
    if not count:
        return "fits"
    seconds = count * weights.layer * 2**30 / BANDWIDTH
    share = 1 - count / weights.layers
    return f"{100 * share:.0f} % of the layers, {seconds:.2f} s"


# ---- a model of time -------------------------------------------------------------------------------------------------


class Clock:
    """Lane of a :class:`LayerStream` that counts time instead of copying, in seconds."""

    def __init__(self, seconds: float):
        """Start at 0. `seconds` is the time to copy a layer."""
        self.now = 0.0  # time at which the computations end that were launched so far
        self._seconds = seconds
        self._copied = 0.0
        self._ready = [0.0, 0.0]

    def fetch(self, slot: int, fetch: object) -> None:
        self._copied = max(self._copied, self.now) + self._seconds
        self._ready[slot] = self._copied

    def wait(self, slot: int) -> None:
        self.now = max(self.now, self._ready[slot])


class Pass(NamedTuple):
    """Times of a pass through the layers, of all its copies, and of all its computations, in seconds."""

    seconds: float
    copying: float
    computing: float

    @property
    def overlap(self) -> float:
        """Share of the shorter of copying and computing during which the other happens too."""
        shorter = min(self.copying, self.computing)
        return (self.copying + self.computing - self.seconds) / shorter if shorter else 1.0


def pass_of(weights: Weights, count: int, card: Card, nodes: int) -> Pass:
    """Return the times of a pass.

    Args:
        count: Number of streamed layers.
        nodes: Tokens per row of the batch.
    """
    size = weights.layer * 2**30
    rows = ceil(BATCH_ROWS * nodes / TILE["cuda"]) * TILE["cuda"]
    read = size / (READ_SHARE * card.memory)
    compute = max(read, 2 * weights.parameters * rows / (PRODUCT_SHARE * card.products))
    copy = size / BANDWIDTH
    layers = [nn.Identity() for _ in range(weights.layers)]
    fetches = {layers[index]: id for index in (spread(weights.layers, count) if count else ())}
    clock = Clock(copy)
    for _ in LayerStream([nn.Identity(), nn.Identity()], int(size), fetches, clock).over(layers):
        clock.now += compute
    return Pass(clock.now, count * copy, weights.layers * compute)


class Choice(NamedTuple):
    """Draft mode and number of drafts that *auto* prefers, with the expected tokens per pass and seconds per round."""

    mode: str
    drafts: int
    tokens: float
    seconds: float


def choice_of(
    weights: Weights, count: int, card: Card, modes: Sequence[DraftMode], temperature: float
) -> tuple[float, Choice]:
    """Return the seconds of a round without drafts, and what *auto* chooses for an image without a history."""
    plain = pass_of(weights, count, card, 1).seconds
    resident = pass_of(weights, 0, card, 1).seconds
    copy = weights.layer * 2**30 / BANDWIDTH
    slowdown = max(1.0, copy / (weights.layer * 2**30 / (READ_SHARE * card.memory)) * count / weights.layers)
    model = CostModel("computed", 1, modes, False, BATCH_ROWS, TILE["cuda"], "", temperature)
    profile = replace(model, slowdown=slowdown).profile(Auto.sizes)
    choices = []
    for mode in modes:
        gain = profile.gains[mode.name]
        for drafts in sizes_of(mode, replayed=True, most=STREAMED_SIZE if count else SIZES[-1]):
            drafting = (IDLE - 1 + mode.gpu_cost.fixed + mode.gpu_cost.each * drafts) * resident
            seconds = pass_of(weights, count, card, drafts + 1).seconds + drafting
            tokens = 1 + gain * mode.expected_accepted(drafts)
            choices.append((tokens / profile.cost(mode.name, drafts), Choice(mode.name, drafts, tokens, seconds)))
    return plain, max(choices)[1]


NAMES = (
    *("card", "layers streamed", "drafter", "overlap: plain", "seconds an image: plain", "auto chooses"),
    *("tokens per pass", "overlap: auto", "seconds an image: auto", "speed-up"),
)
MODEL = "Janus-Pro-7B"
TOKENS = 576
AVAILABLE = 8 - RESERVED


def times_table() -> str:
    """Return the table of times for `MODEL` in bfloat16 in Markdown, with 8 GiB and with enough memory."""
    weights = weights_of(MODEL, "bfloat16")
    streamed = weights.streamed(AVAILABLE)
    assert streamed is not None
    rows = []
    for name, card in GPUS.items():
        for count in (streamed, 0):
            for title, modes in (("jacobi", JacobiDrafter.modes), ("network and window", MergedDrafter.modes)):
                plain, best = choice_of(weights, count, card, modes, temperature=1.0)
                passes = [pass_of(weights, count, card, nodes) for nodes in (1, best.drafts + 1)]
                overlaps = [f"{100 * times.overlap:.0f} %" if count else "" for times in passes]
                seconds = TOKENS * plain, TOKENS / best.tokens * best.seconds
                plain_cells = overlaps[0], f"{seconds[0]:.0f}", f"{best.mode}, {best.drafts} drafts"
                cells = best.tokens, overlaps[1], f"{seconds[1]:.0f}", f"{seconds[0] / seconds[1]:.1f}"
                rows.append((name, f"{count} of {weights.layers}", title, *plain_cells, *cells))
    return table(NAMES, rows)


# ---- document --------------------------------------------------------------------------------------------------------

TABLES = {"cards": cards_table, "times": times_table}


def written(document: str) -> str:
    """Return a document with the current tables between its marks."""
    for name, make in TABLES.items():
        begin = f"<!-- streamed: {name} -->\n"
        end = f"\n<!-- /streamed: {name} -->"
        before, rest = document.split(begin)
        document = before + begin + make() + end + rest.split(end)[1]
    return document


def main() -> None:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/models.md")
    if parser.parse_args().write:
        write(DOCUMENT, written(DOCUMENT.read_text(encoding="utf-8")).encode())
    else:
        print("\n\n".join(make() for make in TABLES.values()))


if __name__ == "__main__":
    main()
