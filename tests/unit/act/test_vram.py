# SPDX-License-Identifier: Apache-2.0
"""The VRAM limit in user space: from what processes have to the kernel's limits, a hold, a signal, a line in status."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.act.vram import VramLimits, tops
from fairsched.base.process import ProcessId
from fairsched.driver.books import DriverUse
from fairsched.driver.vram_gate import CgroupLimit, Refused
from fairsched.gpu.nvml import Gpu
from fairsched.gpu.processes import Listed
from fairsched.model import Action, ActionKind, Hold, ReasonCode, TenantSpec, VramAction
from fairsched.observe.mps import MpsWatch
from fairsched.observe.tree import TenantView

GIB, S, MS = 1 << 30, 1_000_000_000, 1_000_000
GPU = "GPU-0"
CGROUP_OF = {"a": 10, "b": 20, "team/x": 31, "team/y": 32, "team": 30}
TENANT_OF = {number: name for name, number in CGROUP_OF.items()}


class Gate:
    """What the kernel is told."""

    def __init__(self) -> None:
        self.limits: list[CgroupLimit] = []
        self.refuses, self.unlimited = True, dict[str, str]()
        self.kept: dict[int, list[int]] = {}

    def set_limits(self, limits: Iterable[CgroupLimit]) -> None:
        self.limits = list(limits)

    def refused(self) -> dict[tuple[str, int], Refused]:
        return {("a", 0): Refused(3, 0, GIB, 8 * GIB, 7)}

    def sums(self) -> dict[int, list[int]]:
        return self.kept

    def forget(self, cgroup_ids: Iterable[int]) -> None:
        for cgroup_id in cgroup_ids:
            del self.kept[cgroup_id]


class Applier:
    """Holds as told, and knows until when."""

    def __init__(self) -> None:
        self.reserved: frozenset[str] = frozenset()
        self.holds: dict[str, Hold] = {}
        self.done: list[tuple[int, Action]] = []

    def apply(self, plan: Iterable[Action], now_ns: int) -> None:
        for action in plan:
            self.done.append((now_ns, action))
            if action.kind is ActionKind.HOLD:
                self.holds[action.tenant] = Hold(action.tenant, now_ns, action.deadline_ns, is_ours=True)
            else:
                self.holds.pop(action.tenant, None)

    def thaw_expired(self, now_ns: int) -> None:
        self.holds = {name: hold for name, hold in self.holds.items() if hold.deadline_ns > now_ns}

    def all_held(self) -> set[str]:
        return set(self.holds)


class Terminator:
    def __init__(self) -> None:
        self.asked: list[ProcessId] = []
        self.still: list[set[ProcessId]] = []
        self.never: set[int] = set()
        self.total: dict[Any, int] = {}

    def is_asked(self, owner: ProcessId) -> bool:
        return owner in self.asked

    def ask(self, accused: Any, now_ns: int) -> bool:
        if accused.owner.pid in self.never:
            return False
        self.asked.append(accused.owner)
        return True

    def settle(self, still: set[ProcessId], now_ns: int, grace_ns: int) -> None:
        self.still.append(set(still))

    def close(self) -> None:
        self.asked.clear()


class Site:
    """A daemon's parts, faked; :meth:`at` is a look and a tick."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hook: str | None = "kprobe") -> None:
        self.gate, self.applier, self.terminator = Gate(), Applier(), Terminator()
        self.has: dict[tuple[str, int], float] = {}
        self.moved: dict[int, str] = {}
        """In which tenant a process is now, where that is not the one it is charged to."""
        self.started_s: dict[int, int] = {}
        self.made_ns: dict[int, int] = {}
        """When a process started, and made its first client: both at the beginning of time, unless named."""
        gate, since_ns = (self.gate, 1000 * S) if hook else (None, None)
        self.partial: set[int] = set()
        driver = SimpleNamespace(
            hook=hook, gate=gate, uses=self.uses, since_ns=since_ns, partial=lambda: self.partial
        )
        self.mps = MpsWatch(lambda _pid: None)
        self.sensors = SimpleNamespace(driver=driver, nvml=None, gpus=(Gpu(GPU),), mps=self.mps)
        views = {name: TenantView(name, name != "team") for name in CGROUP_OF}
        for name, number in CGROUP_OF.items():
            views[name].cgroup_ids = {number}
            if name != "team":
                views[name].refs = {number: cast(Any, SimpleNamespace(id=number, path=f"/{name}"))}
        tree = SimpleNamespace(
            tenants=views,
            tenant_of=TENANT_OF.get,
            tenant_of_process=lambda pid: TENANT_OF.get(self.cgroup_of(pid)),
            cgroup_of=self.cgroup_of,
            has_cgroup=TENANT_OF.__contains__,
        )
        monkeypatch.setattr(ProcessId, "of", staticmethod(self.owner))
        self.vram = VramLimits(*cast(Any, (self.sensors, tree, self.applier)))
        self.vram.terminator = cast(Any, self.terminator)

    def owner(self, pid: int, proc: str = "") -> ProcessId:
        return ProcessId(pid, self.started_s.get(pid, 0) * os.sysconf("SC_CLK_TCK") + 1)

    def uses(self) -> tuple[DriverUse, ...]:
        return tuple(
            DriverUse(CGROUP_OF[tenant], pid, 0, 1, int(size * GIB), self.made_ns.get(pid, S))
            for (tenant, pid), size in self.has.items()
        )

    def cgroup_of(self, pid: int) -> int:
        tenants = {number: tenant for tenant, number in self.has}
        return CGROUP_OF[self.moved.get(pid, tenants.get(pid, "b"))]

    def at(self, now_s: float, specs: dict[str, TenantSpec], *, is_acting: bool = True) -> None:
        now_ns = round(now_s * S)
        self.vram.poll(now_ns, specs, 5.0, is_acting=is_acting)
        self.vram.step(now_ns)

    def kinds(self) -> list[tuple[str, str]]:
        return [(action.kind.value, action.tenant) for _, action in self.applier.done]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def specs(action: VramAction, **more: TenantSpec) -> dict[str, TenantSpec]:
    own = TenantSpec("a", vram_limit_bytes=8 * GIB, on_vram_limit=action)
    return {"a": own, "b": TenantSpec("b"), **more}


def test_the_kernel_is_told_every_limit_with_its_cgroups_and_what_is_above(site: Site) -> None:
    limits = specs(VramAction.WARN)
    limits["team"] = TenantSpec("team", vram_limit_bytes=20 * GIB)
    limits["team/x"] = TenantSpec("team/x", vram_limit_bytes=4 * GIB)
    site.at(0, limits)
    assert site.gate.limits == [
        CgroupLimit("a", 8 * GIB, (10,)),
        CgroupLimit("team", 20 * GIB, (30,)),
        CgroupLimit("team/x", 4 * GIB, (31,), above="team"),
    ]
    site.at(1, {"a": TenantSpec("a")})
    assert site.gate.limits == []


def test_outside_enforce_nothing_is_refused_held_or_ended(site: Site) -> None:
    for action in VramAction:
        site.has = {("a", 1): 9}
        for second in range(6):
            site.at(second + 10 * list(VramAction).index(action), specs(action), is_acting=False)
        (one,) = site.vram.statuses("a", 6 * S)
        assert one.over_since_s is not None
        assert one.action == ("warn" if action is VramAction.WARN else f"would_{action.value}")
        assert not one.is_kept_by_kernel
    assert (site.gate.limits, site.applier.done, site.terminator.asked) == ([], [], [])
    assert site.applier.reserved == frozenset()


def test_a_warning_is_given_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for second in range(8):
        site.has = {("a", 1): 9 if second != 5 else 7}
        site.at(second, specs(VramAction.WARN))
    site.has = {("a", 1): 7}
    for second in range(8, 16):
        site.at(second, specs(VramAction.WARN))
    lines = [record.getMessage() for record in caplog.records if "vram=" in record.getMessage()]
    assert [line.split()[0] for line in lines] == ["vram=over", "vram=within"]
    assert f"tenant=a gpu={GPU} used_bytes={9 * GIB} limit_bytes={8 * GIB} most=a" in lines[0]
    assert site.applier.done == []
    over, within = (one.fields for one in site.vram.book.records)
    assert (over["vram"], over["action"], over["used_bytes"]) == ("over", "warn", 9 * GIB)
    assert within == {"vram": "within", "tenant": "a", "gpu": GPU, "lasted_s": 12}


def test_who_is_over_is_held_and_runs_in_turn_until_it_is_within(site: Site) -> None:
    site.has = {("a", 1): 9, ("b", 2): 90}
    hold = specs(VramAction.HOLD)
    now_ns = 0
    frozen_ns = longest_ns = 0
    while now_ns < 8 * S:
        site.vram.poll(now_ns, hold, 5.0, is_acting=True)
        site.vram.step(now_ns)
        following_ns = min(now_ns + 20 * MS, max(site.vram.due_ns, now_ns + MS))
        if "a" in site.applier.holds:
            frozen_ns += following_ns - now_ns
            longest_ns = max(longest_ns, now_ns - site.applier.holds["a"].since_ns)
        now_ns = following_ns
    assert site.applier.reserved == {"a"}
    assert {tenant for _, tenant in site.kinds()} == {"a"}
    first = site.applier.done[0][1]
    assert first.reason.code is ReasonCode.OVER_VRAM
    assert (first.reason.vram_bytes, first.reason.vram_limit_bytes) == (9 * GIB, 8 * GIB)
    assert longest_ns < hold["a"].max_freeze_ns
    assert frozen_ns > 0.9 * 5 * S
    site.has["a", 1] = 8
    site.at(9, hold)
    assert site.applier.reserved == frozenset()
    done = len(site.applier.done)
    site.at(9.6, hold)
    assert "a" not in site.applier.holds and len(site.applier.done) == done


def test_the_process_with_most_is_asked_to_end_and_then_the_next(site: Site) -> None:
    end = specs(VramAction.TERMINATE)
    site.has = {("a", 1): 3, ("a", 2): 6, ("a", 3): 5}
    for second in range(5):
        site.at(second, end)
    assert [owner.pid for owner in site.terminator.asked] == [2]
    assert site.terminator.still[-1] == {ProcessId(2, 1)}
    del site.has["a", 2]
    site.at(5, end)
    assert site.terminator.still[-1] == set()
    site.has["a", 1] = 6
    site.at(6, end)
    assert [owner.pid for owner in site.terminator.asked] == [2, 1]


def test_nobody_is_ended_for_the_memory_of_another_tenant(site: Site) -> None:
    """Its maker is gone and the pid another tenant's, or it has moved there."""
    site.has, site.moved = {("a", 1): 3, ("a", 2): 9}, {2: "b"}
    site.applier.holds["b"] = Hold("b", 0, 99 * S, is_ours=True)
    for second in range(6):
        site.at(second, specs(VramAction.TERMINATE))
    assert [owner.pid for owner in site.terminator.asked] == [1], "the next one of the accused tenant is"
    assert site.kinds() == [], "the other tenant is not let go for it"


def test_a_tenant_below_the_one_whose_limit_it_is_is_asked(site: Site) -> None:
    team = TenantSpec("team", vram_limit_bytes=8 * GIB, on_vram_limit=VramAction.TERMINATE)
    site.has, site.moved = {("team/x", 1): 9}, {1: "team/y"}
    for second in range(4):
        site.at(second, {"team": team})
    assert [owner.pid for owner in site.terminator.asked] == [1]


def test_a_process_that_was_started_after_the_memory_was_had_is_not_the_one(site: Site) -> None:
    """The maker died before anybody looked, a child keeps its file, and its pid was given to somebody else."""
    site.has = {("a", 1): 3, ("a", 2): 9}
    site.made_ns, site.started_s = {2: 100 * S}, {2: 10_000_000}
    for second in range(6):
        site.at(second, specs(VramAction.TERMINATE))
    assert [owner.pid for owner in site.terminator.asked] == [1]


def test_a_held_process_is_thawed_before_it_is_asked(site: Site) -> None:
    site.has = {("a", 1): 9}
    site.applier.holds["a"] = Hold("a", 0, 99 * S, is_ours=True)
    for second in range(4):
        site.at(second, specs(VramAction.TERMINATE))
    assert site.kinds() == [("thaw", "a")]
    assert len(site.terminator.asked) == 1


def test_who_cannot_be_ended_is_passed_over(site: Site) -> None:
    site.terminator.never = {2}
    site.has = {("a", 1): 3, ("a", 2): 9}
    for second in range(5):
        site.at(second, specs(VramAction.TERMINATE))
    assert [owner.pid for owner in site.terminator.asked] == [1]


def test_status_says_what_is_used_refused_and_done(site: Site) -> None:
    site.has = {("a", 1): 3}
    site.at(0, specs(VramAction.WARN))
    (one,) = site.vram.statuses("a", 0)
    assert (one.used_bytes, one.limit_bytes, one.source) == (3 * GIB, 8 * GIB, "ioctls")
    assert (one.is_kept_by_kernel, one.refused, one.over_since_s, one.action) == (True, 3, None, None)
    assert site.vram.statuses("b", 0) == ()


def listing(site: Site, *listed: tuple[int, float]) -> Any:
    """NVML's list: processes of tenant a, and what they have."""
    found = tuple(Listed(site.owner(pid), 0, CGROUP_OF["a"], int(size * GIB)) for pid, size in listed)
    return SimpleNamespace(take=lambda: found, stop=lambda: None, close=lambda: None)


def test_processes_that_we_have_seen_nothing_of_count_as_nvml_says(site: Site) -> None:
    site.started_s = {1: 10_000_000}
    site.vram._listing = listing(site, (1, 7), (9, 4))
    site.has = {("a", 1): 5}
    site.at(0, specs(VramAction.WARN))
    assert site.vram.statuses("a", 0)[0].used_bytes == 9 * GIB, "who is younger than our eyes is seen whole"


def test_who_has_more_than_we_had_room_for_counts_as_nvml_says(site: Site) -> None:
    """It would pass its limit by filling its part of our books first."""
    site.started_s = {1: 10_000_000, 2: 10_000_000}
    site.vram._listing = listing(site, (1, 9), (2, 4))
    site.has, site.partial = {("a", 1): 1, ("a", 2): 3}, {1}
    site.at(0, specs(VramAction.WARN))
    assert site.vram.statuses("a", 0)[0].used_bytes == 12 * GIB


def test_what_a_process_had_before_we_looked_counts_when_it_makes_more(site: Site) -> None:
    """It was dropped from NVML's list with its first call that we saw, and what it had before was nobody's."""
    site.vram._listing = listing(site, (1, 9), (2, 3))
    site.has = {("a", 1): 1, ("a", 2): 4}
    for second in range(4):
        site.at(second, specs(VramAction.TERMINATE))
    assert site.vram.statuses("a", 4 * S)[0].used_bytes == 13 * GIB
    assert [owner.pid for owner in site.terminator.asked] == [1], "the one that has most"


def test_without_a_hook_nvml_is_asked_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, hook=None)
    site.at(0, specs(VramAction.WARN))
    assert site.vram.statuses("a", 0)[0].used_bytes is None, "nobody can be asked"
    answers = [(Listed(ProcessId(1, 1), 0, 10, 9 * GIB),), None, (Listed(ProcessId(1, 1), 0, 10, 9 * GIB),)]
    taken = SimpleNamespace(take=lambda: answers.pop(0) if answers else None, stop=lambda: None)
    site.vram._listing = cast(Any, taken)
    for second in range(1, 6):
        site.at(second, specs(VramAction.HOLD))
    (one,) = site.vram.statuses("a", 6 * S)
    assert (one.used_bytes, one.source, one.is_kept_by_kernel) == (9 * GIB, "nvml", False)
    assert site.applier.reserved == {"a"}


def test_when_nobody_can_be_asked_any_more_nobody_is_held_for_what_was_last_known(site: Site) -> None:
    """As when the driver's module is taken out: it has no users then, and no memory."""
    site.has = {("a", 1): 9}
    for second in range(4):
        site.at(second, specs(VramAction.HOLD))
    assert site.applier.reserved == {"a"}
    site.sensors.driver.hook = site.sensors.driver.gate = None
    site.at(5, specs(VramAction.HOLD))
    assert site.applier.reserved == frozenset()
    assert site.vram.statuses("a", 5 * S)[0].used_bytes is None


def test_sums_of_cgroups_that_are_gone_are_dropped_after_a_while(site: Site) -> None:
    site.gate.kept = {10: [0], 77: [0], 0: [0]}
    site.at(0, {})
    assert 77 in site.gate.kept, "it may be new"
    site.at(61, {})
    assert site.gate.kept == {10: [0], 0: [0]}


def test_a_look_that_fails_is_counted_and_the_daemon_goes_on(site: Site) -> None:
    site.sensors.driver.uses = lambda: 1 / 0
    site.at(0, specs(VramAction.WARN))
    assert site.vram.errors == 1


@pytest.mark.parametrize("what", ["set_limits", "sums"])
def test_a_kernel_that_refuses_limits_keeps_nobody_from_being_judged(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(site.gate, what, refuse)
    site.has = {("a", 1): 9}
    for second in range(0, 240, 10):
        site.at(second, specs(VramAction.HOLD))
    assert ("hold", "a") in site.kinds()
    assert site.vram.errors == (24 if what == "set_limits" else 4), "sums are asked for once a minute"
    said = sum("Cannot allocate memory" in record.getMessage() for record in caplog.records)
    assert said == (1 if what == "set_limits" else 4)


def test_exempt_tenants_are_warned_of(site: Site) -> None:
    site.has = {("a", 1): 9}
    exempt = specs(VramAction.HOLD)
    exempt["a"] = replace(exempt["a"], is_exempt=True)
    for second in range(5):
        site.at(second, exempt)
    assert site.vram.statuses("a", 0)[0].action == "warn"
    assert site.applier.done == []


def test_a_client_of_mps_is_not_held_for_memory_either(site: Site) -> None:
    """Frozen, it may stall the other clients of its server."""
    site.mps.doubted = frozenset({("a", GPU)})
    site.has = {("a", 1): 9}
    for second in range(5):
        site.at(second, specs(VramAction.HOLD))
    assert site.vram.statuses("a", 0)[0].action == "warn" and site.applier.done == []


def test_on_a_mig_instance_memory_counts_as_nvml_says(site: Site) -> None:
    """The ioctls tell the GPU, and not which part of it."""
    site.started_s = {1: 10_000_000}
    site.vram._listing = listing(site, (1, 7))
    site.has = {("a", 1): 5}
    uses = site.uses()
    site.sensors.driver.uses = lambda: tuple(replace(use, gpu=None) for use in uses)
    site.at(0, specs(VramAction.WARN))
    assert site.vram.statuses("a", 0)[0].used_bytes == 7 * GIB


def test_of_cgroups_within_each_other_the_upper_counts() -> None:
    refs = {
        n: cast(Any, SimpleNamespace(id=n, path=path))
        for n, path in ((1, "/p/a"), (2, "/p/a/b"), (3, "/p/ab"))
    }
    assert tops(TenantView("p", refs=refs)) == (1, 3)
