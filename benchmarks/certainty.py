"""The target's certainty by region of the image, and what its measurement costs.

    python -m benchmarks.certainty [--captions 64] [--temperature 1]     regions
    python -m benchmarks.certainty --cost [--captions 8]                 cost

*Certainty* is the target's probability of the most probable token. The ADT-Tree paper (arXiv 2512.21857, Figures 4, 5
and 9) observes that the distribution is flat in simple regions and sharp in complex ones. Here, the detail of a cell is
the standard deviation of the brightness of its pixels, and the cells of an image are divided into three equal parts by
their detail. All numbers are medians over the captions with a 95 % bootstrap interval.

The cost is processor time of one thread, which depends less on the load of the machine than seconds do. Two decodings
of an image take turns after every round, one of them without the certainty. Both run the same rounds, so each round is
a pair.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from adt_core import Drafting, Pipeline
from adt_core.engine import round as engine_round
from adt_core.lab.presets import PRESETS
from adt_core.policies import ADT_TREE, PLAIN
from adt_core.run import race
from adt_core.trace import rank_correlation

from .harness import BUNDLED, SAMPLING, bundled, captions
from .tables import header, row

PARTS = ("least detail", "medium detail", "most detail")


def pipeline(drafting: Drafting, temperature: float) -> Pipeline:
    """Return the bundled model with a method and a temperature."""
    loaded = bundled()
    sampling = replace(SAMPLING, temperature=temperature)
    return replace(loaded, recipe=replace(loaded.recipe, sampling=sampling, drafting=drafting))


def detail(image: Image.Image, rows: int, columns: int) -> np.ndarray:
    """Return the standard deviation of the brightness (0 to 255) of the pixels of each cell, [rows * columns]."""
    pixels = np.asarray(image.convert("L"), dtype=float)
    height = pixels.shape[0] // rows
    width = pixels.shape[1] // columns
    cells = pixels.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows * columns, -1)
    return cells.std(1)


def regions(prompts: list[str], temperature: float) -> None:
    """Decode the captions with ADT-Tree, and print a table."""
    pipe = pipeline(PRESETS[ADT_TREE].drafting, temperature)
    columns: dict[str, list[float]] = {}
    for prompt in prompts:
        result = pipe.generate(prompt)
        trace = result.trace
        cells = detail(result.image, *trace.grid)[1:]  # the prefill decodes the first token
        certain, emitted = (np.ravel(trace.token_map(figure))[1:] for figure in ("certainty", "acceptance"))
        figures = {
            "rank correlation of certainty and detail": rank_correlation(certain, cells),
            "rank correlation of certainty and accepted drafts": trace.certainty_correlation(),
            "rank correlation of detail and accepted drafts": rank_correlation(cells, emitted),
        }
        thirds = np.array_split(np.argsort(cells, kind="stable"), len(PARTS))
        for name, part in zip(PARTS, thirds):
            figures[f"certainty, {name}"] = float(certain[part].mean())
            figures[f"tokens per target pass, {name}"] = float(1 / (1 / emitted[part]).mean())
        for name, value in figures.items():
            columns.setdefault(name, []).extend([] if value is None else [value])
    print(header(f"temperature {temperature:g}", "median over the captions (95 % CI)", "captions"))
    for name, values in columns.items():
        print(row(name, str(race.median(values)), len(values)), flush=True)


def without(z: torch.Tensor) -> torch.Tensor:
    """Return ones. It replaces `sampling.certainty`."""
    return torch.ones((*z.shape[:-1], 2), dtype=torch.long)


def cost(prompts: list[str]) -> None:
    """Print the processor time per round with certainty, and its ratio to the time without it."""
    torch.set_num_threads(1)
    print(header("method", "ms per round", "with / without (95 % CI)", "rounds"))
    for method in (PLAIN, ADT_TREE):
        pipe = pipeline(PRESETS[method].drafting, 1.0)
        pairs = [pair for prompt in prompts for pair in _pairs(pipe, prompt)]
        own, other = zip(*pairs)
        print(row(method, 1000 * float(np.median(own)), race.speedup(own, other).text(3), len(pairs)), flush=True)


def _pairs(pipe: Pipeline, prompt: str) -> list[tuple[float, float]]:
    """Return the processor time of each round of an image in seconds, with and without certainty."""
    decodings = [pipe.decoding([prompt]) for _ in range(2)]
    running = [iter(decoding) for decoding in decodings]
    pairs = []
    for number in range(decodings[0].length):
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            with patch.object(engine_round, "certainty", without if which else engine_round.certainty):
                began = time.process_time()
                is_running = next(running[which], None) is not None
                took[which] = time.process_time() - began
        if not is_running:
            break
        pairs.append((took[0], took[1]))
    assert decodings[0].grid_codes().equal(decodings[1].grid_codes())
    return pairs[8:]  # the first rounds are slow


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    prompts = captions(BUNDLED, args.captions)
    if args.cost:
        cost(prompts)
    else:
        regions(prompts, args.temperature)


if __name__ == "__main__":
    main()
