"""Tests of relaxed acceptance, with vocabularies that are small enough to enumerate all tokens."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core import Drafting, Lantern, load_drafter
from adt_core.rules.tree import DraftTree
from adt_core.rules.verify import Neighbours, relaxed_agreement
from tests.drafted import run
from tests.trees import tree_of

UNLIMITED = torch.tensor([10**6])


def star(children: list[int]) -> DraftTree:
    return tree_of([0, *children], [0] * (len(children) + 1))


def relaxed(tree: DraftTree, y: int, z: torch.Tensor, neighbours: Neighbours, lantern: Lantern, greedy: bool = False):
    """Call :func:`relaxed_agreement`. Token `y` is emitted after every node, and substitutes are unlimited."""
    emitted = torch.full((1, tree.size), y)
    width = tree.size - 1
    return relaxed_agreement(tree, emitted, z, neighbours, lantern, greedy=greedy, width=width, allowed=UNLIMITED)


def output_distribution(p: torch.Tensor, children: list[int], neighbours: Neighbours, lantern: Lantern) -> torch.Tensor:
    """Return the distribution of the token after the root. It is computed by enumerating all exact samples y."""
    distribution = torch.zeros_like(p)
    for y, mass in enumerate(p):
        tree = star(children)
        agrees, _ = relaxed(tree, y, p.log()[None, None].expand(1, tree.size, -1), neighbours, lantern)
        passed = agrees[0, 1:].nonzero().flatten().tolist()
        assert len(passed) <= 1
        distribution[children[passed[0]] if passed else y] += mass
    return distribution


def random_case(seed: int, codes: int, width: int, k: int):
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(codes, generator=generator, dtype=torch.float64)).softmax(0)
    neighbours = Neighbours.of(torch.randn(codes, 3, generator=generator), k)
    return p, torch.randperm(codes, generator=generator)[:width].tolist(), neighbours


@given(
    seed=st.integers(0, 9999),
    codes=st.integers(3, 9),
    width=st.integers(1, 5),
    k=st.integers(1, 8),
    delta=st.floats(0, 1),
)
def test_at_most_delta_moves_with_any_number_of_siblings(seed, codes, width, k, delta):
    p, children, neighbours = random_case(seed, codes, min(width, codes), k)
    distribution = output_distribution(p, children, neighbours, Lantern(k, delta))
    assert (distribution - p).clamp_min(0).sum() <= delta + 1e-9


@given(seed=st.integers(0, 9999), codes=st.integers(3, 9), k=st.integers(1, 8), delta=st.floats(0, 1))
def test_a_single_child_is_accepted_with_the_published_probability(seed, codes, k, delta):
    """It is p(x) + p(A(x)), where A(x) is the longest prefix of x's neighbours with a total of at most delta."""
    p, (x,), neighbours = random_case(seed, codes, 1, k)
    prefix = list(itertools.takewhile(lambda mass: mass <= delta, p[neighbours.indices[x]].cumsum(0).tolist()))
    distribution = output_distribution(p, [x], neighbours, Lantern(k, delta))
    assert distribution[x].item() == pytest.approx(p[x].item() + (prefix[-1] if prefix else 0.0), abs=1e-9)


@given(seed=st.integers(0, 9999), codes=st.integers(3, 9), width=st.integers(1, 4), factor=st.floats(1, 20))
def test_lantern_plus_plus_bounds_each_child_by_its_own_probability(seed, codes, width, factor):
    p, children, neighbours = random_case(seed, codes, min(width, codes), codes)
    distribution = output_distribution(p, children, neighbours, Lantern(codes, factor=factor))
    for x in children:
        assert distribution[x] <= factor * p[x] + 1e-9


@given(seed=st.integers(0, 9999), codes=st.integers(3, 9), factor=st.floats(1, 20))
def test_a_single_child_under_lantern_plus_plus_adds_the_longest_prefix_below_its_bound(seed, codes, factor):
    """A(x) is the longest prefix of x's neighbours whose total probability is at most (factor - 1) * p(x)."""
    p, (x,), neighbours = random_case(seed, codes, 1, codes)
    totals = p[neighbours.indices[x]].cumsum(0)
    prefix = totals[totals <= (factor - 1) * p[x]]
    distribution = output_distribution(p, [x], neighbours, Lantern(codes, factor=factor))
    assert distribution[x].item() == pytest.approx(p[x].item() + (prefix.max().item() if len(prefix) else 0), abs=1e-9)


@pytest.mark.parametrize("lantern", [Lantern(5, 0.0), Lantern(5, factor=1.0)])
def test_nothing_moves_at_delta_0_or_lambda_1(lantern):
    for seed in range(20):
        p, children, neighbours = random_case(seed, 8, 3, 5)
        assert torch.allclose(output_distribution(p, children, neighbours, lantern), p)


@pytest.mark.parametrize(
    "middle, y, agrees, substitutes",
    [
        (1.6, 1, [True, False, True], [False, False, True]),  # code 1 is nearer to code 2 than to code 0
        (1.6, 0, [True, True, False], [False, False, False]),
        (2.0, 1, [True, True, False], [False, True, False]),  # equally near: the first
    ],
)
def test_exact_matches_have_priority_then_the_nearest_and_first_substitute(middle, y, agrees, substitutes):
    neighbours = Neighbours.of(torch.tensor([[0.0], [1.0], [middle], [9.0]]), 3)
    z = torch.full((1, 3, 4), 0.25).log()
    found = relaxed(star([0, 2]), y, z, neighbours, Lantern(3, 1.0))
    assert [flags[0].tolist() for flags in found] == [agrees, substitutes]


def test_the_tokens_of_siblings_do_not_use_up_delta():
    """The nearest code to child 0 is its sibling 1 with probability 0.06, then code 2 with 0.05. That fits."""
    neighbours = Neighbours.of(torch.tensor([[0.0], [1.0], [-1.5], [9.0]]), 3)
    z = torch.tensor([0.5, 0.06, 0.05, 0.39]).log().expand(1, 3, -1)
    _, substitutes = relaxed(star([0, 1]), 2, z, neighbours, Lantern(3, 0.055))
    assert substitutes.tolist() == [[False, True, False]]
    _, alone = relaxed(star([0]), 2, z[:, :2], neighbours, Lantern(3, 0.055))
    assert not alone.any(), "without the sibling, code 1 counts, and delta is used up"


@pytest.mark.parametrize(
    "x, lantern, accepts",
    [
        (
            0,
            {"delta": 0.3},
            True,
        ),  # the draft has 0.20 and its neighbour 0.25; the best token 0.40
        (0, {"delta": 0.2}, False),  # the nearest neighbour has 0.25, which is more than delta
        (1, {"delta": 0.3}, True),
        (2, {"delta": 0.2}, False),
        (0, {"factor": 2.2}, False),  # the neighbour's 0.25 is at most (factor - 1) * 0.2 from the factor 2.25 on
        (0, {"factor": 2.3}, True),
    ],
)
def test_the_greedy_rule_adds_the_neighbours_probability_to_the_drafts(x, lantern, accepts):
    neighbours = Neighbours.of(torch.tensor([[0.0], [1.0], [2.1], [9.0]]), 3)
    z = torch.tensor([0.2, 0.25, 0.15, 0.4]).log().expand(1, 2, -1)
    _, substitutes = relaxed(star([x]), 3, z, neighbours, Lantern(3, **lantern), greedy=True)
    assert bool(substitutes[0, 1]) is accepts


def relaxed_run(models, drafter_name: str, lantern=None):
    target, network = models
    drafter = network if drafter_name == "network" else load_drafter(drafter_name, target)
    tree = Drafting("eagle2", depth=4, width=4, drafts=20)
    return run(target, drafter, ("a cat", "three small dogs", "x"), lantern=lantern, drafting=tree)


@pytest.mark.parametrize("drafter_name", ["network", "jacobi"])
def test_relaxed_acceptance_accepts_more_and_reports_the_substitution_rate(models, drafter_name):
    exact, more = (relaxed_run(models, drafter_name, lantern).trace.report() for lantern in (None, Lantern(39, 1.0)))
    assert more["tau"] > exact["tau"] and more["substitution_rate"] > 0 == exact["substitution_rate"]


@pytest.mark.parametrize("cap", [0.0, 0.1, 0.3])
def test_the_limit_on_substitutes_is_kept_by_every_image_at_any_time(models, cap):
    decoding = relaxed_run(models, "jacobi", Lantern(39, 1.0, max_substitution=cap))
    emitted = [1] * 3
    substituted = [0] * 3
    for record in (record for round in decoding.trace.rounds for record in round.images):
        emitted[record.image] += record.accepted + 1
        substituted[record.image] += record.substituted
        assert substituted[record.image] <= cap * emitted[record.image]
    assert sum(substituted) > 0 or cap == 0
