"""Batch-invariant mode of half precision: a token's features do not depend on the forward pass that computes them.

Take a token that is computed twice: as a node of a draft tree, and in plain decoding. The two forward passes multiply
matrices of different shapes, and they store the token's key at different positions of the KV cache. Both differences
change the order in which numbers are summed, and therefore the rounding. In half precision, this can change the image.
Two rules make the results of both forward passes bitwise equal:

- **Fixed tiles for matrix products.** A product is split into tiles of :data:`TILE` rows, so the same kernel computes
  every row. The last tile is padded with zero rows. All rows are multiplied at once only if a comparison has shown
  that the result is bitwise equal to the result of the tiles.
- **A fixed order of keys in attention.** For each token, its own key and the keys of the :data:`NEAR_WINDOW` positions
  before it are *near*. All earlier keys are *far*. No draft tree is deeper than :data:`NEAR_WINDOW`, so far keys always
  belong to the prompt or to accepted tokens. Far keys are stored in the order of their positions, and torch's kernel
  adds them in that order. The order of near keys in the cache differs between forward passes. Near keys are therefore
  added in float64: there, another order changes the sum so little that the result is the same after rounding to half
  precision. The kernel of :mod:`..kernels.attend` instead reads the near keys in the order of the token's path.

Letters in shapes: R rows of the batch, n tokens of each row, N = R * n tokens in total, d elements of an attention
head, m queries that share a key head, w near keys, and `end` cache positions that a forward pass reads.
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
from .torch_private import far_attention

HALF = (torch.bfloat16, torch.float16)
TILE = {"cuda": 64, "meta": 64, "cpu": 4}
"""Rows of a tile, by device type. "meta" stands for a GPU before the weights are loaded. On a GPU, a product with 64
rows takes no longer than reading the weights once. On a CPU the tile has more than one row, because libraries use a
different kernel for a single row."""
MAX_HEAD_TILE = 16
"""Maximum number of rows of a tile in the output head. The head computes in float32, where 64 rows take three to four
times as long as reading its weights (estimate for an H100), and a plain round needs one row per image."""
_NO_KEY = 2**31 - 1  # cache position that stands for no key in `NearKeys.paths`
NEAR_WINDOW = 32
"""Number of positions directly before a token that have near keys. It is also the maximum depth of a draft tree."""
MASK_ALIGNMENT = 8
"""Each row of an attention mask must begin at a multiple of this number of elements in memory. Otherwise torch copies
the mask in every layer on a GPU, and the kernel for far keys raises an error."""


def tile_for(dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of rows of a tile; 0 if batch-invariant mode does not apply to the device or dtype."""
    return TILE.get(device.type, 0) if dtype in HALF else 0


@cached_per_runtime
def near_window(device: torch.device, dtype: torch.dtype, width: int) -> int | None:
    """Return :data:`NEAR_WINDOW`, or None if all keys must be near because the device has no suitable kernel.

    The kernel of AMD GPUs is not suitable, because the order in which it adds keys is not documented.

    Args:
        dtype: Data type of the model. Older GPUs support the kernel for far keys only in float16.
        width: Number of elements of an attention head.
    """
    if torch.version.hip:
        return None
    q = torch.zeros(1, 1, 8, width, dtype=dtype, device=device)
    try:
        far_attention(q, q, q, q.new_zeros(1, 1, 8, 8))
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise  # lack of memory is temporary, so the answer must not be cached
        return None
    return NEAR_WINDOW


class FallbackConfig(NamedTuple):
    """Slower settings for a device on which the default settings are not batch-invariant."""

    tile: int  # number of rows of a tile
    far: bool = True  # whether torch's kernel is used for far keys; if not, all keys are treated as near keys


def tiled_matmul(
    multiply: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    plus: Tensor | None,
    tile: int,
    kind: Hashable,
    tokens: int | None = None,
) -> Tensor:
    """Return a product [N, out], plus `plus`, that is bitwise equal to multiplying `tile` rows at a time.

    The first call for a `kind` and a number of rows computes the product twice: tile by tile, and with all rows at
    once. If both results are bitwise equal, later calls multiply all rows at once.

    Args:
        multiply: Function that multiplies its first argument [rows, in] by the weight and returns [rows, out]. If its
            second argument [rows, out] is not None, it is added to the product.
        x: [N, in] activations. N is a multiple of `tile`.
        plus: [N, out] values to add to the product, or None.
        kind: Properties that determine which kernel a library chooses, apart from the number of rows: device, dtypes,
            shape of the weight, and so on.
        tokens: Number of rows to compare; all rows if None. The other rows are padding, where `x` may be NaN.
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
        is_equal[key] = multiply(x, before)[:tokens].equal(product[:tokens])
    return product


def pad_rows(x: Tensor, tile: int) -> Tensor:
    """Append zero rows to x [N, ...] until the number of rows is a multiple of `tile`; 0 appends nothing."""
    missing = -len(x) % tile if tile else 0
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


class NearKeys(NamedTuple):
    """Near keys of the tokens of a forward pass.

    Attributes:
        columns: [R, w] int64 cache positions of the near keys; None if all keys that the forward reads are near.
        mask: [R, 1, n, w] float64 mask that is added to the scores. After `for_layers` its shape is
            [R * key heads, g * n, w], where g query heads share a key head.
        far: [R, n, 2] int64 cache position of each token's first far key, and the position after its last far key.
            The token sees all keys between them. None if `columns` is None.
        paths: [R, n, near + 1] int64 cache positions of each token's own near keys, in the order of their positions in
            the image; then `_NO_KEY`. None unless `by_path` has been called.
    """

    columns: Tensor | None
    mask: Tensor
    far: Tensor | None = None
    paths: Tensor | None = None

    def by_path(self) -> NearKeys:
        """Return the near keys with `paths`. `columns` must not be None.

        Parents come before their children in a draft tree (:mod:`..rules.tree`), so a node is at a later cache position
        than its ancestors. Within the keys that one token sees, the order of cache positions is therefore the order of
        positions in the image.
        """
        # Example: columns [4, 5, 6, 7, 8], of which the second child in the example of `BatchRows.split_near_keys` sees
        # [5, 6, 8]. Its path is [5, 6, 8].
        assert self.columns is not None
        n, w = self.mask.shape[2:]
        visible = self.mask[:, 0] == 0
        paths = torch.where(visible, self.columns[:, None], _NO_KEY).sort(-1).values
        return self._replace(paths=paths[..., : w - n + 1].contiguous())

    def for_layers(self, heads: int, group: int) -> NearKeys:
        """Return the near keys with a mask that is expanded for all key heads of a layer with `group` queries each."""
        mask = repeat_for_groups(self.mask, group).expand(-1, heads, -1, -1)
        return self._replace(mask=mask.flatten(0, 1))

    def take(self, cache: Tensor, end: int) -> Tensor:
        """Return the near keys and values of a layer: [2, R, heads, w, d] float64. If all keys are near, w is `end`.

        Args:
            cache: [2, R, heads, cache_length, d] KV cache of the layer.
        """
        if self.columns is None:
            return cache.narrow(3, 0, end).double()
        index = self.columns[None, :, None, :, None].expand(2, -1, cache.shape[2], -1, cache.shape[4])
        return cache.gather(3, index).double()


def near_attention(q: Tensor, entries: Tensor, mask: Tensor, far: tuple[Tensor, Tensor] | None) -> Tensor:
    """Compute attention over near keys in float64 and merge it with that over far keys: [R, heads, m, d] float64.

    The merge treats all far keys as a single additional key. Its score is the log-sum-exp of the far scores, and its
    value is the attention output of the far keys. The result equals a softmax over all keys. For example, if the far
    scores are log 1 and log 3 and the only near score is log 4, the additional key has the score log 4, and both
    weights are 1/2.

    Args:
        q: [R, heads, m, d] queries.
        entries: [2, R, heads, w, d] float64 near keys and values.
        mask: [R * heads, m, w] mask of the near keys that is added to the scores.
        far: Attention output [R, heads, m, d] and log-sum-exp [R, heads, m] of the far keys; None if all keys are near.
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
    """Repeat a mask [R, 1, n, w] for the g query heads of a key head: [R, 1, g * n, w], with aligned rows if g > 1."""
    return mask if group == 1 else align_mask(mask.repeat(1, 1, group, 1))


def align_mask(mask: Tensor) -> Tensor:
    """Return the same mask [..., end], copied if necessary so that its rows are aligned (:data:`MASK_ALIGNMENT`)."""
    missing = -mask.shape[-1] % MASK_ALIGNMENT
    return F.pad(mask, (0, missing))[..., : mask.shape[-1]] if missing else mask
