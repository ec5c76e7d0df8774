"""Network and window in one tree, and the cost-aware policy over them: lossless, and the network reads what was really accepted."""

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, auto
from adt_core.drafters import load
from adt_core.drafters.eagle import EagleProposer
from adt_core.drafters.merged import MergedDrafter, MergedProposer
from adt_core.drafters.window import NEVER, STALE_AFTER, Window, best_size, nearer
from adt_core.shape import SIZES, TreeShape, spine
from adt_core.trace import ImageRound

PROMPTS = ("a cat", "three small dogs", "x")
COSTS = {n: 1.0 for n in auto.MEASURED} | {0: 1e-3}


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    """Every test starts without experience, and with nodes that cost nothing."""
    monkeypatch.setattr(auto, "_experience", type(auto._experience)())
    monkeypatch.setattr("adt_core.decode.verify_costs", lambda *_: COSTS)


def run(target, drafter, drafting, sampling=Sampling(seed=5), prompts=PROMPTS):
    decoding = Decoding(target, [target.encode_prompt(p) for p in prompts], sampling=sampling, drafting=drafting, drafter=drafter)
    for _ in decoding:
        pass
    return decoding


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafting", [
    dict(method="eagle2", depth=1, width=1, nodes=1), dict(method="eagle2", depth=2, width=2, nodes=3), dict(method="eagle2", depth=12, width=1, nodes=12),
    dict(method="eagle2", depth=6, width=4, nodes=24), dict(method="eagle2", depth=5, width=3, nodes=9, proposal="top-k"),
    dict(method="adt-tree", depth=4, width=3, nodes=10), dict(method="auto"), dict(method="auto", proposal="top-k")],
    ids=lambda d: "-".join(map(str, d.values())))
def test_every_shape_writes_the_plain_tokens(models, drafting, temperature):
    target, network = models
    sampling = Sampling(seed=9, temperature=temperature)
    plain = run(target, None, Drafting(method="autoregressive"), sampling)
    decoding = run(target, MergedDrafter(network), Drafting(**drafting), sampling)
    assert torch.equal(decoding.codes, plain.codes)
    assert decoding.trace.report()["drafter_forwards"] > 0


def test_auto_writes_the_plain_tokens_with_every_drafter_and_without_guidance(models):
    target, network = models
    for sampling in (Sampling(seed=3), Sampling(seed=3, guidance=1.0), Sampling(seed=3, top_k=4)):
        plain = run(target, None, Drafting(method="autoregressive"), sampling)
        for drafter in (network, MergedDrafter(network), load.load_drafter("jacobi", target)):
            assert torch.equal(run(target, drafter, Drafting(method="auto"), sampling).codes, plain.codes)


def test_the_network_reads_exactly_the_accepted_tokens(models, monkeypatch):
    """After every round what it makes of the new root is what a network makes that was fed the accepted path alone."""
    target, network = models
    checked = []

    class Twin(MergedProposer):
        def begin(self, features, ids, step, z, position):
            super().begin(features, ids, step, z, position)
            self.twin = EagleProposer(network, target, self._rows, Sampling(), Drafting(method="eagle2", depth=8, width=3, nodes=16), None)
            self.twin.begin(features, ids, step, z, position)
            self.twin.catch_up()

        def observe(self, verified):
            super().observe(verified)
            self.twin.observe(verified)
            assert torch.allclose(self._root, self.twin.catch_up(), atol=1e-9)
            checked.append(len(set(verified.accepted)))

    monkeypatch.setattr("adt_core.drafters.merged.MergedProposer", Twin)
    run(target, MergedDrafter(network), Drafting(method="eagle2", depth=8, width=3, nodes=16))
    assert len(checked) > 2 and max(checked) > 1  # some rounds advanced the images unequally


def test_an_image_in_which_drafts_do_not_pay_is_finished_plainly(models, monkeypatch):
    target, network = models
    monkeypatch.setattr("adt_core.decode.verify_costs", lambda *_: {n: 1.0 + 5.0 * (n - 1) for n in auto.MEASURED} | {0: 1e-3})
    plain = run(target, None, Drafting(method="autoregressive"))
    decoding = run(target, MergedDrafter(network), Drafting(method="auto"))
    assert torch.equal(decoding.codes, plain.codes)
    drafted = [max(share.depth for share in round.images) > 0 for round in decoding.trace.rounds]
    assert drafted[0] and not any(drafted[2:])


def test_static_trees_take_a_network_alone(models):
    from adt_core import AdtError

    target, network = models
    with pytest.raises(AdtError, match="static:mc_sim_7b_63"):
        run(target, MergedDrafter(network), Drafting(method="static:mc_sim_7b_63"))


# ---- the window ------------------------------------------------------------


def test_replaced_guesses_make_what_stands_behind_them_stale():
    distance = torch.tensor([[1, 0, 4, NEVER, 2]])
    window = Window(torch.arange(1, 6)[None], torch.tensor([[9, 1, 2, 3, 4, 5]]), torch.tensor([[[1, 7], [2, 7], [3, 7], [4, 7], [5, 7]]]),
                    torch.zeros(1, 5, 2), distance, torch.zeros(1, 5, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool))
    window.replace(0, torch.tensor([[True]]), torch.tensor([[[6, 1]]]), torch.zeros(1, 1, 2))
    assert window.tokens.tolist() == [[9, 6, 2, 3, 4, 5]]
    assert window.distance.tolist() == [[1, 1, 2, NEVER, 2]] and window.network.tolist() == [[True, False, False, False, False]]
    window.replace(1, torch.tensor([[False, True]]), torch.tensor([[[8, 8], [3, 1]]]), torch.zeros(1, 2, 2))  # the same token: nothing changes
    assert window.tokens.tolist() == [[9, 6, 2, 3, 4, 5]] and window.distance.tolist() == [[1, 1, 2, NEVER, 2]]
    assert nearer(torch.tensor([0, 1, 7, NEVER]), torch.tensor([3, 3, 3, 3])).tolist() == [3, 1, 3, NEVER] and STALE_AFTER[-1] == NEVER


def test_the_size_is_the_one_that_is_worth_most():
    certain = torch.tensor([[[0.0, -50.0]] * 40])  # every spine token is right
    doubtful = torch.tensor([[[-2.0, -2.0]] * 40])
    menu = tuple((n, 0.2 * n) for n in SIZES[:6])
    assert best_size(certain, menu) == 32 and best_size(doubtful, menu) == 4
    assert best_size(certain, tuple((n, 2.0 * n) for n in SIZES[:6])) == 4
    assert best_size(doubtful, tuple((n, 0.0) for n in SIZES[:6])) == 32


# ---- the policy ------------------------------------------------------------


def share(shape: TreeShape, nodes: int, accepted: int) -> ImageRound:
    return ImageRound(0, 0, shape.depth, shape.width, spine(nodes), nodes, accepted, (0,) * accepted)


def policy(costs=COSTS, images=1, length=200):
    known = auto.Experience(length)
    return auto.CostAware(costs, known, images), known


def test_prices_follow_costs_and_pace_and_sizes_grow_one_by_one():
    p, known = policy({1: 1.0, 9: 2.0, 17: 3.0, 33: 5.0, 65: 9.0, 0: 0.01})
    menu = dict(p.choose(0).menu)
    assert list(menu) == list(SIZES[:3]) and menu[8] == pytest.approx(2.0 + auto.OVERHEAD) and menu[4] == pytest.approx(1.5 + auto.OVERHEAD)
    for _ in range(300):
        p.update(share(p.choose(0), 12, 5), seconds=0.03)  # 3 steps; a forward over 13 nodes takes 2.5
    assert list(dict(p.choose(0).menu)) == list(SIZES[:4])
    assert known.overhead[12] == pytest.approx(0.5, abs=0.01) and p.pace == pytest.approx(2.0, abs=0.05)
    assert dict(p.choose(0).menu)[8] == pytest.approx(p.pace * 2.5, abs=0.01)


@pytest.mark.parametrize("images", [1, 3])
def test_hopeless_drafting_costs_next_to_nothing(images):
    """No draft is ever accepted: over many images less than 3 % is lost, and in the first one as well."""
    length, lost, first = 256, 0.0, None
    costs = {n: 1 + 0.05 * (n - 1) for n in auto.MEASURED} | {0: 0.01}
    known = auto.Experience(length)
    for image in range(20):
        p = auto.CostAware(costs, known, images)
        for _ in range(length):
            shape = p.choose(0)
            steps = p._cost(4) if shape.depth else 1.0
            lost += steps - 1
            for _ in range(images):
                p.update(share(shape, 4, 0) if shape.depth else ImageRound(0, 0, 0, 1, 0, 0, 0, ()), steps * 0.01)
        first = lost if image == 0 else first
    assert 0 < first <= 0.03 * length + 1 and lost <= 0.01 * 20 * length


def test_what_was_earned_may_be_lost_again_and_no_more():
    p, known = policy(length=256)
    for _ in range(40):
        p.update(share(p.choose(0), 8, 5), 1.5e-3)
    rounds = 0
    while p.choose(0).depth:
        p.update(share(p.choose(0), 8, 0), 1.5e-3)
        rounds += 1
    assert rounds >= known.riches / 2 == 32 and known.failures == 1 and known.credit == known.stake


def test_after_failures_ever_more_images_are_passed_over():
    known = auto.Experience(200)
    tries = []
    for image in range(22):
        if known.begin():
            tries.append(image)
            while known.earned(-1.0):
                pass
    assert tries == [0, 1, 5, 21]
    known.earned(3 * known.stake)
    assert known.failures == 0 and known.begin()


def test_costs_are_timed_once_for_a_model_and_a_number_of_rows(models):
    decoder, calls = models[0].decoder, []
    for _ in range(2):
        costs = auto.verify_costs(calls.append, decoder, rows=977)
    assert len(calls) == 2 * auto.REPEATS * len(auto.MEASURED)
    assert set(costs) == {0, *auto.MEASURED} and all(costs[n] >= 1 for n in auto.MEASURED)
