"""Report of a round: all values that the host reads from the device after the round.

The values are packed into one integer tensor, so the host waits for the device only once per round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafters import Verified

Packed = tuple[Tensor, tuple[int, ...]]
"""Reports of all images of a round as one tensor [B, k] int64 on the device, and the number of columns of each field of
`RoundReport`. The numbers sum to k."""


class RoundReport(NamedTuple):
    """Values that the host reads after a round, for one image. Each field is a list of n integers.

    In a plain round (a round without drafts), `levels`, `codes`, `ranks` and `substituted` are empty (n = 0).

    Attributes:
        accepted: Number of accepted drafts; n = 1.
        depth: Depth of the tree; n = 1.
        root: Code of the next root; n = 1.
        levels: Number of drafts at each depth. The entry of depth 0 is 0, because the root is not a draft.
        codes: Code of each node on the accepted path, the root first. Entries after the path are arbitrary.
        ranks: Rank of each node on the accepted path among its siblings, the root first. The most probable has rank 0.
        substituted: For each node on the path, 1 if LANTERN accepted it instead of the target's token, else 0. Empty
            without LANTERN.
        certainty: For each node on the path, two numbers: `sampling.certainty` of the token after it.
        finite: 1 if the logits on the accepted path are finite, else 0; n = 1.
    """

    accepted: list[int]
    depth: list[int]
    root: list[int]
    levels: list[int]
    codes: list[int]
    ranks: list[int]
    substituted: list[int]
    certainty: list[int]
    finite: list[int]

    @classmethod
    def unpack(cls, row: list[int], widths: Sequence[int]) -> RoundReport:
        """Return one image's report from its row of the packed tensor, k integers."""
        return cls(*(row[end - width : end] for end, width in zip(accumulate(widths), widths)))


def pack_verified(verified: Verified) -> Packed:
    """Return the packed reports of verified trees."""
    tree = verified.tree
    acceptance = verified.acceptance
    path = acceptance.path
    none = path[:, :0]
    assert verified.certainty is not None
    return _pack(
        accepted=acceptance.accepted,
        depth=tree.realised_depth(),
        root=acceptance.next_root,
        levels=tree.levels(),
        codes=tree.tokens.gather(1, path),
        ranks=tree.ranks.gather(1, path),
        substituted=none if verified.substitutes is None else verified.substitutes.long().gather(1, path),
        certainty=verified.certainty.flatten(1),
        finite=verified.finite.long(),
    )


def pack_plain_round(codes: Tensor, finite: Tensor, certainty: Tensor) -> Packed:
    """Return the packed reports of a plain round.

    Args:
        codes: [B], code of each new root.
        finite: [B] bool, whether the logits that decided it are finite.
        certainty: [B, 1, 2], its `sampling.certainty`.
    """
    zero = torch.zeros_like(codes)[:, None]
    none = zero[:, :0]
    root = codes[:, None]
    return _pack(
        accepted=zero,
        depth=zero,
        root=root,
        levels=none,
        codes=none,
        ranks=none,
        substituted=none,
        certainty=certainty.flatten(1),
        finite=finite[:, None].long(),
    )


def _pack(**fields: Tensor) -> Packed:
    """Join the fields [B, n] of a report, on the device, in the order of `RoundReport`."""
    parts = [fields[name] for name in RoundReport._fields]
    return torch.cat(parts, 1), tuple(part.shape[1] for part in parts)
