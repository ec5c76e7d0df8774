"""Where the time of a round goes: target forwards by nodes, drafter, head and sampling, and the rest, beside what the device could do.

    python -m benchmarks.engine [--model bundled] [--drafter bundled] [--dtype float32] [--weights int8] [--batch 1] [--prompts 8] [--threads 2]

First table: forwards in mid-image, all sizes in turn, medians with the middle half of the readings. *Share of the limit*: the time that reading the weights
and multiplying with them would take at the memory bandwidth and the arithmetic rate that this device shows in two plain tests, by the time measured.
Second table: whole images, with timers around the calls (*head*: the target's, also where the drafter reads through it), which
on a GPU wait for each other and so hide what overlaps. *At most*: the speed-up if drafting took no time, and a node beyond the root only its arithmetic at this
device's rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from adt_core import Decoding, Drafting, Lantern, Sampling, Target, load_drafter, load_target
from adt_core.app.benchmark import PRESETS, RELAXED, Preset, sources
from adt_core.app.generation import choose_device
from adt_core.app.report import PLAIN
from adt_core.models.layers import product

from .harness import captions

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
METHODS = (PLAIN, "adt-tree", "jacobi-chain", "jacobi", "merged", "merged-64", "merged" + RELAXED)
READINGS = 40
FIRST = 4000  # held-out caption of this benchmark


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    started = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - started


def limits(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes a second of a reading pass over 512 MB, and operations a second of a large matrix product: the best of several."""
    data = torch.ones(2**27, device=device)
    square = torch.randn(2048, 2048, device=device).to(dtype)
    bandwidth = 4 * len(data) / min(seconds_of(data.sum, device) for _ in range(8))
    with torch.inference_mode():  # as forwards run: what multiplies depends on it
        return bandwidth, 2 * 2048**3 / min(seconds_of(lambda: product(square, square), device) for _ in range(8))


def read_nodes(decoding: Decoding, nodes: int) -> None:
    """A target forward over so many nodes in the middle of an image, and the choice of a token behind each."""
    lanes, middle = decoding._lanes, decoding._first_slot + decoding.length // 2
    codes = torch.zeros(len(lanes), nodes, dtype=torch.long, device=lanes.rows.device)
    features = decoding._forward(codes, lanes.rows.causal_step([middle] * len(lanes), nodes), lanes)
    decoding._logits(features, None, lanes).argmax(-1).tolist()


def forwards(target: Target, batch: int) -> dict[int, list[float]]:
    """Seconds of target forwards over n nodes, with head, guidance, noise and choice, in the middle of an image."""
    decoding = Decoding(
        target,
        [target.encode_prompt(caption) for caption in captions(FIRST, batch)],
        sampling=Sampling(seed=1),
        drafting=Drafting(method="eagle2", nodes=NODES[-1], depth=1, width=1),
        drafter=load_drafter("jacobi", target),
    )
    begun = iter(decoding)
    next(begun)
    device = target.decoder.embedding.device
    taken: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    rng = np.random.default_rng(0)
    with torch.inference_mode():
        for reading in range(READINGS + 4):
            for nodes in rng.permutation(NODES).tolist():
                seconds = seconds_of(lambda nodes=nodes: read_nodes(decoding, nodes), device)
                if reading >= 4:  # the first are slow
                    taken[nodes].append(seconds)
    return taken


@contextmanager
def timers(target: Target, drafter):
    """Seconds within the target's layers, its head, and the drafter's layer, as they are used."""
    spent: dict[str, float] = defaultdict(float)
    device, open_calls = target.decoder.embedding.device, []

    def before(*_):
        synchronise(device)
        open_calls.append(time.perf_counter())

    def after(name):
        def record(*_):
            synchronise(device)
            spent[name] += time.perf_counter() - open_calls.pop()

        return record

    networks = [(target.decoder, "target"), *([(drafter, "drafter")] if isinstance(drafter, nn.Module) else [])]
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


def rounds(target: Target, drafter, preset: Preset, prompts: list[str], batch: int) -> dict[str, float]:
    """Milliseconds a round by component, and the rounds' figures, over whole images."""
    total: dict[str, float] = defaultdict(float)
    for prompt in prompts:
        decoding = Decoding(
            target,
            [target.encode_prompt(prompt)] * batch,
            sampling=Sampling(seed=1),
            drafting=preset.drafting,
            drafter=drafter,
            lantern=preset.lantern,
            image_indices=list(range(batch)),
        )
        with timers(target, getattr(drafter, "network", drafter)) as spent:
            iterator = iter(decoding)
            next(iterator)
            spent.clear()  # with the prompt and what is done once
            for _ in iterator:
                pass
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
    device, dtype = choose_device("auto"), getattr(torch, args.dtype)
    target = load_target(args.model, device, dtype, weights=args.weights)
    drafters = {"": None, **sources(load_drafter(args.drafter, target))}
    bandwidth, rate = limits(device, dtype)
    layers = sum(p.numel() for p in target.decoder.layers.parameters())
    stored = sum(p.numel() * p.element_size() for p in (*target.decoder.layers.parameters(), target.decoder.head))
    print(
        f"{device}, {args.threads} threads, {args.weights or args.dtype}, batch {args.batch} with guidance, torch {torch.__version__}; "
        f"{bandwidth / 1e9:.1f} GB/s read, {rate / 1e9:.0f} GFLOP/s multiplied, {stored / 1e6:.1f} MB of weights\n"
    )
    print("| nodes | rows | ms (middle half) | plain steps | share of the limit |\n|---|---|---|---|---|")
    taken = forwards(target, args.batch)
    plain = statistics.median(taken[1])
    node = (
        2 * args.batch * (2 * layers + target.decoder.head.numel()) / rate
    )  # guidance: two rows through the layers, one through the head
    for nodes, seconds in taken.items():
        low, median, high = np.percentile(seconds, (25, 50, 75))
        limit = max(stored / bandwidth, nodes * node)
        print(
            f"| {nodes} | {2 * args.batch * nodes} | {1000 * median:.2f} ({1000 * low:.2f} to {1000 * high:.2f}) | {median / plain:.2f} "
            f"| {limit / median:.0%} |"
        )
    print(
        "\n| method | ms a round | target | head | drafter | rest | nodes | tau | ms a token | times plain | at most |\n|"
        + "---|" * 11
    )
    for name in METHODS:
        preset = PRESETS[name.removesuffix(RELAXED)]
        if name.endswith(RELAXED):
            preset = preset._replace(lantern=Lantern(100, 0.1))
        per = rounds(target, drafters[preset.source], preset, captions(FIRST, args.prompts), args.batch)
        if name == PLAIN:
            step = per["round"]
        at_least = step + 1000 * node * (per["nodes"] - 1)
        print(
            f"| {name} | {per['round']:.2f} | "
            + " | ".join(f"{per[part]:.2f}" for part in ("target", "head", "drafter", "rest"))
            + f" | {per['nodes']:.1f} | {per['tau']:.2f} | {per['round'] / per['tau'] / args.batch:.2f} | {step * per['tau'] / per['round']:.2f} "
            f"| {step * per['tau'] / at_least:.2f} |"
        )


if __name__ == "__main__":
    main()
