"""Tests of the policy `auto`.

They check its formula for the best tree, its estimates from the cost profile and from earlier rounds, and its limit on
the time that an image may lose compared with plain decoding.
"""

import ast
import inspect
from dataclasses import replace
from types import SimpleNamespace

import pytest

from adt_core import Sampling
from adt_core.drafters.jacobi import CHAIN, WINDOW
from adt_core.drafters.merged import MERGED
from adt_core.kernels.linear import BLOCK_ROWS
from adt_core.policies import PLAIN_SHAPE, ActiveImage, Context, CostProfile, DraftSettings, Shape, auto
from adt_core.policies.auto import GPU_SIZES, MAX_LOSS, SIZES, WIDTH, Auto, sizes_of, spine_length
from adt_core.trace import ImageRound, Round
from tests.drafted import costs

MODES = (CHAIN, MERGED, WINDOW)
CPU = {"chain": (1.06, 0.2, 0.05), "merged": (1.1, 1.2, 0.06), "window": (1.15, 0.4, 0.06)}
"""Draft mode -> three costs in plain rounds, similar to the costs on a CPU. A plain round is a round of plain decoding.
The costs are: cost of a round without drafts, additional cost of drafting, and additional cost of each draft."""


def profile_of(figures) -> CostProfile:
    def curve(idle, once, each):
        return (0, idle), (1, idle + once), (64, idle + once + 64 * each)

    return CostProfile("a device", 1, {name: curve(*its) for name, its in figures.items()})


def new_policy(profile, length=256, modes=MODES, max_depth=256, replayed=False) -> Auto:
    """Return a policy before its first round, for images with this number of tokens."""
    target = SimpleNamespace(columns=16, length=length)
    given = target, Sampling(), DraftSettings(), Shape(max_depth, 4, 63), [(0, 0)] * 64
    policy = Auto(Context(*given, modes=modes, profile=profile, replayed=replayed))
    policy.begin()
    return policy


def started_policy(profile, length=256) -> Auto:
    """Return a policy after the first round of image 0."""
    policy = new_policy(profile, length)
    add_round(policy, 0, chosen(policy, position=0), position=0)
    return policy


def chosen(policy: Auto, position=100, image=0) -> Shape:
    """Return the shape that the policy chooses for the next tree."""
    (shape,) = policy.choose([ActiveImage(image, position)])
    return shape


def add_round(policy: Auto, accepted: int, shape: Shape, position=100, image=0, seconds=0.01) -> None:
    """Report a round to the policy: a tree of this shape, of which ``accepted`` drafts were accepted."""
    record = ImageRound(image, position, *shape[:2], shape.depth, shape.drafts, accepted, (0,) * accepted)
    policy.on_verified(Round(0, seconds, 0.0, 0, (record,)))


def cost_of(profile: CostProfile, shape: Shape) -> float:
    """Return the cost of a round in plain rounds. A round without drafts has the cost of the cheapest draft mode."""
    if shape.mode:
        return profile.cost(shape.mode, shape.drafts)
    return min(profile.cost(mode, 0) for mode in profile.costs)


def decode(policy: Auto, accepts, image=0) -> tuple[float, list[int]]:
    """Simulate the rounds of an image. ``accepts(position)`` is the maximum number of accepted drafts.

    Return the cost of all rounds by the profile, in plain rounds, and the number of drafts of each round. A round after
    the policy has stopped drafting costs one plain round.
    """
    profile = policy.context.profile
    length = policy.context.remaining
    position = 0
    steps = 0.0
    sizes = []
    while position < length - 1:
        shape = chosen(policy, position, image) if policy.is_drafting else PLAIN_SHAPE
        steps += cost_of(profile, shape) if policy.is_drafting else 1.0
        accepted = min(shape.depth, accepts(position), length - 2 - position)
        if policy.is_drafting:
            add_round(policy, accepted, shape, position, image)
        position += accepted + 1
        sizes.append(shape.drafts)
    return steps, sizes


# ---- formula -------------------------------------------------------------------------------------


def test_the_choice_maximises_the_expected_throughput():
    profile = costs("merged", "chain", once=0.2, each=0.1)
    policy = started_policy(profile, length=4096)
    options = [(one, size) for one in (CHAIN, MERGED) for size in sizes_of(one, replayed=False)]
    mode, size = max(options, key=lambda it: (1 + it[0].expected_accepted(it[1])) / profile.cost(it[0].name, it[1]))
    assert SIZES[0] < size < SIZES[-1]
    width = min(mode.width, WIDTH)
    assert chosen(policy) == Shape(spine_length(size, width), width, size, mode=mode.name)


def test_on_a_gpu_no_tree_starts_a_program_of_rows_that_it_does_not_fill():
    """With the root and guidance, 8 drafts would need 18 rows, so a program of 32 rows."""
    policy = new_policy(costs("merged", "chain"), replayed=True)
    offered = {choice.shape.drafts for choice in policy._choices}
    assert offered == set(GPU_SIZES) and set(sizes_of(CHAIN, replayed=True)) == {4, 7, 15, 31}
    for size in GPU_SIZES[1:]:
        for rows in (size + 1, 2 * (size + 1)):
            assert rows in (8, *BLOCK_ROWS), "a power of two, so the program is full"


def test_drafting_pauses_while_nothing_is_accepted_and_is_tried_again_later():
    policy = started_policy(costs("chain", once=0.3, each=0.05), length=4096)
    shapes = []
    for _ in range(60):
        shapes.append(chosen(policy))
        add_round(policy, 0, shapes[-1])
    assert shapes[0].drafts > 0 and PLAIN_SHAPE in shapes
    assert any(shape.drafts for shape in shapes[shapes.index(PLAIN_SHAPE) :])


def test_a_mode_that_is_worse_than_expected_in_an_image_is_replaced_by_another():
    """The policy expects that an image is hard for all modes, but less so for modes that it has not used yet."""
    policy = started_policy(costs("chain", "window", once=0.5, each=0.02), length=4096)
    first = chosen(policy).mode
    modes = []
    for _ in range(200):
        shape = chosen(policy)
        add_round(policy, 1 if shape.mode == first else min(12, shape.depth), shape)
        modes.append(shape.mode)
    assert modes[0] == first and set(modes[150:]) == {"chain", "window"} - {first}


def test_chains_that_are_cut_to_the_maximum_depth_are_expected_to_bring_less():
    free = profile_of({"chain": (1.02, 0.2, 0.003)})
    assert [chosen_second(new_policy(free, max_depth=max_depth)).drafts for max_depth in (43, 8)] == [31, 8]


def chosen_second(policy: Auto) -> Shape:
    """Return the shape of an image's second round."""
    add_round(policy, 0, chosen(policy, position=0), position=0)
    return chosen(policy)


def test_images_that_accept_less_get_fewer_drafts():
    usual, hard = (started_policy(costs("chain", once=1.0, each=0.05), length=4096) for _ in range(2))
    for _ in range(20):
        add_round(usual, 3, chosen(usual))
        add_round(hard, 1, chosen(hard))
    assert chosen(usual).drafts > chosen(hard).drafts


def test_a_shape_is_kept_unless_another_is_much_better(monkeypatch):
    """After a change to a shorter window or to another mode, fewer drafts of the next rounds are accepted."""
    nearly_equal = costs("chain", "merged", once=1.0, each=0.05)

    def changes(bonus):
        monkeypatch.setattr(auto, "STAY_BONUS", bonus)
        policy = started_policy(nearly_equal, length=4096)
        shapes = []
        for number in range(120):
            shapes.append(chosen(policy))
            add_round(policy, min(shapes[-1].depth, (1, 9)[number // 12 % 2]), shapes[-1])
        return sum(one != other for one, other in zip(shapes, shapes[1:]))

    assert changes(auto.STAY_BONUS) < changes(1.0)


def test_the_first_round_with_a_fresh_profile_has_no_drafts():
    """On a GPU, each new tree size is captured as a CUDA graph. A capture needs more time than an image."""
    assert chosen(new_policy(costs("chain"))) == PLAIN_SHAPE, "even if drafts cost nothing"
    assert chosen(started_policy(costs("chain"))).drafts > SIZES[0]


# ---- draft mode ----------------------------------------------------------------------------------


def test_trees_are_large_if_drafts_are_almost_free():
    free = profile_of(dict.fromkeys(CPU, (1.02, 0.2, 0.003)))
    best = chosen_second(new_policy(free))
    second = chosen_second(new_policy(free, modes=(CHAIN, WINDOW)))
    assert best.drafts == second.drafts == SIZES[-1] and best.mode == "merged"


@pytest.mark.parametrize("best", CPU)
def test_the_cheapest_mode_is_used_if_it_is_cheap_enough(best):
    cheap = profile_of({name: (1.1, 0.1 if name == best else 4.0, 0.01) for name in CPU})
    assert chosen_second(new_policy(cheap)).mode == best


def test_images_are_decoded_plainly_if_the_drafter_has_no_mode_of_the_profile():
    assert not new_policy(costs("another drafter's mode")).begin()


# ---- trials --------------------------------------------------------------------------------------


def test_the_best_mode_is_tried_once_if_no_mode_pays_off():
    policy = new_policy(profile_of({name: (1.1, 1.0 if name == "window" else 6.0, 1.0) for name in CPU}))
    assert chosen(policy) == Shape(4, WIDTH, SIZES[0], mode="window")
    add_round(policy, 0, chosen(policy))
    assert not policy.is_drafting


@pytest.mark.parametrize("images", [1, 4])
def test_modes_take_turns_if_no_mode_pays_off(images):
    """In a batch, a trial with drafts slows down all later rounds, so most batches are decoded without one."""
    profile = replace(profile_of(dict.fromkeys(CPU, (1.1, 2.0, 1.0))), images=images)
    modes = [chosen(new_policy(replace(profile, decodings=count))).mode for count in range(6 * images)]
    assert modes[images - 1 :: images] == ["merged", "window", "chain"] * 2, "the best mode is first"
    assert modes.count("") == 6 * (images - 1)


def test_plain_rounds_and_modes_other_than_the_best_take_turns_as_the_first_round():
    """The policy thereby measures a mode again that only seems expensive."""
    found = []
    for decodings in range(6):
        profile = replace(profile_of(CPU | {"merged": (1.1, 1e3, 0.06)}), decodings=decodings)
        policy = new_policy(profile)
        trial = chosen(policy)
        add_round(policy, 0, trial)
        found.append((trial.mode, trial.drafts))
        assert chosen(policy).mode not in ("", trial.mode), "the loss of the trial must not count"
    assert found[0] == ("", 0) and set(found[1:3]) == {("window", 4), ("merged", 4)} and found[3:] == found[:3]


def test_an_image_that_enters_later_has_its_own_trial_unless_others_are_active():
    policy = new_policy(replace(profile_of(CPU), decodings=1))
    trial = chosen(policy)
    add_round(policy, 0, trial)
    assert chosen(policy, image=1) == trial and trial.drafts == SIZES[0]
    first, second = policy.choose([ActiveImage(0, 100), ActiveImage(1, 100)])
    assert first == second != trial


# ---- limit on losses -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [256, 1024, 4096])
@pytest.mark.parametrize(
    "accepts",
    [lambda at: 0, lambda at: at % 2, lambda at: 0 if at < 40 else 1, lambda at: 9 * (at % 40 == 0)],
    ids=["nothing", "every other", "late", "now and then"],
)
@pytest.mark.parametrize("figures", [CPU, {"merged": (1.2, 0.3, 0.002)}, {"window": (1.3, 0.0, 0.02)}])
def test_no_image_loses_more_than_a_tenth_by_the_profile(figures, accepts, length):
    steps, sizes = decode(new_policy(profile_of(figures), length), accepts)
    assert any(sizes) and steps <= (1 + MAX_LOSS) * length and MAX_LOSS <= 0.1


def test_sizes_shrink_before_drafting_stops_for_the_image():
    policy = new_policy(profile_of(CPU))
    _, sizes = decode(policy, lambda at: 0)
    tried = [size for size in sizes if size]
    assert len(tried) >= 5 and tried[0] > tried[-1] and not any(sizes[-64:]) and not policy.is_drafting


@pytest.mark.parametrize("accepted, record", [(3, 0.85), (5, 0.6)])
def test_drafts_that_pay_off_continue_to_the_end_of_the_image(accepted, record):
    steps, sizes = decode(new_policy(profile_of(CPU)), lambda at: accepted)
    assert steps < record * 256 and sizes[-2] > 0


def test_drafting_pauses_in_a_hard_region_and_resumes_after_it():
    """Drafting resumes if plain rounds cost no more with the drafter, and if enough time has been saved."""
    easy = new_policy(profile_of({"chain": (1.0, 0.2, 0.05)}), length=4096)
    _, sizes = decode(easy, lambda at: 6 if at < 1000 or at > 2000 else 0)
    assert easy.is_drafting and 0 in sizes[200:] and sizes[-5] > 0


# ---- images that are decoded together ------------------------------------------------------------


def rounds_of_two(policy: Auto, accepts, rounds=80) -> tuple[list[list[Shape]], float]:
    """Run rounds with two images, which accept at most these numbers of drafts per round.

    Return the shapes of each round, and the loss of image 1: its cost in plain rounds minus its number of tokens.
    """
    lost = 0.0
    every = []
    for number in range(rounds):
        shapes = policy.choose([ActiveImage(0, number), ActiveImage(1, number)])
        every.append(shapes)
        if not policy.is_drafting:
            break
        taken = [min(shape.depth, most) for shape, most in zip(shapes, accepts)]
        records = tuple(
            ImageRound(image, number, *shape[:2], shape.depth, shape.drafts, taken[image], (0,) * taken[image])
            for image, shape in enumerate(shapes)
        )
        policy.on_verified(Round(0, 0.01, 0.0, 0, records))
        lost += cost_of(policy.context.profile, shapes[1]) - taken[1] - 1
    return every, lost


def test_images_share_the_size_that_is_best_for_all_of_them():
    sizes = []
    for accepts in ((9, 9), (0, 0)):
        policy = new_policy(costs("chain", once=0.2, each=0.1), length=4096)
        rounds, _ = rounds_of_two(policy, accepts, 40)
        assert all(first == second for first, second in rounds)
        sizes.append([first.drafts for first, _ in rounds[1:]])
    many, hardly = sizes
    assert min(many) > 0 and min(hardly) == 0


def test_drafting_stops_before_the_images_of_a_batch_exceed_the_limit_on_average():
    easy, hard = (new_policy(profile_of(CPU), length=256) for _ in range(2))
    rounds_of_two(easy, (9, 0))
    assert easy.is_drafting, "the gain of one image is larger than the loss of the other"
    rounds, lost = rounds_of_two(hard, (0, 0), 250)
    assert rounds[-1] == [PLAIN_SHAPE] * 2 and not hard.is_drafting and 0 < lost <= MAX_LOSS * 256


def test_choices_do_not_depend_on_the_clock():
    quick = new_policy(profile_of(CPU))
    slow = new_policy(profile_of(CPU))
    for number in range(50):
        assert chosen(quick, 16 + number) == (shape := chosen(slow, 16 + number))
        for policy, seconds in ((quick, 1e-6), (slow, 1e3)):
            add_round(policy, min(shape.depth, number % 4), shape, 16 + number, seconds=seconds)
    names = {node.attr for node in ast.walk(ast.parse(inspect.getsource(auto))) if isinstance(node, ast.Attribute)}
    assert not names & {"seconds", "drafting", "perf_counter"}


def test_images_that_start_again_have_no_history():
    policy = new_policy(profile_of(CPU))
    fresh = new_policy(profile_of(CPU))
    decode(policy, lambda at: 0)
    policy.begin()
    assert policy.is_drafting and chosen(policy) == chosen(fresh)
