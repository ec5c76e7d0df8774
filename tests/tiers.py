"""pytest plugin: the two tiers of the suite, the processor time of a test, and the count of what did not run.

* Default tier: every test that is marked neither ``long`` nor ``alone``. Each may take ``LIMIT`` seconds of processor
  time, so that the tier stays short enough to run before every commit.
* ``--all``: every test, and hypothesis at full size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

LIMIT = 3.0
"""Seconds of processor time that a test of the default tier may take: set-up and call, with all child processes.

Wall-clock time would depend on what else the machine does.
"""
TOO_LONG = "s of processor time"
"""A failure with these words is tried once more: on a shared machine, processor time varies by half."""
EXAMPLES = {"default": 10, "all": 60}
"""Examples of each hypothesis property, by tier."""
OTHERS = "long tests not run: python3 dev.py test --all"
WITH_CHILDREN = ("workflow", "browser")
"""Folders whose tests use processes that outlive the test: a server, a browser."""

SPENT = pytest.StashKey[float]()
LEFT_OUT = pytest.StashKey[int]()
METER = pytest.StashKey["Meter"]()


class Meter:
    """Processor time of this process and its descendants, without what shared servers need to start."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._uncounted = 0.0

    def seconds(self, children: bool) -> float:
        """Return the seconds used so far. Children that have ended always count.

        Args:
            children: Whether to look for children that still run, which takes a few milliseconds.
        """
        running = self._process.children(recursive=True) if children else []
        return sum(map(_total, [self._process, *running])) - self._uncounted

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave out what happens inside: the start of a server that many tests share."""
        before = self.seconds(True)
        yield
        self._uncounted += self.seconds(True) - before


def _total(process: psutil.Process) -> float:
    """Return user and system seconds of a process, with its finished children if the platform counts them."""
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
    """Set the number of examples that hypothesis tries, by tier."""
    settings.load_profile("all" if config.getoption("--all") else "default")


def is_long(item: pytest.Item) -> bool:
    """Return whether a test runs with ``--all`` only. Timed tests do, because nothing may run beside them."""
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
    """Return the group of a test: tests of one group run in one process, because they share a server or a browser.

    All smoke tests share one server; with ``--all`` each version of ComfyUI and of its page has its own group.
    """
    folder = Path(nodeid.split("::")[0]).parent.name
    version = re.search(r"\[.*?(\d+\.\d+\.\d+)", nodeid)
    if folder not in WITH_CHILDREN or version is None or "test_inside.py" in nodeid:
        return nodeid
    return f"{folder} {version[1]}" if everything else "smoke"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Distribute tests by :func:`group_of`. The groups of pytest-xdist 3.8 do not work with pytest 9.2."""
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
    """Fail a test of the default tier that takes too much processor time."""
    with _metered(item):
        result = yield
    spent = item.stash[SPENT]
    limit = item.config.getoption("--limit")
    limited = not item.config.getoption("--all") and not item.get_closest_marker("runner")
    if spent > limit and limited:
        pytest.fail(
            f"The test took {spent:.1f} {TOO_LONG}; the default tier allows {limit:g} s. Make it smaller, or mark it "
            "'long', so that it runs with 'dev.py test --all' only.",
            pytrace=False,
        )
    return result


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
    """Note the processor time in the report, which pytest-xdist sends to the controlling process."""
    report = yield
    if report.when == "call":
        report.user_properties.append((TOO_LONG, item.stash[SPENT]))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the number of tests that this worker left out to the controlling process of pytest-xdist."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """Store how many tests a worker left out; all workers collect the same tests, so their counts agree."""
    stash = node.config.stash
    stash[LEFT_OUT] = max(stash[LEFT_OUT], getattr(node, "workeroutput", {}).get("left_out", 0))


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    """List the ten tests that took most processor time, and write the counts."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    spent = [(dict(getattr(report, "user_properties", ())).get(TOO_LONG), report) for report in reports]
    spent = sorted(((seconds, report.nodeid) for seconds, report in spent if seconds is not None), reverse=True)
    terminalreporter.section("most processor time")
    for seconds, name in spent[:10]:
        terminalreporter.write_line(f"{seconds:6.2f} s {name}")
    if file := config.getoption("--counts"):
        file.write_text(json.dumps(_counts(terminalreporter.stats, config.stash[LEFT_OUT])), encoding="utf-8")


def _counts(stats: dict[str, list], left_out: int) -> dict[str, int]:
    """Return how many tests ``passed`` and ``failed``, and for each reason how many did not run."""
    reasons: Counter[str] = Counter()
    for report in stats.get("skipped", ()):
        folder = Path(report.nodeid.split("::")[0]).parent.name
        reasons[f"{folder} tests not run: {report.longrepr[2].removeprefix('Skipped: ')}"] += 1
    if left_out:
        reasons[OTHERS] = left_out
    failed = len(stats.get("failed", ())) + len(stats.get("error", ()))
    return {"passed": len(stats.get("passed", ())), "failed": failed, **reasons}
