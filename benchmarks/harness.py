"""What the benchmarks share: prompts and interleaved runs, whose figures ``adt_core.app.report`` makes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from adt_core import Decoding, Drafting, Sampling, Target
from adt_core.app.report import PLAIN
from model_making.data import example

HELD_OUT_SEED = 2


def captions(start: int, count: int) -> list[str]:
    """Held-out captions ``start`` .. ``start + count - 1``: never trained on."""
    return [example(HELD_OUT_SEED, i)[1] for i in range(start, start + count)]


def decode(target: Target, drafter, prompt: str, sampling: Sampling, drafting: Drafting) -> Decoding:
    """Decode one image to the end; its figures are in ``.trace.report()``."""
    decoding = Decoding(target, [target.encode_prompt(prompt)], sampling=sampling, drafting=drafting, drafter=drafter)
    for _ in decoding:
        pass
    return decoding


Run = Callable[[str], tuple[dict, Tensor]]
"""Decodes a prompt; its report and its codes [T]."""


def runner(target: Target, drafter, sampling: Sampling, drafting: Drafting) -> Run:
    """A run of one method."""

    def run(prompt: str) -> tuple[dict, Tensor]:
        decoding = decode(target, drafter, prompt, sampling, drafting)
        return decoding.trace.report(), decoding.codes[0]

    return run


def interleaved(runs: dict[str, Run], prompts: list[str], seed: int = 0) -> list[dict]:
    """Every run on every prompt, in an order drawn anew for each prompt; one uncounted round first.

    One of them is plain decoding. Returns the records that ``adt_core.app.report`` sums up. Runs of one prompt stand side by side in
    time, so their ratio survives a machine whose speed drifts.
    """
    rng = np.random.default_rng(seed)
    for run in runs.values():
        run(prompts[0])
    records = []
    for prompt in prompts:
        done = {name: runs[name](prompt) for name in rng.permutation(list(runs))}
        plain = done[PLAIN][1]
        records.append(
            {
                "runs": {
                    name: {**done[name][0], "agreement": (done[name][1] == plain).double().mean().item()}
                    for name in runs
                }
            }
        )
    return records
