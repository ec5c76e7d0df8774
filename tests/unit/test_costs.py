"""Cost profiles: the numbers, their name and digest, what they are read from, and where they are kept."""

import copy
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
import torch

from adt_core import AdtError, Decoding, Drafting, policies
from adt_core.app.jobs import decode, drawing, new_decoding, warm_up
from adt_core.engine import graphs, pool
from adt_core.engine.device import measuring, profiles
from adt_core.engine.device.memory import MEMORY_SHARE
from adt_core.engine.job import Job
from adt_core.engine.request import Request
from adt_core.models.batch_invariance import TILE
from adt_core.policies import CostProfile
from adt_core.policies.auto import MEASURED_CHAINS, MEASURED_TREES, SIZES
from adt_core.policies.costs import built_in, rounded
from adt_core.policies.recipe import Recipe
from tests.drafted import run

ROOT = Path(__file__).parents[2]
PROFILE = CostProfile("a device; a model", 2, {"chain": ((0, 1.1), (4, 1.5), (16, 2.1)), "both": ((0, 1.2), (8, 3.0))})
MEASURED = CostProfile("here", 1, {"chain": ((0, 1.0), (16, 2.0))})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, which does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ADT_TREE_CACHE", str(folder))
    return folder


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts, steps", [(0, 1.1), (2, 1.3), (4, 1.5), (10, 1.8), (16, 2.1), (32, 2.9)])
def test_costs_lie_on_lines_between_what_was_measured(drafts, steps):
    assert PROFILE.of("chain", drafts) == pytest.approx(steps)


def test_numbers_have_three_digits_so_that_the_same_profile_has_the_same_name():
    assert [rounded(value) for value in (1.23456, 0.98765, 123.456)] == [1.23, 0.988, 123.0]


def test_a_digest_names_all_the_numbers():
    changed = CostProfile(PROFILE.name, 2, {**PROFILE.costs, "both": ((0, 1.2), (8, 3.01))})
    others = changed, CostProfile(PROFILE.name, 3, PROFILE.costs), CostProfile("another", 2, PROFILE.costs)
    assert len({PROFILE.digest, *(other.digest for other in others)}) == 4 and len(PROFILE.digest) == 10
    assert CostProfile.from_json(PROFILE.to_json()).digest == PROFILE.digest


def damaged():
    whole = PROFILE.to_json()
    yield from (None, [], "costs", 3, {}, {**whole, "more": 1}, {**whole, "digest": "0123456789"})
    yield from ({**whole, "name": name} for name in ("", 3, "x" * 1000, "two\nlines"))
    yield from ({**whole, "images": images} for images in (0, -1, True, 1.5, "2", 10**30))
    yield {**whole, "costs": {}}
    curves = [], [[0, 1.0]], [[4, 1.0], [8, 2.0]], [[0, 1.0], [8, 2.0], [4, 2.0]], [[0, 1.0], [8, float("nan")]]
    more = [[0, 1.0], [8, 10**400]], [[0, -1.0], [8, 2.0]], [[0, 1.0], [8, "2"]], [[0, 1.0], [8, 2.0, 3.0]], "ab", {}
    yield from ({**whole, "costs": {"chain": curve}} for curve in (*curves, *more, [[i, 1.0] for i in range(100)]))


@pytest.mark.parametrize("value", list(damaged()))
def test_what_is_no_profile_is_refused_in_one_sentence(value):
    with pytest.raises(AdtError, match="cost profile is damaged"):
        CostProfile.from_json(value)


@pytest.mark.parametrize("source", ["chain", "window", "both", "both chain"])
def test_drafts_are_dear_on_a_cpu_and_nearly_free_on_a_gpu(source):
    cpu, cuda = built_in("cpu", 1), built_in("cuda", 1)
    assert cuda.of(source, 24) < 1.45 and cuda.of(source, 64) < 2 and cpu.of(source, 64) > 3
    assert built_in("cpu", 8).of(source, 16) > 2 * cpu.of(source, 16)
    assert built_in("a device to come", 1) == cuda


def test_drafts_of_a_source_that_nobody_knows_have_a_price_before_they_are_measured():
    """A new drafter is tried in its first image."""
    guess = built_in("cpu", 1, ["chain", "new"])
    assert guess.of("new", 8) == guess.of("both", 8) and guess.of("chain", 8) == built_in("cpu", 1).of("chain", 8)


# ---- where they are kept -------------------------------------------------------------------------


def test_what_is_kept_is_found_by_name_and_number_of_images(cache):
    assert profiles.find(PROFILE.name, 2) is None
    profiles.save(PROFILE)
    assert profiles.find(PROFILE.name, 2) == PROFILE and len(list(cache.iterdir())) == 1
    assert profiles.find(PROFILE.name, 1) is None and profiles.find("another", 2) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 10**5, json.dumps(MEASURED.to_json()).encode()])
def test_files_that_are_damaged_or_foreign_count_for_nothing(cache, content):
    profiles.save(PROFILE)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert profiles.find(PROFILE.name, 2) is None
    profiles.save(PROFILE)
    assert profiles.find(PROFILE.name, 2) == PROFILE


def test_where_the_folder_cannot_be_written_a_profile_lives_as_long_as_the_process(cache):
    cache.write_text("a file where the folder should be", encoding="utf-8")
    profiles.save(PROFILE)
    assert profiles.find(PROFILE.name, 2) == PROFILE
    assert [profiles.needs_remeasuring(PROFILE, NO_DRAFTS) for _ in range(2)] == [False, True]


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
def test_the_folder_is_the_systems_usual_one_unless_another_is_named(system, variables, expected, monkeypatch):
    for name in ("ADT_TREE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", system)
    assert profiles.folder() == profiles.Path(expected).expanduser()


# ---- when they are measured again ----------------------------------------------------------------


def readings(factor: float):
    """Twelve small rounds and twelve large ones, which take `factor` times as long as by the profile."""
    return [(1.0, 0.01)] * 12 + [(2.0, 0.02 * factor)] * 12


NO_DRAFTS = [(1.0, 0.01)] * 24


def results(readings, count):
    """Whether the profile needs re-measuring after each of `count` decodings with these readings."""
    return [profiles.needs_remeasuring(MEASURED, readings) for _ in range(count)]


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_profile_is_measured_again_after_two_mismatches_in_a_row(cache, factor):
    for _ in range(3):
        profiles.save(MEASURED)
        assert results(readings(factor), 2) == [False, True]
    profiles.save(MEASURED)
    for _ in range(20):
        assert not any([*results(readings(factor), 1), *results(readings(1.1), 1)]), "a match resets the count"


@pytest.mark.long
def test_mismatches_are_counted_across_processes(cache):
    """The command line decodes each image in a new process."""
    profiles.save(MEASURED)
    command = "from tests.unit.test_costs import *; print(profiles.needs_remeasuring(MEASURED, NO_DRAFTS))"
    process = partial(subprocess.run, [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert [process().stdout for _ in range(2)] == ["False\n", "True\n"]


def test_a_profile_stays_if_it_cannot_be_measured_again(cache):
    """For example for lack of memory: every further decoding with a mismatch then asks for it again."""
    profiles.save(MEASURED)
    assert results(readings(1.5), 9) == [False] + [True] * 8 and profiles.find(MEASURED.name, 1) == MEASURED


def test_decodings_without_drafts_cause_one_new_measurement(cache):
    """A wrong profile may prevent drafts. If the second one does so too, drafts don't pay on this device."""
    profiles.save(MEASURED)
    assert results(NO_DRAFTS, 2) == [False, True]
    profiles.save(MEASURED)
    assert not any(results(NO_DRAFTS, 20))
    assert results(readings(1.5), 2) == [False, True]


def test_rounds_that_do_not_allow_a_comparison_are_ignored(cache):
    profiles.save(MEASURED)
    slower = [(steps, 7 * seconds) for steps, seconds in readings(1.0)]
    assert not any(results(slower, 20)), "a machine that is slower in all rounds"
    assert not any(results([(2.0, 0.5)] * 40, 20)), "rounds of one size"
    assert not any(results(readings(1.5)[:15], 20)), "too few large rounds"
    assert not any(results([], 20))


@pytest.mark.parametrize("times, doubts", [(1, 1), (3, 7), (10, 1024)])
def test_counts_of_earlier_versions_are_read(cache, times, doubts):
    """Their files have up to 10 measurements and 1024 mismatches."""
    write_counts(cache, times=times, doubts=doubts)
    assert profiles.find(MEASURED.name, 1) == MEASURED and results(readings(1.5), 1) == [True]


@pytest.mark.parametrize("field", ["times", "doubts"])
@pytest.mark.parametrize("value", [-1, 1.5, "2", None, 10**30])
def test_a_profile_with_damaged_counts_is_ignored(cache, field, value):
    write_counts(cache, **{field: value})
    assert profiles.find(MEASURED.name, 1) is None and results(NO_DRAFTS, 5) == [False] * 5


def write_counts(cache, **counts):
    profiles.save(MEASURED)
    (path,) = cache.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | counts), encoding="utf-8")


# ---- measuring -----------------------------------------------------------------------------------


def learned(target, drafter, images=1, **options):
    decoding = run(target, drafter, ("a cat", "a dog", "fog")[:images], drafting=Drafting("auto"), **options)
    decoding.measure_costs()
    return decoding


def test_what_rounds_cost_is_measured_after_the_first_decoding_and_serves_the_next(models, cache):
    target, drafter = models
    first, second = learned(target, drafter), learned(target, drafter)
    measured = second.profile
    assert first.profile == built_in("cpu", 1) and measured != first.profile
    assert list(measured.costs) == ["chain", "both chain", "both"] and measured.images == 1
    for curve in measured.costs.values():
        steps = [steps for _, steps in curve]
        assert curve[0][0] == 0 and steps == sorted(steps) and steps[0] > 0
    assert len(list(cache.iterdir())) == 1, "the second decoding had nothing to measure"


def test_costs_that_were_measured_on_a_busy_machine_are_mended_by_the_images_after_it(models, cache):
    target, drafter = models
    honest = [learned(target, drafter), learned(target, drafter)][1].profile
    dear = {source: tuple((size, steps + size) for size, steps in curve) for source, curve in honest.costs.items()}
    (path,) = cache.iterdir()
    path.unlink()
    profiles.save(CostProfile(honest.name, honest.images, dear))
    slow, slower, mended = (learned(target, drafter) for _ in range(3))
    assert slow.profile.costs == slower.profile.costs == dear and slow.trace.report()["tau"] == 1
    assert mended.profile.costs != dear


@pytest.mark.parametrize("other", ["images", "dtype", "drafter", "greedy", "guidance"])
def test_what_changes_the_cost_of_rounds_has_a_profile_of_its_own(models, cache, other):
    from adt_core import Sampling, load_drafter

    target, drafter = copy.deepcopy(models)
    learned(target, drafter)
    options, images = {}, 1
    if other == "images":
        images = 2
    elif other == "dtype":
        target.decoder.set_dtype(torch.float32)
    elif other == "drafter":
        drafter = load_drafter("jacobi", target)
    else:
        options = {"sampling": Sampling(temperature=0) if other == "greedy" else Sampling(guidance=1)}
    assert learned(target, drafter, images, **options).profile == built_in("cpu", images)


@pytest.mark.parametrize("why", ["another method", "a given profile"])
def test_nothing_is_measured(models, cache, why):
    target, drafter = models
    drafting = Drafting("eagle2" if why == "another method" else "auto")
    given = PROFILE if why == "a given profile" else None
    decoding = run(target, drafter, drafting=drafting, profile=given)
    decoding.measure_costs()
    assert not cache.exists()


def test_a_reading_in_which_a_round_was_captured_is_taken_again(models, monkeypatch):
    target, drafter = models
    request = run(target, drafter, drafting=Drafting("auto")).request
    plain, rounds = measuring._TimedRounds(request, 1, drafts=False), []

    def captured_at_first(slots, *_):
        slots.graphs.attempts += not rounds
        rounds.append(slots)

    monkeypatch.setattr(measuring, "run_round", captured_at_first)
    plain.seconds(policies.NO_DRAFTS)
    assert len(rounds) == 2


@pytest.mark.parametrize("timed", [MEASURED_CHAINS, MEASURED_TREES], ids=["chains", "trees"])
def test_costs_are_timed_where_another_product_would_begin(timed):
    """In the exact mode with guidance, on a GPU. Between two sizes on a line there is no such step."""
    tiles = {size: -(-2 * (size + 1) // TILE["cuda"]) for size in SIZES}
    fullest = [max(size for size in SIZES if tiles[size] == count) for count in set(tiles.values())]
    assert set(timed) >= {size for size in fullest if size <= timed[-1]}
    assert all(2 * (size + 1) % TILE["cuda"] == 0 for size in fullest)


def test_a_name_says_how_many_rows_are_multiplied_and_whether_rounds_are_captured(models, monkeypatch):
    target, drafter = copy.deepcopy(models)
    request = run(target, drafter, drafting=Drafting("auto")).request
    target.decoder.set_dtype(torch.bfloat16)
    assert f", tiles of {target.decoder.tile};" in measuring.profile_name(request)
    monkeypatch.setattr(type(request), "replayed", True)
    captured = measuring.profile_name(request)
    monkeypatch.setenv(graphs.VARIABLE, "0")
    assert measuring.profile_name(request) != captured


def test_a_warm_up_measures_so_that_what_is_timed_after_it_knows_the_costs(models, cache):
    job = Job(models[0], Recipe(drafting=Drafting("auto")), models[1])
    warm_up(new_decoding(job, ["a cat"]), count=1)
    assert decode(new_decoding(job, ["a cat"])).profile != built_in("cpu", 1)


def test_a_warm_up_that_draws_the_whole_image_measures_once(models, cache, monkeypatch):
    """As on a GPU. Measured twice, a lack of memory would come twice, and a doubt would count twice."""
    learn = mock.Mock()
    monkeypatch.setattr(Decoding, "measure_costs", learn)
    monkeypatch.setattr(Request, "replayed", True)
    warm_up(new_decoding(Job(models[0], Recipe(drafting=Drafting("auto")), models[1]), ["a cat"]))
    assert learn.call_count == 1


def test_a_decoding_that_is_left_measures_nothing(models, cache):
    job = Job(models[0], Recipe(drafting=Drafting("auto")), models[1])
    with drawing(new_decoding(job, ["a cat"])) as running:
        next(running)
    assert not cache.exists()


def test_measuring_changes_neither_the_image_nor_the_state_of_random_numbers(models, cache):
    target, drafter = models
    decoding = run(target, drafter, drafting=Drafting("auto"))
    codes, state = decoding.codes.clone(), torch.get_rng_state()
    decoding.measure_costs()
    assert torch.equal(decoding.codes, codes) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
        RuntimeError("could not create a primitive"),
    ],
)
def test_a_lack_of_memory_does_not_take_away_what_is_drawn(models, cache, monkeypatch, error):
    monkeypatch.setattr(measuring, "run_round", mock.Mock(side_effect=error))
    assert learned(*models).codes.min() >= 0 and not cache.exists()


@pytest.mark.parametrize("said", ["a shape is wrong", "could not create a primitive descriptor for a matmul primitive"])
def test_a_mistake_is_said_and_takes_nothing_away_either(models, cache, monkeypatch, caplog, said):
    monkeypatch.setattr(measuring, "run_round", mock.Mock(side_effect=RuntimeError(said)))
    assert learned(*models).codes.min() >= 0 and not cache.exists()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and said in record.getMessage()


def test_what_can_not_be_measured_is_not_tried_after_every_image(models, cache, monkeypatch):
    failing = mock.Mock(side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory."))
    monkeypatch.setattr(measuring, "run_round", failing)
    learned(*models)
    tries = failing.call_count
    learned(*models)
    assert failing.call_count == tries > 0
    learned(*models, images=2)
    assert failing.call_count > tries, "of two images together nothing is known yet"


@pytest.mark.parametrize("free, measured", [(2**10, False), (2**30, True)])
def test_a_card_without_room_for_measuring_keeps_what_it_has(models, cache, monkeypatch, free, measured):
    """The caches and graphs for the next image are only given up if that makes enough room."""
    target, drafter = models
    decoding = run(target, drafter, ("a cat",), drafting=Drafting("auto"))
    released = mock.Mock()
    monkeypatch.setattr("adt_core.engine.device.memory.free_bytes", lambda device: free)
    monkeypatch.setattr(pool, "release", released)
    decoding.measure_costs()
    assert cache.exists() is measured and released.called is measured


def test_nothing_is_measured_without_room_for_it(models, cache, monkeypatch):
    """Some systems kill a process that takes more memory than there is. So the room is looked at first."""
    target, drafter = models
    decoding = run(target, drafter, ("a cat",), drafting=Drafting("auto"))
    weights = sum(part.numel() * part.element_size() for part in target.decoder.parameters())
    total = (weights + decoding.memory_required()) / MEMORY_SHARE  # enough for the image
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    monkeypatch.setattr(measuring, "run_round", mock.Mock(side_effect=AssertionError("it was measured")))
    decoding.measure_costs()
    assert not cache.exists()


def test_the_name_says_what_was_measured_and_not_whose_machine_it_is(models):
    import platform

    target, drafter = models
    decoding = learned(target, drafter)
    name = learned(target, drafter).profile.name
    assert "float64" in name and torch.__version__ in name and platform.node() not in name and decoding.codes.min() >= 0
    assert measuring.MAX_READINGS >= 3
