"""Tests of draft trees: selection of nodes, parents, depths and ancestors."""

import gc
from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from adt_core.rules.tree import CandidatePool, keep_best


def grow(depth: int, width: int, logp: torch.Tensor) -> CandidatePool:
    """Return a pool that grew by EAGLE-2's rule. The children of every node have the same log-probabilities `logp`."""
    pool = CandidatePool()
    beam_scores = torch.zeros(1, 1)
    parents = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(depth):
        scores = logp[:width].expand(1, beam_scores.shape[1], -1) + beam_scores[..., None]
        tokens = torch.arange(width).expand_as(scores)
        first = pool.add(tokens, scores, parents)
        beam_scores, beam = scores.flatten(1).topk(min(width, scores[0].numel()), 1)
        parents = beam + first
    return pool


def test_wide_trees_of_equally_probable_drafts_are_shallow():
    """The drafts fill the tree level by level: with N = 58 nodes, the depth is 1 + ceil((N - k) / k^2)."""
    expected = {10: 2, 8: 2, 7: 3, 6: 3, 5: 4, 4: 5, 3: 8, 2: 15}
    for width, depth in expected.items():
        tree = grow(16, width, -5.0 - 1e-4 * torch.arange(10)).rerank(torch.zeros(1, dtype=torch.long), 58)
        assert int(tree.realised_depth()) == depth, width


@given(
    depth=st.integers(1, 5),
    width=st.integers(1, 5),
    nodes=st.integers(1, 60),
    seed=st.integers(0, 999),
    flat=st.booleans(),
)
def test_kept_nodes_form_a_tree(depth, width, nodes, seed, flat):
    logp = torch.randn(5, generator=torch.Generator().manual_seed(seed)).log_softmax(0).sort(descending=True).values
    tree = grow(depth, width, torch.zeros(5) if flat else logp).rerank(torch.tensor([3]), nodes)
    parents = tree.parents[0]
    depths = tree.depths[0]
    assert tree.size <= nodes + 1 and tree.tokens[0, 0] == 3 and parents[0] == 0
    for node in range(1, tree.size):
        parent = int(parents[node])
        assert parent < node and depths[node] == depths[parent] + 1
        assert tree.scores[0, node] <= tree.scores[0, parent]
        lineage = {node}
        at = node
        while at:
            at = int(parents[at])
            lineage.add(at)
        assert set(tree.ancestors[0, node].nonzero().flatten().tolist()) == lineage
    drafts = [int((tree.valid[0] & (depths == level)).sum()) for level in range(1, tree.height + 1)]
    assert tree.levels()[0].tolist() == [0, *drafts]
    siblings = [(int(parents[n]), int(tree.tokens[0, n])) for n in range(1, tree.size)]
    assert len(set(siblings)) == len(siblings)


def test_ties_go_to_the_earlier_candidate():
    tree = grow(3, 2, torch.zeros(2)).rerank(torch.zeros(1, dtype=torch.long), 3)
    assert tree.depths[0].tolist() == [0, 1, 1, 2]


def test_excluded_candidates_become_padding():
    pool = CandidatePool()
    scores = torch.tensor([[[-1.0, -2.0]], [[-1.0, -torch.inf]]])
    pool.add(torch.tensor([[[4, 5]], [[6, 7]]]), scores, torch.zeros(2, 1, dtype=torch.long))
    tree = pool.rerank(torch.zeros(2, dtype=torch.long), 2)
    assert tree.valid.tolist() == [[True, True, True], [True, True, False]]
    assert tree.parents[1, 2] == 0 and tree.depths[1, 2] == 0


def test_depths_and_sibling_ranks_of_candidates():
    pool = CandidatePool()
    pool.add(torch.tensor([[[4, 5, 6]]]), torch.tensor([[[-1.0, -2.0, -3.0]]]), torch.zeros(1, 1, dtype=torch.long))
    pool.add(torch.tensor([[[7, 8, 2], [9, 1, 3]]]), torch.full((1, 2, 3), -9.0), torch.tensor([[1, 3]]))
    tree = pool.rerank(torch.zeros(1, dtype=torch.long), 9)
    assert tree.depths[0].tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert tree.ranks[0].tolist() == [0, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert tree.parents[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 3, 3, 3]


def test_trees_of_many_sizes_leave_no_tensors_in_memory():
    """On a CPU, the number of nodes with children varies, so nearly all pools have different sizes."""

    def tensors() -> int:
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())  # frozen objects aren't listed

    def draw(parents: tuple[int, ...]) -> None:
        pool = CandidatePool()
        for m in (1, *parents):
            pool.add(torch.zeros(1, m, 4, dtype=torch.long), torch.zeros(1, m, 4), torch.zeros(1, m, dtype=torch.long))
        pool.rerank(torch.zeros(1, dtype=torch.long), 5)

    draw((4, 4, 4))
    gc.collect()
    gc.freeze()  # don't list the objects of other tests, because this would be slow
    try:
        before = tensors()
        for parents in product(range(1, 5), repeat=3):
            draw(parents)
        assert tensors() == before
    finally:
        gc.unfreeze()


def test_each_image_keeps_the_scores_of_its_budget_and_of_equal_scores_the_earlier_one():
    scores = torch.tensor([[0.3, 0.5, 0.4, 0.4]] * 2)
    kept = keep_best(scores, torch.tensor([[2], [1]]))
    assert kept.isfinite().tolist() == [[False, True, True, False], [False, True, False, False]]
