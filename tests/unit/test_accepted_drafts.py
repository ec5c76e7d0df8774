"""The accepted drafts of every drafter, on fixed prompts: one that has become worse still writes the right tokens.

The tokens are those of plain decoding, too.

The bundled model continues held-out pictures in float64. Every round of every image is as ``accepted_drafts.json``
says. If a change is meant to change a drafter's drafts, write the file anew, and say in the commit what became of the
number of rounds, which it prints:

    PYTHONPATH=. python tests/unit/test_accepted_drafts.py

With another checkout first on PYTHONPATH, the file holds what that one drafts.
"""

import json
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.app.jobs import decode
from adt_core.policies import NO_DRAFTS, PLAIN, POLICIES, Policy, Shape
from model_making.data import example

FILE = Path(__file__).with_suffix("").with_name("accepted_drafts.json")
PICTURES = (4400, 4401, 4402)
"""Held-out pictures whose beginning is given and whose end is drawn."""
KEPT = 200
"""Tokens that are given, of 256."""


class Resting(Policy):
    """Draft in every third round only. Drafters follow the other rounds, so that they draft as well afterwards."""

    CHAIN = Shape(4, 1, 4)

    def __init__(self, context):
        super().__init__(context)
        self.rounds = 0

    @classmethod
    def largest(cls, settings):
        return cls.CHAIN

    def choose(self, slots):
        self.rounds += 1
        return [self.CHAIN if self.rounds % 3 == 0 else NO_DRAFTS] * len(slots)


WINDOW = dict(method="eagle2", depth=20, width=4, nodes=24)
GROWING = dict(method="adt-tree", depth=12, nodes=24, beta=0.25, depth_step=4, depth_min=8, depth_max=20, width_max=4)
CASES = {
    "network, eagle2": ("bundled", dict(method="eagle2", depth=4, width=3, nodes=10)),
    "network, eagle2, three images": ("bundled", dict(method="eagle2", depth=4, width=3, nodes=10)),
    "network, eagle2, top-k": ("bundled", dict(method="eagle2", depth=4, width=3, nodes=10, proposal="top-k")),
    "network, pruned": (
        "bundled",
        dict(method="eagle2", depth=6, width=3, nodes=10, expand_above=0.3, keep_above=0.05),
    ),
    "network, adt-tree": ("bundled", dict(method="adt-tree")),
    "network, mc_sim_7b_63": ("bundled", dict(method="static:mc_sim_7b_63")),
    "network, naive_extend_57, top-k": ("bundled", dict(method="static:naive_extend_57", proposal="top-k")),
    "window": ("jacobi", WINDOW),
    "window, three images": ("jacobi", WINDOW),
    "window, top-k": ("jacobi", dict(WINDOW, proposal="top-k")),
    "window, a chain": ("jacobi", dict(method="eagle2", depth=16, width=1, nodes=16)),
    "window, adt-tree": ("jacobi", GROWING),
    "network and window": ("bundled+jacobi", WINDOW),
    "network and window, three images": ("bundled+jacobi", WINDOW),
    "network and window, top-k": ("bundled+jacobi", dict(WINDOW, proposal="top-k")),
    "network and window, adt-tree": ("bundled+jacobi", GROWING),
    "window, resting": ("jacobi", dict(method="resting")),
    "network and window, resting": ("bundled+jacobi", dict(method="resting")),
}
"""Name -> drafter and drafting. ``three images``: two at a time, and the third follows the one that ends first."""
QUICK = "network, adt-tree", "window", "window, resting"
"""The default tier's cases."""


def started():
    """The target in float64, and how images begin: prompts, and the first codes of every image [3, KEPT]."""
    target = load_target(dtype=torch.float64)
    pictures, captions, _ = zip(*(example(2, number) for number in PICTURES))
    pixels = torch.stack([torch.tensor(picture).permute(2, 0, 1) for picture in pictures]).double() / 127.5 - 1
    with torch.inference_mode():
        codes = target.codec.encode(pixels).flatten(1)[:, :KEPT]
    return target, [target.encode_prompt(caption) for caption in captions], codes


def decoding_of(beginning, count: int, **drafts) -> Decoding:
    """Of the first images, which has not begun."""
    target, prompts, codes = beginning
    return Decoding(target, prompts[:count], prefix=codes[:count], sampling=Sampling(seed=5), at_once=2, **drafts)


def drafted(beginning, name: str) -> tuple[list[str], torch.Tensor]:
    """Every image's rounds, each as ``position: nodes/depth accepted ranks;``, and the codes [images, T]."""
    source, options = CASES[name]
    count = 3 if "three images" in name else 1
    images = [""] * count
    with patch.dict(POLICIES, resting=Resting):
        drafts = {"drafting": Drafting(**options), "drafter": load_drafter(source, beginning[0])}
        decoding = decoding_of(beginning, count, **drafts)
        for round in decoding:
            for share in round.images:
                ranks = "".join(map(str, share.ranks))
                images[share.image] += f"{share.position}: {share.nodes}/{share.depth} {share.accepted} {ranks};"
    return images, decoding.codes


@pytest.fixture(scope="module")
def beginning():
    return started()


@pytest.fixture(scope="module")
def plain(beginning):
    """A function: the codes [count, T] of plain decoding."""
    return cache(lambda count: decode(decoding_of(beginning, count, drafting=Drafting(PLAIN))).codes)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_every_round_has_the_drafts_that_it_had(beginning, plain, name):
    found, codes = drafted(beginning, name)
    assert codes.equal(plain(len(codes)))
    expected = json.loads(FILE.read_text(encoding="utf-8"))[name]
    for image, (now, before) in enumerate(zip(found, expected)):
        assert now.split(";") == before.split(";"), f"{name}, image {image}"


def write() -> None:
    """Write the file anew."""
    beginning = started()
    every = {name: drafted(beginning, name)[0] for name in CASES}
    FILE.write_text(json.dumps(every, indent=0) + "\n", encoding="utf-8")
    for name, images in every.items():
        print(f"{name}: {''.join(images).count(';')} rounds")


if __name__ == "__main__":
    write()
