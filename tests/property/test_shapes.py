"""Tests with tree shapes that differ between images and rounds.

No drafter may exceed the shape, and the tokens must equal plain decoding.
"""

from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core import Drafting, Sampling
from adt_core.drafters.eagle import EagleProposer, Growth
from adt_core.policies import PLAIN, POLICIES, Policy, Shape
from tests.drafted import run
from tests.property.tiny_models import models

PROMPTS = ("a cat", "three small dogs", "x")
LARGEST = Shape(7, 4, 20)
SHAPE = st.tuples(*(st.integers(1, most) for most in LARGEST[:3])).map(lambda sizes: Shape(*sizes))
PER_LEVEL = {"static:mc_sim_7b_63": [4, 8, 8, 3, 2], "static:naive_extend_57": [5, 13, 16, 14, 9]}
"""Number of nodes on each level of the published trees, without the root."""


def uneven(shapes: list[Shape]) -> type[Policy]:
    """Return a policy that cycles through these shapes. Each image starts with another shape."""

    class Uneven(Policy):
        @classmethod
        def largest(cls, settings):
            return LARGEST

        def choose(self, slots):
            return [shapes[(slot.image + slot.position) % len(shapes)] for slot in slots]

    return Uneven


def decode(drafter: str, drafting: Drafting, *, seed: int, temperature: float = 1.0, batch_size: int | None = None):
    target, drafters = models()
    sampling = Sampling(seed, temperature)
    return run(target, drafters[drafter], PROMPTS, sampling=sampling, drafting=drafting, batch_size=batch_size)


def records(decoding):
    return [record for round in decoding.trace.rounds for record in round.images]


@given(
    shapes=st.lists(SHAPE, min_size=1, max_size=5),
    drafter=st.sampled_from([*models()[1]]),
    proposal=st.sampled_from(["coupled", "top-k"]),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1.0]),
    batch_size=st.integers(1, 3),
)
def test_trees_do_not_exceed_the_shape_of_the_policy(shapes, drafter, proposal, seed, temperature, batch_size):
    how = {"seed": seed, "temperature": temperature}
    plain = decode(drafter, Drafting(PLAIN), **how)
    with patch.dict(POLICIES, uneven=uneven(shapes)):
        decoding = decode(drafter, Drafting("uneven", proposal=proposal), batch_size=batch_size, **how)
    assert torch.equal(decoding.codes, plain.codes)
    for record in records(decoding):
        shape = shapes[(record.image + record.position) % len(shapes)]
        remaining = decoding.length - 2 - record.position
        assert record.drafts <= (shape.drafts if remaining > 0 else 0), (record, shape)
        assert record.depth <= min(shape.depth, shape.drafts, max(remaining, 0)), (record, shape)
        assert record.width <= max(shape.drafts - record.depth + 1, 0), (record, shape)


@given(method=st.sampled_from(sorted(PER_LEVEL)), seed=st.integers(0, 2**64 - 1), batch_size=st.integers(1, 3))
def test_published_trees_are_cut_only_at_the_end_of_the_image(method, seed, batch_size):
    """Check trees at the end of an image, also if other images of the batch are not yet there."""
    decoding = decode("network", Drafting(method), seed=seed, batch_size=batch_size)
    for record in records(decoding):
        remaining = decoding.length - 2 - record.position
        assert record.depth == min(len(PER_LEVEL[method]), max(remaining, 0))
        assert record.drafts == sum(PER_LEVEL[method][: record.depth])


@given(
    shapes=st.lists(SHAPE, min_size=1, max_size=3),
    proposal=st.sampled_from(["coupled", "top-k"]),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1.0]),
    batch_size=st.integers(1, 3),
)
def test_trees_do_not_depend_on_the_early_stop(shapes, proposal, seed, temperature, batch_size):
    """With the early stop, the network isn't called for levels whose nodes can't become part of the tree."""
    propose = EagleProposer.propose

    def propose_twice(proposer, roots, sizes):
        with patch.object(Growth, "promising", lambda growth, best, pool: (best > -torch.inf).sum(1)):
            full = propose(proposer, roots, sizes)
        tree = propose(proposer, roots, sizes)
        for name in ("tokens", "depths", "ranks"):
            assert getattr(tree, name)[tree.valid].equal(getattr(full, name)[full.valid]), name
        # parents are numbered without padding, which may be in different places
        parents, expected = ((one.valid.cumsum(1) - 1).gather(1, one.parents)[one.valid] for one in (tree, full))
        assert parents.equal(expected)
        assert tree.valid.sum(1).equal(full.valid.sum(1))
        # Rounding of scores may differ, because the network gets another number of nodes per call.
        torch.testing.assert_close(tree.scores[tree.valid], full.scores[full.valid])
        return tree

    with patch.dict(POLICIES, uneven=uneven(shapes)), patch.object(EagleProposer, "propose", propose_twice):
        how = {"seed": seed, "temperature": temperature, "batch_size": batch_size}
        decode("network", Drafting("uneven", proposal=proposal), **how)
