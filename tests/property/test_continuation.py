"""Whatever an image starts from, wherever that ends and whatever drafts the rest: the tokens are those of plain
decoding."""

import tempfile
from functools import cache
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.drafters import table, with_window
from tests.tiny import write_tiny_checkpoint, write_tiny_drafter

LENGTH, CODES = 16, 40
DRAFTERS = [*table.DRAFTERS, "network", "both"]


@cache
def models():
    """A tiny target in float64 and its drafters, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_checkpoint(Path(folder) / "target", scale=3.0)
        target = load_target(path, dtype=torch.float64)
        network = load_drafter(write_tiny_drafter(Path(folder) / "drafter", path), target)
        without_files = {name: make() for name, make in table.DRAFTERS.items()}
        return target, {**without_files, "network": network, "both": with_window(network)}


def decode(prefix, drafting, drafter, seed, temperature):
    target, drafters = models()
    prompts = [target.encode_prompt("a cat"), target.encode_prompt("three dogs")]
    decoding = Decoding(
        target,
        prompts,
        sampling=Sampling(seed=seed, temperature=temperature),
        drafting=drafting,
        drafter=drafters[drafter],
        image_indices=[0, 1],
        prefix=prefix,
    )
    for _ in decoding:
        pass
    return decoding.codes


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    start=st.integers(0, LENGTH),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    own=st.booleans(),
    drafter=st.sampled_from(DRAFTERS),
    method=st.sampled_from(["eagle2", "adt-tree"]),
    depth=st.integers(1, 6),
    width=st.integers(1, 4),
    nodes=st.integers(1, 20),
)
def test_every_continuation_is_that_of_plain_decoding(
    seed, start, temperature, own, drafter, method, depth, width, nodes
):
    """Of a prefix that the model drew itself, and of one that it would hardly have drawn."""
    plain = Drafting(method="autoregressive")
    whole = decode(None, plain, drafter, seed, temperature)
    strange = torch.randint(CODES, (2, start), generator=torch.Generator().manual_seed(seed % 2**31))
    prefix = whole[:, :start] if own else strange
    shape = {"depth": depth, "width": width, "nodes": nodes, "depth_max": 6, "width_max": 4}
    drafting = Drafting.of({"method": method, **shape})
    codes = decode(prefix, drafting, drafter, seed, temperature)
    assert torch.equal(codes, whole if own else decode(prefix, plain, drafter, seed, temperature))
    assert torch.equal(codes[:, :start], prefix)
