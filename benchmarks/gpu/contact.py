"""What is to be known first of a device: every sentence about GPUs that nobody has measured, in one row or a few.

*Products* have the shape of a 7B model's largest matrix; its rows are those of a plain step with guidance, of one tile,
of two and of a little more. *Far attention* is that of the exact mode, for an image with guidance: whole, in chunks of
256 columns as further heads, and with these merged. Chunks would pay if they did so for plain steps and for trees: both
must have the same bits. *Images* are drawn one after the other by 'auto', in a process that knows nothing: rounds are
captured and costs are measured. *Company*: is an image the one that plain decoding draws alone? *Pages* are what the
doctor says, also with the memory of ComfyUI.
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
from torch import Tensor

from adt_core.app.jobs import new_decoding
from adt_core.engine import pool
from adt_core.models import batch_invariance, kernels
from adt_core.policies import PLAIN

from . import device
from .device import Case, seconds_of, spread, the_device
from .models import (
    BOTH,
    SEVEN_B,
    TITLES,
    WINDOW,
    drawn,
    forwards_of,
    halved,
    job_of,
    random_network,
    random_target,
    shape_of,
)

ROWS, EDGES, CHUNK = (2, 64, 128, 130), (1, 32, 33, 64, 65), 256
PROMPTS = ("A picture.", "A picture of a house by a lake, with two boats on it.", "A cat.", "A red car on a street.")


def _timed(calls: dict, rehearse: bool) -> dict[str, dict[str, float]]:
    """Milliseconds of each call, in turns; the first does not count."""
    taken, _ = device.interleaved(
        {name: partial(seconds_of, call) for name, call in calls.items()}, 3 + 30 * (not rehearse)
    )
    return {name: spread(values[1:], 1000) for name, values in taken.items()}


def _products(rehearse: bool) -> Iterator[dict]:
    config, like = shape_of(SEVEN_B, rehearse).config, {"dtype": torch.bfloat16, "device": the_device()}
    x = torch.randn(max(ROWS), config.hidden_size, **like)
    weight = torch.randn(config.hidden_size, 2 * config.intermediate_size, **like)
    layouts = {"[in, out]": weight, "[out, in]": weight.t().contiguous().t()}
    for layout, stored in layouts.items():
        tile = x[:64] @ stored
        times = _timed({str(rows): partial(torch.matmul, x[:rows], stored) for rows in ROWS}, rehearse)
        for rows in ROWS:
            same = bool((x[:rows] @ stored)[:64].equal(tile[:rows]))
            yield {"table": "Products", "layout": layout, "rows": rows, "ms": times[str(rows)], "bits of a tile": same}


def _far(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Processors, on which this is rehearsed, lack the kernel."""
    if q.is_cuda:
        return kernels.far_attention(q, keys, values, mask)
    return torch.nn.functional.scaled_dot_product_attention(q, keys, values, mask), torch.zeros(q.shape[:-1])


def _chunked(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Chunks are heads, and heads are rows; a row of the batch at a time, since its mask serves all of its heads."""
    heads, queries = q.shape[1], q.shape[2]
    masks = mask.view(len(q), 1, queries, -1, CHUNK).transpose(2, 3).expand(-1, heads, -1, -1, -1)
    keys, values = (part.unflatten(2, (-1, CHUNK)) for part in (keys, values))
    q = q[:, :, None].expand(-1, -1, masks.shape[2], -1, -1)
    return tuple(torch.stack(parts) for parts in zip(*(_far(*row) for row in zip(q, keys, values, masks))))


def _merged(*given: Tensor) -> Tensor:
    """Chunks added in float64, where the order of a sum does not show: what an image that stays the same would need."""
    out, log_sums = _chunked(*given)
    return (out * log_sums.double().softmax(2)[..., None]).sum(2)


def _attention(rehearse: bool) -> Iterator[dict]:
    config, like = shape_of(SEVEN_B, rehearse).config, {"dtype": torch.bfloat16, "device": the_device()}
    for columns in (512, 1024, 2048):
        keys, values = (torch.randn(2, config.num_heads, columns, config.head_dim, **like) for _ in range(2))
        for queries in (1, 32, 65):
            q = torch.randn(2, config.num_heads, queries, config.head_dim, **like)
            given = q, keys, values, torch.zeros(2, 1, queries, columns, **like)
            ways = {"whole": _far, "chunks": _chunked, "chunks, merged": _merged}
            times = _timed({name: partial(way, *given) for name, way in ways.items()}, rehearse)
            for name, taken in times.items():
                yield {"table": "Far attention", "columns": columns, "queries": queries, "how": name, "ms": taken}


def _edges(tile: int, rehearse: bool) -> Iterator[dict]:
    with mock.patch.dict(batch_invariance.TILE, {"cuda": tile}):
        target = random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), torch.bfloat16)
        times = _timed({str(size): call for size, call in forwards_of(target, EDGES).items()}, rehearse)
    for size in EDGES:
        yield {"table": "Forwards with guidance", "tile": tile, "drafts": size - 1, "ms": times[str(size)]}


def _images(weights: str | None, rehearse: bool) -> Iterator[dict]:
    shape = shape_of(SEVEN_B, rehearse)
    target = random_target(SEVEN_B, shape, torch.bfloat16, weights)
    job = job_of(target, random_network(target), "auto", guidance=shape.guidance)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"ADT_TREE_CACHE": folder}):
        for number in (1, 2, 3):
            decoding = new_decoding(job, [PROMPTS[0]])
            seconds, learning = seconds_of(partial(drawn, decoding)), seconds_of(decoding.measure_costs)
            captures = [round.seconds for round in decoding.trace.rounds if round.prepared]
            held = sum(slots.graphs.num_bytes for slots in pool.pooled(target.decoder))
            yield {
                "table": "Images by 'auto'", "weights": weights or "bf16", "image": number, "seconds": seconds,
                "then measuring, s": learning, "captures": len(captures), "seconds of captures": sum(captures),
                "MiB of captures": held / 2**20, "exact mode": decoding.exact.remark or "as usual",
            }  # fmt: skip


def _company(method: str, rehearse: bool) -> Iterator[dict]:
    """Four small images, prompts of several lengths, and the second half of an image; a second plan drives the first
    out."""
    target = halved(random_target(SEVEN_B, shape_of(SEVEN_B, rehearse), torch.bfloat16))
    network = random_network(target)
    plain, drafted = (job_of(target, network, name) for name in (PLAIN, method))
    expected = torch.cat([drawn(new_decoding(plain, [prompt])) for prompt in PROMPTS])
    half = target.cells(expected).flatten(1)[:, : target.grid[0] * target.grid[1] // 2]
    with mock.patch.object(pool, "MAX_POOLED", 1):
        cases = {
            "alone": (drawn(new_decoding(drafted, PROMPTS[:1])), expected[:1]),
            "four at once": (drawn(new_decoding(drafted, PROMPTS)), expected),
            "alone again, after the other plan": (drawn(new_decoding(drafted, PROMPTS[:1])), expected[:1]),
            "continued": (drawn(new_decoding(drafted, PROMPTS[:1], prefix=half[:1])), expected[:1]),
        }
    for what, (codes, wanted) in cases.items():
        equal = int((codes == wanted).all(1).sum())
        yield {"table": "Company", "method": TITLES[method], "what": what, "equal": equal, "of": len(wanted)}


def _page(allocator: str, rehearse: bool) -> Iterator[dict]:
    """In a process of its own, since torch asks for its allocator once."""
    command = [sys.executable, "-m", "adt_core", "inspect" if rehearse else "doctor", *["bundled"] * rehearse]
    with tempfile.TemporaryDirectory() as folder:
        own = {"PYTORCH_CUDA_ALLOC_CONF": f"backend:{allocator}", "ADT_TREE_CACHE": folder}
        started = time.perf_counter()
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    words = done.stdout.rpartition("```\n")[0].rpartition("```\n")[2] or (done.stdout + done.stderr)[-500:]
    for line in words.splitlines():
        yield {"table": f"The doctor's page, {allocator}", "line": line, "seconds": time.perf_counter() - started}


def cases(rehearse: bool) -> list[Case]:
    """What is asked first stands first, where a machine is lent for minutes."""
    found = [
        ("images, bf16", partial(_images, None)),
        (f"company, {BOTH}", partial(_company, BOTH)),
        ("products", _products),
        ("far attention", _attention),
        ("images, int8", partial(_images, "int8")),
        ("page, native", partial(_page, "native")),
        ("page, cudaMallocAsync", partial(_page, "cudaMallocAsync")),
        ("edges, tile 64", partial(_edges, 64)),
        ("edges, tile 128", partial(_edges, 128)),
        ("images, fp8", partial(_images, "fp8")),
        (f"company, {WINDOW}", partial(_company, WINDOW)),
    ]
    return [(name, partial(measure, rehearse)) for name, measure in found]
