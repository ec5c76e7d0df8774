"""A policy may leave drafts out for a round. Drafters see such rounds all the same, and can draft afterwards."""

import pytest

from adt_core import Decoding, Drafting, Sampling, load_drafter, load_target
from adt_core.policies import NO_DRAFTS, POLICIES, DraftSettings, Policy, Shape

CHAIN = Shape(4, 1, 4)


class EveryThird(Policy):
    """Drafts in every third round."""

    def __init__(self, settings, scene):
        super().__init__(settings, scene)
        self.rounds = 0

    @classmethod
    def largest(cls, settings: DraftSettings) -> Shape:
        return CHAIN

    def choose(self, lanes):
        self.rounds += 1
        return [CHAIN if self.rounds % 3 == 0 else NO_DRAFTS] * len(lanes)


@pytest.fixture(scope="module")
def target():
    return load_target()


@pytest.mark.long
@pytest.mark.parametrize(
    "name, least",
    [pytest.param("bundled", 0.75, marks=pytest.mark.long), ("bundled+jacobi", 0.75), ("jacobi", 0.4)],
)
def test_drafts_are_good_after_rounds_without_any(target, name, least, monkeypatch):
    """A window learns from what it has drafted, so it alone draws less from a round without drafts."""
    monkeypatch.setitem(POLICIES, "every-third", EveryThird)
    prompt = target.encode_prompt("A red house in a grassy field on the left.")
    steady = Drafting("eagle2", depth=CHAIN.depth, width=1, nodes=CHAIN.nodes)
    accepted, codes = [], []
    for drafting in (steady, Drafting("every-third")):
        drafter, seeds = load_drafter(name, target), [4, 5, 6, 7]
        decoding = Decoding(target, [prompt] * 4, sampling=Sampling(), drafting=drafting, drafter=drafter, seeds=seeds)
        shares = [share for round in decoding for share in round.images if share.nodes]
        accepted.append(sum(share.accepted for share in shares) / len(shares))
        codes.append(decoding.codes)
    assert codes[0].equal(codes[1])
    assert accepted[0] > 0.5 and accepted[1] > least * accepted[0], "drafts accepted in a round that has some"
