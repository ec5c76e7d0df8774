"""Short decodings with one Triton kernel at a time and with each allocator, each in a separate process.

A kernel can fail in ways that end its process or even its device context, and an error in a captured round depends on
the allocator. So this part runs first. The benchmark switches the kernels that fail here off for all later parts. A
kernel also fails if its trial finds a fault, or if the engine falls back to slower operations. Each process has a cache
own folder: several processes share the device, so the times of their trials must not be stored.

- *Used*: the kernel passed its trial, or the reason why it did not.
- *Exact mode*: "as usual", or the fallback that the check of the batch-invariant mode has chosen.
- *Equal*: plain decoding, and network and window, gave the same tokens with the kernel.
- *Kernels* and *graphs*: "on", or the reason why they were switched off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from adt_core.cache_folder import VARIABLE as CACHE
from adt_core.engine.graphs import disabled_reason
from adt_core.kernels.choice import OPERATIONS, VARIABLE, missing_support, verdicts
from adt_core.policies import PLAIN
from adt_core.runtime import get_runtime

from ..harness import ROOT, captions
from .device import Case, describe_error
from .models import MERGED, decode_rounds, pipeline_of, trained

ALLOCATORS = ("native", "cudaMallocAsync")
KERNELS = tuple((name, weights) for name in OPERATIONS for weights in (("int8", "int4") if name == "linear" else ("",)))
"""Operations, and the weights with which each one is tried; "" for bfloat16."""
TABLE = "Kernels by allocator"
SECONDS = 60.0  # time limit of a process, mostly for imports and the compilation of the kernel
ROUNDS = 12
FIRST_CAPTION = 3600  # number of the first held-out caption of this part


def smoke(operation: str, weights: str, rehearse: bool) -> dict:
    """Decode some rounds with one kernel in this process, and return the row of the table."""
    target, network = trained(torch.bfloat16, rehearse, weights or None)
    (prompt,) = captions(FIRST_CAPTION, 1)
    decodings = [pipeline_of(target, network, method).decoding([prompt]) for method in (PLAIN, MERGED)]
    plain, drafted = (decode_rounds(decoding, ROUNDS) for decoding in decodings)
    both = (plain >= 0) & (drafted >= 0)
    found = [verdict for verdict in verdicts() if verdict.operation == operation]
    rejected = [verdict.reason for verdict in found if not verdict.uses_kernel]
    faults = [verdict.reason for verdict in found if verdict.is_fault]
    remarks = [decoding.invariance.remark for decoding in decodings if decoding.invariance.remark]
    used = bool(found) and not rejected
    missing = missing_support(target.decoder.embedding.device)
    return {
        "used": used or (rejected or [missing or "it was not launched"])[0],
        "equal": bool((plain == drafted)[both].all()),
        "kernels": get_runtime().kernel_failure or "on",
        "graphs": disabled_reason(target.decoder) or "on",
        "exact mode": (remarks or ["as usual"])[0],
        "fault": (faults or ["none"])[0],
        "tokens compared": int(both.sum()),
    }


def failure_of(row: dict) -> str:
    """Return why a kernel counts as failed, or ""."""
    healthy = {"kernels": "on", "graphs": "on", "fault": "none", "exact mode": "as usual"}
    problems = [f"{name}: {row[name]}" for name, value in healthy.items() if row[name] != value]
    return (problems + [""] * row["equal"] + ["drafting changed the tokens"])[0]


def _process(operation: str, weights: str, allocator: str, rehearse: bool) -> list[dict]:
    """Run :func:`smoke` in a new process. Return its row, if there is one, and an error if the kernel has failed."""
    what = {"what": f"{operation}, {weights or 'bf16'}, {allocator}", "operation": operation}
    head = {"table": TABLE, "operation": operation, "weights": weights or "bf16", "allocator": allocator}
    command = [sys.executable, "-m", "benchmarks.gpu.smoke", operation, weights, *["rehearse"] * rehearse]
    chosen = {VARIABLE: operation, "PYTORCH_CUDA_ALLOC_CONF": f"backend:{allocator}"}
    try:
        with tempfile.TemporaryDirectory() as folder:
            variables = {**os.environ, **chosen, CACHE: folder}
            done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=SECONDS)
        row = head | json.loads(done.stdout.splitlines()[-1])
        error = failure_of(row)
        return [row, what | {"error": error}] if error else [row]
    except (IndexError, json.JSONDecodeError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        error = f"exit code {done.returncode}: {lines[-1] if lines else 'no output'}"
    except subprocess.TimeoutExpired as timeout:
        error = describe_error(timeout)
    return [what | {"error": error}]


def _measure(rehearse: bool) -> Iterator[dict]:
    every = [(*kernel, allocator) for allocator in ALLOCATORS for kernel in KERNELS]
    with ThreadPoolExecutor(max((os.cpu_count() or 2) // 2, 2)) as processes:
        for rows in processes.map(lambda arguments: _process(*arguments, rehearse), every):
            yield from rows


def healthy_operations(rows: list[dict], errors: list[dict]) -> list[str]:
    """Return the operations whose kernels failed with no allocator. Kernels that are not used count as healthy."""
    failed = {error.get("operation") for error in errors}
    measured = {row["operation"] for row in rows}
    return [name for name in OPERATIONS if name in measured - failed]


def cases(rehearse: bool) -> list[Case]:
    """Return the only case of this part. It runs several processes at a time."""
    return [("kernels", partial(_measure, rehearse))]


if __name__ == "__main__":
    print(json.dumps(smoke(sys.argv[1], sys.argv[2], "rehearse" in sys.argv[3:])))
