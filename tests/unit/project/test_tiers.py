"""Tests of the two test tiers, of the limit on a test's processor time, and of the counts of tests.

The calibration is replaced, so that the tests do not depend on the speed of the machine.

The default tier runs without ``--all``. It leaves out tests that are marked ``long`` or ``alone``.
"""

import json

import pytest

from tests import tiers

pytest_plugins = ["pytester"]
SUITE = """
import time
import pytest

slow = []

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_quick():
    pass

@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.long
def test_long(number):
    burn(0.2)

@pytest.mark.alone
def test_timed():
    pass

def test_slow():
    burn(0.2)

def test_slow_once():
    slow.append(1)
    burn(0.2 if len(slow) == 1 else 0)

@pytest.mark.runner
def test_that_runs_others():
    burn(0.2)

@pytest.mark.skip(reason="no Chromium (apt install chromium)")
def test_page():
    pass
"""
PASSING = ["-k", "not test_slow"]


@pytest.fixture
def suite(pytester, pytestconfig, monkeypatch):
    """Return a function that runs a small test suite with these options. It returns pytest's result and the counts."""
    pytester.makeini("[pytest]\nmarkers =\n  long\n  alone\n  smoke\n  runner")
    folder = pytester.mkdir("browser")
    (folder / "test_suite.py").write_text(SUITE, encoding="utf-8")

    def run(*options: str):
        # The inner suite runs in this process. It needs no xdist and no timeout: the outer test has a timeout.
        plugins = ["-p", "tests.tiers", "-p", "no:xdist", "-p", "no:timeout", "-p", "no:cacheprovider"]
        result = pytester.runpytest_inprocess(*plugins, "--limit=0.15", "--counts=counts.json", *options)
        return result, json.loads((pytester.path / "counts.json").read_text(encoding="utf-8"))

    monkeypatch.delenv(tiers.STRICT, raising=False)
    monkeypatch.setattr(tiers, "slowness", lambda: 1.0)
    yield run
    tiers.load_profile(pytestconfig)  # the inner suite has loaded another profile


def test_tests_above_the_limit_are_a_warning(suite):
    result, counts = suite()
    assert result.parseoutcomes() == {"passed": 4, "skipped": 1, "deselected": 4}
    result.stdout.re_match_lines(
        [rf"WARNING: .*::test_slow{name} took 0\.2 s of processor time; 0\.15 s allowed.*" for name in ("", "_once")]
    )
    assert (counts["passed"], counts["failed"], counts[tiers.SLOW]) == (4, 0, 2)


def test_the_limit_is_higher_on_a_slow_machine(suite, monkeypatch):
    monkeypatch.setattr(tiers, "slowness", lambda: 2.0)
    result, counts = suite()
    assert result.ret == 0 and counts["passed"] == 4 and tiers.SLOW not in counts


def test_in_ci_a_test_fails_if_it_exceeds_the_limit_twice(suite, monkeypatch):
    monkeypatch.setenv(tiers.STRICT, "1")
    result, counts = suite()
    assert result.parseoutcomes() == {"passed": 3, "failed": 1, "skipped": 1, "deselected": 4, "rerun": 2}
    result.stdout.fnmatch_lines(["The test took 0.2 s of processor time; the default tier allows 0.15 s on this*"])
    assert (counts["passed"], counts["failed"]) == (3, 1)


@pytest.mark.parametrize("factor, expected", [(0.5, 1.0), (1.0, 1.0), (3.0, 3.0)])
def test_the_calibration_compares_with_the_reference_machine(monkeypatch, factor, expected):
    times = iter([9.0, factor * tiers.REFERENCE_SECONDS, 9.0, 9.0, 9.0])
    monkeypatch.setattr(tiers, "_calibration", lambda: next(times))
    assert tiers.slowness() == pytest.approx(expected)


def test_the_counts_include_tests_that_did_not_run_and_the_reason(suite):
    result, counts = suite(*PASSING)
    assert result.ret == 0
    skipped = "browser tests not run: no Chromium (apt install chromium)"
    assert counts == {"passed": 2, "failed": 0, skipped: 1, tiers.OTHERS: 4}


def test_all_tests_run_without_a_limit(suite):
    result, counts = suite("--all")
    result.assert_outcomes(passed=8, skipped=1)
    assert counts["passed"] == 8 and tiers.OTHERS not in counts


GROUPS = {
    "tests/workflow/test_run.py::test_people_can_watch[comfyui-0.30.0]": ("smoke", "workflow 0.30.0"),
    "tests/workflow/test_run.py::test_people_can_watch[comfyui-0.16.3]": ("smoke", "workflow 0.16.3"),
    "tests/browser/test_map.py::test_cancel[frontend-1.58.1-nodes2]": ("smoke", "browser 1.58.1"),
    "tests/browser/test_map.py::test_cancel[frontend-of-0.30.0-canvas]": ("smoke", "browser 0.30.0"),
}


@pytest.mark.parametrize("nodeid", GROUPS)
def test_tests_that_share_a_server_run_in_one_process(nodeid):
    assert (tiers.group_of(nodeid, False), tiers.group_of(nodeid, True)) == GROUPS[nodeid]


@pytest.mark.parametrize(
    "nodeid",
    [
        "tests/workflow/test_inside.py::test_inside_comfyui_s_process[comfyui-0.30.0]",
        "tests/workflow/test_workflows.py::test_titles_are_understood_alone",
        "tests/unit/models/test_models.py::test_version[0.30.0]",
    ],
)
def test_other_tests_run_in_any_process(nodeid):
    assert tiers.group_of(nodeid, False) == tiers.group_of(nodeid, True) == nodeid


def test_the_slowest_are_listed(suite):
    result, _ = suite(*PASSING)
    result.stdout.re_match_lines([r".*most processor time", r" +0\.\d\d s browser/test_suite\.py::test_\w+"])
