# SPDX-License-Identifier: Apache-2.0
"""The rules of the tiers, in one place.

A test's tier is the directory it lies in: tests/unit, tests/node, tests/vm, tests/k8s. The tier is also a pytest
marker, so ``-m node`` works. What a host cannot do is a skip that says why. What wants a GPU is no test but a
program that judges (benchmarks/gpu, docs/gpu-validation.md).

A skip can also hide a broken set-up. FAIRSCHED_REQUIRE_NODE=1 (continuous integration sets it) therefore
turns a skipped node test into a failure, and FAIRSCHED_REQUIRE_K8S=1 (``make test-k8s`` sets it) one of tests/k8s,
unless its reason begins with ``host:``. That word is a claim about the machine that no set-up could change (``host: no
kprobes in this kernel``), never about a missing package or a missing mount. Nor does a reason that begins with
``extra:`` fail: what the usual set-up leaves out on purpose, because it is large or takes long, and installs or plays
when it is asked to (``make setup-numba``).

A node test is played by some ten processes on a clock that is real, and a machine that others use as well can spoil
any one of hundreds. So one that fails is played once more and the summary names it (RERUN, with what failed). A test
that fails twice has failed; so has a run in which more than SECOND_CHANCES needed that, for then it is not the machine.
FAIRSCHED_SECOND_CHANCE=0 gives none.

Some node tests measure time: marked ``alone``, they have the machine for themselves. The others are played two files
at a time (``scripts/test``). The longest are marked ``rest``: FAIRSCHED_REST=none leaves them out (``make test``), K/N
plays one of N parts, as long as each other (``.ci/run`` takes K from the commit), all is pytest by itself.

Property tests try the same examples in every run: a failure belongs to the change it is seen with. FAIRSCHED_FULL=1
or ``--hypothesis-seed=N`` tries others.
"""

from __future__ import annotations

import collections
import gc
import os
import re
import signal
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import hypothesis
import pytest

from tests import support

TESTS = Path(__file__).resolve().parent
TIERS = ("node", "vm", "k8s")
HOST_REASON = "host:"
EXTRA_REASON = "extra:"
REQUIRED = {"node": "FAIRSCHED_REQUIRE_NODE", "k8s": "FAIRSCHED_REQUIRE_K8S"}
HOW_TO_FORCE = {
    **{tier: f"{name}=1 makes this a failure" for tier, name in REQUIRED.items()},
    "unit": "sudo make setup installs what is missing, and sudo make test-unit is root",
}
SECOND_CHANCES = 3
MOST_DESCRIPTORS = 300
"""After a test; a whole run has some 70."""
IMPORT_REASON = "could not import "
"""What importorskip says of itself."""


def is_required(tier: str) -> bool:
    return tier in REQUIRED and os.environ.get(REQUIRED[tier], "0") not in ("", "0")


def is_node_required() -> bool:
    return is_required("node")


def is_full() -> bool:
    """Whether there is time to look further than every change needs."""
    return os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")


def has_second_chance() -> bool:
    return os.environ.get("FAIRSCHED_SECOND_CHANCE", "1") not in ("", "0")


def chosen(nodeids: Sequence[str], rest: str) -> set[str]:
    """Which of the tests marked ``rest`` are played. ``rest``: as FAIRSCHED_REST, all, none or K/N.

    They are dealt out in their order: those of one file, which take as long as each other, go to different parts.
    """
    if rest in ("all", "none"):
        return set(nodeids) if rest == "all" else set()
    part, _, parts = rest.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"FAIRSCHED_REST={rest}: say all, none or K/N")
    return set(nodeids[int(part) - 1 :: int(parts)])


def part_of(item: pytest.Item) -> str:
    """Of scripts/test, which has it in FAIRSCHED_PART."""
    return "alone" if item.get_closest_marker("alone") else "beside"


def tier_of(path: Path) -> str:
    """'unit', 'node', 'vm' or 'k8s'."""
    try:
        return path.resolve().relative_to(TESTS).parts[0]
    except ValueError:
        return "unit"


def pytest_configure(config: pytest.Config) -> None:
    """The same examples every time, so that a change is what makes a test fail; others on request.

    A SIGTERM ends a run as Ctrl-C does, with every fixture's end. Compiled BPF programs are those of this run: a change
    that breaks the compiling must not be hidden by what an earlier one has kept.

    Signals that are ignored here (``make test &`` in a script, nohup) are not to be ignored by what the tests start: a
    handler becomes the default in a child, a signal that is ignored stays ignored.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    chosen((), os.environ.get("FAIRSCHED_REST", "all"))
    if "FAIRSCHED_BPF_CACHE" not in os.environ:
        kept = tempfile.TemporaryDirectory(prefix="fairsched-bpf.")
        os.environ["FAIRSCHED_BPF_CACHE"] = kept.name  # the workers of xdist inherit it
        config.add_cleanup(kept.cleanup)
    # No test is about how long one example takes: on a machine that does other work that says nothing.
    hypothesis.settings.register_profile("ours", deadline=None)
    hypothesis.settings.load_profile("ours")
    if not is_full() and config.getoption("hypothesis_seed", None) is None:
        hypothesis.settings.register_profile(
            "repeatable", hypothesis.settings.get_profile("ours"), derandomize=True, database=None
        )
        hypothesis.settings.load_profile("repeatable")


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt  # not a SIGINT, which may be ignored


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rest = os.environ.get("FAIRSCHED_REST", "all")
    part = os.environ.get("FAIRSCHED_PART", "")
    long_ones = [item.nodeid for item in items if item.get_closest_marker("rest")]
    waiting = set(long_ones) - chosen(long_ones, rest)
    left = [item for item in items if item.nodeid in waiting or part not in ("", part_of(item))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    for item in items:
        tier = tier_of(item.path)
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
        if tier == "node" and has_second_chance():
            item.add_marker(pytest.mark.flaky(reruns=1))


_reruns: list[pytest.TestReport] = []
"""The first of two plays, of the tests that needed two."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # of pytest-rerunfailures
        _reruns.append(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(_reruns) > SECOND_CHANCES and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What failed the first time is told whole: it may be rare and still be ours."""
    for report in _reruns:
        terminalreporter.section(f"first play of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    for report in _reruns:
        terminalreporter.write_line(f"RERUN {report.nodeid}")
    if len(_reruns) > SECOND_CHANCES:
        terminalreporter.write_line(
            f"FAILED {len(_reruns)} tests needed a second chance, {SECOND_CHANCES} may: see RERUN above",
            red=True,
        )


def pytest_report_header() -> list[str]:
    euid = os.geteuid()
    required = (
        "a skip is a failure" if is_node_required() else "may skip (FAIRSCHED_REQUIRE_NODE=1 forbids it)"
    )
    rest = os.environ.get("FAIRSCHED_REST", "all")
    return [f"fairsched: uid {euid}, kernel {os.uname().release}, node tests: {required}, long ones: {rest}"]


def judge_skip(tier: str, longrepr: object) -> str | None:
    """The text of the failure a skip becomes, or None when the skip may stand."""
    reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")
    if not is_required(tier) or reason.startswith((HOST_REASON, EXTRA_REASON)):
        return None
    return f"skipped, but {REQUIRED[tier]}=1 forbids it: {reason}"


def is_said_how(tier: str, reason: str) -> bool:
    """Whether a reason names the way itself. That of a unit test does, behind a colon: ``no openssl: apt-get ...``."""
    if tier in REQUIRED:
        return REQUIRED[tier] in reason
    return ": " in reason and not reason.startswith(IMPORT_REASON)


def say_how_to_force(tier: str, report: pytest.TestReport | pytest.CollectReport) -> None:
    """Nobody who reads why a test was skipped must search for how to have it run."""
    if tier not in HOW_TO_FORCE or not isinstance(report.longrepr, tuple):
        return
    path, line, reason = report.longrepr
    bare = reason.removeprefix("Skipped: ")
    if bare.startswith(HOST_REASON):
        reason += " (no set-up changes that: it runs on another host)"
    elif not bare.startswith(EXTRA_REASON) and not is_said_how(tier, bare):
        reason += f" ({HOW_TO_FORCE[tier]})"
    report.longrepr = (path, line, reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        say_how_to_force(tier_of(item.path), report)
        failure = judge_skip(tier_of(item.path), report.longrepr)
        if failure is not None:
            report.outcome = "failed"
            report.longrepr = failure
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        say_how_to_force(tier_of(collector.path), report)
        failure = judge_skip(tier_of(collector.path), report.longrepr)
        if failure is not None:
            report.outcome = "failed"
            report.longrepr = failure
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A test that leaves hundreds of descriptors behind would make another one fail that has nothing to do with it."""
    yield
    left = support.open_descriptors()
    if len(left) > MOST_DESCRIPTORS:
        gc.collect()
        kinds = collections.Counter(re.sub(r"\d+", "N", name) for name in left.values())
        pytest.fail(
            f"{len(left)} descriptors are open after {item.nodeid}, {len(support.open_descriptors())} once garbage"
            f" was collected; the most: {kinds.most_common(5)}"
        )


WaitUntil = Callable[..., None]


@pytest.fixture
def wait_until() -> WaitUntil:
    """Wait for a claim to become true: ``wait_until(lambda: ready(), 2.0, "the daemon is ready")``."""

    def wait(condition: Callable[[], object], deadline_s: float = 5.0, claim: str = "the condition") -> None:
        support.wait_until(condition, deadline_s, claim)

    return wait
