# SPDX-License-Identifier: Apache-2.0
"""Tests under other kernels: collected only inside a guest that scripts/vm/run.py started.

What happened goes into results.json in the share, which run.py keeps: the tests and the rows that they record
for docs/support-matrix.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairsched.driver.hooks import Hook
from fairsched.driver.probe import DriverProbe
from tests.vm import actor as actors
from tests.vm import container, lent, watching
from tests.vm.actor import Actor
from tests.vm.container import Container
from tests.vm.rm import Driver
from tests.vm.rungs import BOOT, DUE, Stretch
from tests.vm.watching import Watch

HERE = Path(__file__).resolve().parent
SERIES = os.environ.get("FAIRSCHED_VM", "")
OUT = Path(os.environ.get("FAIRSCHED_VM_OUT", "/nonexistent"))
STATES = ("works", "fails", "missing")
ROWS: dict[str, dict[str, str]] = {}
RUNGS: list[dict[str, object]] = []
OUTCOMES: dict[str, str] = {}

collect_ignore_glob = [] if SERIES else ["test_*.py"]


@dataclass(frozen=True)
class Facts:
    """What this kernel is and can do, asked of the kernel itself."""

    series: str
    release: str
    lsm: tuple[str, ...]
    lockdown: str
    has_btf: bool
    has_kprobes: bool


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@pytest.fixture(scope="session", autouse=True)
def _programs_are_lent() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        lent.begin(patch, SERIES)
        yield


@pytest.fixture(scope="session")
def facts() -> Facts:
    lockdown = read("/sys/kernel/security/lockdown")
    return Facts(
        series=SERIES,
        release=os.uname().release,
        lsm=tuple(read("/sys/kernel/security/lsm").split(",")),
        lockdown=lockdown.partition("[")[2].partition("]")[0] or "none",
        has_btf=Path("/sys/kernel/btf/vmlinux").exists(),
        has_kprobes=Path("/sys/bus/event_source/devices/kprobe/type").exists(),
    )


Record = Callable[[str, str, str], None]


@pytest.fixture(scope="session")
def record() -> Record:
    """``record(feature, state, detail)``: a row of the support matrix, for this kernel."""

    def add(feature: str, state: str, detail: str = "") -> None:
        assert state in STATES, state
        assert state == "works" or detail, f"{feature} {state}: say why"
        ROWS[feature] = {"state": state, "detail": detail}

    return add


RecordRung = Callable[[Mapping[str, Any], str, Stretch, Stretch, float, str], None]


@pytest.fixture(scope="session")
def record_rung() -> RecordRung:
    """``record_rung(status, hands, without, with_it, promised_points, end)``: a row of the matrix's rungs."""

    def add(
        status: Mapping[str, Any], hands: str, without: Stretch, held: Stretch, promised: float, end: str
    ) -> None:
        RUNGS.append(
            {
                "eyes": status["source"],
                "why": status["source_reason"],
                "hands": hands,
                "due": {name: round(part, 3) for name, part in DUE.items()},
                "without": {name: round(part, 3) for name, part in without.parts.items()},
                "with": {name: round(part, 3) for name, part in held.parts.items()},
                "error_without": round(without.error_points, 1),
                "error_with": round(held.error_points, 1),
                "promised": round(promised, 1),
                "end": end,
            }
        )

    return add


LoadDriver = Callable[..., Driver]


@pytest.fixture
def load_driver(start_actor: object) -> Iterator[LoadDriver]:
    """``load_driver(variant, **parameters)``; a second call takes the first one's place."""
    loaded: list[Driver] = []

    def load(variant: str = "595", **parameters: object) -> Driver:
        while loaded:
            loaded.pop().unload()
        loaded.append(Driver(variant, **parameters))
        return loaded[-1]

    yield load
    _kill_actors()
    while loaded:
        loaded.pop().unload()


@pytest.fixture
def driver(load_driver: LoadDriver) -> Driver:
    return load_driver()


@pytest.fixture
def probes() -> Iterator[dict[Hook, DriverProbe]]:
    """A probe for each hook, with maps of its own; that of the lsm hook can be attached as the tracepoint hook, too.

    Lent (lent.py), and given back after each test: a third copy would take as long as all tests.
    """
    made = {hook: watching.load(groups) for hook, groups in watching.GROUPS.items()}
    yield made
    for probe in made.values():
        probe.close()


@pytest.fixture
def watch(
    load_driver: LoadDriver, probes: dict[Hook, DriverProbe]
) -> Iterator[Callable[..., tuple[Driver, Watch]]]:
    """``watch(variant, **parameters)``: the driver, loaded, and then the hooks on it."""
    made: list[Watch] = []

    def begin(variant: str = "595", **parameters: object) -> tuple[Driver, Watch]:
        driver = load_driver(variant, **parameters)
        made.append(Watch(probes, driver.gpus))
        return driver, made[-1]

    yield begin
    for one in made:
        one.close()


ACTORS: list[Actor] = []


def _kill_actors() -> None:
    while ACTORS:
        ACTORS.pop().kill()


@pytest.fixture
def start_actor() -> Iterator[Callable[..., Actor]]:
    """``start_actor(cgroup=None, pidns=False, **arguments of Rm)``."""

    def start(cgroup: Path | None = None, pidns: bool = False, **rm: object) -> Actor:
        return actors.start(ACTORS, cgroup, pidns, **rm)

    yield start
    _kill_actors()


class Cgroups:
    """A tree of this test's own."""

    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir()

    def make(self, path: str) -> Path:
        where = self.top / path
        where.mkdir(parents=True)
        return where

    def id_of(self, path: Path) -> int:
        return path.stat().st_ino

    def remove(self) -> None:
        for where in sorted(self.top.rglob("cgroup.procs"), key=lambda one: len(one.parts), reverse=True):
            where.parent.rmdir()


@pytest.fixture
def cgroups(load_driver: LoadDriver) -> Iterator[Cgroups]:
    tree = Cgroups(Path("/sys/fs/cgroup/test"))
    yield tree
    _kill_actors()
    tree.remove()


RunContainer = Callable[..., Container]


@pytest.fixture
def run_container(tmp_path: Path, load_driver: LoadDriver) -> Iterator[RunContainer]:
    """``run_container(name, cgroup, allowed)``: see container.py; ended after the test."""
    if reason := container.why_not():
        pytest.skip(reason)
    made: list[Container] = []

    def run(name: str, cgroup: str, allowed: Collection[int] = (0, 1, 2, 3)) -> Container:
        made.append(Container(tmp_path, name, cgroup, allowed, ACTORS))
        return made[-1]

    yield run
    _kill_actors()
    for one in made:
        one.delete()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not SERIES:
        return
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.removeprefix("tests/vm/")
        detail = f": {report.longrepr[2]}" if report.skipped and isinstance(report.longrepr, tuple) else ""
        OUTCOMES[name] = report.outcome + detail


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not SERIES or not OUT.is_dir():
        return
    results = {
        "series": SERIES,
        "boot": BOOT,
        "kernel": os.uname().release,
        "rows": dict(sorted(ROWS.items())),
        **({"rungs": RUNGS} if RUNGS else {}),
        "tests": dict(sorted(OUTCOMES.items())),
    }
    (OUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
