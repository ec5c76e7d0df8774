"""The worked example of a drafter: it guesses that the picture goes on as its last token.

It is of use in flat skies and little else. To add a drafter, write such a class and a line in ``drafters/table.py``.
"""

from __future__ import annotations

import torch

from ..models.rows import BatchRows, Roots
from ..policies import Context, DraftMode
from ..rules.noise import Noise
from ..rules.tree import DraftTree, chain
from .base import Drafter, Proposer, Shapes


class RepeatDrafter(Drafter):
    """Needs no files."""

    defaults = {"method": "eagle2", "depth": 3, "width": 1, "nodes": 3}
    modes = (DraftMode("repeat", width=1),)

    def proposer(self, context: Context, rows: BatchRows, noise: Noise | None) -> Proposer:
        return RepeatProposer(context, rows, noise)


class RepeatProposer(Proposer):
    """Has nothing to learn, so ``begin`` and ``on_verified`` stay empty.

    State would be named in ``by_image`` or ``by_row``.
    """

    def propose(self, roots: Roots, shapes: Shapes) -> DraftTree:
        depth = min(shapes.depth, shapes.nodes)
        tokens = roots.codes[:, None].expand(-1, depth + 1)  # [B, root and drafts]
        wanted = torch.arange(depth, device=tokens.device) < shapes.lengths  # an image may ask for less than others
        return chain(tokens, torch.where(wanted, 0.0, -torch.inf))
