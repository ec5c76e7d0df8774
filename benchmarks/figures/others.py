"""Figures on *auto*, on batches, and on half precision."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from adt_core import Decoding, Drafting, Target, load_drafter, load_target
from adt_core.app.pipeline import Pipeline
from adt_core.lab.benchmark import PRESETS
from adt_core.policies import PLAIN
from adt_core.recipe import Recipe

from ..auto import METHODS, cells, measure, workers
from ..harness import SAMPLING, bundled, captions, comparison
from ..interleaving import format_interval, interleave, median_with_interval, table
from .parts import FigurePart

SETS = {"grammar": "captions", "ordinary": "ordinary prompts"}


def measure_auto(count: int) -> list[dict]:
    """Measure *auto* and other methods on both `SETS`. Every process starts with an empty cache of costs."""
    lines = []
    for kind in SETS:
        with workers(list(METHODS)) as started:
            lines += measure(started, kind, 1, count)
    return lines


def tables_of_auto(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``auto``. See `FigurePart.tables`."""
    columns = ["prompts", "method", "speed-up over plain", "lowest of an image", "identical"]
    rows = ([SETS[kind], *rest] for kind, _, *rest in map(cells, lines))
    return {"auto": table(columns, rows)}


BATCH_SIZES = (1, 2, 4, 8, 16)
REPEATS = 2
BATCHED = {PLAIN: "plain", "auto": "auto"}


def measure_together(count: int) -> list[dict]:
    """Measure the throughput for each method and batch size.

    The results also contain how many images are equal to the images of plain decoding with batch size 1.
    """
    prompts = captions(3200, count)
    indices = list(range(count))
    pipelines = comparison({name: PRESETS[name] for name in BATCHED}, prompts).pipelines(
        bundled(), load_drafter("bundled", bundled())
    )

    def run(_: int, name: str, batch_size: int) -> tuple[float, Tensor]:
        batches = [slice(i, i + batch_size) for i in range(0, count, batch_size)]
        decodings = [pipelines[name].decoding(prompts[batch], indices[batch]).run() for batch in batches]
        seconds = sum(decoding.trace.report()["seconds"] for decoding in decodings)
        return seconds, torch.cat([decoding.codes for decoding in decodings])

    for name, batch_size in product(BATCHED, BATCH_SIZES):
        (pipelines[name].decoding(prompts[:batch_size])).warm_up()
    runs = {(name, size): partial(run, name=name, batch_size=size) for name, size in product(BATCHED, BATCH_SIZES)}
    results = list(interleave(runs, range(REPEATS)))
    single = [result[PLAIN, 1] for result in results]
    lines = []
    for name, batch_size in runs:
        measured = [result[name, batch_size] for result in results]
        times = [plain[0] / other[0] for plain, other in zip(single, measured)]
        line = {"method": name, "at once": batch_size, "times": [float(np.median(times)), min(times), max(times)]}
        line["rate"] = 60 * count / float(np.median([seconds for seconds, _ in measured]))
        identical = (measured[0][1] == single[0][1]).all(-1).sum().item()
        lines.append(line | {"same": f"{identical} of {count}"})
    return lines


def tables_of_together(lines: list[dict]) -> dict[str, str]:
    """Return the table, by its name ``together``. See `FigurePart.tables`."""
    columns = [
        "method",
        "batch size",
        "images per minute",
        "speed-up over plain decoding of single images (minimum to maximum)",
        "identical",
    ]
    rows = (
        [BATCHED[line["method"]], line["at once"], f"{line['rate']:.1f}", format_interval(line["times"]), line["same"]]
        for line in lines
    )
    return {"together": table(columns, rows)}


HALF = {
    "plain": METHODS[PLAIN],
    "window, a chain": METHODS["chain of 16"],
    "ADT-Tree": METHODS["ADT-Tree"],
    "network and window": METHODS["network and window, 24"],
}
MODES = {"on": True, "off": False}


def _decode_one(pipeline: Pipeline, prompt: str) -> Decoding:
    return pipeline.decoding([prompt]).run()


def _half_pipeline(target: Target, drafter: str, drafting: Drafting) -> Pipeline:
    return Pipeline(target, Recipe(SAMPLING, drafting), load_drafter(drafter, target))


def measure_half(count: int) -> list[dict]:
    """Measure plain decoding and other methods in bfloat16, with the batch-invariant mode on and off."""
    prompts = captions(3600, count)
    pipelines = {}
    for mode, exact in MODES.items():
        target = load_target(dtype=torch.bfloat16, exact=exact)
        pipelines |= {(name, mode): _half_pipeline(target, *options) for name, options in HALF.items()}
    for pipeline in pipelines.values():
        pipeline.decoding(prompts[:1]).warm_up()
    runs = {(name, mode): partial(_decode_one, pipelines[name, mode]) for name, mode in product(HALF, MODES)}
    results = list(interleave(runs, prompts))
    seconds = {key: np.array([result[key].trace.report()["seconds"] for result in results]) for key in pipelines}
    lines = []
    for name, mode in product(HALF, MODES):
        line = {"method": name, "exact": mode, "seconds": float(np.median(seconds[name, mode]))}
        line["times"] = median_with_interval(seconds["plain", mode] / seconds[name, mode])
        line["cost"] = median_with_interval(seconds[name, "on"] / seconds[name, "off"]) if MODES[mode] else None
        identical = sum(result[name, mode].codes.equal(result["plain", mode].codes) for result in results)
        lines.append(line | {"same": f"{identical} of {count}"})
    return lines


def tables_of_half(lines: list[dict]) -> dict[str, str]:
    """Return a table with the name ``half``, and a short text with the name ``exact``. See `FigurePart.tables`.

    The text is the range of the cost of the batch-invariant mode: decoding time with the mode divided by decoding time
    without it.
    """
    columns = ["method", "exact", "seconds per image", "speed-up over plain", "seconds, on / off", "identical"]
    rows = [
        [
            line["method"],
            line["exact"],
            line["seconds"],
            format_interval(line["times"]),
            format_interval(line["cost"]) if line["cost"] else "",
            line["same"],
        ]
        for line in lines
    ]
    costs = [line["cost"][0] for line in lines if line["cost"]]
    return {"half": table(columns, rows), "exact": f"{min(costs):.2f} to {max(costs):.2f}"}


PARTS = {
    "auto": FigurePart(6, measure_auto, tables_of_auto),
    "together": FigurePart(32, measure_together, tables_of_together),
    "half": FigurePart(3, measure_half, tables_of_half),
}
