"""Network and window in one tree, and the cost-aware policy over them: lossless, and the network reads what was really accepted."""

import math

import pytest
import torch

from adt_core import Decoding, Drafting, Sampling, auto
from adt_core.drafters import load
from adt_core.drafters.eagle import EagleProposer
from adt_core.drafters.merged import MergedDrafter, MergedProposer
from adt_core.drafters.window import NEVER, STALE_AFTER, Window, best_size, branch_scores, nearer, spine_and_branches
from adt_core.shape import AUTO_WIDTH, SIZES, TreeShape, spine
from adt_core.trace import ImageRound

PROMPTS = ("a cat", "three small dogs", "x")


def costs(slope, plain=1e-3):
    """A device on which a node adds ``slope`` plain steps to a forward."""
    return auto.Costs(plain, {n: 1 + slope * (n - 1) for n in auto.MEASURED})


FREE = costs(0.0)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    """Every test starts without experience, and with nodes that cost nothing."""
    monkeypatch.setattr(auto, "_experience", type(auto._experience)())
    monkeypatch.setattr("adt_core.decode.verify_costs", lambda *_: FREE)


def run(target, drafter, drafting, sampling=Sampling(seed=5), prompts=PROMPTS, at_once=None):
    decoding = Decoding(target, [target.encode_prompt(p) for p in prompts], sampling=sampling, drafting=drafting, drafter=drafter, at_once=at_once)
    for _ in decoding:
        pass
    return decoding


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafting", [
    dict(method="eagle2", depth=1, width=1, nodes=1), dict(method="eagle2", depth=2, width=2, nodes=3), dict(method="eagle2", depth=12, width=1, nodes=12),
    dict(method="eagle2", depth=6, width=4, nodes=24), dict(method="eagle2", depth=5, width=3, nodes=9, proposal="top-k"),
    dict(method="adt-tree", depth=4, width=3, nodes=10), dict(method="auto"), dict(method="auto", proposal="top-k")],
    ids=lambda d: "-".join(map(str, d.values())))
def test_every_shape_writes_the_plain_tokens(models, drafting, temperature, monkeypatch):
    monkeypatch.setattr(auto, "STAKE", math.inf)  # whatever this machine's clock says
    target, network = models
    sampling = Sampling(seed=9, temperature=temperature)
    plain = run(target, None, Drafting(method="autoregressive"), sampling)
    drafter, calls = MergedDrafter(network), 0
    for _ in range(2 if drafting["method"] == "auto" else 1):  # its first image is drafted by a chain
        decoding = run(target, drafter, Drafting(**drafting), sampling)
        assert torch.equal(decoding.codes, plain.codes)
        calls += decoding.trace.report()["drafter_forwards"]
    assert calls > 0


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

        def admit(self, images, others, rows):
            super().admit(images, others, rows)
            self.twin.admit(images, others.twin, rows)

        def keep(self, images, rows, noise):
            super().keep(images, rows, noise)
            self.twin.keep(images, rows, noise)

        def observe(self, verified):
            super().observe(verified)
            self.twin.observe(verified)
            assert torch.allclose(self._root, self.twin.catch_up(), atol=1e-9)
            checked.append(len(set(verified.accepted)))

    monkeypatch.setattr("adt_core.drafters.merged.MergedProposer", Twin)
    drafting = Drafting(method="eagle2", depth=8, width=3, nodes=16)
    run(target, MergedDrafter(network), drafting)
    assert len(checked) > 2 and max(checked) > 1  # some rounds advanced the images unequally
    run(target, MergedDrafter(network), drafting, prompts=[*PROMPTS, "x", "a red house"], at_once=2)  # others take the places of those that are finished


def test_an_image_in_which_drafts_do_not_pay_is_finished_plainly(models, monkeypatch):
    target, network = models
    monkeypatch.setattr("adt_core.decode.verify_costs", lambda *_: costs(5.0))
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

    def size(log_p, menu):
        return best_size(log_p, branch_scores(log_p), menu)

    assert size(certain, menu) == 32 and size(doubtful, menu) == 4
    assert size(certain, tuple((n, 2.0 * n) for n in SIZES[:6])) == 4
    assert size(doubtful, tuple((n, 0.0) for n in SIZES[:6])) == 32


def test_scores_of_a_longer_window_make_the_tree_of_its_beginning():
    log_p = torch.rand(2, 12, 3, generator=torch.Generator().manual_seed(1)).log().sort(-1, descending=True).values
    tokens, others = torch.arange(13).expand(2, -1), torch.arange(100, 124).view(12, 2).expand(2, -1, -1)
    for depth, nodes in ((5, 40), (7, 12), (12, 20)):
        part = tokens[:, : depth + 1], others[:, :depth], log_p[:, :depth], nodes
        for own, shared in zip(vars(spine_and_branches(*part)).values(), vars(spine_and_branches(*part, branch_scores(log_p))).values()):
            assert torch.equal(own, shared) if isinstance(own, torch.Tensor) else own == shared


# ---- the policy ------------------------------------------------------------


def share(shape: TreeShape, nodes: int, accepted: int) -> ImageRound:
    return ImageRound(0, 0, shape.depth, shape.width, spine(nodes), nodes, accepted, (0,) * accepted)


def policy(device=FREE, images=1, length=200):
    known = auto.Experience(length)
    return auto.CostAware(device, known, known.begin(), images), known


def decode_images(known, device, images, accepts, overhead=0.5, batch=1, slow=0):
    """Policies over images whose rounds accept ``accepts(source, position)`` drafts at most. Per image the plain steps that it took, and its source or None.

    The first ``slow`` rounds take five times their time.
    """
    took = []
    for _ in range(images):
        source, position, steps = known.begin(), 0, 0.0
        p = source and auto.CostAware(device, known, source, batch)
        while position < known.length:
            shape = p.choose(position) if p and p.drafts else TreeShape(0, 1)
            nodes = min(dict(shape.menu), default=0)
            accepted = min(nodes, accepts(known.sources.index(source), position)) if nodes else 0
            round = device.of(nodes + 1) + overhead if nodes else 1.0
            round, slow = round * (5 if slow else 1), max(slow - 1, 0)
            for _ in range(batch if p else 0):
                p.update(share(shape, nodes, accepted) if nodes else ImageRound(0, 0, 0, 1, 0, 0, 0, ()), round * device.plain)
            steps, position = steps + round, position + accepted + 1
        took.append((steps, source and known.sources.index(source)))
    return took


def test_prices_follow_costs_and_pace_and_sizes_grow_one_by_one():
    p, known = policy(costs(0.125, 0.01))
    menu = dict(p.choose(0).menu)
    assert list(menu) == list(SIZES[:3]) and menu[8] == pytest.approx(2.0 + auto.OVERHEAD) and menu[4] == pytest.approx(1.5 + auto.OVERHEAD)
    for _ in range(300):
        p.update(share(p.choose(0), 12, 5), seconds=0.03)  # 3 steps; a forward over 13 nodes takes 2.5
    assert list(dict(p.choose(0).menu)) == list(SIZES[:4])
    assert known.sources[0].overhead[12] == pytest.approx(0.5, abs=0.01) and p.pace == pytest.approx(2.0, abs=0.05)
    assert dict(p.choose(0).menu)[8] == pytest.approx(p.pace * 2.5, abs=0.02)


def test_trees_stay_modest_until_drafting_has_earned_something():
    p, known = policy()
    for _ in range(5):
        p.update(share(p.choose(0), 16, 0), 1.5e-3)
    assert max(dict(p.choose(0).menu)) == auto.MODEST and known.balance < 0
    for _ in range(5):
        p.update(share(p.choose(0), 16, 9), 1.5e-3)
    assert max(dict(p.choose(0).menu)) > auto.MODEST and known.balance > 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("slope, overhead", [(0.05, 0.5), (2.0, 2.0), (0.0, 3.0)], ids=["a bit slow", "dear nodes", "slow drafter"])
@pytest.mark.parametrize("sources", [1, 2])
def test_hopeless_drafting_costs_less_than_three_percent_of_a_set(sources, slope, overhead, batch):
    """No draft is ever accepted: what is lost is bounded by the stake and the allowances, and by what it takes to see a slow drafter for what it is."""
    known = auto.Experience(256, sources)
    took = [steps for steps, _ in decode_images(known, costs(slope), 60, lambda *_: 0, overhead, batch)]
    lost = [sum(took[:n]) / (256 * n) - 1 for n in (8, 16, 60)]
    assert 0 < lost[0] <= 0.03 and lost[1] <= 0.03 and lost[2] <= 0.015
    assert took[0] > 256 and took[1] == 256  # the first image paid, the next is decoded plainly


@pytest.mark.parametrize("together", [2, 8, 16])
def test_images_that_are_drawn_together_lose_no_more(together):
    """``decode_images`` counts what they take together as one."""
    known = auto.Experience(256, together=together)
    sets = max(1, 8 // together)
    took = [steps for steps, _ in decode_images(known, costs(0.05), sets, lambda *_: 0, batch=together)]
    assert 256 * sets < sum(took) <= 1.03 * 256 * sets + 2


def test_a_bad_first_row_and_slow_first_rounds_are_survived():
    """A fresh process: nothing is accepted in the first row, and the first rounds take five times their time; the rest of every image pays."""
    known = auto.Experience(256)
    took = decode_images(known, costs(0.05), 4, lambda source, position: 0 if position < 16 else 3, overhead=0.3, slow=3)
    assert all(steps < 0.8 * 256 for steps, _ in took) and not known.given_up


def test_gains_carry_over_a_picture_that_does_not_suit():
    known = auto.Experience(256)
    decode_images(known, costs(0.05), 8, lambda *_: 4)
    ((steps, source),) = decode_images(known, costs(0.02), 1, lambda *_: 0)
    assert source == 0 and steps > 1.3 * 256 and not known.given_up


def test_what_was_earned_may_be_lost_again_and_no_more():
    known = auto.Experience(256)
    good = decode_images(known, costs(0.05), 6, lambda *_: 4)
    assert max(steps for steps, _ in good) < 256 and known.balance == pytest.approx(auto.RICHES * 256)
    bad = decode_images(known, costs(0.05), 30, lambda *_: 0)
    assert sum(steps - 256 for steps, _ in bad) <= (auto.RICHES + auto.STAKE + 30 * auto.ALLOWANCE) * 256 + 2


def test_a_lost_stake_is_made_up_for_before_the_next_try_and_success_ends_the_waiting():
    known = auto.Experience(256)
    tries = [source for _, source in decode_images(known, costs(0.05), 20, lambda *_: 0)]
    wait = tries.index(0, 1)
    assert tries[0] == 0 and auto.STAKE / auto.ALLOWANCE <= wait <= auto.STAKE / auto.ALLOWANCE + 2 and tries.count(0) == 1 + 19 // wait
    again = [source for _, source in decode_images(known, costs(0.05), 20, lambda *_: 4)]
    assert again[-1] == 0 and None not in again[again.index(0):]


@pytest.mark.parametrize("better", [0, 1])
def test_the_source_that_brings_more_tokens_per_second_drafts_most_images(better):
    known = auto.Experience(256, sources=2)
    chosen = [source for _, source in decode_images(known, costs(0.02), 40, lambda source, _: 4 if source == better else 2)]
    assert set(chosen[:2]) == {0, 1} and chosen.count(better) >= 30


def test_auto_tries_chain_and_network_and_window_and_drafts_with_nothing_while_a_stake_is_made_up_for(models, monkeypatch):
    monkeypatch.setattr(auto, "STAKE", math.inf)  # whatever this machine's clock says
    target, network = models
    plain = run(target, None, Drafting(method="autoregressive"))
    calls = []
    for _ in range(3):
        decoding = run(target, network, Drafting(method="auto"))
        widths = {share.width_asked for round in decoding.trace.rounds for share in round.images if share.depth > 0}
        calls.append((decoding.trace.report()["drafter_forwards"] > 0, max(widths)))
        assert torch.equal(decoding.codes, plain.codes) and decoding.trace.report()["tau"] > 1
    assert calls == [(False, 1), (True, AUTO_WIDTH), (False, AUTO_WIDTH)]
    decoding._known.given_up, decoding._known.balance = True, -1e3
    decoding = run(target, network, Drafting(method="auto"))
    assert torch.equal(decoding.codes, plain.codes) and decoding.trace.report()["tau"] == 1


def test_costs_are_timed_once_for_a_model_and_a_number_of_rows_and_interpolated(models, monkeypatch):
    decoder, clock = models[0].decoder, [0.0]
    monkeypatch.setattr(auto.time, "perf_counter", lambda: clock[0])

    def device(slope, warm_up=5.0):
        def forward(nodes):
            clock[0] += 1 + slope * (nodes - 1) + (warm_up if nodes not in calls else 0)
            calls.append(nodes)
        return forward

    calls = []
    for _ in range(2):
        cheap = auto.verify_costs(device(0.03), decoder, rows=977)
    assert calls == [nodes for nodes in auto.MEASURED for _ in range(auto.REPEATS)]
    assert cheap.plain == pytest.approx(1.0) and cheap.steps == pytest.approx({n: 1 + 0.03 * (n - 1) for n in auto.MEASURED})
    calls = []
    dear = auto.verify_costs(device(0.5), decoder, rows=978)
    assert set(calls) == {1, 9}, "what is far too dear is not even tried"
    assert dear.steps == pytest.approx({n: 1 + 0.5 * (n - 1) for n in auto.MEASURED})
    assert costs(0.5).of(1) == 1.0 and costs(0.5).of(13) == pytest.approx(7.0) and costs(0.5).of(65) == pytest.approx(33.0)
