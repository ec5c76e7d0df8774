"""The soak test itself, a short one: it finds nothing where all is well, and what is wrong where something is."""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from .engine import Engine
from .loop import Played, Reading, Report, soak
from .mix import KINDS
from .models import write_models

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone tells what a process holds")
SEED, RUNS = 13, 12
"""A mix of all kinds and of the small models, without `auto`, whose costs would be measured."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soak")
    write_models(folder)
    return Engine(folder)


@pytest.mark.long
def test_a_short_soak_ends_well(engine):
    report = soak(engine, RUNS, warm_up=4, seed=SEED)
    assert report.runs == RUNS and report.kinds.keys() == KINDS.keys()
    assert report.outcomes.keys() == {"finished", "cancelled", "refused"}
    assert not report.unexpected and not report.complaints
    assert report.compared and report.identical == report.compared
    first, last = report.readings
    assert (first.runs, last.runs) == (4, RUNS) and last.files == first.files


class Stub:
    """A player that draws nothing; each of its runs ends as ``ends`` says."""

    pid, dtypes, mistakes = os.getpid(), ("float64",), {"no text": "prompt"}

    def __init__(self, **ends):
        self._end = Played(**ends)

    def play(self, request):
        return self._end

    def rest(self):
        pass

    def complaints(self):
        return []


def test_an_image_that_is_not_plain_decodings_is_found(engine):
    class Wrong(Stub):
        target = engine.target

        def play(self, request):
            target = self.target(request)
            return Played("finished", codes=torch.zeros(len(request.texts), target.length, dtype=torch.long))

    report = soak(Wrong(outcome="finished"), 4, warm_up=1, seed=SEED)
    assert any("not those of plain decoding" in sentence for sentence in report.judge())


def test_a_run_that_ends_otherwise_than_it_may_is_found():
    mistakes, others = (
        soak(Stub(outcome="refused", said=said), 40, warm_up=40) for said in ("prompt is empty", "Oops")
    )
    assert 0 < mistakes.kinds["mistake"] == 40 - len(mistakes.unexpected)
    assert len(others.unexpected) == 40, "and so is a mistake that is refused for another reason"
    finished = soak(Stub(outcome="finished"), 40, warm_up=40)
    assert len(finished.unexpected) == finished.kinds["mistake"]


def test_what_grows_is_found():
    before, after = Reading(100, 500.0, 4, 9), Reading(1000, 511.0, 5, 12)
    assert not Report(readings=[before, before._replace(runs=1000, resident=509.0)]).judge()
    assert Report(readings=[before, after]).judge() == [
        "Resident memory grew from 500.0 to 511.0 MiB.",
        "There were 4 threads, and in the end 5.",
        "There were 9 files, and in the end 12.",
    ]


def test_near_ties_part_few_images_in_float32_and_none_in_float64():
    readings, counts = [Reading(1, 500.0, 4, 9)], lambda n: Counter({"float32": n, "float64": 100})
    assert not Report(readings=readings, compared=counts(100), identical=counts(99)).judge()
    assert len(Report(readings=readings, compared=counts(100), identical=counts(98)).judge()) == 1
    assert len(Report(readings=readings, compared=Counter(float64=1)).judge()) == 1
