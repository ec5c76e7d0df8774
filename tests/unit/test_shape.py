"""ADT-Tree's policy as documented: adjacency, bisectional refinement, row wrap, reset per image."""

import pytest

from adt_core import AdtError, Drafting
from adt_core.policies.shape import AdtTree, FixedShape, TreeShape, make_policy
from adt_core.rules.trace import ImageRound

SETTINGS = dict(depth=4, width=3, depth_min=1, depth_max=6, width_min=1, width_max=5, beta=0.5)


def policy(columns=8, **changes) -> AdtTree:
    return AdtTree(Drafting(**{**SETTINGS, **changes}), columns, 0, 0)


def learn(policy, position: int, accepted: int, depth: int) -> None:
    """One round rooted at ``position``, over a tree of this realised depth."""
    policy.update(ImageRound(0, position, depth, 1, depth, depth, accepted, (0,) * accepted))


def test_starts_from_the_configured_shape():
    assert policy().choose(0) == TreeShape(4, 3)


def test_success_goes_deeper_and_narrower_failure_shallower_and_wider():
    p = policy()
    p.choose(0)
    learn(p, 0, accepted=2, depth=4)  # alpha = 0.5 >= beta
    assert p.choose(3) == TreeShape(5, 2)
    learn(p, 3, accepted=0, depth=5)
    assert p.choose(4) == TreeShape(4, 3)


def test_alpha_divides_by_realised_depth():
    p = policy()
    p.choose(0)
    learn(p, 0, accepted=1, depth=2)  # 1 / 2, although depth 4 was asked for
    assert p.choose(2).depth == 5


def test_bounds_hold():
    p = policy()
    for position in range(20):
        p.choose(position)
        learn(p, position, accepted=0, depth=3)
    assert p.choose(20) == TreeShape(1, 5)
    for position in range(20, 60, 2):
        p.choose(position)
        learn(p, position, accepted=1, depth=1)
    assert p.choose(60) == TreeShape(6, 1)


def test_a_round_without_drafts_teaches_nothing():
    p = policy()
    shape = p.choose(0)
    learn(p, 0, accepted=0, depth=0)
    assert p.choose(1) == shape


def test_vertical_adjacency_takes_the_cell_above():
    p = policy(init="vertical")
    p.choose(0)
    learn(p, 0, accepted=4, depth=4)  # cells 1..5 become deeper
    for position in (5, 6, 7, 8):
        p.choose(position)
        learn(p, position, accepted=0, depth=4)
    assert p.choose(10) == TreeShape(5, 2)  # below cell 2


@pytest.mark.parametrize("wrap, expected", [("carry", (6, 1)), ("vertical", (5, 2)), ("reset", (4, 3))])
def test_first_round_of_a_row(wrap, expected):
    p = policy(columns=4, wrap=wrap)
    p.choose(0)
    learn(p, 0, accepted=1, depth=2)  # cells 1, 2: (5, 2)
    p.choose(2)
    learn(p, 2, accepted=3, depth=4)  # cells 3..6: (6, 1)
    assert p.choose(6) == TreeShape(*expected)  # row 1, column 2; above it is cell 2


def test_random_initialisation_is_seeded_and_in_bounds():
    first, again = (AdtTree(Drafting(**SETTINGS, init="random"), 8, 5, 1) for _ in range(2))
    shapes = [first.choose(i) for i in range(50)]
    assert shapes == [again.choose(i) for i in range(50)]
    assert {s.depth for s in shapes} == set(range(1, 7)) and {s.width for s in shapes} == set(range(1, 6))
    other = AdtTree(Drafting(**SETTINGS, init="random"), 8, 5, 2)
    assert [other.choose(i) for i in range(50)] != shapes


def test_policies_are_made_per_image_and_eagle2_never_changes():
    drafting = Drafting(method="eagle2", depth=3, width=2)
    p = make_policy(drafting, 8, 0, 0)
    assert isinstance(p, FixedShape)
    learn(p, 0, accepted=3, depth=3)
    assert p.choose(4) == TreeShape(3, 2)


@pytest.mark.parametrize(
    "field, value",
    [
        ("method", "magic"),
        ("proposal", "x"),
        ("init", "diagonal"),
        ("wrap", "x"),
        ("depth", 0),
        ("nodes", 0),
        ("width", 1000),
        ("beta", float("nan")),
        ("beta", 2.0),
        ("depth_max", 0),
        ("keep_above", -0.1),
    ],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(AdtError, match=field.removesuffix("_max")):
        Drafting(**{field: value})
