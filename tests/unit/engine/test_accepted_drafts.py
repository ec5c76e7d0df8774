"""Tests that compare the rounds of every draft mode on fixed prompts with stored rounds: trees and accepted drafts.

Decoding stays lossless even if a drafter becomes worse, so comparing tokens does not detect it. The bundled model
continues held-out images in float64, and every round must equal the round in ``accepted_drafts.json``. After a change
that alters drafts on purpose, generate the file again, and state the printed numbers of rounds in the commit message:

    PYTHONPATH=. python tests/unit/engine/test_accepted_drafts.py

To get the rounds of another checkout, put that checkout first on PYTHONPATH.
"""

import json
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.policies import PLAIN, PLAIN_SHAPE, POLICIES, Policy, Shape
from model_making.data import example
from tests.drafted import new_decoding

FILE = Path(__file__).with_suffix("").with_name("accepted_drafts.json")
IMAGES = (4400, 4401, 4402)
"""Indices of the held-out images. The first KEPT tokens of each image are given, and the other tokens are decoded."""
KEPT = 200
"""Number of given tokens of each image. An image has 256 tokens."""


class Resting(Policy):
    """Policy that drafts only in every third round. The drafter must also process the tokens of the other rounds."""

    CHAIN = Shape(4, 1, 4)

    def __init__(self, context):
        super().__init__(context)
        self.rounds = 0

    @classmethod
    def largest(cls, settings):
        return cls.CHAIN

    def choose(self, slots):
        self.rounds += 1
        return [self.CHAIN if self.rounds % 3 == 0 else PLAIN_SHAPE] * len(slots)


TREE = dict(method="eagle2", depth=4, width=3, drafts=10)
WINDOW = dict(method="eagle2", depth=20, width=4, drafts=24)
GROWING = dict(method="adt-tree", depth=12, drafts=24, beta=0.25, depth_step=4, depth_min=8, depth_max=20, width_max=4)
CASES = {
    "network, eagle2": ("bundled", TREE),
    "network, eagle2, three images": ("bundled", TREE),
    "network, eagle2, top-k": ("bundled", dict(TREE, proposal="top-k")),
    "network, pruned": ("bundled", dict(TREE, depth=6, expand_above=0.3, keep_above=0.05)),
    "network, adt-tree": ("bundled", dict(method="adt-tree")),
    "network, mc_sim_7b_63": ("bundled", dict(method="static:mc_sim_7b_63")),
    "network, naive_extend_57, top-k": ("bundled", dict(method="static:naive_extend_57", proposal="top-k")),
    "window": ("jacobi", WINDOW),
    "window, three images": ("jacobi", WINDOW),
    "window, top-k": ("jacobi", dict(WINDOW, proposal="top-k")),
    "window, a chain": ("jacobi", dict(method="eagle2", depth=16, width=1, drafts=16)),
    "window, adt-tree": ("jacobi", GROWING),
    "network and window": ("bundled+jacobi", WINDOW),
    "network and window, three images": ("bundled+jacobi", WINDOW),
    "network and window, top-k": ("bundled+jacobi", dict(WINDOW, proposal="top-k")),
    "network and window, adt-tree": ("bundled+jacobi", GROWING),
    "window, resting": ("jacobi", dict(method="resting")),
    "network and window, resting": ("bundled+jacobi", dict(method="resting")),
}
"""Name of a case -> drafter and settings of the policy. A decoding has two batch slots. If there are three images, the
third image gets the slot that becomes free first."""
QUICK = "network, adt-tree", "window", "window, resting"
"""Cases of the default tier (tests that run without ``--all``)."""


def load_beginning():
    """Return the target in float64, the encoded prompts, and the given codes [images, KEPT]."""
    target = load_target(dtype=torch.float64)
    pixel_arrays, captions, _ = zip(*(example(2, number) for number in IMAGES))
    pixels = torch.stack([torch.tensor(array).permute(2, 0, 1) for array in pixel_arrays]).double() / 127.5 - 1
    with torch.inference_mode():
        codes = target.codec.encode(pixels).flatten(1)[:, :KEPT]
    return target, [target.encode_prompt(caption) for caption in captions], codes


def decoding_of(beginning, count: int, **drafts) -> Decoding:
    target, prompts, codes = beginning
    sampling = Sampling(seed=5)
    return new_decoding(target, prompts[:count], kept=codes[:count], sampling=sampling, batch_size=2, **drafts)


def drafted(beginning, name: str) -> tuple[list[str], torch.Tensor]:
    """Decode the images with a case. Return a text per image, and the codes [images, T] of the T tokens of each.

    The text has ``position: nodes/depth accepted ranks;`` for each round.
    """
    source, options = CASES[name]
    count = 3 if "three images" in name else 1
    images = [""] * count
    with patch.dict(POLICIES, resting=Resting):
        drafts = {"drafting": Drafting(**options), "drafter": load_drafter(source, beginning[0])}
        decoding = decoding_of(beginning, count, **drafts)
        for round in decoding:
            for record in round.images:
                ranks = "".join(map(str, record.ranks))
                images[record.image] += f"{record.position}: {record.drafts}/{record.depth} {record.accepted} {ranks};"
    return images, decoding.codes


@pytest.fixture(scope="module")
def beginning():
    return load_beginning()


@pytest.fixture(scope="module")
def plain(beginning):
    """Return a function (number of images) -> codes [images, T] of plain decoding."""
    return cache(lambda count: decoding_of(beginning, count, drafting=Drafting(PLAIN)).run().codes)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_rounds_equal_the_stored_rounds(beginning, plain, name):
    found, codes = drafted(beginning, name)
    assert codes.equal(plain(len(codes)))
    expected = json.loads(FILE.read_text(encoding="utf-8"))[name]
    for image, (now, before) in enumerate(zip(found, expected)):
        assert now.split(";") == before.split(";"), f"{name}, image {image}"


def write() -> None:
    """Decode all cases and overwrite ``accepted_drafts.json``."""
    beginning = load_beginning()
    every = {name: drafted(beginning, name)[0] for name in CASES}
    FILE.write_text(json.dumps(every, indent=0) + "\n", encoding="utf-8")
    for name, images in every.items():
        print(f"{name}: {''.join(images).count(';')} rounds")


if __name__ == "__main__":
    write()
