"""Figures on the time of a round and its components, compared with the limits of the device.

The first table shows the time of a round minus the time of drafting, by the number of tokens (nodes) in the target's
pass. Each entry is a median, with the range of the middle half of the measurements. *Share of the limit* is the
shortest possible time divided by the measured time. The shortest possible time is the time to read the weights or the
time for the arithmetic, whichever is longer. It is computed from the memory bandwidth and the arithmetic rate of this
device, which two simple tests measure.

The second table shows the components of a round in complete images: the target's layers, the head and the drafter. The
time of the head includes calls by the drafter. *At most* is an upper bound of the speed-up. It assumes that drafting
takes no time, and that each node apart from the root takes only the time of its arithmetic.
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
from adt_core.app.pipeline import Pipeline
from adt_core.lab.benchmark import PRESETS, RELAXED
from adt_core.models.layers import product
from adt_core.policies import PLAIN

from ..gpu.device import seconds_of, spread
from ..harness import bundled, captions, comparison
from ..interleaving import interleave, table
from .parts import FigurePart

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
METHODS = {
    "adt-tree": "ADT-Tree",
    "jacobi-chain": "window, a chain of 16",
    "jacobi": "window",
    "merged": "network and window",
    "merged-64": "network and window, 64 drafts",
    "merged" + RELAXED: "network and window, LANTERN",
}
COMPONENTS = ("target", "head", "drafter")
FIRST_CAPTION = 4000  # number of the first held-out caption of this part


def limits() -> tuple[float, float]:
    """Measure the limits of the device. Each limit is the best of 8 measurements.

    Returns:
        Memory bandwidth in bytes per second, from a sum over 512 MB, and arithmetic rate in operations per second, from
        a large matrix product.
    """
    data = torch.ones(2**27)
    square = torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0))
    bandwidth = 4 * len(data) / min(seconds_of(data.sum) for _ in range(8))
    with torch.inference_mode():  # only here does `product` use the backend of forward passes
        rate = 2 * 2048**3 / min(seconds_of(lambda: product(square, square)) for _ in range(8))
    return bandwidth, rate


def round_times(plain: Pipeline, prompts: list[str]) -> dict[int, list[float]]:
    """Return the seconds of rounds, minus the time of drafting, by the number of tokens in the target's pass.

    A round with n tokens verifies a chain of n - 1 drafts of the Jacobi window. For example, a round with
    8 tokens verifies 7 drafts.

    Args:
        plain: Pipeline of plain decoding.
        prompts: Prompts. Each prompt gets one image per number of tokens.
    """
    window = load_drafter("jacobi", plain.target)
    pipelines = {1: plain}
    for nodes in NODES[1:]:
        chain = Drafting("eagle2", depth=nodes - 1, width=1, drafts=nodes - 1)
        pipelines[nodes] = replace(plain, recipe=replace(plain.recipe, drafting=chain), drafter=window)

    def measure(prompt: str, nodes: int) -> list[float]:
        counted = pipelines[nodes].decoding([prompt]).run().trace.rounds[4:]  # the first rounds are slower
        return [round.seconds - round.drafting for round in counted if round.images[0].drafts == nodes - 1]

    results = list(interleave({nodes: partial(measure, nodes=nodes) for nodes in NODES}, prompts))
    return {nodes: [seconds for result in results for seconds in result[nodes]] for nodes in NODES}


@contextmanager
def timers(target: Target, network: torch.nn.Module | None) -> Iterator[dict[str, float]]:
    """Measure the time of the target's layers, the target's head and the drafter's network during the block.

    Args:
        target: Target model.
        network: Network of the drafter, or None.

    Yields:
        Seconds by component. The values grow during the block.
    """
    seconds: dict[str, float] = defaultdict(float)
    started: list[float] = []
    logits = target.decoder.logits

    def before(*_) -> None:
        started.append(time.perf_counter())

    def after(name: str, *_) -> None:
        seconds[name] += time.perf_counter() - started.pop()

    def timed_logits(*arguments):
        before()
        result = logits(*arguments)
        after("head")
        return result

    hooks = []
    for module, name in ((target.decoder, "target"), (network, "drafter")):
        if module is not None:
            hooks += [module.register_forward_pre_hook(before), module.register_forward_hook(partial(after, name))]
    target.decoder.logits = timed_logits
    try:
        yield seconds
    finally:
        del target.decoder.logits
        for hook in hooks:
            hook.remove()


def components(pipeline: Pipeline, prompts: list[str]) -> dict[str, float]:
    """Decode complete images and measure the components of a round.

    Args:
        pipeline: Models and method.
        prompts: Prompts. Each prompt gets one image.

    Returns:
        Mean milliseconds per round of each component, of the complete round ("round") and of everything else ("rest"),
        the mean number of nodes per round ("nodes"), and the tokens per target pass ("tau").
    """
    total: dict[str, float] = defaultdict(float)
    for prompt in prompts:
        decoding = pipeline.decoding([prompt])
        with timers(pipeline.target, pipeline.drafter.network if pipeline.drafter else None) as seconds:
            for number, _ in enumerate(decoding):
                if number == 0:
                    seconds.clear()  # the first round includes the prompt and one-time work
        counted = decoding.trace.rounds[1:]
        for name, value in {**seconds, "round": sum(round.seconds for round in counted)}.items():
            total[name] += 1000 * value
        total["rounds"] += len(counted)
        total["nodes"] += sum(round.images[0].drafts + 1 for round in counted)
        total["tokens"] += sum(round.images[0].accepted + 1 for round in counted)
    per = {name: total[name] / total["rounds"] for name in ("round", *COMPONENTS, "nodes")}
    rest = per["round"] - sum(per[name] for name in COMPONENTS)
    return {**per, "rest": rest, "tau": total["tokens"] / total["rounds"]}


def measure(count: int) -> dict:
    """Measure the figures of both tables. The first table uses only half of the prompts."""
    target = bundled()
    prompts = captions(FIRST_CAPTION, count)
    layers = list(target.decoder.layers.parameters())
    stored = sum(p.numel() * p.element_size() for p in (*layers, target.decoder.head))
    bandwidth, rate = limits()
    # Seconds of arithmetic for one node. With guidance, the layers process two rows per node, the head only one.
    node = 2 * (2 * sum(p.numel() for p in layers) + target.decoder.head.numel()) / rate
    presets = {name: PRESETS[name.removesuffix(RELAXED)] for name in METHODS}
    pipelines = comparison(presets, prompts).pipelines(target, load_drafter("bundled", target))
    by_size = round_times(pipelines[PLAIN], prompts[: -(-count // 2)])
    return {
        "bandwidth": bandwidth,
        "rate": rate,
        "weights": stored,
        "node": node,
        "forwards": {str(nodes): spread(seconds, 1000) for nodes, seconds in by_size.items()},
        "rounds": {name: components(pipelines[name], prompts) for name in (PLAIN, *METHODS)},
    }


def _rows_by_size(data: dict) -> Iterator[list]:
    read = 1000 * data["weights"] / data["bandwidth"]
    node = 1000 * data["node"]
    plain = data["forwards"]["1"]["median"]
    for nodes, times in data["forwards"].items():
        share = max(read, int(nodes) * node) / times["median"]
        shown = "{median:.2f} ({low:.2f} to {high:.2f})".format(**times)
        yield [nodes, 2 * int(nodes), shown, times["median"] / plain, f"{share:.0%}"]


def _rows_by_method(data: dict) -> Iterator[list]:
    node = 1000 * data["node"]
    step = data["rounds"][PLAIN]["round"]
    for name, per in data["rounds"].items():
        shortest_round = step + node * (per["nodes"] - 1)
        token = per["round"] / per["tau"]
        parts = [per[part] for part in ("round", *COMPONENTS, "rest")]
        figures = [f"{per['nodes']:.1f}", per["tau"], token, step / token, step * per["tau"] / shortest_round]
        yield [METHODS.get(name, "plain"), *parts, *figures]


def tables(data: dict) -> dict[str, str]:
    """Return a text with the limits of the device, and both tables, by name. See `FigurePart.tables`."""
    columns = ["method", "ms per round", *COMPONENTS, "rest", "nodes", "tau", "ms per token", "speed-up", "at most"]
    return {
        "device": f"it read memory at {data['bandwidth'] / 1e9:.0f} GB/s and multiplied large matrices at "
        f"{data['rate'] / 1e9:.0f} GFLOP/s; the weights of layers and head are {data['weights'] / 1e6:.1f} MB",
        "forwards": table(
            ["nodes", "rows", "ms (middle half)", "plain rounds", "share of the limit"], _rows_by_size(data)
        ),
        "rounds": table(columns, _rows_by_method(data)),
    }


PARTS = {"rounds": FigurePart(4, measure, tables)}
