"""Tests of the growth of trees from a drafter network.

The network must not be called for levels that can't become part of the tree.
"""

from types import SimpleNamespace
from unittest.mock import patch

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from adt_core import Sampling
from adt_core.drafters import TreeSizes
from adt_core.drafters.eagle import Growth
from adt_core.policies import Context, DraftSettings, Shape
from adt_core.rules.tree import CandidatePool, DraftTree

CODES = 7
SHAPE = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(1, 12)).map(lambda sizes: Shape(*sizes))
SHAPES = st.lists(SHAPE, min_size=1, max_size=3)


def context(replayed: bool = False, **settings) -> Context:
    return Context(SimpleNamespace(), Sampling(), DraftSettings(**settings), Shape(8, 5, 12), replayed=replayed)


def shapes_of(shapes: list[Shape]) -> TreeSizes:
    return TreeSizes(shapes, torch.tensor([shape[:3] for shape in shapes]))


def grow(shapes: list[Shape], table: torch.Tensor, context: Context) -> tuple[DraftTree, int]:
    """Grow trees from log-probabilities [levels, code, next code]. Also return the number of calls of the network."""
    sizes = shapes_of(shapes)
    growth = Growth(sizes, context)
    pool = CandidatePool()
    beam_scores = torch.zeros(len(shapes), 1)
    parents = torch.zeros(len(shapes), 1, dtype=torch.long)
    fed = torch.zeros(len(shapes), 1, dtype=torch.long)
    calls = 0
    for level in range(1, sizes.depth + 1):
        scores, tokens = table[level - 1][fed].topk(sizes.width, -1)
        scores = growth.candidates(scores + beam_scores[..., None], level)
        first = pool.add(tokens, scores, parents)
        beam_scores, beam = growth.beam(scores.flatten(1), level, pool)
        if level == sizes.depth or beam.shape[1] == 0:
            break
        calls += 1
        parents = beam + first
        fed = tokens.flatten(1).gather(1, beam)
    nodes = context.size(pool.usable, min(sizes.drafts, pool.count))
    return pool.rerank(torch.zeros(len(shapes), dtype=torch.long), nodes, sizes.budgets), calls


def valid_nodes(tree: DraftTree) -> list:
    """Return code, parent (index among valid nodes), depth, rank and score of each image's valid nodes."""
    parents = (tree.valid.cumsum(1) - 1).gather(1, tree.parents)
    every = torch.stack([tree.tokens, parents, tree.depths, tree.ranks, tree.scores], -1)
    return [image[valid].tolist() for image, valid in zip(every, tree.valid)]


def log_probabilities(seed: int, scale: float) -> torch.Tensor:
    """Return random log-probabilities [levels, code, next code]."""
    return (scale * torch.randn(8, CODES, CODES, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


def never_stop(growth: Growth, best: torch.Tensor, pool: CandidatePool) -> torch.Tensor:
    return torch.full((len(best),), best.shape[1])


@example(shapes=[Shape(1, 1, 5), Shape(3, 3, 3)], seed=7, scale=40.0, keep_above=0.05, expand_above=0.0)
@given(
    shapes=SHAPES,
    seed=st.integers(0, 999),
    scale=st.sampled_from([0.0, 1.0, 4.0, 40.0]),
    keep_above=st.sampled_from([0.0, 0.05]),
    expand_above=st.sampled_from([0.0, 0.2]),
)
def test_trees_do_not_depend_on_the_early_stop(shapes, seed, scale, keep_above, expand_above):
    """Scale 0 gives equal probabilities; scale 40 gives probabilities near 1."""
    table = log_probabilities(seed, scale)
    how = context(keep_above=keep_above, expand_above=expand_above)
    tree, calls = grow(shapes, table, how)
    with patch.object(Growth, "promising", never_stop):
        full, most = grow(shapes, table, how)
    assert valid_nodes(tree) == valid_nodes(full)
    assert calls <= most


def test_growth_stops_when_no_deeper_candidate_can_enter_the_tree():
    table = log_probabilities(0, 0.0)  # all probabilities are 1 / 7, so 5 children of the root fill a tree of 5
    assert [grow([Shape(8, 5, nodes)], table, context())[1] for nodes in (5, 6)] == [0, 1]


def test_growth_stops_at_the_depth_of_the_last_image_that_can_grow():
    """The first image allows depth 2 only. The tree of the second image has all of its 5 drafts at level 1."""
    table = log_probabilities(0, 0.0)
    assert grow([Shape(2, 5, 12), Shape(8, 5, 5)], table, context())[1] == 1


def test_a_replayed_round_has_a_fixed_number_of_calls():
    with patch.object(Growth, "promising", side_effect=AssertionError("a replayed round must not read the device")):
        assert grow([Shape(6, 5, 5)], log_probabilities(0, 0.0), context(replayed=True))[1] == 5


def test_threshold_is_the_score_of_the_last_kept_candidate():
    pool = CandidatePool()
    scores = torch.tensor([[[-1.0, -2.0, -3.0]]]).expand(3, -1, -1)
    pool.add(torch.zeros(3, 1, 3, dtype=torch.long), scores, torch.zeros(3, 1, dtype=torch.long))
    assert pool.threshold(3).tolist() == [[-3.0]] * 3
    assert pool.threshold(4, torch.tensor([[1], [2], [4]])).tolist() == [[-1.0], [-2.0], [-torch.inf]]
