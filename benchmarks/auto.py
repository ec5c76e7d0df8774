"""Compare *auto* with plain decoding and with every single draft mode.

    python -m benchmarks.auto [--at-once 1,2,4,8] [--images 16] [--sets grammar,free,ordinary] [--repeats 1]
                              [--methods NAME,...] [--dtype float32] [--lantern] [--busy] [--json FILE]

Every method runs in a separate process with an empty cache of cost profiles, and the processes are interleaved batch
by batch. The results therefore include the first images, for which *auto* has no measured costs. Seconds include the
prompts, but neither loading nor the image decoder. The speed-up is the ratio of the total seconds of plain decoding to
the method's, with the 95 % interval of a bootstrap over the batches; it is followed by the lowest speed-up of a batch.
There are three sets of prompts:

- ``grammar``: held-out captions of the bundled model's training grammar;
- ``free``: prompts outside this grammar, for which the model's distributions are flatter;
- ``ordinary``: prompts as people write them. No constant of *auto* was tuned on them.

Exits with 1 if *auto* is slower than 0.97 of the best other method or 0.98 of plain decoding on a set, or 0.90 of plain
decoding on a batch. ``--busy`` keeps one CPU core busy during the measurement.
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
from adt_core.app.jobs import decode, new_decoding
from adt_core.app.loading import choose_device
from adt_core.engine.device import profiles
from adt_core.engine.job import Job
from adt_core.lab.benchmark import PRESETS
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from model_making.prompts import PROMPTS

from .harness import RECIPE, SAMPLING, captions
from .interleaving import header, interleave, row

FIRST_CAPTION = 3000  # number of the first held-out caption of this benchmark
FREE_PROMPTS = (
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
"""Drafter and drafting options of each method."""
MIN_OF_BEST = 0.97
"""Required speed of `auto` on a set, relative to the best other method."""
MIN_OF_PLAIN = 0.98
"""Required speed of `auto` on a set, relative to plain decoding."""
MIN_OF_PLAIN_PER_BATCH = 0.90
"""Required speed of `auto` on every batch, relative to plain decoding."""


def prompts_of(kind: str, count: int) -> list[str]:
    """Return `count` prompts of a set; a set that is too small repeats, and the noise differs by image."""
    if kind == "grammar":
        return captions(FIRST_CAPTION, count)
    # Step 7 spreads the selection over the topics of the list.
    ordinary = [PROMPTS[7 * i % len(PROMPTS)].text for i in range(len(PROMPTS))]
    prompts = FREE_PROMPTS if kind == "free" else ordinary
    return [prompts[i % len(prompts)] for i in range(count)]


def _serve(connection: Connection, method: str, dtype: str, lantern: bool) -> None:
    """Receive (prompts, image indices) until None; send back the seconds and a hash of each image's tokens."""
    drafter_name, drafting = METHODS[method]
    is_plain = method == PLAIN
    target = load_target("bundled", choose_device("auto"), getattr(torch, dtype))
    drafter = None if is_plain else load_drafter(drafter_name, target)
    recipe = Recipe(SAMPLING, drafting, RECIPE.lantern if lantern and not is_plain else None)
    job = Job(target, recipe, drafter)
    connection.send(None)
    while (batch := connection.recv()) is not None:
        decoding = decode(new_decoding(job, *batch))
        hashes = [hashlib.sha256(codes.numpy().tobytes()).hexdigest() for codes in decoding.codes]
        connection.send((decoding.trace.report()["seconds"], hashes))


class MethodWorker:
    """Process of a method, idle except during a call.

    Args:
        method: Name in `METHODS`.
        dtype: Name of the model's torch dtype.
        lantern: Use relaxed acceptance, except for plain decoding.
    """

    def __init__(self, method: str, dtype: str, lantern: bool):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, method, dtype, lantern), daemon=True)
        self._process.start()
        self._connection.recv()

    def __call__(self, batch: tuple[list[str], list[int]]) -> tuple[float, list[str]]:
        """Decode prompts with the noise of these image indices; return seconds and a hash of each image's tokens."""
        self._connection.send(batch)
        return self._connection.recv()

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()


@contextmanager
def empty_profile_cache() -> Iterator[None]:
    """Use a temporary, initially empty folder for cost profiles within the block."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {profiles.FOLDER: folder}):
        yield


@contextmanager
def workers(methods: list[str], dtype: str = "float32", lantern: bool = False) -> Iterator[dict[str, MethodWorker]]:
    """Start a process for every method, with an empty cache of cost profiles; end them at the end of the block."""
    with empty_profile_cache(), ExitStack() as stack:
        started = {}
        for method in methods:
            started[method] = MethodWorker(method, dtype, lantern)
            stack.callback(started[method].close)
        yield started


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one CPU core busy within the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def speedup(plain: np.ndarray, method: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of total seconds and its 95 % bootstrap interval.

    Args:
        plain: Seconds of plain decoding for each batch.
        method: Seconds of the method for each batch.
    """
    drawn = np.random.default_rng(0).integers(len(plain), size=(2000, len(plain)))
    low, high = np.percentile(plain[drawn].sum(1) / method[drawn].sum(1), (2.5, 97.5))
    return plain.sum() / method.sum(), float(low), float(high)


def measure(methods: dict[str, MethodWorker], kind: str, batch_size: int, images: int, repeats: int = 1) -> list[dict]:
    """Measure all methods on one set of prompts.

    Args:
        methods: Processes by method, plain decoding first.
        kind: Set of prompts.
        batch_size: Images per batch.
        images: Number of images, rounded up to complete batches.
        repeats: Number of times that every batch is decoded.

    Returns:
        A result for every method except plain decoding.
    """
    count = -(-images // batch_size) * batch_size
    prompts = prompts_of(kind, count)
    indices = list(range(count))
    batches = [(prompts[i : i + batch_size], indices[i : i + batch_size]) for i in range(0, count, batch_size)]
    results = list(interleave(methods, batches * repeats))
    plain_seconds = np.array([result[PLAIN][0] for result in results])
    plain_hashes = [result[PLAIN][1] for result in results]
    lines = []
    for method in list(methods)[1:]:
        seconds = np.array([result[method][0] for result in results])
        times, low, high = speedup(plain_seconds, seconds)
        line = {"kind": kind, "at once": batch_size, "method": method, "times": times, "low": low, "high": high}
        hashes = [result[method][1] for result in results]
        identical = sum(a == b for found, expected in zip(hashes, plain_hashes) for a, b in zip(found, expected))
        lines.append(
            line | {"worst": (plain_seconds / seconds).min(), "identical": f"{identical} of {count * repeats}"}
        )
    return lines


def failures(lines: list[dict]) -> list[str]:
    """Return a sentence for each required speed that `auto` misses on one set."""
    auto = next(line for line in lines if line["method"] == AUTO)
    best = max((line for line in lines if line["method"] != AUTO), key=lambda line: line["times"], default=auto)
    checks = [
        (auto["times"] / best["times"], MIN_OF_BEST, f"of {best['method']}"),
        (auto["times"], MIN_OF_PLAIN, "of plain decoding"),
        (auto["worst"], MIN_OF_PLAIN_PER_BATCH, "of plain decoding on its slowest batch"),
    ]
    where = f"{auto['kind']}, batch size {auto['at once']}"
    return [f"{where}: {speed:.3f} {what}, required {least}" for speed, least, what in checks if speed < least]


COLUMNS = ("prompts", "batch size", "method", "speed-up over plain", "lowest speed-up", "identical")


def cells(line: dict) -> list[object]:
    """Return the cells of a result, in the order of `COLUMNS`."""
    times = "{times:.2f} ({low:.2f} to {high:.2f})".format(**line)
    return [line["kind"], line["at once"], line["method"], times, float(line["worst"]), line["identical"]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1", help="batch sizes, separated by commas")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--sets", default="grammar,free,ordinary")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--methods", default=",".join(method for method in METHODS if method != PLAIN))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--lantern", action="store_true", help="relaxed acceptance for all methods except plain decoding"
    )
    parser.add_argument("--busy", action="store_true", help="keep one CPU core busy")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args()


def main() -> None:
    """Run the command line of this benchmark."""
    args = _arguments()
    methods = [PLAIN, *re.split(r",(?! )", args.methods)]  # names of methods may contain ", "
    batch_sizes = [int(size) for size in args.at_once.split(",")]
    print(f"{args.dtype}, torch {torch.__version__}, {args.images} images, {args.repeats} repeats\n")
    print(header(*COLUMNS))
    lines = []
    missed = []
    for batch_size, kind in product(batch_sizes, args.sets.split(",")):
        load = busy_core() if args.busy else nullcontext()
        with workers(methods, args.dtype, args.lantern) as started, load:
            measured = measure(started, kind, batch_size, args.images, args.repeats)
        for line in measured:
            print(row(*cells(line)), flush=True)
        lines += measured
        missed += failures(measured)
    if args.json:
        args.json.write_text(json.dumps(lines), encoding="utf-8")
    if missed:
        sys.exit("auto is too slow: " + "; ".join(missed))


if __name__ == "__main__":
    main()
