"""Compare the speed of the method *auto* with plain decoding and with every fixed method.

    python -m benchmarks.auto [--batch-size 1,2,4,8] [--images 16] [--sets grammar,ordinary] [--repeats 1]
                              [--methods NAME,...] [--dtype float32] [--lantern] [--temperature 1] [--guidance-scale 3]
                              [--busy 2]

Every method runs in a separate process. The methods take turns (`adt_core.run.race`): all methods decode one batch,
then all methods decode the next batch. Every process starts with an empty cache of cost profiles. The results therefore
include the first images, for which *auto* has estimated costs only. The measured time includes reading the prompts. It
does not include loading the model or decoding tokens to pixels.

The speed-up of a method is the median over the batches, with a 95 % interval from 6 batches on. The table also shows
the ratio of totals (total time of plain decoding divided by the total time of the method) and the lowest speed-up of a
single batch.

There are two sets of prompts:

- ``grammar``: held-out captions of the bundled model's training grammar.
- ``ordinary``: prompts as people write them. No constant of *auto* was tuned on them.

The exit code is 1 if *auto* is too slow. On each set, the total times are compared: *auto* must reach 0.97
times the speed of the best other method, and 0.98 times the speed of plain decoding. On each batch, *auto* must reach
0.90 times the speed of plain decoding. The last lines show these ratios.

``--busy N`` runs N other processes during the measurement, each of which keeps one CPU core busy.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
import torch

from adt_core import Drafting, Loading, Pipeline, Recipe, Sampling
from adt_core.lab.presets import PRESETS
from adt_core.policies import PLAIN
from adt_core.run import race
from model_making.prompts import PROMPTS

from .harness import RECIPE, SAMPLING, captions, empty_profile_cache
from .tables import estimate, header, row

FIRST_CAPTION = 3000  # number of the first held-out caption of this benchmark
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
MIN_OF_PLAIN = 0.98
MIN_OF_PLAIN_PER_BATCH = 0.90
"""Minimum speeds of `auto`, as multiples of the speed of the best other method and of plain decoding."""


def prompts_of(kind: str, count: int) -> list[str]:
    """Return prompts of the set "grammar" or "ordinary".

    If the set has fewer than `count` prompts, prompts occur several times. Their images still differ, because each
    image has its own noise.
    """
    if kind == "grammar":
        return captions(FIRST_CAPTION, count)
    # Step 7 spreads the selection over the topics of the list.
    return [PROMPTS[7 * i % len(PROMPTS)].text for i in range(count)]


@cache
def _pipeline(method: str, dtype: str, lantern: bool, sampling: Sampling) -> Pipeline:
    """Load the model of this process."""
    drafter_name, drafting = METHODS[method]
    relaxation = RECIPE.lantern if lantern and method != PLAIN else None
    return Pipeline.of(Recipe(sampling, drafting, relaxation, Loading(dtype=dtype), drafter=drafter_name))


def _decode(settings: tuple, batch: tuple[list[str], list[int]]) -> tuple[float, list[str]]:
    """Decode a batch of prompts and image indices. Return the seconds, and a hash of each image's tokens."""
    decoding = _pipeline(*settings).decoding(*batch).run()
    hashes = [hashlib.sha256(codes.numpy().tobytes()).hexdigest() for codes in decoding.codes]
    return decoding.trace.report()["seconds"], hashes


def _decode_in(process: ProcessPoolExecutor, settings: tuple, batch: tuple) -> tuple[float, list[str]]:
    return process.submit(_decode, settings, batch).result()


@contextmanager
def workers(
    methods: list[str], dtype: str = "float32", lantern: bool = False, sampling: Sampling = SAMPLING
) -> Iterator[dict[str, Callable]]:
    """Start a process for every method with an empty cache of cost profiles, for the time of the block.

    Args:
        dtype: Name of the model's torch dtype.
        lantern: Whether to use relaxed acceptance (LANTERN). Plain decoding ignores it.

    Yields:
        For each method, a function that decodes a batch in its process as :func:`_decode` does.
    """
    with empty_profile_cache(), ExitStack() as stack:
        started = {}
        for method in methods:
            settings = method, dtype, lantern, sampling
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _pipeline, settings)
            process = stack.enter_context(pool)
            process.submit(int).result()  # waits until the model is loaded
            started[method] = partial(_decode_in, process, settings)
        yield started


def measure(methods: dict[str, Callable], kind: str, batch_size: int, images: int, repeats: int = 1) -> list[dict]:
    """Measure all methods on one set of prompts.

    Args:
        methods: Result of :func:`workers`. Plain decoding is first.
        batch_size: Number of images per batch.
        images: Number of images. It is rounded up to complete batches.

    Returns:
        A result for every method except plain decoding.
    """
    count = -(-images // batch_size) * batch_size
    prompts = prompts_of(kind, count)
    indices = list(range(count))
    batches = [(prompts[i : i + batch_size], indices[i : i + batch_size]) for i in range(0, count, batch_size)]
    results = list(race.by_tasks(methods, batches * repeats))
    plain = [result[PLAIN][0] for result in results]
    lines = []
    for method in list(methods)[1:]:
        seconds = [result[method][0] for result in results]
        identical = sum(a == b for result in results for a, b in zip(result[method][1], result[PLAIN][1]))
        lines.append(
            {
                "kind": kind,
                "at once": batch_size,
                "method": method,
                "speedup": race.speedup(plain, seconds),
                "totals": race.ratio_of_totals(plain, seconds),
                "worst": min(np.divide(plain, seconds)),
                "identical": f"{identical} of {count * repeats}",
            }
        )
    return lines


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run this number of other processes during the block, each of which keeps one CPU core busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ratios(lines: list[dict]) -> list[tuple[float, float, str]]:
    """Return how fast `auto` is in the results of one set: each ratio, its minimum, and what it is relative to."""
    auto = next(line for line in lines if line["method"] == AUTO)
    best = max((line for line in lines if line["method"] != AUTO), key=lambda line: line["totals"], default=auto)
    return [
        (auto["totals"] / best["totals"], MIN_OF_BEST, f"of the best method, {best['method']}"),
        (auto["totals"], MIN_OF_PLAIN, "of plain decoding"),
        (auto["worst"], MIN_OF_PLAIN_PER_BATCH, "of plain decoding on its slowest batch"),
    ]


COLUMNS = ("prompts", "batch size", "method", "speed-up over plain", "ratio of totals", "lowest speed-up", "identical")


def cells(line: dict) -> list[object]:
    """Return the table cells for a result, in the order of `COLUMNS`."""
    names = line["kind"], line["at once"], line["method"]
    return [*names, estimate(line["speedup"]), line["totals"], line["worst"], line["identical"]]


def main() -> None:
    """Run the command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", default="1", help="batch sizes, separated by commas")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--sets", default="grammar,ordinary")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--methods", default=",".join(method for method in METHODS if method != PLAIN))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--lantern", action="store_true", help="relaxed acceptance for all methods except plain decoding"
    )
    parser.add_argument("--temperature", type=float, default=SAMPLING.temperature)
    parser.add_argument("--guidance-scale", type=float, default=SAMPLING.guidance_scale)
    parser.add_argument("--busy", type=int, default=0, help="number of other busy processes")
    args = parser.parse_args()
    methods = [PLAIN, *re.split(r",(?! )", args.methods)]  # names of methods may contain ", "
    batch_sizes = [int(size) for size in args.batch_size.split(",")]
    sampling = replace(SAMPLING, temperature=args.temperature, guidance_scale=args.guidance_scale)
    print(f"{args.dtype}, torch {torch.__version__}, {args.images} images, {args.repeats} repeats\n")
    print(header(*COLUMNS))
    missed = []
    summaries = []
    for batch_size, kind in product(batch_sizes, args.sets.split(",")):
        with workers(methods, args.dtype, args.lantern, sampling) as started, busy_processes(args.busy):
            measured = measure(started, kind, batch_size, args.images, args.repeats)
        for line in measured:
            print(row(*cells(line)), flush=True)
        where = f"{kind}, batch size {batch_size}"
        found = [(f"{ratio:.3f} {what}", ratio < least, least) for ratio, least, what in ratios(measured)]
        summaries.append(f"auto, {where}: " + "; ".join(text for text, _, _ in found))
        missed += [f"{where}: {text}, required {least}" for text, is_missed, least in found if is_missed]
    print("", *summaries, sep="\n")
    if missed:
        sys.exit("auto is too slow: " + "; ".join(missed))


if __name__ == "__main__":
    main()
