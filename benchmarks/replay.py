"""Draft trees on images that are known already, without the target's forward passes.

A lossless method decodes the tokens of plain decoding, so these tokens and the target's features determine every round
of a drafter network. :func:`record` decodes the images plainly and keeps both; within :func:`replaying`, a decoding of
the same images verifies its trees with them. Rounds, trees and calls of the network are those of a usual decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from adt_core.app.jobs import decode, new_decoding
from adt_core.drafters import Proposer, Verified
from adt_core.drafters.eagle import EagleProposer, Growth
from adt_core.engine import round as rounds
from adt_core.engine.job import Job
from adt_core.engine.slots import Slots
from adt_core.models.rows import Roots
from adt_core.rules.tree import CandidatePool, DraftTree
from adt_core.rules.verify import Acceptance, exact_agreement, longest_path


class Recording(NamedTuple):
    """Images that were decoded plainly.

    Attributes:
        codes: [B, T].
        features: [rows per image, B, T, h], target's features of these tokens; not of the last one.
    """

    codes: Tensor
    features: Tensor


def record(job: Job, prompts: list[str]) -> Recording:
    """Decode one image per prompt plainly, as one batch.

    Args:
        job: Job of plain decoding.
        prompts: Prompts.
    """
    decoding = new_decoding(job, prompts)
    config = job.target.decoder.config
    shape = decoding.request.groups, len(prompts), job.target.length, config.hidden_size
    features = torch.zeros(shape, dtype=job.target.decoder.dtype)
    forward = rounds.forward

    def recorded(slots: Slots, codes: Tensor, step: object) -> Tensor:
        out = forward(slots, codes, step)  # [R, 1, h], all conditional rows first
        features[:, slots.images, slots.positions] = out.view(len(features), len(slots), -1)
        return out

    with patch.object(rounds, "forward", recorded):
        decode(decoding)
    return Recording(decoding.codes, features)


class Replay:
    """Replacement of the target's forward passes by a recording, with a counter of the network's calls.

    Attributes:
        calls: Calls of the network by image, as if each image was decoded alone and without those of prompts. In a
            batch, the network is called for all images until the last tree ends.
    """

    def __init__(self, recording: Recording):
        self.calls: dict[int, int] = {}
        self._recording = recording
        self._images: list[tuple[int, bool]] = []

    def begin_round(self, slots: Slots) -> None:
        """Count the call that reads the accepted path, for images that can get drafts."""
        self._images = list(zip(slots.images, slots.active))
        self.add(self._recording.codes.shape[1] - 2 - torch.tensor(slots.positions))

    def add(self, counts: Tensor) -> None:
        """Count a call for each image whose count [B] is above 0."""
        for (image, is_active), count in zip(self._images, counts.tolist()):
            self.calls[image] = self.calls.get(image, 0) + (is_active and count > 0)

    def verify(self, slots: Slots, proposer: Proposer, tree: DraftTree, width: int) -> Verified:
        """Verify a tree. The recorded features of nodes outside the accepted path are not theirs, and not used."""
        codes, features = self._recording
        images = torch.tensor(slots.images)[:, None]
        at = (slots.roots.at + tree.depths).clamp_max(codes.shape[1] - 2)
        emitted = codes[images, at + 1]
        acceptance = longest_path(tree, exact_agreement(tree, emitted), emitted)
        acceptance = acceptance.cut(proposer.context.size(lambda: acceptance.accepted, tree.height))
        finite = torch.ones(len(slots), dtype=torch.bool)
        return Verified(tree, features[:, images, at].flatten(0, 1), torch.empty(0), acceptance, finite, slots.roots)


@contextmanager
def replaying(recording: Recording) -> Iterator[Replay]:
    """Verify trees of a drafter network with a recording within this block.

    Yields:
        The replay, with its counter.
    """
    replay = Replay(recording)
    drafted_round = rounds._drafted_round
    grow_chain = EagleProposer._grow_chain
    promising = Growth.promising

    def run_round(slots: Slots, *rest: Any) -> Any:
        replay.begin_round(slots)
        return drafted_round(slots, *rest)

    def count_chain(proposer: EagleProposer, roots: Roots, biases: list, growth: Growth) -> DraftTree:
        for level in range(1, len(biases)):
            replay.add(growth._shapes.lengths[:, 0] - level)
        return grow_chain(proposer, roots, biases, growth)

    def count_level(growth: Growth, best: Tensor, pool: CandidatePool) -> Tensor:
        replay.add(counts := promising(growth, best, pool))
        return counts

    with (
        patch.object(rounds, "_has_drafts", lambda *_: True),  # a plain step would read the target's cache
        patch.object(rounds, "verify", replay.verify),
        patch.object(rounds, "_drafted_round", run_round),
        patch.object(EagleProposer, "_grow_chain", count_chain),
        patch.object(Growth, "promising", count_level),
        # the target's cache is not used, so its paths need not be made contiguous
        patch.object(Acceptance, "is_scattered", lambda acceptance: torch.zeros(1)),
    ):
        yield replay
