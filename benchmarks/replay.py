"""Counts of rounds and network calls on images whose tokens are already known, without the target's forward passes.

A lossless method generates the same tokens as plain decoding. The drafter's network drafts from these tokens and from
the target's features (its last hidden states). :func:`record` decodes the images without drafts, and records the tokens
and the features. In the block of :func:`replaying`, a decoding of the same images uses the recording instead of the
target. Its rounds, trees and network calls are the same as with the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from adt_core.app.pipeline import Pipeline
from adt_core.drafters import Proposer, Verified
from adt_core.drafters.eagle import EagleProposer, Growth
from adt_core.engine import round as rounds
from adt_core.engine.slots import Slots
from adt_core.models.rows import Roots
from adt_core.rules.tree import CandidatePool, DraftTree
from adt_core.rules.verify import Acceptance, exact_agreement, longest_path


class Recording(NamedTuple):
    """Tokens and features of images that were decoded without drafts.

    Attributes:
        codes: Codes [B, T] of B images with T tokens.
        features: [rows per image, B, T, h]: the target's features of these tokens, with hidden size h. An image has two
            rows with guidance, else one. The features of the last token are not recorded.
    """

    codes: Tensor
    features: Tensor


def record(pipeline: Pipeline, prompts: list[str]) -> Recording:
    """Decode one image per prompt without drafts, all as one batch, and record tokens and features.

    Args:
        pipeline: Pipeline of plain decoding.
        prompts: Prompts of the images.
    """
    decoding = pipeline.decoding(prompts)
    config = pipeline.target.decoder.config
    shape = decoding.request.groups, len(prompts), pipeline.target.length, config.hidden_size
    features = torch.zeros(shape, dtype=pipeline.target.decoder.dtype)
    forward = rounds.forward

    def recorded(slots: Slots, codes: Tensor, step: object) -> Tensor:
        out = forward(slots, codes, step)  # [batch rows, 1, h], all conditional rows first
        features[:, slots.images, slots.positions] = out.view(len(features), len(slots), -1)
        return out

    with patch.object(rounds, "forward", recorded):
        decoding.run()
    return Recording(decoding.codes, features)


class Replay:
    """Verification of draft trees with a recording instead of the target, and a counter of the drafter network's calls.

    Attributes:
        calls: Number of the image -> calls of the network, without the call that reads the prompt. The number is the
            same as if the image were decoded alone. A batch has more calls, because the network is called for all
            images until the last tree is complete.
    """

    def __init__(self, recording: Recording):
        self.calls: dict[int, int] = {}
        self._recording = recording
        self._images: list[tuple[int, bool]] = []

    def begin_round(self, slots: Slots) -> None:
        """Count the call in which the network reads the accepted path, for each image that can still get drafts."""
        self._images = list(zip(slots.images, slots.active))
        self.add(self._recording.codes.shape[1] - 2 - torch.tensor(slots.positions))

    def add(self, counts: Tensor) -> None:
        """Count one call of the network for each active image whose value in `counts` [B] is above 0."""
        for (image, is_active), count in zip(self._images, counts.tolist()):
            self.calls[image] = self.calls.get(image, 0) + (is_active and count > 0)

    def verify(self, slots: Slots, proposer: Proposer, tree: DraftTree, width: int) -> Verified:
        """Verify a tree with the recording.

        A node gets the features of its position. They are wrong for nodes outside the accepted path, but the features
        of these nodes are not used.
        """
        codes, features = self._recording
        images = torch.tensor(slots.images)[:, None]
        at = (slots.roots.at + tree.depths).clamp_max(codes.shape[1] - 2)
        emitted = codes[images, at + 1]
        acceptance = longest_path(tree, exact_agreement(tree, emitted), emitted)
        acceptance = acceptance.cut(proposer.context.size(lambda: acceptance.accepted, tree.height))
        finite = torch.ones(len(slots), 1, dtype=torch.bool)
        return Verified(tree, features[:, images, at].flatten(0, 1), torch.empty(0), acceptance, finite, slots.roots)


@contextmanager
def replaying(recording: Recording) -> Iterator[Replay]:
    """Verify the trees of a drafter network with a recording during the block.

    Yields:
        The replay, whose attribute `calls` counts the calls of the network.
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
        patch.object(rounds, "_verifies_trees", lambda *_: True),  # no plain rounds: they would run the target
        patch.object(rounds, "verify", replay.verify),
        patch.object(rounds, "_drafted_round", run_round),
        patch.object(EagleProposer, "_grow_chain", count_chain),
        patch.object(Growth, "promising", count_level),
        # The target's cache is not used, so the accepted paths need not be moved to consecutive cache positions.
        patch.object(Acceptance, "is_scattered", lambda acceptance: torch.zeros(1)),
    ):
        yield replay
