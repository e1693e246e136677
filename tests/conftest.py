# SPDX-License-Identifier: Apache-2.0
"""The rules of the tiers, in one place.

A test's tier is the directory it lies in: tests/unit, tests/node, tests/vm, tests/gpu. The tier is also a
pytest marker, so ``-m node`` works. What a host cannot do is a skip that says why.

A skip can also hide a broken set-up. FAIRSCHED_REQUIRE_NODE=1 (continuous integration sets it) therefore
turns a skipped node test into a failure, unless its reason begins with ``host:``. That word is a claim
about the machine that no set-up could change (``host: no kprobes in this kernel``), never about a missing
package or a missing mount.

Property tests try the same examples in every run: a failure belongs to the change it is seen with. FAIRSCHED_FULL=1
or ``--hypothesis-seed=N`` tries others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).resolve().parent
TIERS = ("node", "vm", "gpu")
HOST_REASON = "host:"


def is_node_required() -> bool:
    return os.environ.get("FAIRSCHED_REQUIRE_NODE", "0") not in ("", "0")


def is_full() -> bool:
    """Whether there is time to look further than every change needs."""
    return os.environ.get("FAIRSCHED_FULL", "0") not in ("", "0")


def tier_of(path: Path) -> str:
    """'unit', 'node', 'vm' or 'gpu'."""
    try:
        return path.resolve().relative_to(TESTS).parts[0]
    except ValueError:
        return "unit"


def pytest_configure(config: pytest.Config) -> None:
    """The same examples every time, so that a change is what makes a test fail; others on request."""
    if not is_full() and config.getoption("hypothesis_seed", None) is None:
        hypothesis.settings.register_profile("repeatable", derandomize=True, database=None)
        hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = tier_of(item.path)
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))


def pytest_report_header() -> list[str]:
    euid = os.geteuid()
    required = (
        "a skip is a failure" if is_node_required() else "may skip (FAIRSCHED_REQUIRE_NODE=1 forbids it)"
    )
    return [f"fairsched: uid {euid}, kernel {os.uname().release}, node tests: {required}"]


def judge_skip(tier: str, longrepr: object) -> str | None:
    """The text of the failure a skip becomes, or None when the skip may stand."""
    reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")
    if tier != "node" or not is_node_required() or reason.startswith(HOST_REASON):
        return None
    return f"skipped, but FAIRSCHED_REQUIRE_NODE=1 forbids it: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
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
        failure = judge_skip(tier_of(collector.path), report.longrepr)
        if failure is not None:
            report.outcome = "failed"
            report.longrepr = failure
    return report


WaitUntil = Callable[..., None]


@pytest.fixture
def wait_until() -> WaitUntil:
    """Wait for a claim to become true: ``wait_until(lambda: ready(), 2.0, "the daemon is ready")``."""

    def wait(condition: Callable[[], object], deadline_s: float = 5.0, claim: str = "the condition") -> None:
        end = time.monotonic() + deadline_s
        nap_s = 0.001
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"after {deadline_s} s it is still not true that {claim}")
            _nap(nap_s)
            nap_s = min(nap_s * 2, 0.05)

    return wait


def _nap(duration_s: float) -> None:
    """The one sleep of the tests: the pause between two looks of wait_until."""
    time.sleep(duration_s)
