"""pytest plugin for the two tiers of the test suite.

* Default tier: every test that is marked neither ``long`` nor ``alone``. A test may use ``LIMIT`` seconds of processor
  time, and more on a machine that is slower than the reference. The summary lists tests above this limit as a warning,
  because a slow machine is no fault of the code. With ``STRICT``, they fail. The tier therefore stays short enough to
  run before every commit.
* ``--all``: every test, with more examples for each hypothesis test.

The plugin measures the processor time of each test, and counts the tests that did not run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

LIMIT = 3.0
"""Maximum processor time of a test of the default tier, in seconds: set-up and call, with all child processes.

Processor time is measured because wall-clock time depends on other processes of the machine.
"""
STRICT = "ADT_TREE_STRICT_LIMIT"
"""Environment variable that lets a test above the limit fail. CI sets it, where the speed of the machine is known."""
CALIBRATION_STEPS = 100_000
REFERENCE_SECONDS = 0.004
"""Steps of the work that measures the speed of the machine, and their processor time on the reference machine (one core
of an AMD EPYC, Python 3.11)."""
TOO_LONG = "s of processor time"
"""Words in the error of a test that exceeds the limit. Such a test runs once more, because processor time varies by
half on a shared machine."""
ALLOWED = "s allowed on this machine"
"""Name of the limit of a slow test, in seconds, among the properties of its report."""
SLOW = "slower than the limit (WARNING above)"
EXAMPLES = {"default": 10, "all": 60}  # number of examples of each hypothesis test, by tier
OTHERS = "long tests not run: python3 dev.py test --all"
WITH_CHILDREN = ("workflow", "browser")
"""Folders whose tests use a process that continues after the test: a server or a browser."""

SPENT = pytest.StashKey[float]()
LEFT_OUT = pytest.StashKey[int]()
METER = pytest.StashKey["Meter"]()


class Meter:
    """Meter for the processor time of this process and its descendants, without the start of shared servers."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._uncounted = 0.0

    def seconds(self, children: bool) -> float:
        """Return the processor time until now, in seconds. It includes child processes that have ended.

        Args:
            children: Whether to include child processes that still run. To find them takes a few milliseconds.
        """
        running = self._process.children(recursive=True) if children else []
        return sum(map(_total, [self._process, *running])) - self._uncounted

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Don't count the processor time inside this context, for example the start of a server for many tests."""
        before = self.seconds(True)
        yield
        self._uncounted += self.seconds(True) - before


def _total(process: psutil.Process) -> float:
    """Return user and system time of a process in seconds, with ended child processes if the platform counts them."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.Error:
        return 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ADT-Tree")
    group.addoption("--all", action="store_true", help="also run the long tests, and hypothesis at full size")
    group.addoption("--limit", type=float, default=LIMIT, metavar="SECONDS", help="processor time of each other test")
    group.addoption("--counts", type=Path, metavar="FILE", help="write how many tests passed and did not run, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[METER] = Meter()
    if not config.getoption("--reruns"):
        config.option.reruns = 1
        config.option.only_rerun = [TOO_LONG]
    config.stash[LEFT_OUT] = 0
    for name, examples in EXAMPLES.items():
        settings.register_profile(name, max_examples=examples, deadline=None)
    load_profile(config)


def load_profile(config: pytest.Config) -> None:
    """Set the number of examples of hypothesis tests for the tier that runs."""
    settings.load_profile("all" if config.getoption("--all") else "default")


def is_long(item: pytest.Item) -> bool:
    """Return whether a test runs only with ``--all``.

    These are the tests marked "long", and the tests marked "alone". The latter measure time, so no other test may run
    at the same time.
    """
    return any(map(item.get_closest_marker, ("long", "alone")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    left_out = list(filter(is_long, items))
    items[:] = [item for item in items if not is_long(item)]
    config.stash[LEFT_OUT] = len(left_out)
    config.hook.pytest_deselected(items=left_out)


def group_of(nodeid: str, everything: bool) -> str:
    """Return the name of a test's group. The tests of a group run in one process, to share a server or a browser.

    In the default tier, all tests with a server are in one group. With ``--all``, each version of ComfyUI and of its
    frontend has a separate group.
    """
    folder = Path(nodeid.split("::")[0]).parent.name
    version = re.search(r"\[.*?(\d+\.\d+\.\d+)", nodeid)
    if folder not in WITH_CHILDREN or version is None or "test_inside.py" in nodeid:
        return nodeid
    return f"{folder} {version[1]}" if everything else "smoke"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Return a scheduler that distributes tests by :func:`group_of`.

    The built-in groups of pytest-xdist 3.8 do not work with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid, config.getoption("--all"))

    return ByGroup(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
    item.stash[SPENT] = 0.0
    with _metered(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item):
    """Compare the processor time of a test of the default tier with the limit."""
    with _metered(item):
        result = yield
    spent = item.stash[SPENT]
    limit = item.config.getoption("--limit")
    limited = not item.config.getoption("--all") and not item.get_closest_marker("runner")
    if spent <= limit or not limited or spent <= (allowed := limit * slowness()):
        return result
    item.user_properties.append((ALLOWED, allowed))
    if os.environ.get(STRICT):
        pytest.fail(
            f"The test took {spent:.1f} {TOO_LONG}; the default tier allows {allowed:.2g} s on this machine. Make it "
            "smaller, or mark it 'long', so that it runs with 'dev.py test --all' only.",
            pytrace=False,
        )
    return result


def slowness() -> float:
    """Return how many times slower this machine is now than the reference; 1 if it is faster."""
    return max(min(_calibration() for _ in range(5)) / REFERENCE_SECONDS, 1.0)


def _calibration() -> float:
    """Return the processor time of a fixed amount of work, in seconds."""
    began = time.process_time()
    number = 1
    for step in range(CALIBRATION_STEPS):
        number = (31 * number + step) % 1_000_003
    return time.process_time() - began


@contextmanager
def _metered(item: pytest.Item) -> Iterator[None]:
    """Add the processor time of the enclosed phase to the test's total."""
    meter = item.config.stash[METER]
    children = item.path.parent.name in WITH_CHILDREN
    before = meter.seconds(children)
    try:
        yield
    finally:
        item.stash[SPENT] += meter.seconds(children) - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Write the processor time into the test report. pytest-xdist sends reports to the controlling process."""
    report = yield
    if report.when == "call":
        report.user_properties.append((TOO_LONG, item.stash[SPENT]))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the number of left out tests from this worker to the controlling process of pytest-xdist."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """Store the number of tests that a worker left out. It is equal in all workers: all collect the same tests."""
    stash = node.config.stash
    stash[LEFT_OUT] = max(stash[LEFT_OUT], getattr(node, "workeroutput", {}).get("left_out", 0))


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    """Print the ten tests with the highest processor time and those above the limit, and write the counts."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    notes = [(dict(getattr(report, "user_properties", ())), report.nodeid) for report in reports]
    spent = sorted(((its[TOO_LONG], name) for its, name in notes if TOO_LONG in its), reverse=True)
    terminalreporter.section("most processor time")
    for seconds, name in spent[:10]:
        terminalreporter.write_line(f"{seconds:6.2f} s {name}")
    slow = {name: its for its, name in notes if ALLOWED in its}
    for name, its in slow.items():
        terminalreporter.write_line(
            f"WARNING: {name} took {its[TOO_LONG]:.1f} {TOO_LONG}; {its[ALLOWED]:.2g} {ALLOWED}."
        )
    if file := config.getoption("--counts"):
        counts = _counts(terminalreporter.stats, config.stash[LEFT_OUT], len(slow))
        file.write_text(json.dumps(counts), encoding="utf-8")


def _counts(stats: dict[str, list], left_out: int, slow: int) -> dict[str, int]:
    """Return the number of tests that ``passed`` and ``failed``, that are slow, and that did not run by reason."""
    reasons: Counter[str] = Counter()
    for report in stats.get("skipped", ()):
        folder = Path(report.nodeid.split("::")[0]).parent.name
        reasons[f"{folder} tests not run: {report.longrepr[2].removeprefix('Skipped: ')}"] += 1
    if left_out:
        reasons[OTHERS] = left_out
    if slow:
        reasons[SLOW] = slow
    failed = len(stats.get("failed", ())) + len(stats.get("error", ()))
    return {"passed": len(stats.get("passed", ())), "failed": failed, **reasons}
