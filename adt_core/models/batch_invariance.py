"""Half precision in which a token's features do not depend on the forward that it is in.

A node of a draft tree and the same token decoded alone go through products of other shapes, and find their keys in
other slots of the KV cache. Both change the order of sums, so results round differently. In half precision that is
enough to change an image. Two rules keep every bit the same:

- **Products have one shape.** A product has :data:`TILE` rows at a time; missing rows are filled up. So every row goes
  through the same kernel. More rows at once are multiplied where that gives the same bits, which is tried.
- **Attention adds keys in one order.** For a token at position q, its own key and those of the :data:`NEAR` positions
  before it are *near*; those before them are *far*. No tree is deeper, so far keys are decided tokens: they stand in
  the order of their positions, whoever asks, and torch's kernel adds them in that order. Near keys may stand anywhere.
  They are added in float64, where the order of a sum does not show in a result of half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import is_out_of_memory
from ..runtime import cached_per_runtime, get_runtime
from .kernels import far_attention

HALF = (torch.bfloat16, torch.float16)
TILE = {"cuda": 64, "meta": 64, "cpu": 4}
"""Rows of a product, by type of device; "meta" stands for a GPU that is not there. A GPU multiplies 64 rows in the time
in which it reads the weights once. On CPUs single rows are multiplied by other kernels."""
NEAR = 32
"""Positions before a token whose keys are near. Trees are no deeper."""
MASK_ALIGNMENT = 8
"""A GPU's attention kernels want the rows of a mask to begin at multiples of so many numbers. Otherwise torch copies
the mask in every layer, or the kernel of far keys refuses it."""


def tile_for(dtype: torch.dtype, device: torch.device) -> int:
    """Rows of a product in the exact mode; 0 where there is no such mode."""
    return TILE.get(device.type, 0) if dtype in HALF else 0


@cached_per_runtime
def near_window(device: torch.device, dtype: torch.dtype, width: int) -> int | None:
    """Positions before a token whose keys are near; None for all, where torch has no kernel for far ones.

    dtype: of the model. width: numbers of a head. Older GPUs have the kernel in float16 alone. AMD's GPUs have another
    kernel, of which it is not known in which order it adds.
    """
    if torch.version.hip:
        return None
    q = torch.zeros(1, 1, 8, width, dtype=dtype, device=device)
    try:
        far_attention(q, q, q, q.new_zeros(1, 1, 8, 8))
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise  # it passes, and this function's answer is remembered
        return None
    return NEAR


class FallbackConfig(NamedTuple):
    """What the exact mode builds on here: rows of a product, and whether far keys may go through torch's kernel."""

    tile: int
    far: bool = True


def tiled_matmul(
    multiply: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, plus: Tensor | None, tile: int, kind: Hashable
) -> Tensor:
    """``multiply(x, plus)`` of rows x [N, in] and plus [N, out] or None, with the bits of ``tile`` rows at a time.

    Whether all rows at once have the same bits is tried on the first of their number and ``kind``, which names all
    else that a library chooses its kernels by.
    """
    if len(x) == tile:
        return multiply(x, plus)
    key = kind, len(x), tile, torch.get_num_threads()
    equal = get_runtime().equal_products
    if equal.get(key):
        return multiply(x, plus)
    before = plus.clone() if plus is not None and key not in equal else None
    sums = plus.split(tile) if plus is not None else repeat(None)
    parts = torch.cat([multiply(part, added) for part, added in zip(x.split(tile), sums)])
    if key not in equal:
        equal[key] = multiply(x, before).equal(parts)
    return parts


def pad_rows(x: Tensor, tile: int) -> Tensor:
    """Rows x [N, ...] with zeros behind them up to a multiple of ``tile``; as they are if it is 0."""
    missing = -len(x) % tile if tile else 0
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


class NearKeys(NamedTuple):
    """The near keys of a forward's n tokens.

    columns: [R, w] columns of the KV cache; None for all that are read. mask: float64 [R, 1, n, w], added to scores;
    that of a layer is [R * heads, g * n, w].
    """

    columns: Tensor | None
    mask: Tensor

    def of_layers(self, heads: int, group: int) -> NearKeys:
        """For layers in which groups of so many heads share their keys. heads: of keys."""
        mask = repeat_for_groups(self.mask, group).expand(-1, heads, -1, -1)
        return self._replace(mask=mask.flatten(0, 1))  # made once, where every layer would copy it

    def take(self, cache: Tensor, end: int) -> Tensor:
        """The entries of a layer's cache [2, R, heads, cache_length, d] in float64: [2, R, heads, w, d]."""
        if self.columns is None:
            return cache.narrow(3, 0, end).double()
        index = self.columns[None, :, None, :, None].expand(2, -1, cache.shape[2], -1, cache.shape[4])
        return cache.gather(3, index).double()


def near_attention(q: Tensor, entries: Tensor, mask: Tensor, far: tuple[Tensor, Tensor] | None) -> Tensor:
    """Attention of q [R, heads, m, d] to near keys and values [2, R, heads, w, d], and to what ``far`` says: float64.

    mask: of the near keys, of a layer. far: output [R, heads, m, d] and log-sum-exp [R, heads, m] over the far keys;
    None if there are none.
    """
    rows, heads, m, dim = q.shape
    keys, values = entries.flatten(1, 2)
    queries = q.to(torch.float64, memory_format=torch.contiguous_format).view(rows * heads, m, dim)
    scores = torch.baddbmm(mask, queries, keys.mT, alpha=dim**-0.5)
    if far is None:
        return (scores.softmax(-1) @ values).view(q.shape)
    out, log_sum = far
    weights = torch.cat([scores, log_sum.reshape(rows * heads, m, 1)], -1).softmax(-1)
    return torch.addcmul((weights[..., :-1] @ values).view(q.shape), out, weights[..., -1:].view(*q.shape[:3], 1))


def repeat_for_groups(mask: Tensor, group: int) -> Tensor:
    """A mask [R, 1, n, w] for every query of a group of heads that share their keys: [R, 1, g * n, w], aligned."""
    return mask if group == 1 else align_mask(mask.repeat(1, 1, group, 1))


def align_mask(mask: Tensor) -> Tensor:
    """The same mask [..., end] in memory whose rows begin at multiples of :data:`MASK_ALIGNMENT` numbers."""
    missing = -mask.shape[-1] % MASK_ALIGNMENT
    return F.pad(mask, (0, missing))[..., : mask.shape[-1]] if missing else mask
