"""Tests of the Jacobi drafter: convergence, calibration, branches, and updates from rejected drafts."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from adt_core import Drafting, Sampling, load_drafter
from adt_core.drafters import Prefill, TreeSizes, Verified
from adt_core.drafters.branches import spine_and_branches
from adt_core.drafters.calibration import (
    INITIAL_HIT_RATES,
    INITIAL_NETWORK_HIT_RATES,
    LEARNING_RATE,
    PRIOR,
    UNCHANGED,
    Calibration,
    Forecast,
)
from adt_core.drafters.jacobi import JacobiProposer
from adt_core.models.rows import BatchRows, Roots
from adt_core.policies import Context, DraftSettings, Shape
from adt_core.rules.tree import ancestor_matrix
from adt_core.rules.verify import Acceptance
from tests.drafted import run
from tests.trees import tree_of


@pytest.fixture
def target(models):
    return models[0]


def test_a_model_that_ignores_context_is_predicted_after_one_round(target):
    """Such a target emits fixed tokens, which the window has after the first round."""
    target = copy.deepcopy(target)
    with torch.no_grad():
        for layer in target.decoder.layers:
            layer.out.zero_()
            layer.down.zero_()
        target.decoder.embedding.copy_(target.decoder.embedding[:1].expand_as(target.decoder.embedding))
    chain = Drafting("eagle2", depth=4, width=1, drafts=4)
    decoding = run(target, load_drafter("jacobi", target), ("a",), drafting=chain)
    records = [record for round in decoding.trace.rounds for record in round.images]
    assert len(records) == 3, "15 tokens after the first token need 3 rounds of 5 tokens"
    assert all(record.accepted == record.depth for record in records)


LOG_P = torch.tensor([[[0.9, 0.06, 0.04], [0.5, 0.4, 0.1], [0.8, 0.15, 0.05]]]).log()
CANDIDATES = torch.tensor([[[10, 11, 12], [20, 21, 22], [30, 31, 32]]])


def test_branches_leave_the_spine_once_and_the_most_probable_ones_are_kept():
    tree = spine_and_branches(torch.tensor([[0, 10, 20, 30]]), CANDIDATES, LOG_P, drafts=6)
    # The kept nodes are the second candidate at position 2 (0.9 * 0.4), the spine's token after it (* 0.8), and the
    # third candidate at position 2 (0.09), which is above 0.06 at position 1 and 0.0675 at position 3.
    assert tree.tokens.tolist() == [[0, 10, 20, 30, 21, 30, 22]]
    assert tree.parents.tolist() == [[0, 0, 1, 2, 1, 4, 1]]
    assert tree.depths.tolist() == [[0, 1, 2, 3, 2, 3, 2]] and tree.ranks.tolist() == [[0, 0, 0, 0, 1, 0, 2]]
    assert torch.allclose(tree.scores[0, 4:].exp(), torch.tensor([0.36, 0.288, 0.09]))
    assert torch.equal(tree.ancestors, ancestor_matrix(tree.parents, 3))


def test_every_image_gets_the_branches_of_its_own_budget():
    log_p, candidates = (part.expand(2, -1, -1) for part in (LOG_P, CANDIDATES))
    tokens = torch.tensor([[0, 10, 20, 30]] * 2)
    tree = spine_and_branches(tokens, candidates, log_p, drafts=6, budgets=torch.tensor([[6], [4]]))
    assert tree.valid.sum(1).tolist() == [7, 5]


def test_padding_of_a_spine_with_branches_has_only_the_root_as_ancestor():
    """One image has two drafts, and the other image has none."""
    log_p = torch.tensor([[[0.6, 0.4]], [[0.0, 0.0]]]).log()
    tree = spine_and_branches(torch.tensor([[0, 10]] * 2), torch.tensor([[[10, 11]]] * 2), log_p, drafts=2)
    assert tree.valid.tolist() == [[True, True, True], [True, False, False]]
    assert tree.parents.tolist() == [[0, 0, 0]] * 2 and tree.depths.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert torch.equal(tree.ancestors, ancestor_matrix(tree.parents, 1))


def temperature(calibration, one):
    """Return the temperature of a class for each of three images, from the probabilities for the logits 1 and 0."""
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(3, 1, 2)
    log_p = calibration.log_probabilities(torch.full((3, 1), one), scores)
    return (1 / (log_p[:, 0, 0] - log_p[:, 0, 1])).tolist()


def test_each_class_learns_from_its_positions_up_to_the_first_miss():
    """The first image has two correct drafts and then a miss, the second one miss, and the third no drafts."""
    calibration = Calibration(3, torch.zeros((), dtype=torch.float64))
    tokens = torch.tensor([[9, 1, 2, 3], [9, 4, 5, 6], [9, 4, 5, 6]])
    following = torch.tensor([[1, 2, 7], [8, 0, 0], [4, 0, 0]])
    classes = torch.tensor([[2, 5, 2], [5, 1, 1], [2, 2, 2]])
    codes = torch.tensor([[1, 0, 7], [8, 5, 6], [4, 5, 6]])
    predicted = torch.tensor([[0.9, 0.5, 0.25], [0.75, 0.1, 0.1], [0.5, 0.5, 0.5]], dtype=torch.float64)
    rates = torch.tensor((*INITIAL_HIT_RATES, *INITIAL_NETWORK_HIT_RATES), dtype=torch.float64)
    before = [temperature(calibration, one) for one in range(len(rates))]
    valid = torch.tensor([[True] * 4] * 2 + [[True] + [False] * 3])
    tree = SimpleNamespace(tokens=tokens, height=3, valid=valid)
    calibration.learn(
        Forecast(classes, codes[:, None], predicted[:, None]),
        SimpleNamespace(following=following, tree=tree),
        is_decided=torch.tensor([[True, True, True], [True, False, False], [True, False, False]]),
    )
    hits = [{2: 2}, {5: 1}, {}]
    seen = [{2: 2, 5: 1}, {5: 1}, {}]
    error = [{2: 0.9 + 0.25 - 2, 5: 0.5}, {5: 0.75 - 1}, {}]
    for image in range(3):
        for one, rate in enumerate(rates.tolist()):
            expected = (rate * PRIOR + hits[image].get(one, 0)) / (PRIOR + seen[image].get(one, 0))
            assert calibration.hit_rates()[image, one].item() == pytest.approx(expected)
            factor = math.exp(LEARNING_RATE * error[image].get(one, 0.0))
            assert temperature(calibration, one)[image] == pytest.approx(before[one][image] * factor)


def test_drafts_after_a_miss_of_the_spine_are_not_learned_even_if_a_branch_was_accepted():
    """The spine misses at its first position. A branch is accepted there, and with it two more tokens of the spine."""
    calibration = Calibration(1, torch.zeros((), dtype=torch.float64))
    before = calibration.hit_rates()
    predicted = torch.full((1, 1, 3), 0.5, dtype=torch.float64)
    forecast = Forecast(torch.tensor([[1, 2, 3]]), torch.tensor([[[1, 2, 3]]]), predicted)
    tree = SimpleNamespace(tokens=torch.tensor([[9, 1, 2, 3]]), height=3, valid=torch.ones(1, 4, dtype=torch.bool))
    verified = SimpleNamespace(following=torch.tensor([[8, 2, 3]]), tree=tree)
    calibration.learn(forecast, verified, is_decided=torch.ones(1, 3, dtype=torch.bool))
    assert (calibration.hit_rates() != before).nonzero()[:, 1].tolist() == [1]


def test_new_images_bring_their_own_calibration():
    calibration = Calibration(2, torch.zeros((), dtype=torch.float64))
    other = Calibration(1, torch.zeros((), dtype=torch.float64))
    for part in other.state():
        part.fill_(3.0)
    calibration.admit(torch.tensor([1]), other)
    for part in calibration.state():
        assert (part[1] == 3).all() and not (part[0] == 3).all()


# ---- updates from rejected drafts ------------------------------------------------------------------

ROOT = 5
GUESS = 3
WINDOW = Shape(4, 2, 5)


@pytest.fixture
def window(target):
    """Return a proposer at temperature 0 with the root 7 at position 5, and drafts 3 for all later positions."""
    rows = BatchRows([[1, 2]], 64, target.decoder.embedding)
    context = Context(target, Sampling(temperature=0, guidance_scale=1), DraftSettings(), WINDOW)
    proposer = JacobiProposer(context, rows, None, 2)
    z = torch.zeros(1, 1, target.num_codes, dtype=torch.float64)
    z[..., GUESS] = 1
    nothing = torch.empty(0)
    proposer.begin(Prefill(nothing, nothing, None, z, ROOT))
    opened = proposer.open_window(roots(7, ROOT), TreeSizes([WINDOW], torch.tensor([WINDOW[:3]])))
    assert opened.tokens.tolist() == [[7, GUESS, GUESS, GUESS, GUESS]]
    return proposer


def roots(code, position):
    return Roots.all_at(torch.tensor([code]), position)


def verified(target, tokens, parents):
    """Return a verified tree. Node 1 is accepted, and the target emits 2 after it.

    After a node n of the greatest depth, the target emits 20 + n; after others, the token that was drafted there
    before.
    """
    tree = tree_of(tokens, parents)
    emitted = torch.where(tree.depths == tree.height, 20 + torch.arange(tree.size), GUESS)
    perturbed = torch.zeros(1, tree.size, target.num_codes, dtype=torch.float64).scatter_(2, emitted[..., None], 1.0)
    nodes = torch.tensor([[0, 1] + [0] * tree.height])
    acceptance = Acceptance(torch.tensor([[1]]), nodes, torch.tensor([[1]]), torch.tensor([[2]]))
    return Verified(tree, torch.empty(0), perturbed, acceptance, torch.ones(1, 1, dtype=torch.bool), roots(7, ROOT))


def next_window(window):
    """Return the window from position 8 on, after code 2 has been decided at position 7."""
    return window.open_window(roots(2, 7), TreeSizes([WINDOW], torch.tensor([WINDOW[:3]])))


@pytest.mark.parametrize(
    "tokens, parents, nodes, freshness",
    [
        # Node 2 differs from the decided token, so nodes 2 and 3 follow a change that is 1 or 2 positions before.
        ([7, 1, 9, 3], [0, 0, 1, 2], (2, 3), [1, 2]),
        # No node on the path of nodes 4 and 5 differs from a decided token, so nodes 4 and 5 are used.
        ([7, 1, 9, 3, 2, 3], [0, 0, 1, 2, 1, 4], (4, 5), [UNCHANGED, UNCHANGED]),
        # Both paths differ from the decided tokens at the same depth, so the nodes with the lower indices are used.
        ([7, 1, 9, 3, 8, 3], [0, 0, 1, 2, 1, 4], (2, 3), [1, 2]),
    ],
    ids=["on the path", "beside the path", "on both paths"],
)
def test_a_position_is_drafted_again_from_the_node_whose_path_has_changed_least(
    target, window, tokens, parents, nodes, freshness
):
    """Code 1 at position 6 and code 2 at position 7 are decided. Positions 8 and 9 are drafted again."""
    at, node = window.refresh(verified(target, tokens, parents))
    assert at.tolist() == [[target.length, 6, 7, 8, 9]] and tuple(node[0, 3:].tolist()) == nodes
    opened = next_window(window)
    assert opened.tokens[0, :3].tolist() == [2, GUESS, 20 + nodes[1]]
    assert opened.freshness[0, :2].tolist() == freshness


def test_unread_positions_are_drafted_from_the_furthest_logits(target, window):
    """The logits after node 4 are for position 10. A later tree that is shorter must not replace these logits."""
    window.refresh(verified(target, [7, 1, 2, 3, 3], [0, 0, 1, 2, 3]))
    assert next_window(window).tokens.tolist() == [[2, GUESS, GUESS, 24, 24]]
    window.refresh(replace(verified(target, [2, 3, 9], [0, 0, 1]), roots=roots(2, 7)))
    opened = window.open_window(roots(2, 9), TreeSizes([WINDOW], torch.tensor([WINDOW[:3]])))
    assert opened.tokens[0, 3:].tolist() == [24, 24]


@pytest.mark.parametrize(
    "first, second, before, guess", [(1, 0, 0, 11), (1, -math.inf, 0, 10), (-math.inf, -math.inf, 0, 11), (1, 0, 3, 12)]
)
def test_after_a_change_two_estimates_and_the_position_before_are_combined(
    target, window, first, second, before, guess
):
    """Nodes 2 and 3 both differ from the decided token.

    After node 2, code 10 has the logit `first`. After node 3, it has the logit `second`. After both nodes, code 11 has
    the logit 0.8. At the previous position, code 12 has the logit `before`. If the second estimate excludes a code, the
    code keeps the logit of the first estimate.
    """
    seen = verified(target, [7, 1, 9, 8, 3], [0, 0, 1, 1, 2])
    seen.perturbed[0, 1:4] = 0
    seen.perturbed[0, 2:4, 10] = torch.tensor([first, second])
    seen.perturbed[0, 2:4, 11] = 0.8
    seen.perturbed[0, 1, 12] = before
    window.refresh(seen)
    assert next_window(window).tokens[0, 1] == guess
