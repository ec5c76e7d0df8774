"""Batch-invariant mode of half precision: a token's features do not depend on the forward pass that computes them.

A node of a draft tree and the same token in plain decoding go through matrix products of different shapes, and their
keys are at different positions of the KV cache. Both change the order of sums, and so the rounding. In half precision
this is enough to change an image. Two rules make every result bitwise equal:

- **Fixed tiles for matrix products.** A product is split into tiles of :data:`TILE` rows, the last one padded with
  zeros, so the same kernel computes every row. All rows are multiplied at once only after a comparison has shown that
  the result is bitwise equal.
- **A fixed order of keys in attention.** For a token at position q, its own key and the keys of the
  :data:`NEAR_WINDOW` positions before it are *near*; earlier keys are *far*. No tree is deeper than the window, so far
  keys belong to decided tokens. They are in the order of their positions in every forward pass, and torch's kernel adds
  them in that order. Near keys may be anywhere in the cache. They are added in float64, where the order of a sum does
  not affect a result that is rounded to half precision.
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
"""Rows of a matrix product by device type; "meta" represents a GPU before the weights are loaded. A GPU multiplies 64
rows in the time in which it reads the weights once. On a CPU the tile is larger than 1 because libraries use other
kernels for single rows."""
NEAR_WINDOW = 32
"""Number of positions before a token whose keys are near, and the maximum depth of a tree."""
MASK_ALIGNMENT = 8
"""Alignment of the rows of a mask, in elements, that a GPU's attention kernels require. If rows are not aligned, torch
copies the mask in every layer, and the kernel for far keys raises an error."""


def tile_for(dtype: torch.dtype, device: torch.device) -> int:
    """Return the rows of a tile in batch-invariant mode; 0 if the device or dtype does not support this mode."""
    return TILE.get(device.type, 0) if dtype in HALF else 0


@cached_per_runtime
def near_window(device: torch.device, dtype: torch.dtype, width: int) -> int | None:
    """Return the number of positions before a token whose keys are near.

    Args:
        device: Device of the model.
        dtype: Data type of the model. Older GPUs have the kernel for far keys only in float16.
        width: Elements of an attention head.

    Returns:
        The number; None if all keys are near because the device has no kernel for far keys. AMD's GPUs have a kernel,
        but the order in which it adds keys is not known.
    """
    if torch.version.hip:
        return None
    q = torch.zeros(1, 1, 8, width, dtype=dtype, device=device)
    try:
        far_attention(q, q, q, q.new_zeros(1, 1, 8, 8))
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise  # temporary, so this must not be cached
        return None
    return NEAR_WINDOW


class FallbackConfig(NamedTuple):
    """Slower operations for a device whose usual ones are not batch-invariant.

    Attributes:
        tile: Rows of a matrix product.
        far: Whether torch's kernel is used for far keys; if not, all keys count as near.
    """

    tile: int
    far: bool = True


def tiled_matmul(
    multiply: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, plus: Tensor | None, tile: int, kind: Hashable
) -> Tensor:
    """Return a product that is bitwise equal to multiplying `tile` rows at a time.

    At the first product of each `kind` and number of rows, all rows are also multiplied at once. If the result is
    bitwise equal, later products are not split.

    Args:
        multiply: Function that takes rows [n, in] and rows [n, out] to add (or None), and returns the product [n, out].
        x: Rows [N, in]; N is a multiple of `tile`.
        plus: Rows [N, out] to add, or None.
        tile: Rows of a product.
        kind: Everything else that determines which kernel a library chooses.

    Returns:
        The product [N, out].
    """
    if len(x) == tile:
        return multiply(x, plus)
    key = kind, len(x), tile, torch.get_num_threads()
    is_equal = get_runtime().equal_products
    if is_equal.get(key):
        return multiply(x, plus)
    before = plus.clone() if plus is not None and key not in is_equal else None
    added_rows = plus.split(tile) if plus is not None else repeat(None)
    product = torch.cat([multiply(rows, added) for rows, added in zip(x.split(tile), added_rows)])
    if key not in is_equal:
        is_equal[key] = multiply(x, before).equal(product)
    return product


def pad_rows(x: Tensor, tile: int) -> Tensor:
    """Return x [N, ...] with zero rows appended up to a multiple of `tile`; x itself if `tile` is 0."""
    missing = -len(x) % tile if tile else 0
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


class NearKeys(NamedTuple):
    """Near keys of the n tokens of a forward pass.

    Attributes:
        columns: Their positions [R, w] in the KV cache; None if all keys that are read are near.
        mask: Mask [R, 1, n, w] float64, added to scores; after `for_layers` [R * heads, g * n, w].
    """

    columns: Tensor | None
    mask: Tensor

    def for_layers(self, heads: int, group: int) -> NearKeys:
        """Return the near keys with the mask expanded for all heads, so that layers need not expand it.

        Args:
            heads: Number of key heads.
            group: Number of query heads that share a key head.
        """
        mask = repeat_for_groups(self.mask, group).expand(-1, heads, -1, -1)
        return self._replace(mask=mask.flatten(0, 1))

    def take(self, cache: Tensor, end: int) -> Tensor:
        """Return the near keys and values of a layer in float64.

        Args:
            cache: KV cache of the layer, [2, R, heads, cache_length, d].
            end: Number of cache positions that are read if all keys are near.

        Returns:
            Keys and values [2, R, heads, w, d].
        """
        if self.columns is None:
            return cache.narrow(3, 0, end).double()
        index = self.columns[None, :, None, :, None].expand(2, -1, cache.shape[2], -1, cache.shape[4])
        return cache.gather(3, index).double()


def near_attention(q: Tensor, entries: Tensor, mask: Tensor, far: tuple[Tensor, Tensor] | None) -> Tensor:
    """Attend to near keys in float64 and merge the result with the far keys' result.

    The softmax over all keys follows from the far keys' log-sum-exp, which acts as the score of one more key whose
    value is the far keys' output.

    Args:
        q: Queries [R, heads, m, d].
        entries: Near keys and values [2, R, heads, w, d] float64.
        mask: Mask of the near keys [R * heads, m, w], added to scores.
        far: Output [R, heads, m, d] and log-sum-exp [R, heads, m] of the far keys; None if all keys are near.

    Returns:
        Output [R, heads, m, d] float64.
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
    """Return a mask [R, 1, n, w] repeated for a group of g query heads that share a key head, [R, 1, g * n, w]."""
    return mask if group == 1 else align_mask(mask.repeat(1, 1, group, 1))


def align_mask(mask: Tensor) -> Tensor:
    """Return the same mask [..., end] in memory whose rows are aligned to :data:`MASK_ALIGNMENT` elements."""
    missing = -mask.shape[-1] % MASK_ALIGNMENT
    return F.pad(mask, (0, missing))[..., : mask.shape[-1]] if missing else mask
