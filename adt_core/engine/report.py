"""Report of a round: all values that the host reads from the device after the round.

The values are packed into one integer tensor, so the host waits for the device only once per round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..drafters import Verified


class RoundReport(NamedTuple):
    """Values that the host reads after a round.

    On the device, a report is for all B images, and each field is a tensor [B, n] int64. On the host, a report is for
    one image, and each field is a list of n integers. The number n differs between fields. In a *plain round* (a round
    without drafts), `levels`, `codes`, `ranks` and `substituted` are empty (n = 0).

    Attributes:
        accepted: Number of accepted drafts; n = 1.
        depth: Depth of the tree; n = 1.
        root: Code of the next root; n = 1.
        levels: Number of drafts at each depth. The entry of depth 0 is 0, because the root is not a draft.
        codes: Code of each node on the accepted path, the root first. Entries after the path are arbitrary.
        ranks: Rank of each node on the accepted path among its siblings, the root first. The most probable has rank 0.
        substituted: For each node on the accepted path, 1 if LANTERN accepted the node in place of the target's token,
            else 0. The field is empty without LANTERN.
        finite: 1 if the logits on the accepted path are finite, else 0; n = 1.
    """

    accepted: Any
    depth: Any
    root: Any
    levels: Any
    codes: Any
    ranks: Any
    substituted: Any
    finite: Any

    @classmethod
    def from_verified(cls, verified: Verified) -> RoundReport:
        """Return the report of a verified tree."""
        tree = verified.tree
        path = verified.acceptance.path
        substitutes = verified.substitutes
        return cls(
            accepted=verified.acceptance.accepted,
            depth=tree.realised_depth(),
            root=verified.acceptance.next_root,
            levels=tree.levels(),
            codes=tree.tokens.gather(1, path),
            ranks=tree.ranks.gather(1, path),
            substituted=path[:, :0] if substitutes is None else substitutes.long().gather(1, path),
            finite=verified.finite.long(),
        )

    @classmethod
    def from_plain_round(cls, codes: Tensor, finite: Tensor) -> RoundReport:
        """Return the report of a plain round.

        Args:
            codes: [B], code of each new root.
            finite: [B] bool, whether the logits that decided the new root are finite.
        """
        zero = torch.zeros_like(codes)[:, None]
        empty = zero[:, :0]
        return cls(
            accepted=zero,
            depth=zero,
            root=codes[:, None],
            levels=empty,
            codes=empty,
            ranks=empty,
            substituted=empty,
            finite=finite[:, None].long(),
        )

    def pack(self) -> tuple[Tensor, tuple[int, ...]]:
        """Join all fields to one tensor.

        Returns:
            The tensor [B, k] int64, and the number of columns of each field. The numbers sum to k.
        """
        return torch.cat(self, 1), tuple(part.shape[1] for part in self)

    @classmethod
    def unpack(cls, row: list[int], widths: Sequence[int]) -> RoundReport:
        """Return one image's report.

        Args:
            row: The image's row of the packed tensor, k integers.
            widths: Number of columns of each field.
        """
        return cls(*(row[end - width : end] for end, width in zip(accumulate(widths), widths)))
