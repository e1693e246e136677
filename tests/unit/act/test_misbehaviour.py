# SPDX-License-Identifier: Apache-2.0
"""From rows and samples to a line in the log, a doubt in the snapshot and, where the policy says so, a signal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.accounting.context import Events, ProcessUse
from fairsched.act.misbehaviour import Misbehaviour
from fairsched.act.terminate import Accused
from fairsched.base.process import ProcessId
from fairsched.bpf import abi
from fairsched.cgroup.path import Mount
from fairsched.config import Config, from_bytes
from fairsched.gpu.nvml import Gpu
from fairsched.gpu.samples import ProcessSamples
from fairsched.model import (
    NOTHING_UNSEEN,
    Action,
    ActionKind,
    Confidence,
    ContextWork,
    MisbehaviourAction,
    MisbehaviourKind,
    SampledLaunch,
    TenantSpec,
)
from fairsched.observe.libraries import ProbesLost
from fairsched.policy.misbehaviour import WatchState
from fairsched.policy.sampled import Seen

S = 1_000_000_000
PERIOD_NS = 139_000_000
PID, OWNER = 11, ProcessId(11, 500)
CGROUP, STRANGE = 100, 999
"""A tenant's, and one that is there but is nobody's."""
SPECS = {
    "bad": TenantSpec("bad", on_misbehaviour=MisbehaviourAction.TERMINATE),
    "chat": TenantSpec("chat"),
}


class Watch:
    """What NVML saw; a test says it."""

    def __init__(self) -> None:
        self.sampled: list[ProcessSamples] = []
        self.seen_running: dict[tuple[int, int], int] = {(PID, 0): 5}
        self.is_closed = self.is_urgent = False

    def take(self) -> list[ProcessSamples]:
        sampled, self.sampled = self.sampled, []
        return sampled

    def period_ns(self, slot: int) -> int:
        return (1 + slot) * 139_000_000

    def close(self) -> None:
        self.is_closed = True


class Probe:
    def __init__(self) -> None:
        self.counts: Counter[abi.Count] = Counter()

    def count(self, what: abi.Count) -> int:
        return self.counts[what]


class Account:
    def __init__(self) -> None:
        self.works: list[ContextWork] = []
        self.guessed: set[int] = set()
        self.seen_running: Any = {}
        self.sample_period_ns: Any = None
        self.intruded: set[int] = set()
        self.contradicted: set[int] = set()
        self.traced: set[int] = set()
        self.late: set[tuple[int, int]] = set()
        self.sampled: dict[tuple[int, int], SampledLaunch] = {}

    def traced_gpus(self) -> set[int]:
        return self.traced

    def work(self) -> list[ContextWork]:
        return self.works

    def contradicted_gpus(self) -> set[int]:
        return self.contradicted

    def unanchored(self) -> set[tuple[int, int]]:
        return self.late

    def guessed_processes(self) -> set[int]:
        return self.guessed


class Terminator:
    """Remembers who was to end."""

    def __init__(self) -> None:
        self.asked: list[Accused] = []
        self.still: list[set[ProcessId]] = []
        self.total: Counter[tuple[str, MisbehaviourKind]] = Counter()

    def is_asked(self, owner: ProcessId) -> bool:
        return any(accused.owner == owner for accused in self.asked)

    def ask(self, accused: Accused, _now_ns: int) -> bool:
        self.asked.append(accused)
        self.total[accused.tenant, accused.kind] += 1
        return True

    def settle(self, still: set[ProcessId], _now_ns: int, _grace_ns: int) -> None:
        self.still.append(still)

    def close(self) -> None:
        pass


class Node:
    """A daemon's parts around the real Misbehaviour."""

    def __init__(self, gpus: int = 1) -> None:
        self.account, self.watch, self.probe = Account(), Watch(), Probe()
        self.examined: list[int] = []
        self.watched: Callable[[int], int | None] = lambda _now_ns: 0
        self.sensors = SimpleNamespace(
            account=self.account,
            probe=self.probe,
            gpus=tuple(Gpu(f"GPU-{n}") for n in range(gpus)),
            libraries=SimpleNamespace(is_attaching=False, watched_since_ns=self.watched_since_ns),
            events=Events(),
            owners=SimpleNamespace(over_work=frozenset()),
        )
        self.applied: list[Action] = []
        self.held_ns: dict[str, int] = {}
        self.applier = SimpleNamespace(
            holds={},
            apply=lambda plan, _now: self.applied.extend(plan),
            held_ns=lambda _now: dict(self.held_ns),
        )
        self.tenants = {CGROUP: "bad", CGROUP + 1: "chat"}
        self.cgroups = {CGROUP, CGROUP + 1, STRANGE}
        tree = SimpleNamespace(tenant_of=self.tenants.get, has_cgroup=self.cgroups.__contains__)
        tree.tenant_of_process, tree.mount = self.tenants.get, Mount("/sys/fs/cgroup")
        self.sensors.account = None  # the watch of a real NVML is none of these tests
        self.it = Misbehaviour(cast(Any, self.sensors), cast(Any, tree), cast(Any, self.applier))
        self.sensors.account = self.account
        self.terminator = Terminator()
        self.it._watch, self.it.terminator = cast(Any, self.watch), cast(Any, self.terminator)
        self.config: Config = from_bytes(b"{}", "f")
        self.specs = dict(SPECS)

    @property
    def accused(self) -> set[tuple[str, str]]:
        return {(one.tenant, one.gpu) for one in self.it._state.episodes.values()}

    def watched_since_ns(self, pid: int, now_ns: int) -> int | None:
        self.examined.append(pid)
        return self.watched(now_ns)

    def look(self, now_s: float, *, is_acting: bool = True) -> None:
        self.it.poll(round(now_s * S), self.specs, self.config, is_acting=is_acting)

    def see(self, now_s: float, owner: ProcessId = OWNER, cgroup_id: int = CGROUP, slot: int = 0) -> None:
        """It was on the GPU all through the second before ``now_s``."""
        moments = (round((now_s - 1) * S) + PERIOD_NS, round(now_s * S) - PERIOD_NS // 2)
        self.watch.sampled.append(
            ProcessSamples(owner.pid, slot, owner, cgroup_id, 7, 7 * PERIOD_NS, PERIOD_NS, *moments)
        )

    def run_unseen(self, seconds: Iterable[int], *, is_acting: bool = True, **of: Any) -> None:
        for now_s in seconds:
            self.see(now_s, **of)
            self.look(now_s, is_acting=is_acting)


UNSEEN_KEY = ("bad", "GPU-0", MisbehaviourKind.UNSEEN)
SETTLED = range(1, 7)
"""Seconds in which the account has just begun."""


@pytest.fixture
def node() -> Node:
    made = Node()
    for now_s in SETTLED:
        made.look(now_s)
    return made


def test_unseen_work_is_logged_once_doubted_and_ended(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        node.run_unseen(range(7, 13))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    line = caplog.messages[0]
    for word in (
        "misbehaviour=unseen",
        "action=terminate",
        "tenant=bad",
        "gpu=GPU-0",
        f"pids={PID}",
        "samples=",
    ):
        assert word in line
    assert set(node.it.unseen.rates) == {("bad", "GPU-0")}
    assert node.accused == {("bad", "GPU-0")}
    assert node.it.doubted == frozenset(), "it is charged and held"
    assert node.terminator.asked[0] == Accused("bad", MisbehaviourKind.UNSEEN, OWNER)
    assert node.terminator.still[-1] == {OWNER}
    (status,) = node.it.statuses("bad", 12 * S)
    assert (status.kind, status.gpu, status.action) == (MisbehaviourKind.UNSEEN, "GPU-0", "terminate")
    assert f"pid {PID}" in status.detail
    assert node.it.statuses("chat", 12 * S) == ()
    assert node.terminator.total["bad", MisbehaviourKind.UNSEEN] >= 1


def test_what_is_over_is_said_and_doubted_no_more(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.run_unseen(range(7, 13))
    with caplog.at_level(logging.INFO):
        for now_s in range(13, 40):
            node.look(now_s)
    assert [message for message in caplog.messages if "misbehaviour=over tenant=bad kind=unseen" in message]
    assert node.it.unseen == NOTHING_UNSEEN
    assert node.terminator.still[-1] == set()


@pytest.mark.parametrize(
    ("is_acting", "wish", "action"),
    [
        (True, MisbehaviourAction.WARN, "warn"),
        (False, MisbehaviourAction.WARN, "warn"),
        (False, MisbehaviourAction.TERMINATE, "would_terminate"),
    ],
)
def test_nobody_is_ended_unless_the_policy_and_the_mode_say_so(
    node: Node, is_acting: bool, wish: MisbehaviourAction, action: str
) -> None:
    node.specs["bad"] = replace(node.specs["bad"], on_misbehaviour=wish)
    node.run_unseen(range(7, 13), is_acting=is_acting)
    assert [one.action for one in node.it.statuses("bad", 12 * S)] == [action]
    assert node.terminator.asked == []
    assert node.terminator.still[-1] == set()


def test_whose_libraries_are_not_known_is_shown_but_not_ended(node: Node) -> None:
    node.watched = lambda _now_ns: None
    node.run_unseen(range(7, 13))
    (status,) = node.it.statuses("bad", 12 * S)
    assert status.action == "warn"
    assert "nobody is terminated" in status.detail
    assert node.terminator.asked == []


def test_what_was_lost_of_others_saves_nobody(node: Node) -> None:
    """Seventeen contexts made once, by anybody, used to."""
    node.probe.counts.update({abi.Count.CTX_FULL: 1, abi.Count.PROC_FULL: 1})
    node.sensors.owners.over_work = frozenset({"chat"})
    node.run_unseen(range(7, 13))
    assert [accused.tenant for accused in node.terminator.asked] == ["bad"] * len(node.terminator.asked)
    assert node.terminator.asked


def test_who_is_over_its_budget_is_not_called_unseen(node: Node) -> None:
    node.sensors.owners.over_work = frozenset({"bad"})
    node.run_unseen(range(7, 13))
    assert node.it.statuses("bad", 12 * S) == ()


def test_many_suspects_of_one_tenant_keep_nobody_else_from_being_examined(node: Node) -> None:
    seen = {
        (pid, "GPU-0"): (Seen(0, "bad" if pid < 100 else "chat", 1, 1.0, 0, 0, 0, 1, 0, 0),)
        for pid in range(101)
    }
    node.it._state = WatchState(seen=seen)
    first, second = node.it._in_turn(range(101)), node.it._in_turn(range(101))
    assert 100 in first and 100 in second
    assert len(first) == len(second) == 16
    assert set(first) & set(second) == {100}, "the others in turn"


def test_who_waits_for_its_probes_while_many_do_is_not_accused_but_not_for_ever(node: Node) -> None:
    node.sensors.libraries.is_attaching = True
    node.watched = lambda now_ns: now_ns
    node.run_unseen(range(7, 59))
    assert node.it.statuses("bad", 58 * S) == ()
    node.run_unseen(range(59, 80))
    assert node.it.statuses("bad", 79 * S), "who always loads another library would hide for ever"


def test_libraries_of_others_that_wait_for_their_probes_excuse_nobody(node: Node) -> None:
    node.sensors.libraries.is_attaching = True
    node.run_unseen(range(7, 12))
    (status,) = node.it.statuses("bad", 11 * S)
    assert status.action == "terminate", "it maps no libcuda"


def test_a_suspect_is_examined_and_looked_at_again_soon(node: Node) -> None:
    node.see(7)
    node.look(7)
    assert node.examined == []
    assert node.watch.is_urgent
    looks = len(node.terminator.still)
    node.look(7.4)
    assert len(node.terminator.still) == looks + 1
    assert node.examined == [PID]


def test_who_maps_no_libcuda_is_found_at_once_and_whose_libcuda_is_young_is_not(node: Node) -> None:
    node.watched = lambda now_ns: now_ns
    node.run_unseen((7, 8))
    node.look(8.4)
    assert node.accused == set(), "its calls are not seen yet"
    node.watched = lambda _now_ns: 0
    node.look(8.8)
    assert node.accused == {("bad", "GPU-0")}
    assert not node.it._state.is_urgent


def test_probes_that_are_lost_while_a_suspect_is_examined_are_no_failure(node: Node) -> None:
    def lost(_now_ns: int) -> int | None:
        raise ProbesLost("gone")

    node.watched = lost
    node.run_unseen((7, 8))
    assert (node.examined, node.it.errors) == ([PID], 0)


def test_of_a_crowd_of_suspects_a_few_are_examined(node: Node) -> None:
    for _ in range(2):
        for pid in range(1000, 1100):
            node.see(7, ProcessId(pid, 500))
        node.look(7)
        node.look(7.4)
    assert len(set(node.examined)) == 16


def test_what_was_charged_explains_what_was_seen(node: Node) -> None:
    for now_s in range(7, 30):
        for _ in range(10):
            node.it.book([ProcessUse(CGROUP, PID, 0, S // 10, True, 0, Confidence.HIGH, 1)])
        node.see(now_s)
        node.look(now_s)
    assert (node.accused, node.it.unseen) == (set(), NOTHING_UNSEEN)


def test_what_was_charged_says_little_where_turns_cannot_be_followed() -> None:
    for is_unsure in (True, False):
        node = Node()
        node.account.contradicted = {0} if is_unsure else set()
        for now_s in range(1, 40):
            node.it.book([ProcessUse(CGROUP, PID, 0, S // 5, True, 0, Confidence.LOW, 1)])
            node.see(now_s)
            node.look(now_s)
        assert bool(node.accused) is not is_unsure
        assert node.it.unseen.rates, "samples say it all the same"


def test_a_guessed_gpu_explains_what_is_seen_on_another() -> None:
    for guessed, is_accused in (({PID}, False), (set(), True)):
        node = Node(gpus=2)
        node.account.guessed = guessed
        for now_s in range(1, 30):
            node.it.book([ProcessUse(CGROUP, PID, 0, S, True, 0, Confidence.LOW, 1)])
            node.see(now_s, slot=1)
            node.look(now_s)
        assert bool(node.accused) == is_accused


def test_a_held_tenant_is_thawed_before_it_is_told_to_end(node: Node) -> None:
    node.applier.holds["bad"] = None
    node.run_unseen(range(7, 13))
    assert node.applied[0].kind is ActionKind.THAW
    assert node.applied[0].tenant == "bad"
    assert len(node.applied) == 1, "once: what is held later is the freezer's business"


def test_strangers_are_nobodys_misbehaviour(node: Node) -> None:
    node.run_unseen(range(7, 20), cgroup_id=999)
    assert (node.accused, node.it.unseen) == (set(), NOTHING_UNSEEN)
    assert node.terminator.asked == []


def test_another_process_of_the_same_pid_has_no_past(node: Node) -> None:
    node.run_unseen(range(7, 8))
    node.see(8, slot=1)  # in one answer with the other, and with one that has ended
    node.watch.sampled.append(ProcessSamples(12, 0, None, None, 7, 7 * PERIOD_NS, PERIOD_NS))
    node.run_unseen(range(8, 9), owner=ProcessId(PID, 900))
    assert (node.terminator.asked, [len(looks) for looks in node.it._state.seen.values()]) == ([], [1])
    node.run_unseen(range(12, 15), owner=ProcessId(PID, 900))
    assert {accused.owner.start_ticks for accused in node.terminator.asked} == {900}


def test_endless_work_is_taken_from_the_account(node: Node) -> None:
    for now_s in range(7, 14):
        node.account.works = [
            ContextWork((0, 1), PID, CGROUP, 0, 1, 0, True, 6 * S, 0, round((now_s - 6) * S), 0),
            ContextWork((1, 1), 12, 999, 0, 1, 0, True, 6 * S, 0, round((now_s - 6) * S), 0),
        ]
        node.it.book([ProcessUse(CGROUP, PID, 0, S, True, 0, Confidence.LOW, 1)])
        node.see(now_s)
        node.look(now_s)
    (status,) = node.it.statuses("bad", 13 * S)
    assert (status.kind, node.it.stuck) == (MisbehaviourKind.ENDLESS, {(PID, "GPU-0")})
    assert status.detail.startswith("1 context has completed none of its work for ")


def test_the_account_is_told_whom_nvml_saw_run(node: Node) -> None:
    assert node.account.seen_running == {(PID, 0): 5}
    assert [node.account.sample_period_ns(slot) for slot in (0, 1)] == [139_000_000, 278_000_000]


def test_probes_that_were_lost_leave_nobody_unseen(node: Node) -> None:
    node.sensors.account = None
    node.run_unseen(range(7, 12))
    node.sensors.account = Account()
    node.run_unseen(range(12, 16))
    assert (node.accused, node.it.unseen) == (set(), NOTHING_UNSEEN)


def test_it_looks_once_a_second(node: Node) -> None:
    for tenth in range(70, 100, 2):
        node.look(tenth / 10)
    assert 3 <= len(node.terminator.still) - len(SETTLED) <= 4


def test_a_look_that_fails_is_counted_and_not_the_end(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.account.works = cast(Any, [None])
    node.account.sampled = {(PID, 0): SampledLaunch(1.0, is_needed=True, is_less=False)}
    node.look(20)
    assert node.account.sampled == {}, "what is old says nothing"
    assert node.it.errors == 1
    assert "look for misbehaviour failed" in caplog.text


def test_without_nvml_nothing_is_done() -> None:
    node = Node()
    node.it._watch = None
    node.it.book([ProcessUse(CGROUP, PID, 0, S, True, 0, Confidence.HIGH, 1)])
    node.look(1)
    assert (node.accused, node.it.unseen) == (set(), NOTHING_UNSEEN)
    assert node.it._booked.charged_ns == {}
