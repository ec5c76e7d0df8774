"""Tests of batch slots: an image must not depend on the batch size or on the images in other slots."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core import Drafting, Sampling
from adt_core.policies import PLAIN
from tests.drafted import run
from tests.property.tiny_models import LENGTH, models

MERGED = "network+jacobi"
CHAIN = Drafting(method="eagle2", depth=6, width=1, drafts=6)
TREES = [
    Drafting(method="eagle2", depth=4, width=3, drafts=10),
    Drafting(method="adt-tree", depth_max=6, width_max=4),
    Drafting(method="static:mc_sim_7b_63"),
    Drafting(method="eagle2", depth=5, width=2, drafts=8, keep_above=0.05, expand_above=0.1),
    CHAIN,
]
INDEPENDENT = [("network", drafting) for drafting in TREES] + [("jacobi", CHAIN)]
"""Drafters and policies that don't share state between images. With these, an image has the same trees in any batch."""
SHARING = [("jacobi", TREES[0]), (MERGED, TREES[0]), (MERGED, TREES[1]), ("jacobi", Drafting(method="auto"))]
PROMPTS = ["a cat", "x", "three small dogs", "a red house by the sea", "no", "a boat at night"]


def decode(prompts, source, drafting, **how):
    target, drafters = models()
    return run(target, drafters.get(source), prompts, drafting=drafting, **how)


def records(decoding, image):
    return [
        (one.position, one.depth, one.drafts, one.accepted)
        for round in decoding.trace.rounds
        for one in round.images
        if one.image == image
    ]


def test_every_draft_mode_is_covered():
    assert {source for source, _ in INDEPENDENT + SHARING} == set(models()[1])


@given(
    seed=st.integers(0, 2**64 - 1),
    prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=6),
    batch_size=st.integers(1, 4),
    temperature=st.sampled_from([0.0, 1.0]),
    guidance=st.sampled_from([1.0, 3.0]),
    start=st.integers(0, LENGTH - 1),
    drafts=st.sampled_from(INDEPENDENT + SHARING),
)
def test_images_do_not_depend_on_the_batch(seed, prompts, batch_size, temperature, guidance, start, drafts):
    images = range(len(prompts))
    sampling = Sampling(seed, temperature, guidance_scale=guidance)
    draw = torch.Generator().manual_seed(seed % 2**31)
    prefix = torch.randint(models()[0].num_codes, (len(prompts), start), generator=draw)
    together = decode(prompts, *drafts, sampling=sampling, kept=prefix, batch_size=batch_size, image_indices=images)
    for i in images:
        how = {"sampling": sampling, "kept": prefix[i : i + 1], "image_indices": [i]}
        single = decode(prompts[i : i + 1], *(drafts if drafts in INDEPENDENT else (None, Drafting(PLAIN))), **how)
        assert torch.equal(together.codes[i], single.codes[0])
        assert drafts not in INDEPENDENT or records(together, i) == records(single, 0)
    report = together.trace.report()
    assert report["tokens"] == len(prompts) * (LENGTH - start) and together.done_tokens == together.total_tokens


def test_free_slots_are_filled_immediately():
    """While images wait, every round has the maximum batch size. After that, each round has all unfinished images."""
    decoding = decode(PROMPTS, "network", TREES[0], batch_size=3)
    active = [[record.image for record in round.images] for round in decoding.trace.rounds]
    entered = [max(max(images) for images in active[: i + 1]) for i in range(len(active))]
    full = [len(images) for images, newest in zip(active, entered) if newest < len(PROMPTS) - 1]
    assert set(full) == {3} and len(full) > 3
    counts = [len(images) for images in active]
    assert counts == sorted(counts, reverse=True) and counts[-1] < 3
    assert {image for images in active for image in images} == set(range(6))
    assert decoding.memory_required() < decode(PROMPTS, "network", TREES[0]).memory_required()
