"""Tests of a drafter network combined with the Jacobi window. The network must read exactly the accepted tokens."""

import pytest
import torch

from adt_core import Drafting
from adt_core.drafters import merged, with_window
from adt_core.drafters.calibration import FRESH_FROM, UNCHANGED, UNREAD, freshness_classes, has_poor_feature
from adt_core.drafters.eagle import EagleDrafter, EagleProposer
from adt_core.drafters.jacobi import Window
from adt_core.drafters.merged import MIN_PASSES, MergedProposer, num_passes
from adt_core.policies import POLICIES, Shape
from tests.drafted import run
from tests.raising import raises_key

PROMPTS = ("a cat", "three small dogs", "x")


class EveryNth(POLICIES["eagle2"]):
    """Policy that uses the network only in every n-th round. The option `width` is n."""

    rounds = 0

    def choose(self, slots):
        self.rounds += 1
        mode = "merged" if self.rounds % self.settings.width == 0 else "chain"
        return [Shape(self.settings.depth, 3, self.settings.drafts, mode=mode)] * len(slots)


class Compared(EagleProposer):
    """Proposer with a second proposer `twin` for the same images. The twin reads only the accepted path."""

    by_image = (*EagleProposer.by_image, "twin")
    by_row = (*EagleProposer.by_row, "expected")

    def __init__(self, *given):
        super().__init__(*given)
        self.twin = EagleProposer(*given)

    def begin(self, prefill):
        super().begin(prefill)
        self.twin.begin(prefill)
        self.expected = self.twin.root_feature

    def follow(self, verified):
        self.twin.on_verified(verified)
        self.expected = self.twin.root_feature

    def check(self):
        assert torch.allclose(self.root_feature, self.expected, atol=1e-9)

    def read_tree(self, verified):
        features = super().read_tree(verified)
        self.check()
        return features


@pytest.fixture
def checked(monkeypatch):
    """Compare every network with its twin. Return a list of the number of different step lengths in each round."""
    steps = []
    on_verified = MergedProposer.on_verified
    catch_up = MergedProposer._catch_up

    def catch_up_and_check(proposer, roots, unread):
        catch_up(proposer, roots, unread)
        proposer._network.check()

    def on_verified_both(proposer, verified):
        proposer._network.follow(verified)
        steps.append(len(set(verified.acceptance.accepted[:, 0].tolist())))
        on_verified(proposer, verified)

    monkeypatch.setattr(MergedProposer, "on_verified", on_verified_both)
    monkeypatch.setattr(MergedProposer, "_catch_up", catch_up_and_check)
    monkeypatch.setattr(EagleDrafter, "proposer", lambda *given: Compared(*given))
    return steps


@pytest.mark.parametrize("every, nodes", [(1, 16), (2, 16), (5, 16), (30, 16), (5, 2)])
def test_the_network_reads_exactly_the_accepted_tokens(models, checked, monkeypatch, every, nodes):
    """After each round, the network must make the same prediction as a network that reads only the accepted path.

    Before it drafts, it must read the tokens of all rounds without drafts; with two drafts, in several chunks.
    """
    target, network = models
    sizes = []
    network_reads = EagleProposer.catch_up

    def catch_up(network, tokens, features, *more):
        sizes.append(features.shape[1])
        network_reads(network, tokens, features, *more)

    monkeypatch.setattr(EagleProposer, "catch_up", catch_up)
    monkeypatch.setitem(POLICIES, "every n-th", EveryNth)
    drafting = Drafting(method="every n-th", depth=8, width=every, drafts=nodes)
    plain = run(target, None, PROMPTS)
    assert torch.equal(run(target, with_window(network), PROMPTS, drafting=drafting).codes, plain.codes)
    assert len(checked) > 2 and max(checked) > 1  # in some rounds, images advance by different lengths
    assert nodes > 2 or sizes.count(nodes + 1) > 1, "there must be chunks of the largest size"
    # in this run, new images replace finished images
    run(target, with_window(network), (*PROMPTS, "x", "a red house"), drafting=drafting, batch_size=2)


def test_each_pass_reads_the_window_that_the_last_one_has_changed(models, monkeypatch):
    target, network = models
    windows = []
    fed = []
    replace = Window.replace
    read_ahead = EagleProposer.read_ahead

    def replaced(window, *guesses):
        replace(window, *guesses)
        windows.append(window.tokens.clone())

    def read(proposer, codes, *others):
        fed.append((len(windows), codes.clone()))
        return read_ahead(proposer, codes, *others)

    monkeypatch.setattr(Window, "replace", replaced)
    monkeypatch.setattr(EagleProposer, "read_ahead", read)
    run(target, with_window(network), drafting=Drafting("eagle2", depth=8, width=3, drafts=16))
    assert fed and all(torch.equal(tokens, windows[count - 1][:, 1:-1]) for count, tokens in fed)
    at = [count for count, _ in fed]
    assert any(not torch.equal(windows[i], windows[i - 1]) for i in at[::MIN_PASSES])  # a pass has changed the window
    assert [i - at[0] for i in at[:MIN_PASSES]] == list(range(MIN_PASSES))  # one pass after each change


@pytest.mark.parametrize("depth", [1, 2, 12])
def test_the_number_of_passes_follows_from_the_length_of_the_spine(models, monkeypatch, depth):
    target, network = models
    forwards = {}
    propose = MergedProposer.propose

    def counted(proposer, roots, shapes):
        before = proposer.forwards
        tree = propose(proposer, roots, shapes)
        forwards.setdefault(shapes.depth, set()).add(proposer.forwards - before)
        return tree

    monkeypatch.setattr(MergedProposer, "propose", counted)
    run(target, with_window(network), drafting=Drafting("eagle2", depth=depth, width=1, drafts=depth))
    assert forwards[depth] == {num_passes(depth)}


def test_longer_spines_have_more_passes():
    assert [num_passes(depth) for depth in (0, 1, 2, 18, 19, 27, 28, 42)] == [0, 0, 2, 2, 3, 3, 4, 5]


def test_where_the_target_has_read_nothing_the_network_continues_from_its_own_predictions(models, monkeypatch):
    target, network = models
    called = []
    never_read = []
    read_ahead = EagleProposer.read_ahead

    def asked(freshness):
        never_read.append((freshness == UNREAD)[0, 1:, 0])
        return has_poor_feature(freshness)

    def read(proposer, tokens, features, roots):
        called.append((features[:, 1:], read_ahead(proposer, tokens, features, roots)))
        return called[-1][1]

    monkeypatch.setattr(merged, "has_poor_feature", asked)
    monkeypatch.setattr(EagleProposer, "read_ahead", read)
    run(target, with_window(network), drafting=Drafting("eagle2", depth=8, width=3, drafts=16))
    later = [i for i in range(len(called)) if i % MIN_PASSES and never_read[i].any()]
    assert later
    for i in later:
        (fed, _) = called[i]
        (_, expected) = called[i - 1]
        at = never_read[i]
        assert torch.equal(fed[:, at], expected[:, :-1][:, at])


def test_static_trees_need_a_network_without_a_window(models):
    target, network = models
    with raises_key("method.needs_network", method="static:mc_sim_7b_63"):
        run(target, with_window(network), drafting=Drafting("static:mc_sim_7b_63"))


# ---- the window ------------------------------------------------------------


def test_replaced_candidates_make_later_positions_less_fresh():
    window = Window(
        at=torch.arange(1, 6)[None],
        tokens=torch.tensor([[9, 1, 2, 3, 4, 5]]),
        candidates=torch.tensor([[[1, 7], [2, 7], [3, 7], [4, 7], [5, 7]]]),
        scores=torch.zeros(1, 5, 2),
        freshness=torch.tensor([[1, UNCHANGED, 4, UNREAD, 2]]),
        from_network=torch.zeros(1, 5, dtype=torch.bool),
        live=torch.ones(1, 5, dtype=torch.bool),
        distances=torch.tensor([[i - j if j < i else UNCHANGED for j in range(5)] for i in range(5)]),
        unchanged=torch.tensor(UNCHANGED),
    )
    window.replace(torch.tensor([[True]]), torch.tensor([[[6, 1]]]), torch.zeros(1, 1, 2))
    assert window.tokens.tolist() == [[9, 6, 2, 3, 4, 5]]
    assert window.freshness.tolist() == [[1, 1, 2, UNREAD, 2]]
    assert window.from_network.tolist() == [[True, False, False, False, False]]
    # a candidate is replaced by the same token, so nothing may change
    window.replace(torch.tensor([[False, False, True]]), torch.tensor([[[8, 8], [8, 8], [3, 1]]]), torch.zeros(1, 3, 2))
    assert window.tokens.tolist() == [[9, 6, 2, 3, 4, 5]] and window.freshness.tolist() == [[1, 1, 2, UNREAD, 2]]


def test_classes_of_positions_are_in_the_order_of_their_freshness():
    freshness = torch.tensor([UNREAD, *FRESH_FROM])
    assert freshness_classes(freshness).tolist() == list(range(len(freshness)))
    assert freshness_classes(torch.tensor([6, 8, 9, 700])).tolist() == [5, 5, 6, 6]
