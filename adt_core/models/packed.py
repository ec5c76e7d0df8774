"""Packed weights: float32 matrices in the memory layout in which oneDNN multiplies them fastest on a CPU.

The runtime holds the packed copies. A copy exists as long as its weight. It changes no bit of a product. With the 4 to
64 rows of a draft tree, products with packed weights take 7 to 30 % less time (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from ..runtime import get_runtime
from .cpu import ALL_ROWS, max_mkl_rows
from .torch_private import onednn_pack

MAX_BYTES = 2**26
"""Maximum size of the weights that are packed for a decoding. Larger weights would take twice the memory that ComfyUI
reserves for them. They save less time, because reading them from memory takes most of it."""
WEIGHTS = ("qkv", "out", "gate_up", "down", "head_in", "head", "fc")
"""Names of the parameters that are packed: the weights of :func:`.layers.product`."""


class Packed(NamedTuple):
    """Packed copy of a weight."""

    weight: ref[Tensor]
    version: tuple[int, int]  # of the weight that was copied
    matrix: Tensor  # only oneDNN can read it


def pack(networks: Iterable[nn.Module]) -> None:
    """Pack the float32 weights on a CPU that are not packed yet, or that have changed since.

    Args:
        networks: Decoder of a target, and network of a drafter. If their weights exceed `MAX_BYTES`, or if MKL computes
            all products, none is packed.
    """
    if max_mkl_rows() == ALL_ROWS:
        return
    named = [item for network in networks for item in network.named_parameters()]
    for _, weight in named:
        if packed(weight) is None:
            get_runtime().packed_weights.pop(id(weight), None)  # of an earlier dtype, device or value
    if not all(weight.is_cpu for _, weight in named):
        return  # also if only some weights are on the CPU, from which a GPU fetches them
    weights = [
        weight
        for name, weight in named
        if name.rpartition(".")[2] in WEIGHTS and weight.is_cpu and weight.dtype == torch.float32
    ]
    if sum(weight.numel() * weight.element_size() for weight in weights) > MAX_BYTES:
        return
    for weight in weights:
        if packed(weight) is None and (matrix := onednn_pack(weight.detach())) is not None:
            _store(weight, matrix)


def packed(weight: Tensor) -> Tensor | None:
    """Return the packed copy of a weight; None if there is no copy, or if the weight has changed since the copy."""
    copy = get_runtime().packed_weights.get(id(weight))
    if copy is None or copy.weight() is not weight or copy.version != _version(weight):
        return None
    return copy.matrix


def _store(weight: Tensor, matrix: Tensor) -> None:
    """Store the packed copy of a weight until the weight is freed."""
    copies = get_runtime().packed_weights
    key = id(weight)
    copies[key] = Packed(ref(weight, lambda _: copies.pop(key, None)), _version(weight), matrix)


def _version(weight: Tensor) -> tuple[int, int]:
    """Return a value that changes if the weight is moved or overwritten.

    It does not change if numbers are written through ``weight.data``.
    """
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version
