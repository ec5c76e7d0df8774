"""Cost profiles: interpolation, digest, cache files, re-measuring, and measuring after a decoding."""

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
from adt_core.drafters.costs import built_in
from adt_core.engine import graphs, pool
from adt_core.engine.device import measuring, profiles
from adt_core.engine.device.memory import MEMORY_SHARE
from adt_core.engine.job import Job
from adt_core.engine.request import Request
from adt_core.models.batch_invariance import TILE
from adt_core.policies import CostProfile, DraftMode
from adt_core.policies.auto import MEASURED_CHAINS, MEASURED_TREES, SIZES
from adt_core.policies.costs import rounded
from adt_core.policies.recipe import Recipe
from tests.drafted import run

ROOT = Path(__file__).parents[2]
PROFILE = CostProfile("a device; a model", 2, {"chain": ((0, 1.1), (4, 1.5), (16, 2.1)), "both": ((0, 1.2), (8, 3.0))})
MEASURED = CostProfile("here", 1, {"chain": ((0, 1.0), (16, 2.0))})


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
    others = changed, CostProfile(PROFILE.name, 3, PROFILE.costs), CostProfile("another", 2, PROFILE.costs)
    assert len({PROFILE.digest, *(other.digest for other in others)}) == 4 and len(PROFILE.digest) == 10
    assert CostProfile.from_json(PROFILE.to_json()).digest == PROFILE.digest


def damaged():
    valid = PROFILE.to_json()
    yield from (None, [], "costs", 3, {}, {**valid, "more": 1}, {**valid, "digest": "0123456789"})
    yield from ({**valid, "name": name} for name in ("", 3, "x" * 1000, "two\nlines"))
    yield from ({**valid, "images": images} for images in (0, -1, True, 1.5, "2", 10**30))
    yield {**valid, "costs": {}}
    curves = [], [[0, 1.0]], [[4, 1.0], [8, 2.0]], [[0, 1.0], [8, 2.0], [4, 2.0]], [[0, 1.0], [8, float("nan")]]
    more = [[0, 1.0], [8, 10**400]], [[0, -1.0], [8, 2.0]], [[0, 1.0], [8, "2"]], [[0, 1.0], [8, 2.0, 3.0]], "ab", {}
    yield from ({**valid, "costs": {"chain": curve}} for curve in (*curves, *more, [[i, 1.0] for i in range(100)]))


@pytest.mark.parametrize("value", list(damaged()))
def test_a_damaged_profile_raises_an_error(value):
    with pytest.raises(AdtError, match="cost profile is damaged"):
        CostProfile.from_json(value)


@pytest.mark.parametrize("source", ["chain", "window", "both", "both chain"])
def test_built_in_costs_of_drafts_are_high_on_a_cpu_and_low_on_a_gpu(source):
    cpu = built_in("cpu", 1)
    cuda = built_in("cuda", 1)
    assert cuda.cost(source, 24) < 1.45 and cuda.cost(source, 64) < 2 and cpu.cost(source, 64) > 3
    assert built_in("cpu", 8).cost(source, 16) > 2 * cpu.cost(source, 16)
    assert built_in("an unknown device", 1) == cuda


def test_an_unknown_draft_mode_has_built_in_costs():
    """So a new drafter is used in its first image, before costs are measured."""
    profile = built_in("cpu", 1, [DraftMode("chain"), DraftMode("new")])
    assert profile.cost("new", 8) == profile.cost("both", 8)
    assert profile.cost("chain", 8) == built_in("cpu", 1).cost("chain", 8)


# ---- cache files ---------------------------------------------------------------------------------


def test_a_saved_profile_is_found_by_name_and_batch_size(cache):
    assert profiles.find(PROFILE.name, 2) is None
    profiles.save(PROFILE)
    assert profiles.find(PROFILE.name, 2) == PROFILE and len(list(cache.iterdir())) == 1
    assert profiles.find(PROFILE.name, 1) is None and profiles.find("another", 2) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 10**5, json.dumps(MEASURED.to_json()).encode()])
def test_damaged_and_foreign_files_are_ignored(cache, content):
    profiles.save(PROFILE)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert profiles.find(PROFILE.name, 2) is None
    profiles.save(PROFILE)
    assert profiles.find(PROFILE.name, 2) == PROFILE


def test_a_profile_that_cannot_be_written_is_kept_for_the_process(cache):
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
def test_the_cache_folder_is_the_systems_default_unless_set(system, variables, expected, monkeypatch):
    for name in ("ADT_TREE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", system)
    assert profiles.folder() == profiles.Path(expected).expanduser()


# ---- when they are measured again ----------------------------------------------------------------


def readings(factor: float):
    """Return twelve small rounds and twelve large ones, which take `factor` times as long as by the profile."""
    return [(1.0, 0.01)] * 12 + [(2.0, 0.02 * factor)] * 12


NO_DRAFTS = [(1.0, 0.01)] * 24


def results(readings, count):
    """Return whether the profile needs re-measuring after each of `count` decodings with these readings."""
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


def decode_and_measure(target, drafter, images=1, **options):
    decoding = run(target, drafter, ("a cat", "a dog", "fog")[:images], drafting=Drafting("auto"), **options)
    decoding.measure_costs()
    return decoding


def test_costs_measured_after_the_first_decoding_are_used_in_the_next(models, cache):
    target, drafter = models
    first = decode_and_measure(target, drafter)
    second = decode_and_measure(target, drafter)
    measured = second.profile
    assert first.profile == built_in("cpu", 1) and measured != first.profile
    assert list(measured.costs) == ["chain", "both chain", "both"] and measured.images == 1
    for curve in measured.costs.values():
        steps = [steps for _, steps in curve]
        assert curve[0][0] == 0 and steps == sorted(steps) and steps[0] > 0
    assert len(list(cache.iterdir())) == 1, "the second decoding measured again"


def test_costs_measured_on_a_busy_machine_are_corrected_by_later_decodings(models, cache):
    target, drafter = models
    correct = [decode_and_measure(target, drafter), decode_and_measure(target, drafter)][1].profile
    too_high = {source: tuple((size, steps + size) for size, steps in curve) for source, curve in correct.costs.items()}
    (path,) = cache.iterdir()
    path.unlink()
    profiles.save(CostProfile(correct.name, correct.images, too_high))
    slow, slower, corrected = (decode_and_measure(target, drafter) for _ in range(3))
    assert slow.profile.costs == slower.profile.costs == too_high and slow.trace.report()["tau"] == 1
    assert corrected.profile.costs != too_high


@pytest.mark.parametrize("other", ["images", "dtype", "drafter", "greedy", "guidance"])
def test_settings_that_change_costs_have_separate_profiles(models, cache, other):
    from adt_core import Sampling, load_drafter

    target, drafter = copy.deepcopy(models)
    decode_and_measure(target, drafter)
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
    assert decode_and_measure(target, drafter, images, **options).profile == built_in("cpu", images)


@pytest.mark.parametrize("why", ["another method", "a given profile"])
def test_costs_are_not_measured_if_they_are_not_used(models, cache, why):
    target, drafter = models
    drafting = Drafting("eagle2" if why == "another method" else "auto")
    given = PROFILE if why == "a given profile" else None
    decoding = run(target, drafter, drafting=drafting, profile=given)
    decoding.measure_costs()
    assert not cache.exists()


def test_a_reading_that_includes_a_capture_is_repeated(models, monkeypatch):
    target, drafter = models
    request = run(target, drafter, drafting=Drafting("auto")).request
    plain = measuring._TimedRounds(request, 1, drafts=False)
    rounds = []

    def captured_at_first(slots, *_):
        slots.graphs.attempts += not rounds
        rounds.append(slots)

    monkeypatch.setattr(measuring, "run_round", captured_at_first)
    plain.seconds(policies.NO_DRAFTS)
    assert len(rounds) == 2


@pytest.mark.parametrize("timed", [MEASURED_CHAINS, MEASURED_TREES], ids=["chains", "trees"])
def test_measured_sizes_include_the_largest_of_each_number_of_tiles(timed):
    """With guidance on a GPU, costs rise in steps at another tile of the batch-invariant mode."""
    tiles = {size: -(-2 * (size + 1) // TILE["cuda"]) for size in SIZES}
    fullest = [max(size for size in SIZES if tiles[size] == count) for count in set(tiles.values())]
    assert set(timed) >= {size for size in fullest if size <= timed[-1]}
    assert all(2 * (size + 1) % TILE["cuda"] == 0 for size in fullest)


def test_the_profile_name_includes_tiles_and_graphs(models, monkeypatch):
    target, drafter = copy.deepcopy(models)
    request = run(target, drafter, drafting=Drafting("auto")).request
    target.decoder.set_dtype(torch.bfloat16)
    assert f", tiles of {target.decoder.tile};" in measuring.profile_name(request)
    monkeypatch.setattr(type(request), "replayed", True)
    captured = measuring.profile_name(request)
    monkeypatch.setenv(graphs.VARIABLE, "0")
    assert measuring.profile_name(request) != captured


def test_a_warm_up_measures_costs(models, cache):
    job = Job(models[0], Recipe(drafting=Drafting("auto")), models[1])
    warm_up(new_decoding(job, ["a cat"]), count=1)
    assert decode(new_decoding(job, ["a cat"])).profile != built_in("cpu", 1)


def test_a_warm_up_that_decodes_the_complete_image_measures_once(models, cache, monkeypatch):
    """GPUs use such warm-ups. With two measurements a mismatch would count twice."""
    measure = mock.Mock()
    monkeypatch.setattr(Decoding, "measure_costs", measure)
    monkeypatch.setattr(Request, "replayed", True)
    warm_up(new_decoding(Job(models[0], Recipe(drafting=Drafting("auto")), models[1]), ["a cat"]))
    assert measure.call_count == 1


def test_an_interrupted_decoding_does_not_measure(models, cache):
    job = Job(models[0], Recipe(drafting=Drafting("auto")), models[1])
    with drawing(new_decoding(job, ["a cat"])) as running:
        next(running)
    assert not cache.exists()


def test_measuring_changes_neither_the_codes_nor_the_random_state(models, cache):
    target, drafter = models
    decoding = run(target, drafter, drafting=Drafting("auto"))
    codes = decoding.codes.clone()
    state = torch.get_rng_state()
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
def test_an_error_while_measuring_does_not_lose_the_image(models, cache, monkeypatch, error):
    monkeypatch.setattr(measuring, "run_round", mock.Mock(side_effect=error))
    assert decode_and_measure(*models).codes.min() >= 0 and not cache.exists()


@pytest.mark.parametrize(
    "message", ["a shape is wrong", "could not create a primitive descriptor for a matmul primitive"]
)
def test_an_unexpected_error_while_measuring_is_logged(models, cache, monkeypatch, caplog, message):
    monkeypatch.setattr(measuring, "run_round", mock.Mock(side_effect=RuntimeError(message)))
    assert decode_and_measure(*models).codes.min() >= 0 and not cache.exists()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and message in record.getMessage()


def test_measuring_is_not_retried_after_a_failure(models, cache, monkeypatch):
    failing = mock.Mock(side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory."))
    monkeypatch.setattr(measuring, "run_round", failing)
    decode_and_measure(*models)
    tries = failing.call_count
    decode_and_measure(*models)
    assert failing.call_count == tries > 0
    decode_and_measure(*models, images=2)
    assert failing.call_count > tries, "another batch size is measured"


@pytest.mark.parametrize("free, measured", [(2**10, False), (2**30, True)])
def test_pooled_slots_are_kept_if_gpu_memory_is_too_small_for_measuring(models, cache, monkeypatch, free, measured):
    """They are released only if measuring then fits into memory."""
    target, drafter = models
    decoding = run(target, drafter, ("a cat",), drafting=Drafting("auto"))
    released = mock.Mock()
    monkeypatch.setattr("adt_core.engine.device.memory.free_bytes", lambda device: free)
    monkeypatch.setattr(pool, "release", released)
    decoding.measure_costs()
    assert cache.exists() is measured and released.called is measured


def test_costs_are_not_measured_if_memory_is_too_small(models, cache, monkeypatch):
    """Memory is checked first, because some systems kill a process that exceeds it."""
    target, drafter = models
    decoding = run(target, drafter, ("a cat",), drafting=Drafting("auto"))
    weights = sum(part.numel() * part.element_size() for part in target.decoder.parameters())
    total = (weights + decoding.memory_required()) / MEMORY_SHARE  # enough for the image
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    monkeypatch.setattr(measuring, "run_round", mock.Mock(side_effect=AssertionError("costs were measured")))
    decoding.measure_costs()
    assert not cache.exists()


def test_the_profile_name_does_not_identify_the_machine(models):
    import platform

    target, drafter = models
    decoding = decode_and_measure(target, drafter)
    name = decode_and_measure(target, drafter).profile.name
    assert "float64" in name and torch.__version__ in name and platform.node() not in name and decoding.codes.min() >= 0
    assert measuring.MAX_READINGS >= 3
