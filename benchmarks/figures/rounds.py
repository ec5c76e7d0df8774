"""Where the time of a round goes, beside what the device could do.

First table: rounds by the tokens that the target reads in them, without drafting; all sizes in turn, medians with the
middle half of the readings. *Share of the limit*: the time that reading the weights and multiplying with them would
take at the memory bandwidth and the arithmetic rate that this device shows in two plain tests, by the time measured.

Second table: whole images, with timers around the calls of the target's layers, of its head (also where the drafter
reads through it) and of the drafter. *At most*: the speed-up if drafting took no time, and a node beyond the root only
its arithmetic at this device's rate.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from adt_core import Drafting, Target, load_drafter
from adt_core.app.jobs import Job, decode, rounds
from adt_core.lab.benchmark import PRESETS, RELAXED
from adt_core.models.layers import product
from adt_core.policies import PLAIN

from ..gpu.device import seconds_of, spread
from ..harness import bundled, captions, comparison
from ..interleaving import interleave, table
from .parts import Part

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
METHODS = {
    "adt-tree": "ADT-Tree",
    "jacobi-chain": "window, a chain of 16",
    "jacobi": "window",
    "merged": "network and window",
    "merged-64": "network and window, 64 drafts",
    "merged" + RELAXED: "network and window, LANTERN",
}
SPENT = ("target", "head", "drafter")
FIRST = 4000  # held-out caption of this benchmark


def limits() -> tuple[float, float]:
    """Bytes a second of a reading pass over 512 MB, and operations a second of a big matrix product; the best of 8."""
    data, square = torch.ones(2**27), torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0))
    bandwidth = 4 * len(data) / min(seconds_of(data.sum) for _ in range(8))
    with torch.inference_mode():  # as forwards run: what multiplies depends on it
        return bandwidth, 2 * 2048**3 / min(seconds_of(lambda: product(square, square)) for _ in range(8))


def forwards(plain: Job, prompts: list[str]) -> dict[int, list[float]]:
    """Seconds of rounds without their drafting, by the tokens that the target reads in them.

    A round with n tokens checks a chain of n - 1 drafts of the Jacobi window.
    """
    window = load_drafter("jacobi", plain.target)
    jobs = {1: plain}
    for nodes in NODES[1:]:
        chain = Drafting("eagle2", depth=nodes - 1, width=1, nodes=nodes - 1)
        jobs[nodes] = replace(plain, recipe=replace(plain.recipe, drafting=chain), drafter=window)

    def measure(prompt: str, nodes: int) -> list[float]:
        counted = decode(jobs[nodes].decoding([prompt])).trace.rounds[4:]  # the first ones are slow
        return [one.seconds - one.drafting for one in counted if one.images[0].nodes == nodes - 1]

    turns = list(interleave({nodes: partial(measure, nodes=nodes) for nodes in NODES}, prompts))
    return {nodes: [seconds for turn in turns for seconds in turn[nodes]] for nodes in NODES}


@contextmanager
def timers(target: Target, network: torch.nn.Module | None) -> Iterator[dict[str, float]]:
    """Seconds within the target's layers, its head, and the drafter's network, as they are used."""
    spent, begun, logits = defaultdict(float), [], target.decoder.logits

    def before(*_) -> None:
        begun.append(time.perf_counter())

    def after(name: str, *_) -> None:
        spent[name] += time.perf_counter() - begun.pop()

    def timed(*arguments):
        before()
        result = logits(*arguments)
        after("head")
        return result

    hooks = []
    for module, name in ((target.decoder, "target"), (network, "drafter")):
        if module is not None:
            hooks += [module.register_forward_pre_hook(before), module.register_forward_hook(partial(after, name))]
    target.decoder.logits = timed
    try:
        yield spent
    finally:
        del target.decoder.logits
        for hook in hooks:
            hook.remove()


def components(job: Job, prompts: list[str]) -> dict[str, float]:
    """Milliseconds a round by component, and the rounds' figures, over whole images."""
    total: dict[str, float] = defaultdict(float)
    for prompt in prompts:
        decoding = job.decoding([prompt])
        with timers(job.target, job.drafter.network if job.drafter else None) as spent:
            for number, _ in enumerate(rounds(decoding)):
                if number == 0:
                    spent.clear()  # of the prompt, and of what is done once
        measured = decoding.trace.rounds[1:]
        for name, seconds in {**spent, "round": sum(one.seconds for one in measured)}.items():
            total[name] += 1000 * seconds
        total["rounds"] += len(measured)
        total["nodes"] += sum(one.images[0].nodes + 1 for one in measured)
        total["tokens"] += sum(one.images[0].accepted + 1 for one in measured)
    per = {name: total[name] / total["rounds"] for name in ("round", *SPENT, "nodes")}
    return {**per, "rest": per["round"] - sum(per[name] for name in SPENT), "tau": total["tokens"] / total["rounds"]}


def measure(count: int) -> dict:
    target, prompts = bundled(), captions(FIRST, count)
    layers = list(target.decoder.layers.parameters())
    stored = sum(p.numel() * p.element_size() for p in (*layers, target.decoder.head))
    bandwidth, rate = limits()
    # With guidance two rows go through the layers, and one through the head.
    node = 2 * (2 * sum(p.numel() for p in layers) + target.decoder.head.numel()) / rate
    presets = {name: PRESETS[name.removesuffix(RELAXED)] for name in METHODS}
    jobs = comparison(presets, prompts).jobs(target, load_drafter("bundled", target))
    taken = forwards(jobs[PLAIN], prompts[: -(-count // 2)])
    return {
        "bandwidth": bandwidth,
        "rate": rate,
        "weights": stored,
        "node": node,
        "forwards": {str(nodes): spread(seconds, 1000) for nodes, seconds in taken.items()},
        "rounds": {name: components(jobs[name], prompts) for name in (PLAIN, *METHODS)},
    }


def tables(data: dict) -> dict[str, str]:
    read, node = 1000 * data["weights"] / data["bandwidth"], 1000 * data["node"]
    plain, sizes = data["forwards"]["1"]["median"], []
    for nodes, taken in data["forwards"].items():
        share = max(read, int(nodes) * node) / taken["median"]
        shown = "{median:.2f} ({low:.2f} to {high:.2f})".format(**taken)
        sizes.append([nodes, 2 * int(nodes), shown, taken["median"] / plain, f"{share:.0%}"])
    step, lines = data["rounds"][PLAIN]["round"], []
    for name, per in data["rounds"].items():
        at_least, token = step + node * (per["nodes"] - 1), per["round"] / per["tau"]
        parts = [per[part] for part in ("round", *SPENT, "rest")]
        figures = [f"{per['nodes']:.1f}", per["tau"], token, step / token, step * per["tau"] / at_least]
        lines.append([METHODS.get(name, "plain"), *parts, *figures])
    columns = ["method", "ms a round", *SPENT, "rest", "nodes", "tau", "ms a token", "times plain", "at most"]
    return {
        "device": f"it read memory at {data['bandwidth'] / 1e9:.0f} GB/s and multiplied large matrices at "
        f"{data['rate'] / 1e9:.0f} GFLOP/s; the weights of layers and head are {data['weights'] / 1e6:.1f} MB",
        "forwards": table(["nodes", "rows", "ms (middle half)", "plain steps", "share of the limit"], sizes),
        "rounds": table(columns, lines),
    }


PARTS = {"rounds": Part(4, measure, tables)}
