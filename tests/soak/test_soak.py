"""Tests of the soak test. A short run must pass, and it must be possible for each check to fail."""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from .engine import Engine
from .loop import Outcome, Reading, Report, soak
from .mix import KINDS
from .models import write_models

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resources are read from /proc")
SEED = 282  # seed with which 12 requests include all kinds and outcomes, and use only small models
RUNS = 12


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soak")
    write_models(folder)
    return Engine(folder)


@pytest.mark.long
def test_short_soak_passes(engine):
    report = soak(engine, RUNS, warm_up=4, seed=SEED)
    assert report.runs == RUNS
    assert report.kinds.keys() == KINDS.keys()
    assert report.outcomes.keys() == {"finished", "cancelled", "refused"}
    assert not report.unexpected
    assert not report.complaints
    assert report.compared
    assert report.identical == report.compared
    first, last = report.readings
    assert (first.runs, last.runs) == (4, RUNS)
    assert last.files == first.files


class Stub:
    """Player whose runs all have the same outcome."""

    pid = os.getpid()
    dtypes = ("float64",)
    mistakes = {"no text": "prompt"}

    def __init__(self, **outcome):
        self._outcome = Outcome(**outcome)

    def play(self, request):
        return self._outcome

    def rest(self):
        pass

    def errors(self):
        return []


def test_different_images_are_reported(engine):
    class Wrong(Stub):
        target = engine.target

        def play(self, request):
            target = self.target(request)
            return Outcome("finished", codes=torch.zeros(len(request.texts), target.length, dtype=torch.long))

    report = soak(Wrong(kind="finished"), 4, warm_up=1, seed=SEED)
    assert any("differ from plain decoding" in sentence for sentence in report.failures())


def test_unexpected_outcomes_are_reported():
    refused = soak(Stub(kind="refused", message="prompt is empty"), 40, warm_up=40)
    assert 0 < refused.kinds["mistake"] == 40 - len(refused.unexpected)
    other_reason = soak(Stub(kind="refused", message="Oops"), 40, warm_up=40)
    assert len(other_reason.unexpected) == 40, "also mistakes that are refused for another reason"
    finished = soak(Stub(kind="finished"), 40, warm_up=40)
    assert len(finished.unexpected) == finished.kinds["mistake"]


def test_growth_is_reported():
    before = Reading(100, 500.0, 4, 9)
    after = Reading(1000, 511.0, 5, 12)
    assert not Report(readings=[before, before._replace(runs=1000, resident=509.0)]).failures()
    assert Report(readings=[before, after]).failures() == [
        "Resident memory grew from 500.0 to 511.0 MiB.",
        "There were 4 threads after the warm-up and 5 at the end.",
        "There were 9 files after the warm-up and 12 at the end.",
    ]


def test_near_ties_are_permitted_in_float32_only():
    readings = [Reading(1, 500.0, 4, 9)]

    def counts(n):
        return Counter({"float32": n, "float64": 100})

    assert not Report(readings=readings, compared=counts(100), identical=counts(99)).failures()
    assert len(Report(readings=readings, compared=counts(100), identical=counts(98)).failures()) == 1
    assert len(Report(readings=readings, compared=Counter(float64=1)).failures()) == 1
