"""Figures on *auto* and on half precision."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import torch

from adt_core import Decoding, Pipeline, Recipe, load_drafter, load_target
from adt_core.policies import PLAIN
from adt_core.run import race

from ..auto import METHODS, cells, measure, workers
from ..harness import SAMPLING, captions
from ..tables import estimate, table
from . import FigurePart

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
    columns = ["prompts", "method", "speed-up over plain", "ratio of totals", "lowest of an image", "identical"]
    rows = ([SETS[kind], *rest] for kind, _, *rest in map(cells, lines))
    return {"auto": table(columns, rows)}


HALF = {
    "plain": METHODS[PLAIN],
    "window, a chain": METHODS["chain of 16"],
    "ADT-Tree": METHODS["ADT-Tree"],
    "network and window": METHODS["network and window, 24"],
}
MODES = {"on": True, "off": False}


def _decode_one(pipeline: Pipeline, prompt: str) -> Decoding:
    return pipeline.decoding([prompt]).run()


def measure_half(count: int) -> list[dict]:
    """Measure plain decoding and other methods in bfloat16, with the batch-invariant mode on and off."""
    prompts = captions(3600, count)
    pipelines = {}
    for mode, exact in MODES.items():
        target = load_target(dtype=torch.bfloat16, exact=exact)
        for name, (drafter, drafting) in HALF.items():
            pipelines[name, mode] = Pipeline(target, Recipe(SAMPLING, drafting), load_drafter(drafter, target))
    race.warm_up(pipeline.decoding(prompts[:1]) for pipeline in pipelines.values())
    runs = {(name, mode): partial(_decode_one, pipelines[name, mode]) for name, mode in product(HALF, MODES)}
    results = list(race.by_tasks(runs, prompts))
    seconds = {key: [result[key].trace.report()["seconds"] for result in results] for key in pipelines}
    lines = []
    for name, mode in product(HALF, MODES):
        line = {"method": name, "exact": mode, "seconds": float(np.median(seconds[name, mode]))}
        line["times"] = race.speedup(seconds["plain", mode], seconds[name, mode])
        line["cost"] = race.speedup(seconds[name, "on"], seconds[name, "off"]) if MODES[mode] else None
        identical = sum(result[name, mode].codes.equal(result["plain", mode].codes) for result in results)
        lines.append(line | {"same": f"{identical} of {count}"})
    return lines


def tables_of_half(lines: list[dict]) -> dict[str, str]:
    """Return a table with the name ``half``, and a short text with the name ``exact``. See `FigurePart.tables`.

    The text is the range of the cost of the batch-invariant mode: decoding time with the mode divided by decoding time
    without it.
    """
    columns = ["method", "exact", "seconds per image", "speed-up over plain", "seconds, on / off", "identical"]
    rows = []
    for line in lines:
        intervals = estimate(line["times"]), estimate(line["cost"])
        rows.append((line["method"], line["exact"], line["seconds"], *intervals, line["same"]))
    costs = [line["cost"][0] for line in lines if line["cost"]]
    return {"half": table(columns, rows), "exact": f"{min(costs):.2f} to {max(costs):.2f}"}


PARTS = {"auto": FigurePart(8, measure_auto, tables_of_auto), "half": FigurePart(8, measure_half, tables_of_half)}
