"""The cost-aware policy: what it may lose, and what it remembers."""

import math
from collections import Counter

import pytest

from adt_core.policies import Lane, Scene, Settings, Shape, auto
from adt_core.policies.auto import SIZES, WIDTH, Auto, Experience
from adt_core.policies.base import spine_length
from adt_core.rules.trace import ImageRound, Round

PLAIN = 0.01
"""Seconds of a plain step on the devices of this file."""


class Owner:
    """Stands for the drafter of which a policy learns."""


def new_policy(length=256, sources=1, width=WIDTH) -> Auto:
    """Of images of so many tokens, with so many sources of drafts."""
    scene = Scene(16, length, 0, [0] * 64, source_widths=[width] * sources, owner=Owner(), conditions=())
    return Auto(Settings(), scene)


def begun(length=200, together=1, width=WIDTH) -> Auto:
    """At work on a first set of images, with a plain step timed."""
    policy = new_policy(length, width=width)
    policy.begin(together)
    policy.experience.saw_plain([PLAIN])
    return policy


def shape_of(policy: Auto, together=1, worths=()) -> Shape:
    """The one shape of the next trees. worths: pairs (drafts, tokens), what the drafter expects of every image."""
    (shape,) = set(policy.choose([Lane(image, 0, dict(worths)) for image in range(together)]))
    return shape


def sizes(policy: Auto) -> list[int]:
    """The numbers of drafts to choose from."""
    return list(policy.asks)


def told(policy: Auto, nodes: int, accepted: int, seconds: float, together=1, plain_seconds=(), prepared=False) -> None:
    """Tell the policy of a round in which every image had as many drafts, of which as many were accepted."""
    depth = spine_length(nodes) if nodes else 0
    shares = (ImageRound(i, 0, depth, 1, depth, nodes, accepted, (0,) * accepted) for i in range(together))
    policy.observe(Round(0, seconds + sum(plain_seconds), 0.0, 0, tuple(shares), tuple(plain_seconds), prepared))


class Device:
    """A round with n drafts takes ``1 + slope * n + overhead`` plain steps.

    At a moment all takes ``speed(step)`` times as long. The first ``slow`` rounds with drafts take five times their
    time. The first two rounds of each size take ``setup`` plain steps more; ``says``: so do the first two plain steps,
    and rounds tell that something was prepared. ``spent``: plain steps that this has taken so far.
    """

    def __init__(self, slope, overhead=0.5, slow=0, speed=lambda at: 1.0, setup=0, says=False):
        self.slope, self.overhead, self.slow, self.speed, self.at = slope, overhead, slow, speed, 0.0
        self.setup, self.says, self.spent, self.met = setup, says, 0, Counter()

    def preparing(self, nodes: int) -> int:
        self.met[nodes] += 1
        steps = self.setup if self.met[nodes] <= 2 and (nodes or self.says) else 0
        self.spent += steps
        return steps

    def plain(self) -> float:
        steps = 1 + self.preparing(0)
        self.at += steps
        return PLAIN * self.speed(self.at) * steps

    def round(self, nodes: int) -> float:
        if not nodes:
            return self.plain()
        steps = (1 + self.slope * nodes + self.overhead) * (5 if self.slow else 1) + self.preparing(nodes)
        self.slow = max(self.slow - 1, 0)
        self.at += steps
        return PLAIN * self.speed(self.at) * steps


def decode_images(policy, device, sets, accepts, together=1, pick=min):
    """What a decoding does with a policy: sets of images that are drawn together, and in step.

    pick: of the sizes to choose from. accepts: ``accepts(source, position)`` drafts are accepted at most. Returns of
    every set the plain steps that it took, all readings included, and its source or None.
    """
    took, length = [], policy.scene.length
    for _ in range(sets):
        began, source, position = device.at, policy.begin(together), 0
        while position < length:
            if source is None or not policy.drafts:
                device.plain()
                position += 1
                continue
            spent = device.spent
            plain_seconds = [device.plain() for _ in range(policy.plain_steps)]
            worths = [(size, 1e9 * (size == pick(policy.asks))) for size in policy.asks]
            nodes = shape_of(policy, together, worths).nodes
            accepted = min(nodes, accepts(source, position))
            seconds = device.round(nodes)
            told(policy, nodes, accepted, seconds, together, plain_seconds, device.says and device.spent > spent)
            position += accepted + 1
        took.append((device.at - began, source))
    return took


# ---- costs ---------------------------------------------------------------------------------------


def test_costs_are_medians_without_the_first_readings_and_others_lie_on_a_line():
    costs = auto.Costs(together=1)
    assert costs.of(16) == 2.0 and costs.of(4) < costs.of(64)
    for reading in (50.0, 25.0):
        costs.charge(16, reading)
    assert costs.of(16) == 2.0 and not costs.knows(16), "much is done for the first time in the first rounds"
    for reading in (9.0, 3.1):
        costs.charge(16, reading)
    assert costs.of(16) == 3.1
    for reading in (3.0, 2.9, 30.0, 3.0):
        costs.charge(16, reading)
    assert costs.of(16) == pytest.approx(3.05) and costs.knows(16)
    slope = (3.05 - auto.UNKNOWN_COST) / 16
    assert costs.of(8) == pytest.approx(3.05 - 8 * slope) and costs.of(24) == pytest.approx(3.05 + 8 * slope)
    assert auto.Costs(together=8).of(16) > 2 * auto.Costs(together=1).of(16)


@pytest.mark.parametrize("true", [1.2, 7.0])
def test_rounds_are_charged_what_their_size_costs_however_long_the_first_ones_took(true):
    """Until that is known, what is expected; what was wrong about it comes to the account afterwards."""
    costs, readings = auto.Costs(together=1), [80.0, 40.0, 3 * true, true, true, true]
    charged = [costs.charge(16, reading) for reading in readings]
    assert charged[:2] == [2.0, 2.0] and max(charged[:3]) <= 3 * true
    assert sum(charged) == pytest.approx(len(readings) * true)


def test_a_round_that_prepared_something_is_no_reading():
    costs = auto.Costs(together=1)
    charged = [costs.charge(16, 3.0) for _ in range(6)]
    assert costs.charge(16, 60.0, prepared=True) == 3.0 and costs.of(16) == 3.0
    assert charged[-1] == costs.charge(16, 3.0) == 3.0


def test_plain_steps_are_timed_often_at_first_and_rarely_later():
    known, rounds = Experience(200), []
    for number in range(2000):
        if known.wants_plain_step:
            rounds.append(number)
            known.saw_plain([PLAIN])
        known.saw(known.sources[0], 8, 2 * PLAIN)
    assert rounds[:6] == [0, 8, 24, 56, 120, 248]
    assert max(b - a for a, b in zip(rounds, rounds[1:])) == auto.ROUNDS_BETWEEN_PLAIN_STEPS[1]
    assert known.sources[0].costs.of(8) == pytest.approx(2.0)


def test_a_plain_step_is_timed_twice_and_is_not_part_of_what_drafts_cost():
    policy = new_policy()
    policy.begin(1)
    assert policy.plain_steps == 2
    for _ in range(4):
        told(policy, 12, 3, 2 * PLAIN, plain_seconds=(PLAIN, 9 * PLAIN))
    assert policy.experience.sources[0].costs.of(12) == pytest.approx(2.0) and policy.plain_steps == 0
    assert policy.experience.plain_seconds == PLAIN


def test_a_machine_that_slows_down_is_not_mistaken_for_drafts_that_cost_more():
    policy, device = new_policy(), Device(0.05, speed=lambda at: 1.6 if at > 200 else 1.0)
    took = decode_images(policy, device, 12, lambda *_: 3)
    assert not policy.experience.given_up and sum(steps for steps, _ in took) < 0.75 * 12 * 256
    assert policy.experience.sources[0].costs.of(12) == pytest.approx(1.5 + 0.05 * 12, rel=0.02)


def test_prices_follow_costs_and_pace_and_sizes_grow_one_by_one():
    policy, device = begun(), Device(0.125)
    assert sizes(policy) == list(SIZES[:3])
    for _ in range(300):
        told(policy, 12, 5, device.round(12))
    assert sizes(policy) == list(SIZES[:4]) and policy.pace == pytest.approx(2.0, abs=0.05)
    price = {size: policy.pace * (1.5 + 0.125 * size) for size in SIZES[:4]}
    for extra, chosen in ((0.1, 12), (-0.1, 8)):  # tokens beyond those of 8 drafts
        worths = {8: price[8] + 1, 12: price[12] + 1 + extra}
        assert shape_of(policy, worths=worths.items()).nodes == chosen
    assert shape_of(policy).nodes == SIZES[0], "nobody has told what to expect"


def test_a_size_is_known_before_the_next_is_tried():
    policy = begun()
    for _ in range(auto.FIRST_ROUNDS):
        told(policy, 12, 9, 2 * PLAIN)
        assert max(sizes(policy)) == SIZES[2], "its first readings don't count"
    told(policy, 12, 9, 2 * PLAIN)
    assert max(sizes(policy)) == SIZES[3]


def test_trees_stay_modest_until_drafting_has_earned_something():
    policy = begun()
    for accepted, over in ((0, False), (9, True)):
        for _ in range(5):
            told(policy, 16, accepted, 1.5 * PLAIN)
        assert (max(sizes(policy)) > auto.SIZE_WITHOUT_GAINS) == over == (policy.experience.balance > 0)


def test_chains_of_images_that_are_drawn_together_are_shorter():
    policies = {together: begun(together=together, width=1) for together in (1, 2, 4, 16)}
    assert shape_of(policies[1]) == Shape(4, 1, 4), "the first are short, in case that drafts are dear"
    for policy in policies.values():
        for _ in range(auto.FIRST_ROUNDS + 1):
            policy.experience.sources[0].costs.charge(4, 1.5)
    assert {together: shape_of(policy).depth for together, policy in policies.items()} == {1: 16, 2: 8, 4: 4, 16: 4}


def test_a_chain_that_costs_more_than_it_can_bring_is_not_tried():
    policy = begun(width=1)
    for _ in range(auto.FIRST_ROUNDS + 1):
        policy.experience.sources[0].costs.charge(4, 7.0)
    assert policy.experience.sources[0].costs.of(16) > 17 and shape_of(policy) == Shape(4, 1, 4)


# ---- the account ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize(
    "slope, overhead", [(0.05, 0.5), (2.0, 2.0), (0.0, 3.0)], ids=["a bit slow", "dear nodes", "slow drafter"]
)
@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("images", [1, 3])
def test_hopeless_drafting_costs_less_than_three_percent_of_a_set(images, sources, slope, overhead, width):
    """No draft is ever accepted: what is lost is bounded by the stake and the allowances, and by what it takes to see
    a slow drafter for what it is."""
    policy = new_policy(sources=sources, width=width)
    took = [steps for steps, _ in decode_images(policy, Device(slope, overhead), 64, lambda *_: 0, images)]
    lost = [sum(took[:n]) / (256 * n) - 1 for n in (8, 16, 64)]
    assert 0 < lost[0] <= 0.03 and lost[1] <= 0.03 and lost[2] <= 0.015
    assert took[0] > 256 and took[1] == pytest.approx(256)  # the first image paid, the next is decoded plainly


@pytest.mark.parametrize("together", [2, 4, 8, 16])
@pytest.mark.parametrize("width", [1, WIDTH])
def test_images_that_are_drawn_together_lose_no_more(together, width):
    """As on a CPU, where a node of every image adds to a round. ``decode_images`` counts what they take together as
    one."""
    sets = 16 // together
    device = Device(0.08 * together)
    took = decode_images(new_policy(width=width), device, sets, lambda source, position: position % 2, together)
    assert 256 * sets < sum(steps for steps, _ in took) <= 1.03 * 256 * sets


@pytest.mark.parametrize("together", [2, 8, 16])
def test_images_that_are_drawn_together_lose_no_more_where_nodes_are_cheap_and_nothing_is_accepted(together):
    sets = max(1, 8 // together)
    took = decode_images(new_policy(), Device(0.05), sets, lambda *_: 0, together)
    assert 256 * sets < sum(steps for steps, _ in took) <= 1.03 * 256 * sets + 2


def test_a_bad_first_row_and_slow_first_rounds_are_survived():
    """A fresh process: nothing is accepted in the first row, and the first rounds take five times their time; the rest
    of every image pays."""
    policy = new_policy()
    took = decode_images(policy, Device(0.05, 0.3, slow=3), 4, lambda source, position: 0 if position < 16 else 3)
    assert all(steps < 0.8 * 256 for steps, _ in took) and not policy.experience.given_up


@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("says", [False, True])
@pytest.mark.parametrize("setup", [10, 25, 50])
class TestSettingUp:
    """A fresh process on a GPU: kernels are loaded in the first round of each size, graphs captured in the second."""

    def test_drafts_that_pay_go_on(self, setup, says, width):
        policy, device = new_policy(width=width), Device(0.05, 0.3, setup=setup, says=says)
        took = decode_images(policy, device, 4, lambda source, position: 3)
        assert all(source == 0 for _, source in took) and not policy.experience.given_up
        assert sum(steps for steps, _ in took) - device.spent < 0.75 * 4 * 256

    def test_all_sizes_are_tried(self, setup, says, width):
        policy, device = new_policy(width=width), Device(0.02, 0.3, setup=setup, says=says)
        took = decode_images(policy, device, 4, lambda source, position: 8, pick=max)
        assert all(source == 0 for _, source in took) and max(device.met) == (SIZES[-1] if width > 1 else 16)
        assert sum(steps for steps, _ in took) - device.spent < 0.5 * 4 * 256

    @pytest.mark.parametrize("slope, overhead", [(0.05, 0.5), (2.0, 2.0), (0.0, 3.0)])
    def test_drafts_that_do_not_pay_end_and_lose_a_stake(self, setup, says, width, slope, overhead):
        """And the few rounds in which that shows, and four plain steps that are timed while things are prepared."""
        policy, device = new_policy(width=width), Device(slope, overhead, setup=setup, says=says)
        took = decode_images(policy, device, 2, lambda *_: 0)
        assert [source for _, source in took] == [0, None]
        dearest_round = 1 + slope * auto.SIZE_WITHOUT_GAINS + overhead
        assert sum(steps for steps, _ in took) - device.spent <= (2 + auto.STAKE) * 256 + 4 + 3 * dearest_round


def test_plain_steps_that_prepare_something_are_timed_again():
    policy = new_policy()
    policy.begin(1)
    told(policy, 4, 2, 60 * PLAIN, plain_seconds=(30 * PLAIN, 20 * PLAIN), prepared=True)
    assert policy.plain_steps == 2 and math.isnan(policy.experience.plain_seconds)
    told(policy, 4, 2, 2 * PLAIN, plain_seconds=(PLAIN, PLAIN))
    assert policy.plain_steps == 0 and policy.experience.plain_seconds == PLAIN


def test_gains_carry_over_a_picture_that_does_not_suit():
    policy = new_policy()
    decode_images(policy, Device(0.05), 8, lambda *_: 4)
    ((steps, source),) = decode_images(policy, Device(0.02), 1, lambda *_: 0)
    assert source == 0 and steps > 1.3 * 256 and not policy.experience.given_up


def test_what_was_earned_may_be_lost_again_and_no_more():
    policy = new_policy()
    good = decode_images(policy, Device(0.05), 6, lambda *_: 4)
    assert max(steps for steps, _ in good) < 256
    assert policy.experience.balance == pytest.approx(auto.MOST_SAVED * 256)
    bad = decode_images(policy, Device(0.05), 30, lambda *_: 0)
    assert sum(steps - 256 for steps, _ in bad) <= (auto.MOST_SAVED + auto.STAKE + 30 * auto.ALLOWANCE) * 256 + 2


def test_a_lost_stake_is_made_up_for_before_the_next_try_and_success_ends_the_waiting():
    policy = new_policy()
    tries = [source for _, source in decode_images(policy, Device(0.05), 26, lambda *_: 0)]
    wait = tries.index(0, 1)
    assert tries[0] == 0 and tries.count(0) == 1 + 25 // wait
    assert auto.STAKE / auto.ALLOWANCE <= wait <= auto.STAKE / auto.ALLOWANCE + 2
    again = [source for _, source in decode_images(policy, Device(0.05), 20, lambda *_: 4)]
    assert again[-1] == 0 and None not in again[again.index(0) :]


@pytest.mark.parametrize("better", [0, 1])
def test_the_source_that_brings_more_tokens_per_second_drafts_most_images(better):
    took = decode_images(new_policy(sources=2), Device(0.02), 40, lambda source, _: 4 if source == better else 2)
    chosen = [source for _, source in took]
    assert set(chosen[:2]) == {0, 1} and chosen.count(better) >= 30


def test_what_was_learned_with_a_drafter_is_known_to_its_next_decoding_under_the_same_conditions():
    first = new_policy()
    first.begin(1)
    told(first, 12, 3, 2 * PLAIN, plain_seconds=(PLAIN, PLAIN))
    others = {
        "the same": Auto(Settings(), first.scene),
        "other conditions": Auto(Settings(), type(first.scene)(**{**vars(first.scene), "conditions": "others"})),
        "another drafter": new_policy(),
    }
    for other in others.values():
        other.begin(1)
    assert [name for name, other in others.items() if other.experience is first.experience] == ["the same"]
