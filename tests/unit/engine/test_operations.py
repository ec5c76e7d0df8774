"""Tests of the number of operations that torch dispatches in a round on a CPU.

Each operation takes microseconds, whatever its size. About half of a round is spent on operations with few numbers.
"""

from contextlib import closing

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from adt_core import Pipeline, Recipe, load_drafter, load_target
from adt_core.lab.presets import PRESETS
from benchmarks.harness import SAMPLING

ROUNDS = 4
"""Number of rounds whose operations are counted."""
MARGIN = 1.03
"""Other versions of torch and other CPUs dispatch slightly other operations."""


@pytest.mark.parametrize(
    "preset, drafter, most",
    [("no-drafting", None, 893), ("jacobi-chain", "jacobi", 1302), ("merged", "bundled+jacobi", 2190)],
    ids=["plain", "chain", "network and window"],
)
def test_operations_of_a_round(preset, drafter, most):
    target = load_target("bundled", torch.device("cpu"), torch.float32)
    network = None if drafter is None else load_drafter(drafter, target)
    pipeline = Pipeline(target, Recipe(SAMPLING, PRESETS[preset].drafting), network)
    with closing(iter(pipeline.decoding(["a red circle above a blue square"], [0]))) as rounds:
        for _ in range(4):
            next(rounds)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(ROUNDS):
                next(rounds)
    names = [event.name for event in profiler.events() if event.name.startswith(("aten::", "mkldnn::"))]
    assert len(names) / ROUNDS <= MARGIN * most
