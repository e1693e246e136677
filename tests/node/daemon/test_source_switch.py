# SPDX-License-Identifier: Apache-2.0
"""The account changes under load: totals never fall, nobody is held for longer than may be, and shares come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.simgpu.hostengine import HostEngine
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, is_asked, logged
from tests.support import wait_until

DUE = {"chat": 0.75, "greedy": 0.25}
LONGEST_MS = 1000
TENANTS = {
    "chat": {"weight": 3, "max_freeze_ms": LONGEST_MS},
    "greedy": {"weight": 1, "class": "batch", "max_freeze_ms": LONGEST_MS},
}
_LATE_S = 0.5
"""A thaw on a machine that has other things to do."""
_STATUS_S = 0.1
SETTLE_S = 25.0
"""On samples: until what chance makes of them can be told from a wrong share."""


class Witness:
    """What is seen from outside while one waits."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._asked_s = 0.0
        self._held_since_s: dict[str, float] = {}
        self.totals: dict[str, list[float]] = {name: [] for name in TENANTS}
        self.longest_s = 0.0
        self.holds = 0

    def wait(self, condition: Callable[[], object], deadline_s: float, what: str) -> None:
        """As wait_until, and looks on meanwhile."""

        def look_and_ask() -> bool:
            self._look()
            return bool(condition())

        wait_until(look_and_ask, deadline_s, what)

    def wait_s(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end_s, seconds + 60, "time passes")

    def _look(self) -> None:
        now_s = time.monotonic()
        for name in TENANTS:
            if not is_asked(self._site.cgroup(name)):
                self._held_since_s.pop(name, None)
                continue
            self.holds += name not in self._held_since_s
            since_s = self._held_since_s.setdefault(name, now_s)
            self.longest_s = max(self.longest_s, now_s - since_s)
        if now_s - self._asked_s > _STATUS_S:
            self._asked_s = now_s
            for name in TENANTS:
                self.totals[name].append(self._site.gpu_time_s(name))

    def check(self) -> None:
        for name, totals in self.totals.items():
            assert totals == sorted(totals), f"the total of {name} fell"
            assert totals[-1] > totals[0]
        assert self.holds > 3
        assert self.longest_s < LONGEST_MS / 1000 + _LATE_S


def error_points(witness: Witness, site: Site, seconds: float) -> float:
    """Of the share that is furthest off."""
    before = site.truth_ns()
    witness.wait_s(seconds)
    got = {name: after - before[name] for name, after in site.truth_ns().items()}
    return 100 * max(abs(got[name] / sum(got.values()) - due) for name, due in DUE.items())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[HostEngine]:
    with HostEngine(str(tmp_path / "engine")) as engine:
        yield engine


def load(site: Site) -> None:
    site.spawn("chat", STEADY)
    site.spawn("greedy", GREEDY)


@pytest.mark.rest
def test_probes_that_are_killed_under_load_come_back_without_a_jump(site: Site) -> None:
    site.configure(TENANTS, mechanisms={"ebpf": "auto"})
    site.start()
    load(site)
    witness = Witness(site)
    witness.wait(lambda: witness.holds > 3, PATIENCE_S, "the weights are enforced")
    for number in (1, 2):
        os.kill(site.helpers()["attacher"], signal.SIGKILL)
        witness.wait(lambda: site.status()["source"] == "nvml", PATIENCE_S, "samples are the account")
        witness.wait(
            lambda: len(logged(site.log(), "probes=restarted")) == number,  # noqa: B023
            2 * PATIENCE_S,
            "the probes are put back",
        )
        assert site.status()["source"] == "ebpf"
        witness.wait_s(10)  # one window
        assert error_points(witness, site, 10) < site.status()["source_error_points"]["10"]
    witness.check()
    assert logged(site.log(), "Traceback|tick failed|exception=") == []


@pytest.mark.rest
def test_a_host_engine_that_is_killed_under_load_comes_back_without_a_jump(
    make_site: MakeSite, engine: HostEngine
) -> None:
    site = make_site()
    site.daemon.extra_env.update(site.host.dcgm_env())
    site.configure(TENANTS, mechanisms={"ebpf": "off"}, gpu={"dcgm_address": engine.address})
    site.start()
    load(site)
    witness = Witness(site)
    witness.wait(lambda: site.status()["source"] == "dcgm", PATIENCE_S, "samples are scaled")
    witness.wait_s(SETTLE_S)
    engine.stop()
    witness.wait(lambda: site.status()["source"] == "nvml", PATIENCE_S, "they are no longer")
    witness.wait_s(5)
    engine.start()
    witness.wait(lambda: site.status()["source"] == "dcgm", 2 * PATIENCE_S, "they are again")
    witness.wait_s(10)  # one window
    assert error_points(witness, site, 20) < site.status()["source_error_points"]["10"]
    witness.check()
    assert logged(site.log(), "Traceback|tick failed|exception=") == []
