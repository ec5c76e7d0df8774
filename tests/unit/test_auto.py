"""The cost-aware policy: what it may lose, what it remembers, and that it never changes a token."""

import math

import pytest
import torch

from adt_core import Decoding, Drafting
from adt_core.policies import auto
from adt_core.policies.shape import AUTO_WIDTH, SIZES, TreeShape, spine
from adt_core.rules.trace import ImageRound
from tests.drafted import run

PROMPTS = ("a cat", "three small dogs", "x")
PLAIN = 0.01
"""Seconds of a plain step on the devices of this file."""
pytestmark = pytest.mark.usefixtures("nothing_learned")


def share(nodes: int, accepted: int) -> ImageRound:
    return (
        ImageRound(0, 0, spine(nodes), 1, spine(nodes), nodes, accepted, (0,) * accepted)
        if nodes
        else ImageRound(0, 0, 0, 1, 0, 0, 0, ())
    )


class Device:
    """A round with n drafts takes ``1 + slope * n + overhead`` plain steps, and all takes ``speed(step)`` times as long at a moment.

    The first ``slow`` rounds with drafts take five times their time.
    """

    def __init__(self, slope, overhead=0.5, slow=0, speed=lambda at: 1.0):
        self.slope, self.overhead, self.slow, self.speed, self.at = slope, overhead, slow, speed, 0.0

    def plain(self) -> float:
        self.at += 1
        return PLAIN * self.speed(self.at)

    def round(self, nodes: int) -> float:
        if not nodes:
            return self.plain()
        steps = (1 + self.slope * nodes + self.overhead) * (5 if self.slow else 1)
        self.slow = max(self.slow - 1, 0)
        self.at += steps
        return PLAIN * self.speed(self.at) * steps


def decode_images(known, device, images, accepts, together=1, width=AUTO_WIDTH):
    """What a decoding does with a policy: sets of images that are drawn together and accept ``accepts(source, position)`` drafts at most.

    Per set the plain steps that it took, all readings included, and its source or None.
    """
    took = []
    for _ in range(images):
        began, source, position = device.at, known.begin(), 0
        policy = source and auto.CostAware(known, source, together, width)
        while position < known.length:
            if policy and policy.drafts and known.wants_plain:
                known.saw_plain([device.plain() for _ in range(2)])
            shape = policy.choose(position) if policy and policy.drafts else TreeShape(0, 1)
            nodes = min(dict(shape.menu), default=shape.depth)
            accepted = min(nodes, accepts(known.sources.index(source), position)) if nodes else 0
            seconds = device.round(nodes)
            if policy:
                policy.took(nodes, seconds)
                for _ in range(together):
                    policy.update(share(nodes, accepted))
            position += accepted + 1
        took.append((device.at - began, source and known.sources.index(source)))
    return took


# ---- costs -------------------------------------------------------------------


def test_costs_are_medians_without_the_first_reading_and_others_lie_on_a_line():
    costs = auto.Costs(images=1)
    assert costs.of(16) == 2.0 and costs.of(4) < costs.of(64)
    costs.saw(16, 50.0)
    assert costs.of(16) == 2.0 and not costs.knows(16), "much is done for the first time in a first round"
    for reading in (9.0, 3.1):
        costs.saw(16, reading)
    assert costs.of(16) == 3.1
    for reading in (3.0, 2.9, 30.0, 3.0):
        costs.saw(16, reading)
    assert costs.of(16) == pytest.approx(3.05) and costs.knows(16)
    slope = (3.05 - auto.UNKNOWN[0]) / 16
    assert costs.of(8) == pytest.approx(3.05 - 8 * slope) and costs.of(24) == pytest.approx(3.05 + 8 * slope)
    assert auto.Costs(images=8).of(16) > 2 * auto.Costs(images=1).of(16)


def test_plain_steps_are_timed_often_at_first_and_rarely_later():
    known, rounds = auto.Experience(200), []
    for number in range(2000):
        if known.wants_plain:
            rounds.append(number)
            known.saw_plain([PLAIN])
        known.saw(known.sources[0], 8, 2 * PLAIN)
    assert (
        rounds[:6] == [0, 8, 24, 56, 120, 248]
        and max(b - a for a, b in zip(rounds, rounds[1:])) == auto.ROUNDS_BETWEEN[1]
    )
    assert known.sources[0].costs.of(8) == pytest.approx(2.0)


def test_a_machine_that_slows_down_is_not_mistaken_for_drafts_that_cost_more():
    known, device = auto.Experience(256), Device(0.05, speed=lambda at: 1.6 if at > 200 else 1.0)
    took = decode_images(known, device, 12, lambda *_: 3)
    assert not known.given_up and sum(steps for steps, _ in took) < 0.75 * 12 * 256
    assert known.sources[0].costs.of(12) == pytest.approx(1.5 + 0.05 * 12, rel=0.02)


def test_prices_follow_costs_and_pace_and_sizes_grow_one_by_one():
    known, device = auto.Experience(200), Device(0.125)
    policy = auto.CostAware(known, known.begin(), 1)
    known.saw_plain([PLAIN])
    assert list(dict(policy.choose(0).menu)) == list(SIZES[:3])
    for _ in range(300):
        policy.took(12, device.round(12))
        policy.update(share(12, 5))
    menu = dict(policy.choose(0).menu)
    assert (
        list(menu) == list(SIZES[:4])
        and policy.pace == pytest.approx(2.0, abs=0.05)
        and menu[12] == pytest.approx(policy.pace * 3.0, abs=0.01)
    )


def test_a_size_is_known_before_the_next_is_tried():
    known = auto.Experience(200)
    policy = auto.CostAware(known, known.begin(), 1)
    known.saw_plain([PLAIN])
    policy.took(12, 2 * PLAIN)
    policy.update(share(12, 9))
    assert max(dict(policy.choose(0).menu)) == SIZES[2], "its first reading doesn't count"
    policy.took(12, 2 * PLAIN)
    policy.update(share(12, 9))
    assert max(dict(policy.choose(0).menu)) == SIZES[3]


def test_trees_stay_modest_until_drafting_has_earned_something():
    known = auto.Experience(200)
    policy = auto.CostAware(known, known.begin(), 1)
    known.saw_plain([PLAIN])
    for accepted, over in ((0, False), (9, True)):
        for _ in range(5):
            policy.took(16, 1.5 * PLAIN)
            policy.update(share(16, accepted))
        assert (max(dict(policy.choose(0).menu)) > auto.MODEST) == over == (known.balance > 0)


def test_chains_of_images_that_are_drawn_together_are_shorter():
    known = auto.Experience(200)
    source = known.begin()
    assert auto.CostAware(known, source, 1, width=1).choose(0) == TreeShape(4, 1), (
        "the first are short, in case that drafts are dear"
    )
    for _ in range(2):
        source.costs.saw(4, 1.5)
    assert [auto.CostAware(known, source, images, width=1).choose(0).depth for images in (1, 2, 4, 16)] == [16, 8, 4, 4]


# ---- the account -------------------------------------------------------------


@pytest.mark.parametrize("width", [1, AUTO_WIDTH])
@pytest.mark.parametrize(
    "slope, overhead", [(0.05, 0.5), (2.0, 2.0), (0.0, 3.0)], ids=["a bit slow", "dear nodes", "slow drafter"]
)
@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("images", [1, 3])
def test_hopeless_drafting_costs_less_than_three_percent_of_a_set(images, sources, slope, overhead, width):
    """No draft is ever accepted: what is lost is bounded by the stake and the allowances, and by what it takes to see a slow drafter for what it is."""
    known = auto.Experience(256, sources)
    took = [steps for steps, _ in decode_images(known, Device(slope, overhead), 64, lambda *_: 0, images, width)]
    lost = [sum(took[:n]) / (256 * n) - 1 for n in (8, 16, 64)]
    assert 0 < lost[0] <= 0.03 and lost[1] <= 0.03 and lost[2] <= 0.015
    assert took[0] > 256 and took[1] == pytest.approx(256)  # the first image paid, the next is decoded plainly


@pytest.mark.parametrize("together", [2, 4, 8, 16])
@pytest.mark.parametrize("width", [1, AUTO_WIDTH])
def test_images_that_are_drawn_together_lose_no_more(together, width):
    """As on a CPU, where a node of every image adds to a round. ``decode_images`` counts what they take together as one."""
    known = auto.Experience(256, together=together)
    sets = 16 // together
    took = [
        steps
        for steps, _ in decode_images(
            known, Device(0.08 * together), sets, lambda source, position: position % 2, together, width
        )
    ]
    assert 256 * sets < sum(took) <= 1.03 * 256 * sets


@pytest.mark.parametrize("together", [2, 8, 16])
def test_images_that_are_drawn_together_lose_no_more_where_nodes_are_cheap_and_nothing_is_accepted(together):
    known = auto.Experience(256, together=together)
    sets = max(1, 8 // together)
    took = [steps for steps, _ in decode_images(known, Device(0.05), sets, lambda *_: 0, together)]
    assert 256 * sets < sum(took) <= 1.03 * 256 * sets + 2


def test_a_bad_first_row_and_slow_first_rounds_are_survived():
    """A fresh process: nothing is accepted in the first row, and the first rounds take five times their time; the rest of every image pays."""
    known = auto.Experience(256)
    took = decode_images(known, Device(0.05, 0.3, slow=3), 4, lambda source, position: 0 if position < 16 else 3)
    assert all(steps < 0.8 * 256 for steps, _ in took) and not known.given_up


def test_gains_carry_over_a_picture_that_does_not_suit():
    known = auto.Experience(256)
    decode_images(known, Device(0.05), 8, lambda *_: 4)
    ((steps, source),) = decode_images(known, Device(0.02), 1, lambda *_: 0)
    assert source == 0 and steps > 1.3 * 256 and not known.given_up


def test_what_was_earned_may_be_lost_again_and_no_more():
    known = auto.Experience(256)
    good = decode_images(known, Device(0.05), 6, lambda *_: 4)
    assert max(steps for steps, _ in good) < 256 and known.balance == pytest.approx(auto.RICHES * 256)
    bad = decode_images(known, Device(0.05), 30, lambda *_: 0)
    assert sum(steps - 256 for steps, _ in bad) <= (auto.RICHES + auto.STAKE + 30 * auto.ALLOWANCE) * 256 + 2


def test_a_lost_stake_is_made_up_for_before_the_next_try_and_success_ends_the_waiting():
    known = auto.Experience(256)
    tries = [source for _, source in decode_images(known, Device(0.05), 26, lambda *_: 0)]
    wait = tries.index(0, 1)
    assert (
        tries[0] == 0
        and auto.STAKE / auto.ALLOWANCE <= wait <= auto.STAKE / auto.ALLOWANCE + 2
        and tries.count(0) == 1 + 25 // wait
    )
    again = [source for _, source in decode_images(known, Device(0.05), 20, lambda *_: 4)]
    assert again[-1] == 0 and None not in again[again.index(0) :]


@pytest.mark.parametrize("better", [0, 1])
def test_the_source_that_brings_more_tokens_per_second_drafts_most_images(better):
    known = auto.Experience(256, sources=2)
    chosen = [
        source for _, source in decode_images(known, Device(0.02), 40, lambda source, _: 4 if source == better else 2)
    ]
    assert set(chosen[:2]) == {0, 1} and chosen.count(better) >= 30


# ---- in decoding -------------------------------------------------------------


AUTO = Drafting(method="auto")


def drafted(decoding):
    return [max(share.depth for share in round.images) > 0 for round in decoding.trace.rounds]


def test_it_tries_chain_and_network_and_window_and_drafts_with_nothing_while_a_stake_is_made_up_for(
    models, monkeypatch
):
    monkeypatch.setattr(auto, "STAKE", math.inf)  # whatever this machine's clock says
    target, network = models
    plain = run(target, None, PROMPTS)
    calls = []
    for _ in range(3):
        decoding = run(target, network, PROMPTS, drafting=AUTO)
        widths = {share.width_asked for round in decoding.trace.rounds for share in round.images if share.depth > 0}
        calls.append((decoding.trace.report()["drafter_forwards"] > 0, max(widths)))
        assert torch.equal(decoding.codes, plain.codes) and decoding.trace.report()["tau"] > 1
    assert calls == [(False, 1), (True, AUTO_WIDTH), (False, AUTO_WIDTH)]
    decoding._known.given_up, decoding._known.balance = True, -1e3
    decoding = run(target, network, PROMPTS, drafting=AUTO)
    assert torch.equal(decoding.codes, plain.codes) and decoding.trace.report()["tau"] == 1


def test_an_image_in_which_drafts_do_not_pay_is_finished_plainly(models, monkeypatch):
    target, network = models
    monkeypatch.setattr(auto.Experience, "saw", lambda *_: 99.0)
    plain = run(target, None, PROMPTS)
    decoding = run(target, network, PROMPTS, drafting=AUTO)
    assert torch.equal(decoding.codes, plain.codes)
    assert drafted(decoding)[0] and not any(drafted(decoding)[1:])


@pytest.mark.parametrize("at_once", [None, 2, 1])
def test_after_giving_up_images_go_in_step_and_the_next_ones_enter_together(models, monkeypatch, at_once):
    """Drafts have brought the first ones out of step. Those in front wait, and are not passed over."""
    target, network = models
    monkeypatch.setattr(auto.CostAware, "update", give_up_after(3))
    monkeypatch.setattr("adt_core.engine.decoding.WAIT", 10.0)
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
    first = [round for round in rounds if set(share.image for share in round.images) <= set(range(together))]
    assert len({share.position for share in first[-1].images}) == 1 and len(first[-1].images) == together
    assert all(position == target.length - 1 for position in last.values())


def give_up_after(rounds):
    def update(self, share):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen >= rounds * self._images:
            self.drafts, self._known.given_up, self._known.balance = False, True, -1e6

    return update


def test_timing_a_plain_step_decides_nothing(models, monkeypatch):
    """Neither tokens nor the global state of random numbers; and the time that it takes is part of the round's."""
    target, network = models
    plain = run(target, None, PROMPTS)
    monkeypatch.setattr(auto.Experience, "wants_plain", True)
    monkeypatch.setattr(auto, "STAKE", math.inf)
    slow, seen = Decoding._time_plain_step, []

    def timed(self, starts):
        seen.append(slow(self, starts))
        return 0.5 + seen[-1]

    monkeypatch.setattr(Decoding, "_time_plain_step", timed)
    before = torch.get_rng_state()
    decoding = run(target, network, PROMPTS, drafting=AUTO)
    assert torch.equal(decoding.codes, plain.codes) and torch.equal(torch.get_rng_state(), before)
    assert len(seen) == 2 * len(decoding.trace.rounds) and decoding._known.plain > 0.5
    assert decoding.trace.report()["seconds"] > sum(seen)
