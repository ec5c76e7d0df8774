"""Tests of cost profiles, of the cost model, which learns costs from decodings, and of the cache file.

Costs are in plain rounds. A plain round is a round of plain decoding.
"""

import copy
import json
import os
import platform
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from adt_core import Drafting, Lantern, Pipeline, Recipe, Sampling, cache_folder, load_drafter, load_target
from adt_core.drafters.merged import MergedDrafter
from adt_core.engine import graphs
from adt_core.engine.device import profiles
from adt_core.engine.device.costs import Costs, profile_name
from adt_core.engine.device.invariance import VARIANTS, InvarianceReport
from adt_core.messages import TEMPLATES, message
from adt_core.models import streamed
from adt_core.models.batch_invariance import TILE
from adt_core.policies import PLAIN_SHAPE, ActiveImage, Context, CostProfile, Shape
from adt_core.policies.auto import SIZES, Auto, sizes_of
from adt_core.policies.cost_model import PLAIN_ROUND, CostModel, Reading, RoundResult
from adt_core.policies.cost_profile import rounded
from adt_core.trace import ImageRound, Round
from tests.drafted import run
from tests.raising import raises_key

PROFILE = CostProfile(
    "a device; a model", 2, {"chain": ((0, 1.1), (4, 1.5), (16, 2.1)), "merged": ((0, 1.2), (8, 3.0))}
)
OTHER_VALUES = {"name": "another", "images": 3, "decodings": 1, "gains": {"chain": 0.5}}
MODES = MergedDrafter.modes
ESTIMATED = CostModel("a device", 1, MODES, on_cpu=True)
PLAIN = 0.01
"""Duration of a plain round on the simulated machine, in seconds."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Set a cache folder that doesn't exist yet. Return its path."""
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
    changed = CostProfile(PROFILE.name, 2, {**PROFILE.costs, "merged": ((0, 1.2), (8, 3.01))})
    others = changed, *(replace(PROFILE, **{name: value}) for name, value in OTHER_VALUES.items())
    assert len({PROFILE.digest, *(other.digest for other in others)}) == 6 and len(PROFILE.digest) == 10
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
    with raises_key("costs.damaged"):
        CostProfile.from_json(value)


# ---- model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_estimated_costs_of_drafts_are_high_on_a_cpu_and_low_on_a_gpu(mode):
    values = {}, {"on_cpu": False, "tile": TILE["cuda"]}, {"images": 8}
    cpu, gpu, batch = (replace(ESTIMATED, **more).profile((*SIZES, 32)) for more in values)
    assert gpu.cost(mode, 24) < 1.45 and gpu.cost(mode, 63) < 2 and cpu.cost(mode, 63) > 3
    assert batch.cost(mode, 16) > 1.5 * cpu.cost(mode, 16) and cpu.decodings == 0
    assert gpu.cost(mode, 31) - gpu.cost(mode, 24) < 0.1
    assert gpu.cost(mode, 32) - gpu.cost(mode, 31) > 0.1, "the 32nd draft needs another tile"


TOKENS = {
    (mode.name, size): 1 + mode.expected_accepted(size) for mode in MODES for size in sizes_of(mode, replayed=False)
}
"""(mode, number of drafts) -> average number of tokens of a round."""


def test_with_streamed_weights_the_largest_tree_costs_little_more_than_a_plain_round():
    """8 times as long a plain round: then drafts save almost as much time as they save passes."""
    resident = replace(ESTIMATED, on_cpu=False, tile=TILE["cuda"])
    costs = {slowdown: replace(resident, slowdown=slowdown).profile(SIZES) for slowdown in (1.0, 8.0)}
    for mode in MODES:
        largest = max(sizes_of(mode, replayed=True))
        speeds = {slowdown: TOKENS[mode.name, largest] / it.cost(mode.name, largest) for slowdown, it in costs.items()}
        assert speeds[8.0] > 0.85 * TOKENS[mode.name, largest] > speeds[1.0]
        rates = {n: TOKENS[mode.name, n] / costs[8.0].cost(mode.name, n) for n in sizes_of(mode, replayed=False)}
        assert max(rates, key=rates.get) == largest, "auto chooses it"


def test_the_speed_up_on_the_map_counts_what_streamed_weights_save(models, cache):
    """With relaxed acceptance, times are not measured, so the speed-up follows from the estimates alone."""
    target, drafter = copy.deepcopy(models)
    relaxed = {"drafting": Drafting("auto"), "lantern": Lantern(delta=0.3)}
    profile = decode_and_learn(target, drafter, **relaxed).profile
    streamed.place(target.decoder, torch.device("cpu"), len(target.decoder.layers))
    slower = decode_and_learn(target, drafter, **relaxed)
    mode = next(iter(profile.costs))
    assert slower.profile.cost(mode, 63) - slower.profile.plain < 0.2 * (profile.cost(mode, 63) - profile.plain)
    assert slower.trace.speedup > 0.8 * slower.trace.report()["tau"]


MACHINES = {
    "fast network": {"chain": (0.1, 0.06), "merged": (1.2, 0.08)},
    "slow network": {"chain": (0.2, 0.03), "merged": (2.5, 0.1)},
}
"""Simulated machine -> draft mode -> costs `fixed` and `each` of a round, which differ from the estimates."""


def true_cost(mode: str, drafts: int, machine: str = "fast network") -> float:
    """Return the cost of a round on a simulated machine, in plain rounds."""
    if not drafts:
        return 1.04
    fixed, each = MACHINES[machine][mode]
    return 1.04 + fixed + each * drafts


def decoding(model: CostModel, number: int = 0, speed: float = 1.0, machine: str = "fast network") -> CostModel:
    """Return the model after `auto` has decoded an image of 256 tokens on a machine. `number` is the random seed."""
    drawn = random.Random(number)
    target = SimpleNamespace(columns=16, length=256)
    context = Context(target, None, None, Shape(63, 4, 63), [(0, 0)], modes=MODES, profile=model.profile(SIZES))
    policy = Auto(context)
    policy.begin()
    rounds = []
    position = 0
    while position < 255:
        (shape,) = policy.choose([ActiveImage(0, position)]) if policy.is_drafting else [PLAIN_SHAPE]
        tokens = TOKENS.get((shape.mode, shape.drafts), 1.0)
        accepted = min(round((tokens - 1) * drawn.uniform(0.5, 1.5)), shape.depth)
        record = ImageRound(0, position, shape.depth, shape.width, shape.depth, shape.drafts, accepted, (0,) * accepted)
        policy.on_verified(Round(0, 0.0, 0.0, 0, (record,)))
        seconds = PLAIN * true_cost(shape.mode, shape.drafts, machine) * speed * drawn.lognormvariate(0, 0.1)
        rounds.append(RoundResult((shape.mode, shape.drafts), seconds, accepted))
        position += accepted + 1
    return model.learn(rounds)


def learned(model: CostModel = ESTIMATED, count: int = 6, first: int = 0, **options) -> CostModel:
    for number in range(first, first + count):
        model = decoding(model, number, **options)
    return model


def loss(model: CostModel, machine: str) -> float:
    """Return the share of throughput that a decoding loses because the model's costs differ from the real costs."""
    cost = model.profile(SIZES).cost
    chosen = max(TOKENS, key=lambda size: TOKENS[size] / cost(*size))
    throughputs = {size: tokens / true_cost(*size, machine) for size, tokens in TOKENS.items()}
    return 1 - throughputs[chosen] / max(throughputs.values())


def test_the_best_mode_is_learned_if_the_estimates_choose_another():
    assert loss(ESTIMATED, "slow network") > 0.3
    assert loss(learned(count=3, machine="slow network"), "slow network") < 0.03


@pytest.mark.parametrize("speed", [1.0, 3.0])
def test_costs_approach_the_machines_costs_whatever_its_speed(speed):
    model = learned(learned(count=6), 6, first=6, speed=speed)
    used = [size for size, reading in model.readings.items() if reading.weight > 0.5 and size != PLAIN_ROUND]
    assert len(used) >= 2 and model.profile(SIZES).decodings == 12
    assert all(model.profile(SIZES).cost(*size) == pytest.approx(true_cost(*size), rel=0.25) for size in used)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("spoiled", [" x 0.3", " x 3", "chain x 10", "merged x 10", "merged x 0.1"])
def test_wrong_costs_are_corrected_within_three_decodings(spoiled, machine):
    mode, factor = spoiled.split(" x ")
    losses = []
    for seed in range(0, 400, 100):
        correct = learned(first=seed, machine=machine)
        wrong = {
            size: reading._replace(value=reading.value * (float(factor) if size[0] and mode in ("", size[0]) else 1))
            for size, reading in correct.readings.items()
        }
        corrected = learned(replace(correct, readings=wrong), 3, first=seed + 50, machine=machine)
        losses.append(loss(corrected, machine))
    assert sum(losses) / len(losses) < 0.04


def test_sizes_that_were_never_used_get_their_cost_from_others():
    model = ESTIMATED.learn([RoundResult(PLAIN_ROUND, PLAIN, 0)] * 9 + [RoundResult(("chain", 8), 4 * PLAIN, 3)] * 9)
    before, after = (one.profile(SIZES) for one in (ESTIMATED, replace(model, readings=model.readings)))
    assert after.cost("chain", 8) > 1.5 * before.cost("chain", 8)
    assert after.cost("chain", 16) > 1.5 * before.cost("chain", 16)
    assert after.cost("merged", 31) > before.cost("merged", 31)


def test_the_gain_of_a_mode_is_learned():
    """A drafter may be worse at a high temperature, so that another mode is faster there."""
    merged = MODES[-1]
    half = RoundResult(("merged", 24), 3 * PLAIN, 0.5 * merged.expected_accepted(24))
    rounds = [RoundResult(PLAIN_ROUND, PLAIN, 0), *[half] * 40]
    model = ESTIMATED
    for _ in range(12):
        model = model.learn(rounds)
    gains = model.profile(SIZES).gains
    assert gains["merged"] == pytest.approx(0.5, abs=0.1) and gains["chain"] == 1.0
    hot = replace(ESTIMATED, temperature=1.0).profile(SIZES).gains
    assert hot["merged"] < hot["chain"] < 1.0, "an estimate until it is learned"


def test_decodings_without_drafts_teach_nothing():
    for rounds in ([], [RoundResult(PLAIN_ROUND, PLAIN, 0)] * 99):
        assert ESTIMATED.learn(rounds) == replace(ESTIMATED, decodings=1)


# ---- files ---------------------------------------------------------------------------------------


def test_what_was_learned_is_found_by_name_and_batch_size(cache):
    model = learned()
    profiles.save_costs(model)
    again = ESTIMATED.with_json(profiles.find_costs("a device", 1))
    assert again == model.with_json(model.to_json()) and set(again.readings) == set(model.readings)
    assert again.decodings == 6
    assert profiles.find_costs("a device", 2) is None and profiles.find_costs("another", 1) is None
    cache.rename(cache.with_name("away"))
    cache.write_text("a file where the folder should be", encoding="utf-8")
    profiles.save_costs(replace(model, images=3))
    assert profiles.find_costs("a device", 3)["decodings"] == 6, "costs must be kept in memory if they can't be saved"


VALUE = {"name": "a device", "images": 1, "decodings": 3, "sampling": ""}
VALUE |= {"readings": [["chain", 4, 1.2, 0.5]], "gains": [["chain", 0.8, 1.5]]}
ROWS = [], ["chain", 4, 0.0, 1.0], ["chain", 4, float("nan"), 1.0], ["a", 4, 1.0, 99.0], ["a", 10**9, 1.0, 1.0]


@pytest.mark.parametrize(
    "value",
    [None, [], {}, PROFILE.to_json(), {**VALUE, "decodings": -1}, {**VALUE, "images": 2}]
    + [{**VALUE, "readings": [row]} for row in ROWS]
    + [{**VALUE, "gains": [row]} for row in ([], ["chain", 0.0, 1.0], ["chain", "1", 1.0])],
)
def test_damaged_foreign_and_older_values_are_ignored(value):
    assert ESTIMATED.with_json(VALUE).readings == {("chain", 4): Reading(1.2, 0.5)}
    assert ESTIMATED.with_json(VALUE).gains == {"chain": Reading(0.8, 1.5)}
    assert ESTIMATED.with_json({**VALUE, "sampling": "hotter"}).gains == {}
    assert ESTIMATED.with_json(value) == ESTIMATED


ODD = [None, True, 0, -1, 1e308, float("nan"), 10**400, "", "x" * 400, "\ud800", [], [[]], {}, {"a": 1}, [1, 2, 3]]
ODD += TEMPLATES.values()
"""Values that replace others. The templates have parameters in braces."""
REPORT = {"trust": [64, True], "kernels": True, "is_drafting": True, "differing": [VARIANTS[0]]}
REPORT |= {"remark": str(message("device.no_mode"))}
READERS = {"report": (lambda value: InvarianceReport.from_json(value, 128), REPORT)}
READERS |= {"costs": (ESTIMATED.with_json, VALUE)}


def with_damage(value, chosen: random.Random):
    """Return a copy of a JSON value with another value in one place, or without one entry."""
    if not isinstance(value, dict | list) or not value or chosen.random() < 0.2:
        return chosen.choice(ODD)
    key = chosen.choice(list(value)) if isinstance(value, dict) else chosen.randrange(len(value))
    value = copy.copy(value)
    if chosen.random() < 0.1:
        del value[key]
    else:
        value[key] = with_damage(value[key], chosen)
    return value


@pytest.mark.parametrize("name", READERS)
def test_damage_of_a_file_raises_no_error(name):
    read, content = READERS[name]
    assert read(content) is not None
    chosen = random.Random(1)
    for _ in range(3000):
        read(with_damage(content, chosen))


@pytest.mark.parametrize("key", TEMPLATES)
def test_a_remark_that_equals_a_template_is_ordinary_text(key):
    report = InvarianceReport.from_json({**REPORT, "remark": TEMPLATES[key]}, 128)
    assert report is not None and report.remark == TEMPLATES[key]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such permissions")
@pytest.mark.parametrize("mode, is_read", [(0o600, True), (0o640, True), (0o660, False), (0o602, False)])
def test_files_that_others_may_write_are_ignored(cache, mode, is_read):
    """Costs, choices of kernels and reports of somebody else could change images."""
    profiles.save_costs(ESTIMATED)
    (path,) = cache.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600, "whatever the user's default permissions are"
    path.chmod(mode)
    assert (profiles.find_costs("a device", 1) is not None) is is_read


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such owners")
def test_files_of_another_user_are_ignored(cache, monkeypatch):
    profiles.save_costs(ESTIMATED)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert profiles.find_costs("a device", 1) is None
    profiles.save_costs(ESTIMATED)
    assert profiles.find_costs("a device", 1) is not None, "measured costs must be kept in memory"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 10**5])
def test_files_that_are_not_json_are_ignored(cache, content):
    profiles.save_costs(ESTIMATED)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert profiles.find_costs("a device", 1) is None


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
    assert cache_folder.folder() == Path(expected).expanduser()


# ---- decodings -----------------------------------------------------------------------------------


def decode_and_learn(target, drafter, images=1, **options):
    return run(target, drafter, ("a cat", "a dog", "fog")[:images], **{"drafting": Drafting("auto"), **options})


def test_each_decoding_improves_the_costs_of_the_next(models, cache):
    state = torch.get_rng_state()
    counts = [decode_and_learn(*models).profile.decodings for _ in range(3)]
    assert counts == [0, 1, 2] and len(list(cache.iterdir())) == 1
    assert torch.equal(torch.get_rng_state(), state)
    (saved,) = (json.loads(path.read_text(encoding="utf-8")) for path in cache.iterdir())
    assert saved["decodings"] == 3 and [*PLAIN_ROUND] in [row[:2] for row in saved["readings"]]


@pytest.mark.parametrize(
    "other, options",
    [
        *(("images", {"images": 2}), ("dtype", {}), ("drafter", {})),
        ("greedy", {"sampling": Sampling(temperature=0)}),
        ("guidance", {"sampling": Sampling(guidance_scale=1)}),
    ],
)
def test_settings_that_change_costs_are_learned_separately(models, cache, other, options):
    target, drafter = copy.deepcopy(models)
    decode_and_learn(target, drafter)
    if other == "dtype":
        target.decoder.set_dtype(torch.float32)
    elif other == "drafter":
        drafter = load_drafter("jacobi", target)
    assert decode_and_learn(target, drafter, **options).profile.decodings == 0


@pytest.mark.parametrize("why", ["another method", "a given profile", "cancelled"])
def test_costs_are_not_learned(models, cache, why):
    target, drafter = models
    if why == "cancelled":
        with pytest.raises(KeyboardInterrupt):
            decode_and_learn(target, drafter, check=Mock(side_effect=[None, None, KeyboardInterrupt]))
    else:
        drafting = Drafting("eagle2" if why == "another method" else "auto")
        decode_and_learn(target, drafter, drafting=drafting, profile=PROFILE if "given" in why else None)
    assert not cache.exists()


def test_costs_are_learned_from_the_rounds_before_the_iteration_is_closed(models, cache):
    target, drafter = models
    decoding = Pipeline(target, Recipe(drafting=Drafting("auto")), drafter).decoding(["a cat"])
    decoding.warm_up(2)
    assert 0 < decoding.done_tokens < decoding.total_tokens and len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_relaxed_acceptance_learned_costs_do_not_change_the_image(tiny, cache, dtype):
    """Learned costs change the trees of `auto`, and with relaxed acceptance, other trees give another image."""
    target = load_target(tiny / "target", dtype=dtype)
    drafter = load_drafter(tiny / "drafter", target)
    relaxed = {"lantern": Lantern(39, 1.0)}
    first = decode_and_learn(target, drafter, **relaxed)
    assert first.profile.decodings == 0 and not list(cache.glob("costs-*"))
    costs = Costs(first.request, None)
    slow = {(mode.name, size): Reading(50.0, 9.0) for mode in first.request.modes for size in SIZES}
    profiles.save_costs(replace(costs._estimated(1), readings=slow, decodings=6))
    again = decode_and_learn(target, drafter, **relaxed)
    assert again.profile == first.profile and torch.equal(again.codes, first.codes)
    learned_profile = costs._learned(1).profile(SIZES)
    other = decode_and_learn(target, drafter, **relaxed, profile=learned_profile)
    assert other.profile.decodings == 6 and not torch.equal(other.codes, first.codes)


def test_rounds_that_were_cut_or_captured_or_have_fewer_images_are_left_out(models, cache):
    done = run(*models, ("a cat",), drafting=Drafting("auto"))
    for path in cache.iterdir():
        path.unlink()
    round = done.trace.rounds[0]
    cut = replace(round.images[0], depth_asked=2, accepted=2)
    complete = replace(cut, depth_asked=8)
    costs = Costs(done.request, None)
    for records, prepared, seconds in (
        ((cut,) * 2, False, 99.0),
        ((complete,) * 2, True, 99.0),
        ((complete,), False, 99.0),
        ((complete,) * 2, False, 0.5),
        ((replace(cut, depth_asked=0),) * 2, False, 0.25),
    ):
        costs.record([Shape(8, 1, 8, mode="chain")], replace(round, images=records, prepared=prepared), seconds)
    costs.learn(2)
    (saved,) = (json.loads(path.read_text(encoding="utf-8")) for path in cache.iterdir())
    assert {tuple(row[:2]): row[3] for row in saved["readings"]} == {("chain", 8): 0.5, PLAIN_ROUND: 0.5}


def test_the_name_of_a_profile_includes_tiles_and_graphs_but_not_the_machine(models, monkeypatch):
    target, drafter = copy.deepcopy(models)
    request = run(target, drafter, drafting=Drafting("auto")).request
    name = profile_name(request, 1)
    assert "float64" in name and torch.__version__ in name and platform.node() not in name
    target.decoder.set_dtype(torch.bfloat16)
    assert f", tiles of {target.decoder.tile};" in profile_name(request, 1)
    monkeypatch.setattr(type(request), "replayed", True)
    captured = profile_name(request, 1)
    monkeypatch.setenv(graphs.VARIABLE, "0")
    assert profile_name(request, 1) != captured
