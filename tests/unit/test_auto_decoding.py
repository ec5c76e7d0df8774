"""The cost-aware policy at work in decodings: it never changes a token, and gives up where it must."""

import math

import pytest
import torch

from adt_core import Drafting
from adt_core.policies import POLICIES, auto
from adt_core.policies.auto import WIDTH, Auto, Experience
from tests.drafted import run

PROMPTS = ("a cat", "three small dogs", "x")
AUTO = Drafting("auto")


@pytest.fixture
def policies(monkeypatch):
    """The policies of all decodings with ``auto``, in the order in which they are made."""
    made = []

    class Recorded(Auto):
        def __init__(self, settings, scene):
            super().__init__(settings, scene)
            made.append(self)

    monkeypatch.setitem(POLICIES, "auto", Recorded)
    return made


def drafted(decoding):
    return [max(share.depth for share in round.images) > 0 for round in decoding.trace.rounds]


def test_it_tries_chain_and_network_and_window_and_drafts_with_nothing_while_a_stake_is_made_up_for(
    fresh_models, policies, monkeypatch
):
    monkeypatch.setattr(auto, "STAKE", math.inf)  # whatever this machine's clock says
    target, network = fresh_models
    plain = run(target, None, PROMPTS)
    calls = []
    for _ in range(3):
        decoding = run(target, network, PROMPTS, drafting=AUTO)
        widths = {share.width_asked for round in decoding.trace.rounds for share in round.images if share.depth > 0}
        calls.append((decoding.trace.report()["drafter_forwards"] > 0, max(widths)))
        assert torch.equal(decoding.codes, plain.codes) and decoding.trace.report()["tau"] > 1
    assert calls == [(False, 1), (True, WIDTH), (False, WIDTH)]
    policies[-1].experience.given_up, policies[-1].experience.balance = True, -1e3
    decoding = run(target, network, PROMPTS, drafting=AUTO)
    assert torch.equal(decoding.codes, plain.codes) and decoding.trace.report()["tau"] == 1


def test_an_image_in_which_drafts_do_not_pay_is_finished_plainly(fresh_models, monkeypatch):
    target, network = fresh_models
    monkeypatch.setattr(Experience, "saw", lambda *_: 99.0)
    plain = run(target, None, PROMPTS)
    decoding = run(target, network, PROMPTS, drafting=AUTO)
    assert torch.equal(decoding.codes, plain.codes)
    assert drafted(decoding)[0] and not any(drafted(decoding)[1:])


class GivesUp(Auto):
    """After three rounds, for good."""

    seen = 0

    def observe(self, round):
        self.seen += 1
        if self.seen >= 3:
            self.drafts, self.experience.given_up, self.experience.balance = False, True, -1e6


@pytest.mark.parametrize("at_once", [None, 2, 1])
def test_after_giving_up_images_go_in_step_and_the_next_ones_enter_together(fresh_models, monkeypatch, at_once):
    """Drafts have brought the first ones out of step. Those in front wait, and are not passed over."""
    target, network = fresh_models
    monkeypatch.setitem(POLICIES, "auto", GivesUp)
    monkeypatch.setattr("adt_core.engine.rounds.WAIT_SHARE", 10.0)
    prompts = [*PROMPTS, "a red house", "two"]
    plain = run(target, None, prompts)
    decoding = run(target, network, prompts, drafting=AUTO, at_once=at_once)
    assert torch.equal(decoding.codes, plain.codes)
    together = at_once or len(prompts)
    rounds, last = decoding.trace.rounds, {}
    for round in rounds:
        for share in round.images:
            assert share.position == last.get(share.image, 0)
            last[share.image] = share.position + share.accepted + 1
    first = [round for round in rounds if {share.image for share in round.images} <= set(range(together))]
    assert len({share.position for share in first[-1].images}) == 1 and len(first[-1].images) == together
    assert all(position == target.length - 1 for position in last.values())


def test_timing_a_plain_step_decides_nothing(fresh_models, policies, monkeypatch):
    """Neither tokens nor the global state of random numbers; and the time that it takes is part of the round's."""
    target, network = fresh_models
    plain = run(target, None, PROMPTS)
    monkeypatch.setattr(Experience, "wants_plain_step", True)
    monkeypatch.setattr(auto, "STAKE", math.inf)
    before = torch.get_rng_state()
    decoding = run(target, network, PROMPTS, drafting=AUTO)
    assert torch.equal(decoding.codes, plain.codes) and torch.equal(torch.get_rng_state(), before)
    readings = [round.plain_seconds for round in decoding.trace.rounds]
    assert all(len(reading) == 2 for reading in readings)
    assert policies[-1].experience.plain_seconds == min(readings[-1]) > 0
    assert all(round.seconds > sum(round.plain_seconds) for round in decoding.trace.rounds)
    assert decoding.trace.report()["seconds"] > sum(map(sum, readings))
