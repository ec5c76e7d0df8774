"""Costs of rounds: profiles, the model that learns them from decodings, and its file."""

import copy
import json
import platform
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from adt_core import AdtError, Drafting
from adt_core.app.jobs import drawing, new_decoding
from adt_core.drafters.merged import MergedDrafter
from adt_core.engine import graphs
from adt_core.engine.device import profiles
from adt_core.engine.device.costs import profile_name
from adt_core.engine.job import Job
from adt_core.models.batch_invariance import TILE
from adt_core.policies import NO_DRAFTS, Context, CostProfile, Shape, Slot
from adt_core.policies.auto import SIZES, Auto, sizes_of
from adt_core.policies.cost_model import PLAIN_STEP, CostModel, Reading, RoundTime
from adt_core.policies.costs import rounded
from adt_core.policies.recipe import Recipe
from adt_core.rules.trace import ImageRound, Round
from tests.drafted import run

PROFILE = CostProfile("a device; a model", 2, {"chain": ((0, 1.1), (4, 1.5), (16, 2.1)), "both": ((0, 1.2), (8, 3.0))})
OTHER_VALUES = {"name": "another", "images": 3, "decodings": 1}
MODES = MergedDrafter.modes
ESTIMATED = CostModel("a device", 1, MODES, on_cpu=True)
PLAIN = 0.01
"""Seconds of a plain step of the simulated machine."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Set a cache folder that does not exist yet, and return it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ADT_TREE_CACHE", str(folder))
    return folder


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts, steps", [(0, 1.1), (2, 1.3), (4, 1.5), (10, 1.8), (16, 2.1), (32, 2.9)])
def test_costs_are_interpolated_linearly(drafts, steps):
    assert PROFILE.cost("chain", drafts) == pytest.approx(steps)


def test_costs_have_three_significant_digits():
    assert [rounded(value) for value in (1.23456, 0.98765, 123.456)] == [1.23, 0.988, 123.0]


def test_the_digest_depends_on_all_values():
    changed = CostProfile(PROFILE.name, 2, {**PROFILE.costs, "both": ((0, 1.2), (8, 3.01))})
    others = changed, *(replace(PROFILE, **{name: value}) for name, value in OTHER_VALUES.items())
    assert len({PROFILE.digest, *(other.digest for other in others)}) == 5 and len(PROFILE.digest) == 10
    assert CostProfile.from_json(PROFILE.to_json()).digest == PROFILE.digest


def test_a_profile_of_an_earlier_version_keeps_its_digest():
    old = {"name": "a", "images": 1, "costs": {"chain": [[0, 1.0], [8, 2.0]]}, "digest": "0ab949b6a9"}
    assert CostProfile.from_json(old).to_json() == old


def damaged():
    valid = PROFILE.to_json()
    yield from (None, [], "costs", 3, {}, {**valid, "more": 1}, {**valid, "digest": "0123456789"})
    yield from ({**valid, "name": name} for name in ("", 3, "x" * 1000, "two\nlines"))
    yield from ({**valid, "images": images} for images in (0, -1, True, 1.5, "2", 10**30))
    yield from ({**valid, "decodings": count} for count in (-1, 1.5, "2", None, 10**30))
    curves = [], [[0, 1.0]], [[4, 1.0], [8, 2.0]], [[0, 1.0], [8, 2.0], [4, 2.0]], [[0, 1.0], [8, float("nan")]]
    more = [[0, 1.0], [8, 10**400]], [[0, -1.0], [8, 2.0]], [[0, 1.0], [8, "2"]], [[0, 1.0], [8, 2.0, 3.0]], "ab", {}
    yield from ({**valid, "costs": {"chain": curve}} for curve in (*curves, *more, [[i, 1.0] for i in range(100)]))


@pytest.mark.parametrize("value", list(damaged()))
def test_a_damaged_profile_raises_an_error(value):
    with pytest.raises(AdtError, match="cost profile is damaged"):
        CostProfile.from_json(value)


# ---- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_estimated_costs_of_drafts_are_high_on_a_cpu_and_low_on_a_gpu(mode):
    cpu, gpu, batch = (
        replace(ESTIMATED, **values).profile(SIZES) for values in ({}, {"on_cpu": False, "tile": 64}, {"images": 8})
    )
    assert gpu.cost(mode, 24) < 1.45 and gpu.cost(mode, 63) < 2 and cpu.cost(mode, 63) > 3
    assert batch.cost(mode, 16) > 1.5 * cpu.cost(mode, 16) and cpu.decodings == 0


def test_costs_rise_in_steps_at_another_tile_of_rows():
    """With guidance, 31 drafts and the root have 64 rows: one tile of the batch-invariant mode of a GPU."""
    profile = replace(ESTIMATED, on_cpu=False, tile=TILE["cuda"]).profile(SIZES)
    chain = [profile.cost("chain", size) for size in (24, 31, 63)]
    assert chain[1] - chain[0] < 0.1 < chain[2] - chain[1]
    tiles = {size: -(-2 * (size + 1) // TILE["cuda"]) for size in SIZES}
    fullest = [max(size for size in SIZES if tiles[size] == count) for count in set(tiles.values())]
    assert all(2 * (size + 1) % TILE["cuda"] == 0 for size in fullest), "a choice that fills its tiles"


# ---- learning ------------------------------------------------------------------------------------


TOKENS = {(mode.name, size): 1 + mode.expected_accepted(size) for mode in MODES for size in sizes_of(mode)}
"""Average tokens of a round, by mode and size."""


def best_size(cost) -> tuple[str, int]:
    """Return the mode and number of drafts with the highest throughput."""
    return max(TOKENS, key=lambda key: TOKENS[key] / cost(*key))


def true_cost(mode: str, drafts: int) -> float:
    """Return the cost of a round on the simulated machine, in plain steps: a machine unlike the estimates."""
    if not drafts:
        return 1.04
    fixed, each = {"chain": (0.1, 0.03), "both chain": (0.9, 0.04), "both": (1.2, 0.05)}[mode]
    return 1.04 + fixed + each * drafts


def decoding(model: CostModel, number: int = 0, speed: float = 1.0) -> CostModel:
    """Return the model after `auto` has decoded an image of 256 tokens on the simulated machine.

    Args:
        model: Model before.
        number: Seed of the image and of the noise in its times.
        speed: Factor on the time of every round.
    """
    drawn = random.Random(number)
    target = SimpleNamespace(columns=16, length=256)
    context = Context(target, None, None, Shape(63, 4, 63), [(0, 0)], modes=MODES, profile=model.profile(SIZES))
    policy = Auto(context)
    policy.begin()
    rounds = []
    position = 0
    while position < 255:
        (shape,) = policy.choose([Slot(0, position)]) if policy.drafts else [NO_DRAFTS]
        tokens = TOKENS.get((shape.mode, shape.nodes), 1.0)
        accepted = min(round(drawn.expovariate(1 / (tokens - 1))), shape.depth) if shape.nodes else 0
        share = ImageRound(0, position, shape.depth, shape.width, shape.depth, shape.nodes, accepted, (0,) * accepted)
        policy.on_verified(Round(0, 0.0, 0.0, 0, (share,)))
        seconds = PLAIN * true_cost(shape.mode, shape.nodes) * speed * drawn.lognormvariate(0, 0.1)
        rounds.append(RoundTime(shape.mode, shape.nodes, seconds))
        position += accepted + 1
    return model.learn(rounds)


def loss(model: CostModel) -> float:
    """Return the throughput that a decoding loses because the model's costs are not the machine's, as a share."""
    chosen = best_size(model.profile(SIZES).cost)
    best = best_size(true_cost)
    return 1 - TOKENS[chosen] / true_cost(*chosen) * true_cost(*best) / TOKENS[best]


def learned(model: CostModel = ESTIMATED, count: int = 6, first: int = 0, **options) -> CostModel:
    for number in range(first, first + count):
        model = decoding(model, number, **options)
    return model


def test_costs_approach_the_machines_costs():
    model = learned(count=12)
    profile = model.profile(SIZES)
    used = [key for key, reading in model.readings.items() if reading.weight > 0.5]
    assert len(used) >= 2 and profile.decodings == 12
    for mode, size in used:
        assert profile.cost(mode, size) == pytest.approx(true_cost(mode, size), rel=0.2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spoiled", ["all x 0.3", "all x 3", "chain x 10", "both x 10", "both x 0.1"])
def test_wrong_costs_are_corrected_within_three_decodings(spoiled, seed):
    modes, factor = spoiled.split(" x ")
    correct = learned(first=100 * seed)
    wrong = {
        key: reading._replace(cost=reading.cost * (float(factor) if modes in ("all", key[0]) else 1))
        for key, reading in correct.readings.items()
    }
    assert loss(learned(replace(correct, readings=wrong), 3, first=100 * seed + 50)) < 0.05


def test_sizes_that_were_never_used_get_their_cost_from_others():
    model = ESTIMATED.learn([RoundTime("", 0, PLAIN)] * 9 + [RoundTime("chain", 8, 4 * PLAIN)] * 9)
    before, after = (one.profile(SIZES) for one in (ESTIMATED, model))
    assert after.cost("chain", 8) == pytest.approx(4, rel=0.1)
    assert after.cost("chain", 16) > 1.8 * before.cost("chain", 16) and after.cost("both", 31) > before.cost("both", 31)


def test_a_machine_that_is_slower_in_all_rounds_has_the_same_costs():
    model = learned()
    slow = learned(model, first=6, speed=3.0)
    for mode, size in model.readings:
        assert slow.profile(SIZES).cost(mode, size) == pytest.approx(true_cost(mode, size), rel=0.35)


def test_one_plain_step_that_was_interrupted_has_little_influence():
    model = learned()
    mode, size = max(model.readings, key=lambda key: model.readings[key].weight)
    times = [RoundTime(mode, size, PLAIN * true_cost(mode, size))] * 20
    changed = model.learn([RoundTime("", 0, 5 * PLAIN), *times])
    assert changed.profile(SIZES).cost(mode, size) == pytest.approx(model.profile(SIZES).cost(mode, size), rel=0.25)


def test_decodings_without_drafts_teach_nothing():
    assert ESTIMATED.learn([]) is ESTIMATED and ESTIMATED.learn([RoundTime("", 0, PLAIN)] * 99) is ESTIMATED
    assert ESTIMATED.learn([RoundTime("another drafter's mode", 8, PLAIN)]) is ESTIMATED


# ---- cache files ---------------------------------------------------------------------------------


def test_what_was_learned_is_found_by_name_and_batch_size(cache):
    model = learned()
    profiles.save_costs(model)
    again = ESTIMATED.with_json(profiles.find_costs("a device", 1))
    assert again.profile(SIZES) == model.with_json(model.to_json()).profile(SIZES) and len(list(cache.iterdir())) == 1
    assert again.plain and again.decodings == 6 and set(again.readings) == set(model.readings)
    assert profiles.find_costs("a device", 2) is None and profiles.find_costs("another", 1) is None
    assert replace(ESTIMATED, name="another").with_json(model.to_json()).decodings == 0


VALUE = {"name": "a device", "images": 1, "decodings": 3, "readings": [["chain", 4, 1.2, 0.5]]}


@pytest.mark.parametrize(
    "value",
    [None, [], 3, {}, PROFILE.to_json(), {**VALUE, "decodings": -1}, {**VALUE, "images": 2}, {**VALUE, "readings": 3}]
    + [{**VALUE, "readings": [row]} for row in ([], ["chain", 4, 0.0, 1.0], ["chain", 4, float("nan"), 1.0])]
    + [{**VALUE, "readings": [row]} for row in (["chain", 4, 1.0, 9.0], ["chain", 10**9, 1.0, 1.0], [3, 4, 1.0, 1.0])],
)
def test_damaged_foreign_and_older_values_are_ignored(value):
    assert ESTIMATED.with_json(VALUE).readings == {("chain", 4): Reading(1.2, 0.5)}
    assert ESTIMATED.with_json(value) == ESTIMATED


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 10**5])
def test_files_that_are_not_json_are_ignored(cache, content):
    profiles.save_costs(ESTIMATED)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert profiles.find_costs("a device", 1) is None


def test_costs_that_cannot_be_written_are_kept_for_the_process(cache):
    cache.write_text("a file where the folder should be", encoding="utf-8")
    profiles.save_costs(learned())
    assert profiles.find_costs("a device", 1)["decodings"] == 6


@pytest.mark.parametrize(
    "system, variables, expected",
    [
        ("linux", {}, "~/.cache/adt-tree"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/adt-tree"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "~/Library/Caches/adt-tree"),
        ("win32", {"LOCALAPPDATA": "/y"}, "/y/adt-tree"),
        ("linux", {"ADT_TREE_CACHE": "/z", "XDG_CACHE_HOME": "/x"}, "/z"),
    ],
)
def test_the_cache_folder_is_the_systems_default_unless_set(system, variables, expected, monkeypatch):
    for name in ("ADT_TREE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", system)
    assert profiles.folder() == profiles.Path(expected).expanduser()


# ---- decodings -----------------------------------------------------------------------------------


def decode_and_learn(target, drafter, images=1, **options):
    done = run(target, drafter, ("a cat", "a dog", "fog")[:images], **{"drafting": Drafting("auto"), **options})
    done.learn_costs()
    return done


def test_each_decoding_improves_the_costs_of_the_next(models, cache):
    state = torch.get_rng_state()
    counts = [decode_and_learn(*models).profile.decodings for _ in range(3)]
    assert counts == [0, 1, 2] and len(list(cache.iterdir())) == 1
    assert torch.equal(torch.get_rng_state(), state)
    (saved,) = (json.loads(path.read_text(encoding="utf-8")) for path in cache.iterdir())
    assert saved["decodings"] == 3 and [*PLAIN_STEP] in [row[:2] for row in saved["readings"]]


@pytest.mark.parametrize("other", ["images", "dtype", "drafter", "greedy", "guidance"])
def test_settings_that_change_costs_are_learned_separately(models, cache, other):
    from adt_core import Sampling, load_drafter

    target, drafter = copy.deepcopy(models)
    decode_and_learn(target, drafter)
    options = {}
    images = 1
    if other == "images":
        images = 2
    elif other == "dtype":
        target.decoder.set_dtype(torch.float32)
    elif other == "drafter":
        drafter = load_drafter("jacobi", target)
    else:
        options = {"sampling": Sampling(temperature=0) if other == "greedy" else Sampling(guidance=1)}
    assert decode_and_learn(target, drafter, images, **options).profile.decodings == 0


@pytest.mark.parametrize("why", ["another method", "a given profile", "interrupted"])
def test_costs_are_not_learned(models, cache, why):
    target, drafter = models
    if why == "interrupted":
        with drawing(new_decoding(Job(target, Recipe(drafting=Drafting("auto")), drafter), ["a cat"])) as running:
            next(running)
    else:
        drafting = Drafting("eagle2" if why == "another method" else "auto")
        decode_and_learn(target, drafter, drafting=drafting, profile=PROFILE if "given" in why else None)
    assert not cache.exists()


def test_rounds_that_were_cut_or_captured_are_left_out(models):
    done = run(*models, ("a cat",), drafting=Drafting("auto"))
    costs = done._costs
    shape = Shape(8, 1, 8, mode="chain")
    cut = replace(done.trace.rounds[0].images[0], depth_asked=2)
    complete = replace(cut, depth_asked=8)
    before = len(costs._rounds)
    for share, prepared in ((cut, False), (complete, True), (complete, False), (replace(cut, depth_asked=0), False)):
        costs.record([shape], replace(done.trace.rounds[0], images=(share,), prepared=prepared), 0.5)
    assert costs._rounds[before:] == [RoundTime("chain", 8, 0.5), RoundTime("", 0, 0.5)]


def test_the_name_of_a_profile_includes_tiles_and_graphs_but_not_the_machine(models, monkeypatch):
    target, drafter = copy.deepcopy(models)
    request = run(target, drafter, drafting=Drafting("auto")).request
    name = profile_name(request)
    assert "float64" in name and torch.__version__ in name and platform.node() not in name
    target.decoder.set_dtype(torch.bfloat16)
    assert f", tiles of {target.decoder.tile};" in profile_name(request)
    monkeypatch.setattr(type(request), "replayed", True)
    captured = profile_name(request)
    monkeypatch.setenv(graphs.VARIABLE, "0")
    assert profile_name(request) != captured
