"""Whatever shapes a policy asks for, for every image and in every round others: no drafter makes more drafts than it
was asked for, and the tokens are those of plain decoding."""

from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core import Drafting, Sampling
from adt_core.policies import PLAIN, POLICIES, Policy, Shape
from tests.drafted import run
from tests.property.tiny_models import models

PROMPTS = ("a cat", "three small dogs", "x")
LARGEST = Shape(7, 4, 20)
SHAPE = st.tuples(*(st.integers(1, most) for most in LARGEST[:3])).map(lambda sizes: Shape(*sizes))
PER_LEVEL = {"static:mc_sim_7b_63": [4, 8, 8, 3, 2], "static:naive_extend_57": [5, 13, 16, 14, 9]}
"""Nodes on the levels of the published trees."""


def uneven(shapes: list[Shape]) -> type[Policy]:
    """A policy that goes through these shapes in turn, every image from another one on."""

    class Uneven(Policy):
        @classmethod
        def largest(cls, settings):
            return LARGEST

        def choose(self, slots):
            return [shapes[(slot.image + slot.position) % len(shapes)] for slot in slots]

    return Uneven


def decode(drafter: str, drafting: Drafting, *, seed: int, temperature: float = 1.0, at_once: int | None = None):
    target, drafters = models()
    sampling = Sampling(seed, temperature)
    return run(target, drafters[drafter], PROMPTS, sampling=sampling, drafting=drafting, at_once=at_once)


def shares(decoding):
    return [share for round in decoding.trace.rounds for share in round.images]


@given(
    shapes=st.lists(SHAPE, min_size=1, max_size=5),
    drafter=st.sampled_from([*models()[1]]),
    proposal=st.sampled_from(["coupled", "top-k"]),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1.0]),
    at_once=st.integers(1, 3),
)
def test_every_image_gets_at_most_the_drafts_that_it_asks_for(shapes, drafter, proposal, seed, temperature, at_once):
    how = {"seed": seed, "temperature": temperature}
    plain = decode(drafter, Drafting(PLAIN), **how)
    with patch.dict(POLICIES, uneven=uneven(shapes)):
        decoding = decode(drafter, Drafting("uneven", proposal=proposal), at_once=at_once, **how)
    assert torch.equal(decoding.codes, plain.codes)
    for share in shares(decoding):
        asked = shapes[(share.image + share.position) % len(shapes)]
        room = decoding.length - 2 - share.position
        assert share.nodes <= (asked.nodes if room > 0 else 0), (share, asked)
        assert share.depth <= min(asked.depth, asked.nodes, max(room, 0)), (share, asked)
        assert share.width <= max(asked.nodes - share.depth + 1, 0), (share, asked)


@given(method=st.sampled_from(sorted(PER_LEVEL)), seed=st.integers(0, 2**64 - 1), at_once=st.integers(1, 3))
def test_a_published_tree_is_whole_as_far_as_there_is_room(method, seed, at_once):
    """Also while another image of the batch has no room for drafts any more."""
    decoding = decode("network", Drafting(method), seed=seed, at_once=at_once)
    for share in shares(decoding):
        room = decoding.length - 2 - share.position
        assert share.depth == min(len(PER_LEVEL[method]), max(room, 0))
        assert share.nodes == sum(PER_LEVEL[method][: share.depth])
