"""Is *auto* ever the wrong choice? It is held against plain decoding and against every source alone.

    python -m benchmarks.auto [--at-once 1,2,4,8] [--images 16] [--sets grammar,free,ordinary] [--repeats 1]
                              [--methods NAME,...] [--dtype float32] [--lantern] [--busy] [--json FILE]

Every method has a process of its own with an empty cache of cost profiles, and all processes take turns, batch by
batch: so the first images count, of which *auto* knows nothing. Seconds hold the prompts; loading and the image decoder
are left out. *Times plain* is plain decoding's seconds over the method's, of all images together; in brackets stands
the 95 % interval of a bootstrap over the turns, then the worst turn. Three sets of prompts:

- ``grammar``: held-out captions of the bundled model's grammar;
- ``free``: words of which it is less sure;
- ``ordinary``: prompts as people type them. No constant of *auto* was chosen on them.

Exits non-zero if *auto* misses a bar: 0.97 of the best other method and 0.98 of plain decoding on a set, 0.90 of plain
decoding on every turn. ``--busy`` keeps one core busy meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from adt_core import Drafting, load_drafter, load_target
from adt_core.app.jobs import Job, decode
from adt_core.app.loading import choose_device
from adt_core.engine.device import profiles
from adt_core.lab.benchmark import PRESETS
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from model_making.asking import PROMPTS

from .harness import RECIPE, SAMPLING, captions
from .turns import head, in_turns, row

FIRST = 3000  # held-out caption of this benchmark
FREE_WORDS = (
    "a white tent in a snowy field at night|a boat near a brick wall|an old man reading a newspaper|"
    "a glass of water on a table|two dogs running on the beach|city skyline at sunset|"
    "a portrait of a girl with a pearl earring|an astronaut riding a horse|a bowl of ramen, top view|"
    "fireworks over a harbour|an abstract painting in red and black|a cat asleep on a red sofa|"
    "a train crossing a stone bridge|a bicycle leaning against a tree|a lighthouse in a storm|the interior of a library"
).split("|")
AUTO = "auto"
METHODS: dict[str, tuple[str, Drafting]] = {
    PLAIN: ("jacobi", Drafting(PLAIN)),
    AUTO: ("bundled", Drafting(AUTO)),
    "chain of 16": ("jacobi", PRESETS["jacobi-chain"].drafting),
    "window of 24": ("jacobi", PRESETS["jacobi"].drafting),
    "network and window, 24": ("bundled+jacobi", PRESETS["merged"].drafting),
    "ADT-Tree": ("bundled", Drafting("adt-tree")),
}
"""Drafter and drafting of each method."""
OF_BEST, OF_PLAIN, OF_PLAIN_AT_WORST = 0.97, 0.98, 0.90


def prompts_of(kind: str, count: int) -> list[str]:
    """So many prompts of a set; those that are used up come again, with other noise."""
    if kind == "grammar":
        return captions(FIRST, count)
    found = FREE_WORDS if kind == "free" else [PROMPTS[7 * i % len(PROMPTS)].text for i in range(len(PROMPTS))]
    return [found[i % len(found)] for i in range(count)]


def _serve(line: Connection, method: str, dtype: str, lantern: bool) -> None:
    """A method's own process: gets prompts and the numbers of their images, sends seconds and names of the tokens."""
    drafter, drafting = METHODS[method]
    target = load_target("bundled", choose_device("auto"), getattr(torch, dtype))
    loaded = load_drafter(drafter, target) if method != PLAIN else None
    job = Job(target, Recipe(SAMPLING, drafting, RECIPE.lantern if lantern and method != PLAIN else None), loaded)
    line.send(None)
    while (task := line.recv()) is not None:
        decoding = decode(job.decoding(*task))
        names = [hashlib.sha256(codes.numpy().tobytes()).hexdigest() for codes in decoding.codes]
        line.send((decoding.trace.report()["seconds"], names))


class Worker:
    """The process of a method, which works only while it is waited for."""

    def __init__(self, method: str, dtype: str, lantern: bool):
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, method, dtype, lantern), daemon=True)
        self._process.start()
        self._line.recv()

    def __call__(self, task: tuple[list[str], list[int]]) -> tuple[float, list[str]]:
        """Seconds, and a name for the tokens of every image."""
        self._line.send(task)
        return self._line.recv()

    def close(self) -> None:
        self._line.send(None)
        self._process.join()


@contextmanager
def no_profiles() -> Iterator[None]:
    """Within it nobody knows what rounds cost here, and what is measured is not kept."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {profiles.FOLDER: folder}):
        yield


@contextmanager
def workers(methods: list[str], dtype: str = "float32", lantern: bool = False) -> Iterator[dict[str, Worker]]:
    """A fresh process for every method; none knows what rounds cost here."""
    with no_profiles(), ExitStack() as stack:
        ready = {}
        for method in methods:
            ready[method] = Worker(method, dtype, lantern)
            stack.callback(ready[method].close)
        yield ready


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """A process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ratio(plain: np.ndarray, method: np.ndarray) -> tuple[float, float, float]:
    """Ratio of all seconds, and its 95 % bootstrap interval over the turns."""
    drawn = np.random.default_rng(0).integers(len(plain), size=(2000, len(plain)))
    low, high = np.percentile(plain[drawn].sum(1) / method[drawn].sum(1), (2.5, 97.5))
    return plain.sum() / method.sum(), float(low), float(high)


def measured(methods: dict[str, Worker], kind: str, at_once: int, images: int, repeats: int = 1) -> list[dict]:
    """A line of the table for every method but plain decoding."""
    count = -(-images // at_once) * at_once
    prompts, numbers = prompts_of(kind, count), list(range(count))
    tasks = [(prompts[i : i + at_once], numbers[i : i + at_once]) for i in range(0, count, at_once)]
    turns = list(in_turns(methods, tasks * repeats))
    plain, names = np.array([turn[PLAIN][0] for turn in turns]), [turn[PLAIN][1] for turn in turns]
    lines = []
    for method in list(methods)[1:]:
        seconds = np.array([turn[method][0] for turn in turns])
        times, low, high = ratio(plain, seconds)
        line = {"kind": kind, "at once": at_once, "method": method, "times": times, "low": low, "high": high}
        same = sum(a == b for turn, expected in zip(turns, names) for a, b in zip(turn[method][1], expected))
        lines.append(line | {"worst": (plain / seconds).min(), "identical": f"{same} of {count * repeats}"})
    return lines


def missed(lines: list[dict]) -> list[str]:
    """What *auto* misses on one set, in words."""
    auto = next(line for line in lines if line["method"] == AUTO)
    best = max((line for line in lines if line["method"] != AUTO), key=lambda line: line["times"], default=auto)
    bars = [
        (auto["times"] / best["times"], OF_BEST, f"of {best['method']}"),
        (auto["times"], OF_PLAIN, "of plain decoding"),
        (auto["worst"], OF_PLAIN_AT_WORST, "of plain decoding on its worst turn"),
    ]
    where = f"{auto['kind']}, {auto['at once']} at once"
    return [f"{where}: {share:.3f} {what}, the bar is {bar}" for share, bar, what in bars if share < bar]


COLUMNS = ("prompts", "at once", "method", "times plain", "worst turn", "identical")


def cells(line: dict) -> list[object]:
    """A line of the table, by COLUMNS."""
    times = "{times:.2f} ({low:.2f} to {high:.2f})".format(**line)
    return [line["kind"], line["at once"], line["method"], times, float(line["worst"]), line["identical"]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--sets", default="grammar,free,ordinary")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--methods", default=",".join(method for method in METHODS if method != PLAIN))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lantern", action="store_true", help="relaxed acceptance for all but plain decoding")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    methods = [PLAIN, *re.split(r",(?! )", args.methods)]
    print(f"{args.dtype}, torch {torch.__version__}, {args.images} images, {args.repeats} repeats\n")
    print(head(*COLUMNS))
    lines, said = [], []
    for at_once, kind in product([int(size) for size in args.at_once.split(",")], args.sets.split(",")):
        with workers(methods, args.dtype, args.lantern) as ready, busy_neighbour() if args.busy else nullcontext():
            found = measured(ready, kind, at_once, args.images, args.repeats)
        for line in found:
            print(row(*cells(line)), flush=True)
        lines, said = lines + found, said + missed(found)
    if args.json:
        args.json.write_text(json.dumps(lines), encoding="utf-8")
    if said:
        sys.exit("auto misses: " + "; ".join(said))


if __name__ == "__main__":
    main()
