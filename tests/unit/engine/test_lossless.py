"""Tests of lossless decoding.

With any drafter and batch, each image must equal the image of plain decoding with a batch size of 1. The tests run a
matrix of settings that contains every pair of values of two axes (pairwise testing).
"""

from functools import cache

import pytest
import torch

from adt_core import Drafting, Lantern, Sampling, load_drafter
from adt_core.engine import graphs, pool
from adt_core.engine.request import Request
from adt_core.lab.benchmark import drafters_by_name
from adt_core.policies import PLAIN
from adt_core.rules.verify import longest_path
from adt_core.runtime import get_runtime
from tests.drafted import costs, run
from tests.layouts.families import DEVICE, WRITERS, load_small, write_both
from tests.pairwise import all_pairs, each_once, pairwise
from tests.tape import Tape

AXES = {
    "method": {
        "eagle2": dict(method="eagle2", depth=4, width=3, drafts=12),
        "one draft": dict(method="eagle2", depth=1, width=1, drafts=1),
        "chain": dict(method="eagle2", depth=16, width=1, drafts=16),
        "deep": dict(method="eagle2", depth=12, width=3, drafts=16),
        "wide": dict(method="eagle2", depth=2, width=40, drafts=60),
        "pruned": dict(method="eagle2", expand_above=0.2, keep_above=0.05),
        "adt-tree": dict(method="adt-tree"),
        "adt-tree, vertical": dict(method="adt-tree", init="vertical", wrap="reset"),
        "adt-tree, random": dict(method="adt-tree", init="random", drafts=30, width_max=10),
        "predicted": dict(method="predicted", depth_max=8, width_max=5, drafts=16),
        "static, 57": dict(method="static:naive_extend_57"),
        "static, 63": dict(method="static:mc_sim_7b_63"),
        "auto": dict(method="auto"),
        "plain": dict(method=PLAIN),
    },
    "numbers": {
        "float64": dict(dtype=torch.float64),
        "bfloat16": dict(dtype=torch.bfloat16),
        "float16": dict(dtype=torch.float16),
        "int8, float64": dict(dtype=torch.float64, weights="int8"),
        "int8, bfloat16": dict(dtype=torch.bfloat16, weights="int8"),
        "fp8, float16": dict(dtype=torch.float16, weights="fp8"),
        "int4, float64": dict(dtype=torch.float64, weights="int4"),
        "int4, bfloat16": dict(dtype=torch.bfloat16, weights="int4"),
    },
    "family": WRITERS,
    "prompts": {"": ("a cat", "a dog", "a fox"), "of any length": ("a cat", "three small dogs", "fog")},
    "drafter": dict.fromkeys(("network", "jacobi", "network+jacobi")),
    "kept": {
        "nothing": 0,
        "one": 1,
        "adt-tree": 9,
        "other": 11,
        "all but one": -1,
        "own, holes": (7, 2),
        "other, holes": (9, 5),
    },
    "guidance": {"strong": 9.0, "unguided": 1.0, "away": 0.0},
    "temperature": {"sampled": 1.0, "greedy": 0.0, "hot": 1.3},
    "filter": {"unfiltered": {}, "top-k": dict(top_k=5), "top-p": dict(top_p=0.8)},
    "at once": {"all at once": None, "two at once": 2, "one at once": 1},
    "proposal": dict.fromkeys(("coupled", "top-k drafts")),
    "negative": {"": None, "negative": "snow"},
    "lantern": {"": None, "lantern": Lantern(10, 0.0)},
    "launch": dict.fromkeys(("launched", "replayed")),
}
"""Axis -> name of a value -> value. Lumina-mGPT 2.0 has a different guidance for every token if guidance is above 4.
float32 is tested with tolerances in tests/property, because rounding may change the order of near ties."""
NAMES = {axis: list(values) for axis, values in AXES.items()}
HALF = [name for name in NAMES["numbers"] if "float16" in name]


def is_possible(one, other):
    """Return whether two values can be combined. Each argument is an axis and the name of a value."""
    row = dict((one, other))
    if row.get("method", "").startswith("static"):
        return row.get("drafter") in (None, "network")
    return True


EXCLUDED = [pair for pair in all_pairs(NAMES) if not is_possible(*pair)]
ROWS = pairwise(NAMES, EXCLUDED)
QUICK = each_once([row for row in ROWS if row["family"] != "liquid" or row["numbers"] == "float64"])
"""Rows of the default tier (tests that run without ``--all``). Together they contain every value of every axis. Liquid
has few rows, because it is slow with its large vocabulary."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that loads a target of a family in a precision, with a dict of its drafters."""
    written = cache(lambda family: write_both(family, tmp_path_factory.mktemp(family)))

    @cache
    def load(family, numbers):
        path, network = written(family)
        target = load_small(family, path, **AXES["numbers"][numbers])
        return target, drafters_by_name(load_drafter(network, target))

    return load


@pytest.fixture
def launched(runtime, monkeypatch):
    """Return a function that selects whether rounds have fixed sizes, and the recorder of rounds (on a GPU, CUDA)."""

    def choose(fixed, recorder):
        if DEVICE == "cuda":
            return monkeypatch.setenv(graphs.VARIABLE, "1" if recorder else "0")
        monkeypatch.setattr(Request, "replayed", fixed)
        monkeypatch.setattr("adt_core.engine.queue.make_recorder", lambda device: recorder)

    return choose


def decode_separately(target, prompts, prefix, negative, **how):
    """Return the codes [3, T] of three images, from plain decoding with a batch size of 1."""
    negatives = negative and [target.encode_prompt(negative)]
    images = [
        run(target, None, (prompt,), kept=prefix[i : i + 1], negatives=negatives, image_indices=[i], **how).codes
        for i, prompt in enumerate(prompts)
    ]
    return torch.cat(images)


def prefix_of(target, kept, codes):
    """Return the codes to keep [3, P]: cells of these images, or random codes if `kept` begins with "other".

    They are the first cells or, for "holes", some cells of every group of cells, shifted from image to image.
    """
    cells = torch.cat([target.small(codes).flatten(1), target.cells(codes).flatten(1)], 1)
    count = AXES["kept"][kept]
    if isinstance(count, tuple):
        group, few = count
        numbers = torch.arange(cells.shape[1]) + torch.arange(3)[:, None]
        given = numbers % group < few
    else:
        cells = cells[:, :count]
        given = torch.ones_like(cells, dtype=torch.bool)
    other = torch.randint(target.num_codes, cells.shape, generator=torch.Generator().manual_seed(3))
    return torch.where(given, other if kept.startswith("other") else cells, -1)


def captures(target, tape):
    """Return the number of rounds that CUDA, or the recorder for the CPU (`tape`), has captured."""
    if DEVICE == "cuda":
        return sum(slots.graphs.attempts for slots in pool.pooled(target.decoder))
    return tape.captured if tape else 0


def decode_row(row, loaded, launched):
    """Decode a row of the matrix. Return the expected codes [3, T], and the decoding."""
    value = {axis: AXES[axis][name] for axis, name in row.items()}
    target, drafters = loaded(row["family"], row["numbers"])
    sampling = Sampling(3, value["temperature"], guidance_scale=value["guidance"], **value["filter"])
    replayed = row["launch"] == "replayed"
    prompts = value["prompts"]
    negative = value["negative"]
    launched(replayed and row["numbers"] in HALF, None)
    expected = decode_separately(target, prompts, torch.zeros(3, 0, dtype=torch.long), negative, sampling=sampling)
    prefix = prefix_of(target, row["kept"], expected)
    if row["kept"].startswith("other"):
        expected = decode_separately(target, prompts, prefix, negative, sampling=sampling)
    proposal = {"proposal": "top-k"} if row["proposal"] == "top-k drafts" and row["method"] != "plain" else {}
    tape = Tape() if replayed else None
    launched(replayed, tape)
    drafted = run(
        target,
        drafters[row["drafter"]],
        prompts,
        sampling=sampling,
        drafting=Drafting(**value["method"], **proposal),
        kept=prefix,
        batch_size=value["at once"],
        negatives=negative and [target.encode_prompt(negative)] * 3,
        lantern=value["lantern"],
        image_indices=range(3),
        profile=costs("chain", "window", "merged") if row["method"] == "auto" else None,
    )
    captured = captures(target, tape)
    target.decoder.free_pool()
    assert not get_runtime().graph_failures and (not replayed or row["kept"] == "all but one" or captured)
    return expected, drafted


def name_of(row: dict[str, str]) -> str:
    return "-".join(filter(None, row.values()))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=name_of(row), marks=[] if row in QUICK else pytest.mark.long) for row in ROWS]
)
def test_an_image_equals_plain_decoding_with_a_batch_size_of_1(row, loaded, launched):
    expected, drafted = decode_row(row, loaded, launched)
    assert drafted.codes.equal(expected)
    has_drafts = row["method"] != "plain" and row["kept"] != "all but one"
    assert bool(drafted.trace.report()["verified_drafts"]) is has_drafts
    assert drafted.trace.report()["substitution_rate"] == 0


@pytest.mark.parametrize("row", ROWS[:3], ids=lambda row: row["method"])
def test_a_verifier_that_accepts_all_drafts_is_detected(row, loaded, launched, monkeypatch):
    def careless(tree, agrees, emitted):
        return longest_path(tree, tree.valid, emitted)

    monkeypatch.setattr("adt_core.engine.round.longest_path", careless)
    expected, drafted = decode_row(row, loaded, launched)
    assert not drafted.codes.equal(expected)


def test_every_pair_of_values_occurs():
    occurring = {pair for row in ROWS for pair in all_pairs({axis: [value] for axis, value in row.items()})}
    assert occurring == set(all_pairs(NAMES)) - set(EXCLUDED)
    assert len(ROWS) < 120, "too many rows for pairwise coverage"


def test_the_quick_rows_have_every_value():
    assert {choice for row in QUICK for choice in row.items()} == {(axis, n) for axis in NAMES for n in NAMES[axis]}
    assert len(QUICK) < 20
