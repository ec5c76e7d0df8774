"""What the host reads of a round: one tensor of whole numbers, which packs and unpacks itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..drafters import Verified


class Report(NamedTuple):
    """What the host reads of a round: whole numbers, on the device [B, n] each, on the host a list for each image.

    accepted, depth: drafts accepted, and the depth of the tree. root: code of the next one. levels: drafts on every
    level, the root's first. codes, ranks, substituted: of the nodes along the accepted path, the root first. finite: 1
    if the logits on that path are finite numbers, else 0.
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
    def of(cls, verified: Verified) -> Report:
        """Of a tree that was checked."""
        tree, acceptance, substitutes = verified.tree, verified.acceptance, verified.substitutes
        path = acceptance.path
        return cls(
            accepted=acceptance.accepted[:, None],
            depth=tree.realised_depth()[:, None],
            root=acceptance.next_root[:, None],
            levels=tree.levels(),
            codes=tree.tokens.gather(1, path),
            ranks=tree.ranks.gather(1, path),
            substituted=path[:, :0] if substitutes is None else substitutes.long().gather(1, path),
            finite=verified.finite[:, None].long(),
        )

    @classmethod
    def of_plain(cls, codes: Tensor, finite: Tensor) -> Report:
        """Of plain steps, which have drawn these codes [B]. finite: [B] bool."""
        none, zero = codes[:, None][:, :0], torch.zeros_like(codes)[:, None]
        return cls(zero, zero, codes[:, None], none, none, none, none, finite[:, None].long())

    def packed(self) -> tuple[Tensor, tuple[int, ...]]:
        """All of it in one tensor [B, k] int64, and the widths of its parts."""
        return torch.cat(self, 1), tuple(part.shape[1] for part in self)

    @classmethod
    def unpacked(cls, row: list[int], widths: Sequence[int]) -> Report:
        """One image's, of what :meth:`packed` gave."""
        return cls(*(row[end - width : end] for end, width in zip(accumulate(widths), widths)))
