"""The cost-aware policy: it follows its formula, the profile and each image's own rounds, and loses little."""

import ast
import inspect
from types import SimpleNamespace

import pytest

from adt_core import Sampling
from adt_core.drafters.jacobi import CHAIN, WINDOW
from adt_core.drafters.merged import BOTH
from adt_core.policies import NO_DRAFTS, Context, CostProfile, DraftSettings, Shape, Slot, auto
from adt_core.policies.auto import MAX_LOSS, SIZES, WIDTH, Auto, sizes_of, spine_length
from adt_core.rules.trace import ImageRound, Round
from tests.drafted import costs

MODES = (CHAIN, BOTH, WINDOW)
CPU = {"chain": (1.06, 0.2, 0.05), "both": (1.1, 1.2, 0.06), "window": (1.15, 0.4, 0.06)}
"""Plain steps of a round without drafts, what drafts add, and what each adds, about as on a CPU."""


def profile_of(figures) -> CostProfile:
    def curve(idle, once, each):
        return (0, idle), (1, idle + once), (64, idle + once + 64 * each)

    return CostProfile("a device", 1, {name: curve(*its) for name, its in figures.items()})


def made_policy(profile, length=256, modes=MODES, max_depth=256) -> Auto:
    """Return a policy for images with this number of tokens."""
    target = SimpleNamespace(columns=16, length=length)
    largest = Shape(max_depth, 4, 63)
    return Auto(Context(target, Sampling(), DraftSettings(), largest, [(0, 0)] * 64, modes=modes, profile=profile))


def new_policy(*given, **options) -> Auto:
    """Return a policy before its first round."""
    policy = made_policy(*given, **options)
    policy.begin()
    return policy


def started_policy(profile, length=256) -> Auto:
    """The same, behind the first round of image 0."""
    policy = new_policy(profile, length)
    tell(policy, 0, chosen(policy, position=0), position=0)
    return policy


def chosen(policy: Auto, position=100, image=0) -> Shape:
    """Of the next tree."""
    (shape,) = policy.choose([Slot(image, position)])
    return shape


def tell(policy: Auto, accepted: int, shape: Shape, position=100, image=0, seconds=0.01) -> None:
    """The round is over: so many drafts of a tree of this shape were accepted."""
    share = ImageRound(image, position, *shape[:2], shape.depth, shape.nodes, accepted, (0,) * accepted)
    policy.on_verified(Round(0, seconds, 0.0, 0, (share,)))


def cost_of(profile: CostProfile, shape: Shape) -> float:
    """Plain steps of a round; without drafts, of the cheapest source's."""
    if shape.mode:
        return profile.cost(shape.mode, shape.nodes)
    return min(profile.cost(source, 0) for source in profile.costs)


def draw(policy: Auto, accepts, image=0) -> tuple[float, list[int]]:
    """Draw an image of which ``accepts(position)`` drafts pass at most: plain steps that it took, drafts of all rounds.

    Rounds cost what the profile says, and as much as plain steps once nothing is drafted any more."""
    profile = policy.context.profile
    length = policy.context.remaining
    position = 0
    steps = 0.0
    sizes = []
    while position < length - 1:
        shape = chosen(policy, position, image) if policy.drafts else NO_DRAFTS
        steps += cost_of(profile, shape) if policy.drafts else 1.0
        accepted = min(shape.depth, accepts(position), length - 2 - position)
        if policy.drafts:
            tell(policy, accepted, shape, position, image)
        position += accepted + 1
        sizes.append(shape.nodes)
    return steps, sizes


# ---- the formula ---------------------------------------------------------------------------------


def test_what_is_chosen_maximises_tokens_for_their_time():
    profile = costs("both", "chain", once=0.2, each=0.1)
    policy = started_policy(profile, length=4096)
    options = [(one, size) for one in (CHAIN, BOTH) for size in sizes_of(one)]
    mode, size = max(
        options, key=lambda one: (1 + one[0].expected_accepted(one[1])) / profile.cost(one[0].name, one[1])
    )
    assert SIZES[0] < size < SIZES[-1]
    width = min(mode.width, WIDTH)
    assert chosen(policy) == Shape(spine_length(size, width), width, size, mode=mode.name)


def test_nothing_is_drafted_where_nothing_is_accepted_and_it_is_tried_again_after_a_while():
    policy = started_policy(costs("chain", once=0.3, each=0.05), length=4096)
    shapes = []
    for _ in range(60):
        shapes.append(chosen(policy))
        tell(policy, 0, shapes[-1])
    assert shapes[0].nodes > shapes[5].nodes and NO_DRAFTS in shapes
    assert any(shape.nodes for shape in shapes[shapes.index(NO_DRAFTS) :])


def test_a_source_that_does_worse_than_usual_in_an_image_gives_way_to_another():
    """A round that is easy for one is easy for the others, so they are held against each other, and not each alone."""
    policy = started_policy(costs("chain", "both", once=0.5, each=0.02), length=4096)
    first = chosen(policy).mode
    sources = []
    for _ in range(40):
        shape = chosen(policy)
        tell(policy, 1 if shape.mode == first else min(12, shape.depth), shape)
        sources.append(shape.mode)
    assert sources[0] == first and set(sources[30:]) == {"chain", "both"} - {first}


def test_chains_that_the_exact_mode_cuts_bring_what_is_left_of_them():
    free = profile_of({"chain": (1.02, 0.2, 0.003)})
    assert [chosen_second(new_policy(free, max_depth=max_depth)).nodes for max_depth in (43, 8)] == [31, 8]


def chosen_second(policy: Auto) -> Shape:
    """What the second round of an image is."""
    tell(policy, 0, chosen(policy, position=0), position=0)
    return chosen(policy)


def test_an_image_that_is_easy_gets_longer_chains_and_one_that_is_hard_shorter_ones():
    usual, easy, hard = (started_policy(costs("chain", once=0.05, each=0.06), length=4096) for _ in range(3))
    for _ in range(6):
        tell(easy, shape.depth if (shape := chosen(easy)) else 0, shape)
        tell(hard, 1, chosen(hard))
    assert chosen(easy).nodes > chosen(usual).nodes > chosen(hard).nodes


def test_the_first_round_of_an_image_has_no_drafts():
    assert chosen(new_policy(costs("chain"))) == NO_DRAFTS, "even where they cost nothing"
    assert chosen(started_policy(costs("chain"))).nodes > 0


# ---- which source --------------------------------------------------------------------------------


def test_where_nodes_are_free_trees_are_large():
    free = profile_of(dict.fromkeys(CPU, (1.02, 0.2, 0.003)))
    best = chosen_second(new_policy(free))
    second = chosen_second(new_policy(free, modes=(CHAIN, WINDOW)))
    assert best.nodes == second.nodes == SIZES[-1] and best.mode == "both"


@pytest.mark.parametrize("best", CPU)
def test_the_source_that_is_cheapest_drafts_if_it_is_cheap_enough(best):
    cheap = profile_of({name: (1.1, 0.1 if name == best else 4.0, 0.01) for name in CPU})
    assert chosen_second(new_policy(cheap)).mode == best


def test_where_no_source_pays_and_where_none_was_measured_images_are_decoded_plainly():
    for profile in (profile_of(dict.fromkeys(CPU, (1.1, 1.0, 1.0))), costs("another drafter's")):
        assert not made_policy(profile).begin()


# ---- what may be lost ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [256, 1024, 4096])
@pytest.mark.parametrize(
    "accepts",
    [lambda at: 0, lambda at: at % 2, lambda at: 0 if at < 40 else 1, lambda at: 9 * (at % 40 == 0)],
    ids=["nothing", "every other", "late", "now and then"],
)
@pytest.mark.parametrize("figures", [CPU, {"both": (1.2, 0.3, 0.002)}, {"window": (1.3, 0.0, 0.02)}])
def test_no_image_loses_more_than_a_tenth_by_the_profile(figures, accepts, length):
    steps, sizes = draw(new_policy(profile_of(figures), length), accepts)
    assert any(sizes) and steps <= (1 + MAX_LOSS) * length and MAX_LOSS <= 0.1


def test_sizes_shrink_before_drafting_ends_and_then_it_has_ended_for_the_image():
    policy = new_policy(profile_of(CPU))
    _, sizes = draw(policy, lambda at: 0)
    tried = [size for size in sizes if size]
    assert len(tried) >= 5 and tried[0] > tried[-1] and not any(sizes[-64:]) and not policy.drafts


def test_drafts_that_pay_go_on_to_the_end_of_the_image():
    steps, sizes = draw(new_policy(profile_of(CPU)), lambda at: 3)
    assert steps < 0.75 * 256 and sizes[-2] > 0


def test_a_hard_part_of_an_image_is_passed_plainly_and_drafting_comes_back():
    """Where plain rounds cost no more for the drafter, and enough has been gained."""
    easy = new_policy(profile_of({"chain": (1.0, 0.2, 0.05)}), length=4096)
    _, sizes = draw(easy, lambda at: 6 if at < 1000 or at > 2000 else 0)
    assert easy.drafts and 0 in sizes[200:] and sizes[-5] > 8


# ---- images that are drawn together --------------------------------------------------------------


def rounds_of_two(policy: Auto, accepts, rounds=80) -> tuple[list[list[Shape]], float]:
    """Rounds in which so many drafts of image 0 and image 1 pass at most. Returns the shapes of each, and how many
    plain steps more than its tokens image 1 has cost."""
    lost = 0.0
    every = []
    for number in range(rounds):
        shapes = policy.choose([Slot(0, number), Slot(1, number)])
        every.append(shapes)
        if not policy.drafts:
            break
        taken = [min(shape.depth, most) for shape, most in zip(shapes, accepts)]
        shares = tuple(
            ImageRound(image, number, *shape[:2], shape.depth, shape.nodes, taken[image], (0,) * taken[image])
            for image, shape in enumerate(shapes)
        )
        policy.on_verified(Round(0, 0.01, 0.0, 0, shares))
        lost += cost_of(policy.context.profile, shapes[1]) - taken[1] - 1
    return every, lost


def test_images_share_the_size_that_is_best_for_them_together():
    sizes = []
    for accepts in ((9, 9), (3, 0), (0, 0)):
        policy = new_policy(costs("chain", once=0.05, each=0.1), length=4096)
        rounds, _ = rounds_of_two(policy, accepts, 40)
        assert all(first == second for first, second in rounds)
        sizes.append([first.nodes for first, _ in rounds[30:]])
    many, some, hardly = sizes
    assert min(many) > max(some) and min(some) > max(hardly) and min(hardly) == 0


def test_drafting_ends_before_the_hardest_image_has_lost_too_much():
    easy, mixed = (new_policy(profile_of(CPU)) for _ in range(2))
    rounds_of_two(easy, (9, 5))
    assert easy.drafts
    rounds, lost = rounds_of_two(mixed, (9, 0))
    assert rounds[-1] == [NO_DRAFTS] * 2 and not mixed.drafts and 0 < lost <= MAX_LOSS * 256


def test_what_is_decided_does_not_depend_on_the_clock():
    quick = new_policy(profile_of(CPU))
    slow = new_policy(profile_of(CPU))
    for number in range(50):
        assert chosen(quick, 16 + number) == (shape := chosen(slow, 16 + number))
        for policy, seconds in ((quick, 1e-6), (slow, 1e3)):
            tell(policy, min(shape.depth, number % 4), shape, 16 + number, seconds=seconds)
    names = {node.attr for node in ast.walk(ast.parse(inspect.getsource(auto))) if isinstance(node, ast.Attribute)}
    assert not names & {"seconds", "drafting", "perf_counter"}


def test_images_that_begin_anew_remember_nothing():
    policy = new_policy(profile_of(CPU))
    fresh = new_policy(profile_of(CPU))
    draw(policy, lambda at: 0)
    policy.begin()
    assert policy.drafts and chosen(policy) == chosen(fresh)
