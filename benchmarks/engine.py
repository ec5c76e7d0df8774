"""Where the time of a round goes, beside what the device could do.

    python -m benchmarks.engine [--model bundled] [--drafter bundled] [--dtype float32] [--weights int8] [--batch 1]
                                [--prompts 8] [--threads 2]

First table: rounds by the tokens that the target reads in them, without drafting; all sizes in turn, medians with the
middle half of the readings. *Share of the limit*: the time that reading the weights and multiplying with them would
take at the memory bandwidth and the arithmetic rate that this device shows in two plain tests, by the time measured.

Second table: whole images, with timers around the calls of the target's layers, of its head (also where the drafter
reads through it) and of the drafter. On a GPU (with ADT_TREE_GRAPHS=0) they wait for each other, which hides overlaps.
*At most*: the speed-up if drafting took no time, and a node beyond the root only its arithmetic at this device's rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from adt_core import Drafting, Lantern, Sampling, Target, load_drafter, load_target
from adt_core.app.jobs import Job, decode, rounds
from adt_core.app.loading import choose_device
from adt_core.models.layers import product
from adt_core.policies import PLAIN
from adt_core.policies.recipe import Recipe
from adt_lab.benchmark import RELAXED, Benchmark

from .gpu.device import seconds_of, synchronise
from .harness import captions
from .turns import in_turns

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
METHODS = ("adt-tree", "jacobi-chain", "jacobi", "merged", "merged-64", "merged" + RELAXED)
FIRST = 4000  # held-out caption of this benchmark


def limits(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes a second of a reading pass over 512 MB, and operations a second of a big matrix product; the best of 8."""
    data = torch.ones(2**27, device=device)
    square = torch.randn(2048, 2048, device=device).to(dtype)
    bandwidth = 4 * len(data) / min(seconds_of(data.sum) for _ in range(8))
    with torch.inference_mode():  # as forwards run: what multiplies depends on it
        return bandwidth, 2 * 2048**3 / min(seconds_of(lambda: product(square, square)) for _ in range(8))


def forwards(plain: Job, prompts: list[str], batch: int) -> dict[int, list[float]]:
    """Seconds of rounds without their drafting, by the tokens that the target reads of an image in them.

    A round with n tokens checks a chain of n - 1 drafts of the Jacobi window.
    """
    window = load_drafter("jacobi", plain.target)
    jobs = {1: plain}
    for nodes in NODES[1:]:
        chain = Drafting(method="eagle2", depth=nodes - 1, width=1, nodes=nodes - 1)
        jobs[nodes] = replace(plain, recipe=replace(plain.recipe, drafting=chain), drafter=window)

    def measure(prompt: str, nodes: int) -> list[float]:
        trace = decode(jobs[nodes].decoding([prompt] * batch, list(range(batch)))).trace
        full = [nodes - 1] * batch
        counted = trace.rounds[4:]  # the first ones are slow
        return [one.seconds - one.drafting for one in counted if [share.nodes for share in one.images] == full]

    turns = list(in_turns({nodes: partial(measure, nodes=nodes) for nodes in NODES}, prompts))
    return {nodes: [seconds for turn in turns for seconds in turn[nodes]] for nodes in NODES}


@contextmanager
def timers(target: Target, network: torch.nn.Module | None):
    """Seconds within the target's layers, its head, and the drafter's network, as they are used."""
    spent: dict[str, float] = defaultdict(float)
    open_calls: list[float] = []

    def before(*_) -> None:
        synchronise()
        open_calls.append(time.perf_counter())

    def after(name: str):
        def record(*_) -> None:
            synchronise()
            spent[name] += time.perf_counter() - open_calls.pop()

        return record

    networks = [(target.decoder, "target"), *([(network, "drafter")] if network is not None else [])]
    hooks = [
        hook
        for module, name in networks
        for hook in (module.register_forward_pre_hook(before), module.register_forward_hook(after(name)))
    ]
    logits = target.decoder.logits

    def timed(*arguments):
        before()
        result = logits(*arguments)
        after("head")()
        return result

    target.decoder.logits = timed
    try:
        yield spent
    finally:
        del target.decoder.logits
        for hook in hooks:
            hook.remove()


def components(job: Job, prompts: list[str], batch: int) -> dict[str, float]:
    """Milliseconds a round by component, and the rounds' figures, over whole images."""
    total: dict[str, float] = defaultdict(float)
    for prompt in prompts:
        decoding = job.decoding([prompt] * batch, list(range(batch)))
        with timers(job.target, job.drafter.network if job.drafter else None) as spent, rounds(decoding) as running:
            for number, _ in enumerate(running):
                if number == 0:
                    spent.clear()  # of the prompt, and of what is done once
        measured = decoding.trace.rounds[1:]
        shares = [share for one in measured for share in one.images]
        for name, value in {**spent, "round": sum(one.seconds for one in measured)}.items():
            total[name] += 1000 * value
        total["rounds"] += len(measured)
        total["nodes"] += sum(share.nodes + 1 for share in shares)
        total["shares"] += len(shares)
        total["tokens"] += sum(share.accepted + 1 for share in shares)
    per = {name: total[name] / total["rounds"] for name in ("target", "head", "drafter", "round")}
    per["rest"] = per["round"] - per["target"] - per["head"] - per["drafter"]
    return {**per, "tau": total["tokens"] / total["shares"], "nodes": total["nodes"] / total["shares"]}


def print_forwards(taken: dict[int, list[float]], batch: int, weights: float, node: float) -> None:
    """The first table. weights, node: seconds at least to read all weights, and to multiply them for a node."""
    plain = statistics.median(taken[1])
    print("| nodes | rows | ms (middle half) | plain steps | share of the limit |\n|---|---|---|---|---|")
    for nodes, seconds in taken.items():
        low, median, high = np.percentile(seconds, (25, 50, 75))
        limit = max(weights, nodes * node)
        print(
            f"| {nodes} | {2 * batch * nodes} | {1000 * median:.2f} ({1000 * low:.2f} to {1000 * high:.2f}) "
            f"| {median / plain:.2f} | {limit / median:.0%} |"
        )


def print_rounds(jobs: dict[str, Job], prompts: list[str], batch: int, node: float) -> None:
    """The second table. node: seconds at least for a node."""
    columns = "method|ms a round|target|head|drafter|rest|nodes|tau|ms a token|times plain|at most".split("|")
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    step = 0.0
    for name, job in jobs.items():
        per = components(job, prompts, batch)
        step = step or per["round"]  # plain decoding comes first
        at_least = step + 1000 * node * (per["nodes"] - 1)
        parts = [f"{per[part]:.2f}" for part in ("round", "target", "head", "drafter", "rest")]
        token, tau = per["round"] / per["tau"], per["tau"]
        figures = [f"{per['nodes']:.1f}"] + [
            f"{x:.2f}" for x in (tau, token / batch, step / token, step * tau / at_least)
        ]
        print(f"| {' | '.join([name, *parts, *figures])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--weights", choices=["int8", "fp8"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device, dtype, prompts = choose_device("auto"), getattr(torch, args.dtype), captions(FIRST, args.prompts)
    target = load_target(args.model, device, dtype, weights=args.weights)
    bandwidth, rate = limits(device, dtype)
    layers = list(target.decoder.layers.parameters())
    stored = sum(p.numel() * p.element_size() for p in (*layers, target.decoder.head))
    # With guidance two rows go through the layers, and one through the head.
    node = 2 * args.batch * (2 * sum(p.numel() for p in layers) + target.decoder.head.numel()) / rate
    print(
        f"{device}, {args.threads} threads, {args.weights or args.dtype}, batch {args.batch} with guidance, "
        f"torch {torch.__version__}; {bandwidth / 1e9:.1f} GB/s read, {rate / 1e9:.0f} GFLOP/s multiplied, "
        f"{stored / 1e6:.1f} MB of weights\n"
    )
    compared = Benchmark(
        prompts, list(METHODS), Recipe(Sampling(seed=1), lantern=Lantern(100, 0.1), drafter=args.drafter)
    )
    jobs = compared.jobs(target, load_drafter(args.drafter, target))
    print_forwards(forwards(jobs[PLAIN], prompts, args.batch), args.batch, stored / bandwidth, node)
    print_rounds(jobs, prompts, args.batch, node)


if __name__ == "__main__":
    main()
