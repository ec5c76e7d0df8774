"""Attention with our masks by every backend of torch, and what a new number of keys costs.

Queries are the nodes of a tree in both rows of an image, in bfloat16. *First* is the first call with a number of keys
that was not there before, and *later* are calls with a number that was. Every round has a new number of keys. *As torch
chooses* leaves the choice to torch; *without cuDNN* takes cuDNN out of it. *Chose* is the kernel that took most of the
time of a later call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .device import Case, interleaved, last_line, profiled, seconds_of, spread, synchronise, the_device
from .models import SHAPES, shape_of

NODES = (1, 8, 64)
_ALL = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
CHOICES = {
    "as torch chooses": _ALL,
    "without cuDNN": _ALL[1:],
    "cuDNN": _ALL[:1],
    "flash": _ALL[1:2],
    "efficient": _ALL[2:3],
    "math": _ALL[3:],
}
"""What may be chosen from. torch's order of preference among them is its own."""


def _attention(shape, nodes: int, keys: int) -> Callable[[], object]:
    """One layer's attention with a mask: random queries, keys and values."""
    config, where = shape.config, the_device()
    like = {"dtype": torch.bfloat16, "device": where}
    q = torch.randn(2, config.num_heads, nodes, config.head_dim, **like)
    k, v = (torch.randn(2, config.num_kv_heads, keys, config.head_dim, **like) for _ in range(2))
    mask = torch.zeros(2, 1, nodes, keys, **like)
    mask[..., :2] = -torch.inf
    grouped = config.num_heads != config.num_kv_heads
    return lambda: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)


def _with(backends: list[SDPBackend], call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with sdpa_kernel(backends), torch.inference_mode():
            return call()

    return run


def _measure(name: str, nodes: int, rehearse: bool) -> Iterator[dict]:
    shape, repeats = shape_of(name, rehearse), 3 if rehearse else 12
    keys = shape.grid[0] * shape.grid[1] // 2 + 1 + nodes  # no multiple of 8, as most are
    head = {"table": "Attention", "shape": name, "nodes": nodes, "keys": keys}
    first: dict[str, list[float]] = {}
    for number, (name_of, backends) in enumerate(CHOICES.items()):
        lengths = range(keys + number * repeats, keys + (number + 1) * repeats)  # new to every backend
        try:
            _with(backends, _attention(shape, nodes, keys - 1))()  # a backend's first call at all does not count
            calls = [_with(backends, _attention(shape, nodes, length)) for length in lengths]
            first[name_of] = [seconds_of(call) for call in calls]
        except RuntimeError as error:
            synchronise()
            yield head | {"backend": name_of, "possible": False, "why not": last_line(error)}
    one = _attention(shape, nodes, keys)
    ready = {name_of: _with(CHOICES[name_of], one) for name_of in first}
    later, _ = interleaved({name_of: partial(seconds_of, call) for name_of, call in ready.items()}, 4 * repeats)
    for name_of, values in later.items():
        seen = profiled(ready[name_of])
        yield head | {
            "backend": name_of,
            "possible": True,
            "first, ms": spread(first[name_of], 1000),
            "later, ms": spread(values, 1000),
            "chose": max(seen.names, key=seen.names.__getitem__)[:60] if seen and seen.names else None,
        }


def cases(rehearse: bool) -> list[Case]:
    return [(f"{name} {nodes}", partial(_measure, name, nodes, rehearse)) for name in SHAPES for nodes in NODES]
