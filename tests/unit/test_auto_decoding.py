"""The cost-aware policy at work in decodings: it repeats, never changes a token, and gives up where it must."""

import pytest
import torch

from adt_core import Drafting, Lantern, load_drafter, load_target
from adt_core.engine.device import measuring
from adt_core.engine.request import Request
from adt_core.policies import POLICIES, CostProfile
from adt_core.policies.auto import WIDTH, Auto
from tests.drafted import costs, run

PROMPTS = ("a cat", "three small dogs", "x")
AUTO = Drafting("auto")
SOURCES = ("chain", "both", "both chain")


def trees(decoding, image=None):
    """What was drafted and accepted, round by round, of one image or of all."""
    rounds = [[share for share in round.images if image in (None, share.image)] for round in decoding.trace.rounds]
    return [[(share.position, *tuple(vars(share).values())[2:]) for share in shares] for shares in rounds if shares]


# ---- it repeats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("lantern", [None, Lantern(8, 0.3)], ids=["exact", "lantern"])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.long), torch.bfloat16])
def test_the_same_profile_leads_to_the_same_trees(tiny, source, lantern, dtype):
    target = load_target(tiny / "target", dtype=dtype)
    network = load_drafter(tiny / "drafter", target)
    profile = costs(source, once=0.02, each=0.002)
    how = {"drafting": AUTO, "lantern": lantern, "profile": profile, "at_once": 2}
    one, two = (run(target, network, PROMPTS, **how) for _ in range(2))
    assert trees(one) == trees(two) and torch.equal(one.codes, two.codes)
    assert one.trace.settings == two.trace.settings and any(drafted(one))


def test_another_profile_may_lead_to_other_trees_and_never_to_other_tokens(models):
    target, network = models
    plain = run(target, None, PROMPTS)
    found = [run(target, network, PROMPTS, drafting=AUTO, profile=costs(source)) for source in SOURCES]
    assert all(torch.equal(decoding.codes, plain.codes) for decoding in found)
    widths = [
        {share.width_asked for round in one.trace.rounds for share in round.images if share.depth} for one in found
    ]
    assert widths == [{1}, {WIDTH}, {1}]
    assert [one.trace.report()["drafter_forwards"] > 0 for one in found] == [False, True, True]


def test_traces_say_which_profile_it_was_with_its_numbers(models):
    target, network = models
    profile = costs("chain")
    settings = run(target, network, PROMPTS, drafting=AUTO, profile=profile).trace.settings
    assert CostProfile.from_json(settings["profile"]) == profile and settings["profile"]["digest"] == profile.digest
    assert run(target, network, PROMPTS, drafting=Drafting("eagle2")).trace.settings["profile"] is None


def test_no_deeper_tree_is_chosen_or_measured_than_is_drafted(models, monkeypatch, tmp_path):
    """The exact mode on a GPU cuts trees: what is drafted of 16 is then what is drafted of 8."""
    depths, run_round = [], measuring.run_round

    def watched(slots, shapes, *more):
        depths.extend(shape.depth for shape in shapes)
        return run_round(slots, shapes, *more)

    monkeypatch.setattr(Request, "near", 5)
    monkeypatch.setattr(measuring, "run_round", watched)
    monkeypatch.setenv("ADT_TREE_CACHE", str(tmp_path))
    target, network = models
    decoding = run(target, network, PROMPTS, drafting=AUTO, profile=costs("chain", once=0.02, each=0.002))
    assert {share.depth_asked for round in decoding.trace.rounds for share in round.images} <= set(range(6))
    run(target, network, PROMPTS[:1], drafting=AUTO).measure_costs()
    assert max(depths) == 5


# ---- it ends -------------------------------------------------------------------------------------


def drafted(decoding):
    return [max(share.depth for share in round.images) > 0 for round in decoding.trace.rounds]


def test_an_image_in_which_drafts_do_not_pay_is_finished_plainly(models):
    target, network = models
    plain = run(target, None, PROMPTS)
    decoding = run(target, network, PROMPTS, drafting=AUTO, profile=costs("chain", once=0.11, each=0.0))
    assert torch.equal(decoding.codes, plain.codes)
    assert any(drafted(decoding)) and not all(drafted(decoding))


def test_where_drafts_are_dear_nothing_is_drafted_at_all(models):
    target, network = models
    decoding = run(target, network, PROMPTS, drafting=AUTO, profile=costs(*SOURCES, once=3.0))
    assert not any(drafted(decoding)) and decoding.trace.report()["tau"] == 1


class GivesUp(Auto):
    """After three rounds."""

    seen = 0

    def on_verified(self, round):
        super().on_verified(round)
        self.seen += 1
        self.drafts = self.seen < 3

    def begin(self):
        return super().begin() and self.seen < 3


@pytest.mark.parametrize("at_once", [None, 2, 1])
def test_after_giving_up_images_go_in_step_and_the_next_ones_enter_together(models, monkeypatch, at_once):
    """Drafts have brought the first ones out of step. Those in front wait, and are not passed over."""
    target, network = models
    monkeypatch.setitem(POLICIES, "auto", GivesUp)
    monkeypatch.setattr("adt_core.engine.round.WAIT_SHARE", 10.0)
    prompts = [*PROMPTS, "a red house", "two"]
    plain = run(target, None, prompts)
    decoding = run(target, network, prompts, drafting=AUTO, at_once=at_once, profile=costs("chain"))
    assert torch.equal(decoding.codes, plain.codes)
    together = at_once or len(prompts)
    rounds, last = decoding.trace.rounds, {}
    for round in rounds:
        for share in round.images:
            assert share.position == last.get(share.image, 0)
            last[share.image] = share.position + share.accepted + 1
    first = [round for round in rounds if {share.image for share in round.images} <= set(range(together))]
    assert len({share.position for share in first[-1].images}) == 1 and len(first[-1].images) == together
    assert all(position == target.length - 1 for position in last.values())
