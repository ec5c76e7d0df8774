"""First measurements on a new device. They check properties of GPUs that the engine relies on.

- *Products*: matrix products with the largest matrix of a 7B model. They have 2 rows (a plain round with guidance),
  64 rows (one tile), 128 rows (two tiles) and 130 rows (slightly more). A tile is the fixed number of rows that the
  batch-invariant mode multiplies in one product.
- *Images*: three images that ``auto`` decodes one after the other. No costs are known at the start, so the engine
  captures CUDA graphs and measures costs.
- *Company*: images of a batch, compared with images that plain decoding makes one by one.
- *Doctor's page*: output of the doctor command with each of PyTorch's two memory allocators. ComfyUI uses one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from unittest import mock

import torch

from adt_core.cache_folder import VARIABLE
from adt_core.engine import pool
from adt_core.models import batch_invariance
from adt_core.policies import PLAIN

from ..harness import empty_profile_cache
from . import device
from .device import Case, seconds_of, spread, the_device
from .models import (
    MERGED,
    SEVEN_B,
    TITLES,
    WINDOW,
    decode_rounds,
    forwards_of,
    pipeline_of,
    random_network,
    random_target,
    shape_of,
    with_quarter_grid,
)

ROWS = (2, 64, 128, 130)
EDGES = (1, 32, 33, 64, 65)
"""Numbers of tokens in a forward, at the limits of one and two tiles of 64 rows. A token has two rows (guidance)."""
PROMPTS = ("A picture.", "A picture of a house by a lake, with two boats on it.", "A cat.", "A red car on a street.")


def _timed(calls: dict, rehearse: bool) -> dict[str, dict[str, float]]:
    """Run functions interleaved, and return the milliseconds of each function. The first call is not counted."""
    timers = {name: partial(seconds_of, call) for name, call in calls.items()}
    times, _ = device.measure_interleaved(timers, 3 if rehearse else 33)
    return {name: spread(values[1:], 1000) for name, values in times.items()}


def _products(rehearse: bool) -> Iterator[dict]:
    config = shape_of(SEVEN_B, rehearse).config
    with torch.device(the_device()):
        x = torch.randn(max(ROWS), config.hidden_size, dtype=torch.bfloat16)
        weight = torch.randn(config.hidden_size, 2 * config.intermediate_size, dtype=torch.bfloat16)
    layouts = {"[in, out]": weight, "[out, in]": weight.t().contiguous().t()}
    for layout, stored in layouts.items():
        tile = x[:64] @ stored
        times = _timed({str(rows): partial(torch.matmul, x[:rows], stored) for rows in ROWS}, rehearse)
        for rows in ROWS:
            same = bool((x[:rows] @ stored)[:64].equal(tile[:rows]))
            yield {"table": "Products", "layout": layout, "rows": rows, "ms": times[str(rows)], "bits of a tile": same}


def _edges(tile: int, rehearse: bool) -> Iterator[dict]:
    with mock.patch.dict(batch_invariance.TILE, {"cuda": tile}):
        target = random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), torch.bfloat16)
        times = _timed({str(size): call for size, call in forwards_of(target, EDGES).items()}, rehearse)
    for size in EDGES:
        yield {"table": "Forwards with guidance", "tile": tile, "drafts": size - 1, "ms": times[str(size)]}


def _images(weights: str | None, rehearse: bool) -> Iterator[dict]:
    target = random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), torch.bfloat16, weights)
    pipeline = pipeline_of(target, random_network(target), "auto")
    with empty_profile_cache():
        for number in (1, 2, 3):
            decoding = pipeline.decoding([PROMPTS[0]])
            seconds = seconds_of(partial(decode_rounds, decoding))
            captures = [round.seconds for round in decoding.trace.rounds if round.prepared]
            captured_bytes = sum(slots.graphs.num_bytes for slots in pool.pooled(target.decoder))
            yield {
                "table": "Images by 'auto'",
                "weights": weights or "bf16",
                "image": number,
                "seconds": seconds,
                "captures": len(captures),
                "seconds of captures": sum(captures),
                "MiB of captures": captured_bytes / 2**20,
                "exact mode": decoding.invariance.remark or "as usual",
            }


def _company(method: str, rehearse: bool) -> Iterator[dict]:
    """Decode small images in different ways, and compare them with plain decoding of single images.

    The four prompts have different lengths. The ways are: a single image, a batch of all four, the single image again,
    and the single image with its upper half given. The engine's pool of CUDA graphs is limited to one entry, so the
    batch removes the graphs of the single image.
    """
    target = with_quarter_grid(random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), torch.bfloat16))
    network = random_network(target)
    plain, drafted = (pipeline_of(target, network, name) for name in (PLAIN, method))
    expected = torch.cat([decode_rounds(plain.decoding([prompt])) for prompt in PROMPTS])
    half = target.cells(expected).flatten(1)[:, : target.grid[0] * target.grid[1] // 2]
    with mock.patch.object(pool, "MAX_POOLED", 1):
        cases = {
            "alone": (decode_rounds(drafted.decoding(PROMPTS[:1])), expected[:1]),
            "four at once": (decode_rounds(drafted.decoding(PROMPTS)), expected),
            "alone again, after the other layout": (decode_rounds(drafted.decoding(PROMPTS[:1])), expected[:1]),
            "continued": (decode_rounds(drafted.decoding(PROMPTS[:1], kept=half[:1])), expected[:1]),
        }
    for what, (codes, reference) in cases.items():
        equal = int((codes == reference).all(1).sum())
        yield {"table": "Company", "method": TITLES[method], "what": what, "equal": equal, "of": len(reference)}


def _page(allocator: str, rehearse: bool) -> Iterator[dict]:
    """Run the doctor command in a new process, because PyTorch selects its memory allocator only once per process."""
    command = [sys.executable, "-m", "adt_core", "inspect" if rehearse else "doctor", *["bundled"] * rehearse]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PYTORCH_CUDA_ALLOC_CONF": f"backend:{allocator}", VARIABLE: folder}
        started = time.perf_counter()
        result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    page = result.stdout.rpartition("```\n")[0].rpartition("```\n")[2] or (result.stdout + result.stderr)[-500:]
    for line in page.splitlines():
        yield {"table": f"The doctor's page, {allocator}", "line": line, "seconds": time.perf_counter() - started}


def cases(rehearse: bool) -> list[Case]:
    """Return the cases of this part. The most important cases are first, in case the time does not suffice for all."""
    found = [
        ("images, bf16", partial(_images, None)),
        (f"company, {MERGED}", partial(_company, MERGED)),
        ("products", _products),
        ("images, int8", partial(_images, "int8")),
        ("page, native", partial(_page, "native")),
        ("page, cudaMallocAsync", partial(_page, "cudaMallocAsync")),
        ("edges, tile 64", partial(_edges, 64)),
        ("edges, tile 128", partial(_edges, 128)),
        ("images, fp8", partial(_images, "fp8")),
        ("images, int4", partial(_images, "int4")),
        (f"company, {WINDOW}", partial(_company, WINDOW)),
    ]
    return [(name, partial(measure, rehearse)) for name, measure in found]
