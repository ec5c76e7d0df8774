"""Tests of the policy `auto` in decodings.

The policy must be deterministic, must never change a token, and must stop drafting if drafts cost more than they save.
"""

import pytest
import torch

from adt_core import Drafting, Lantern, load_drafter, load_target
from adt_core.engine.request import Request
from adt_core.policies import POLICIES, CostProfile
from adt_core.policies.auto import SIZES, WIDTH, Auto
from tests.drafted import costs, run

PROMPTS = ("a cat", "three small dogs", "x")
AUTO = Drafting("auto")
SOURCES = ("chain", "merged")


def trees(decoding):
    """Return the trace entries of each round."""
    rounds = [round.images for round in decoding.trace.rounds]
    return [[(one.position, *tuple(vars(one).values())[2:]) for one in records] for records in rounds if records]


# ---- determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("lantern", [None, Lantern(8, 0.3)], ids=["exact", "lantern"])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.long), torch.bfloat16])
def test_the_same_profile_gives_the_same_trees(tiny, source, lantern, dtype):
    target = load_target(tiny / "target", dtype=dtype)
    network = load_drafter(tiny / "drafter", target)
    profile = costs(source, once=0.02, each=0.002)
    how = {"drafting": AUTO, "lantern": lantern, "profile": profile, "batch_size": 2}
    one, two = (run(target, network, PROMPTS, **how) for _ in range(2))
    assert trees(one) == trees(two) and torch.equal(one.codes, two.codes)
    assert one.trace.settings == two.trace.settings and any(drafted(one))


def test_the_profile_changes_trees_but_not_tokens(models):
    target, network = models
    plain = run(target, None, PROMPTS)
    found = [run(target, network, PROMPTS, drafting=AUTO, profile=costs(source)) for source in SOURCES]
    assert all(torch.equal(decoding.codes, plain.codes) for decoding in found)
    every = [[record for round in one.trace.rounds for record in round.images] for one in found]
    widths = [{record.width_asked for record in records if record.depth} for records in every]
    assert widths == [{1}, {WIDTH}]
    assert [one.trace.report()["drafter_forwards"] > 0 for one in found] == [False, True]


def test_traces_contain_the_profile(models):
    target, network = models
    profile = costs("chain")
    settings = run(target, network, PROMPTS, drafting=AUTO, profile=profile).trace.settings
    assert CostProfile.from_json(settings["profile"]) == profile and settings["profile"]["digest"] == profile.digest
    assert run(target, network, PROMPTS, drafting=Drafting("eagle2")).trace.settings["profile"] is None


def test_chosen_trees_are_within_the_depth_limit(models, monkeypatch):
    """On a GPU, the batch-invariant mode limits the depth of trees. A deeper tree would cost more without any gain."""
    monkeypatch.setattr(Request, "near", 5)
    target, network = models
    decoding = run(target, network, PROMPTS, drafting=AUTO, profile=costs("chain", once=0.02, each=0.002))
    assert {record.depth_asked for round in decoding.trace.rounds for record in round.images} == set(range(6))


# ---- stopping ------------------------------------------------------------------------------------


def drafted(decoding):
    return [max(record.depth for record in round.images) > 0 for round in decoding.trace.rounds]


def test_an_image_without_a_benefit_from_drafts_is_finished_plainly(models):
    target, network = models
    plain = run(target, None, PROMPTS)
    decoding = run(target, network, PROMPTS, drafting=AUTO, profile=costs("chain", once=0.11, each=0.0))
    assert torch.equal(decoding.codes, plain.codes)
    assert any(drafted(decoding)) and not all(drafted(decoding))


@pytest.mark.parametrize("batch_size", [3, 1])
def test_expensive_drafts_are_tried_in_one_round_of_each_image(models, batch_size):
    """The measured time of this round shows whether the cost profile is right."""
    target, network = models
    profile = costs(*SOURCES, once=30.0)
    decoding = run(target, network, PROMPTS, drafting=AUTO, batch_size=batch_size, profile=profile)
    assert sum(drafted(decoding)) == len(PROMPTS) // batch_size
    tried = [record for round in decoding.trace.rounds for record in round.images if record.depth]
    assert {record.image for record in tried} == {0, 1, 2} and all(record.drafts <= SIZES[0] for record in tried)


class StopsDrafting(Auto):
    seen = 0

    def on_verified(self, round):
        super().on_verified(round)
        self.seen += 1
        self.is_drafting = self.seen < 3

    def begin(self):
        return super().begin() and self.seen < 3


@pytest.mark.parametrize("batch_size", [None, 2, 1])
def test_after_drafting_stops_images_advance_in_step_and_the_next_enter_together(models, monkeypatch, batch_size):
    """Rounds with drafts advance images by different lengths. After them, images that are ahead must wait."""
    target, network = models
    monkeypatch.setitem(POLICIES, "auto", StopsDrafting)
    monkeypatch.setattr("adt_core.engine.round.WAIT_SHARE", 10.0)
    prompts = [*PROMPTS, "a red house", "two"]
    plain = run(target, None, prompts)
    decoding = run(target, network, prompts, drafting=AUTO, batch_size=batch_size, profile=costs("chain"))
    assert torch.equal(decoding.codes, plain.codes)
    together = batch_size or len(prompts)
    rounds = decoding.trace.rounds
    last = {}
    for round in rounds:
        for record in round.images:
            assert record.position == last.get(record.image, 0)
            last[record.image] = record.position + record.accepted + 1
    first = [round for round in rounds if {record.image for record in round.images} <= set(range(together))]
    assert len({record.position for record in first[-1].images}) == 1 and len(first[-1].images) == together
    assert all(position == target.length - 1 for position in last.values())
