# SPDX-License-Identifier: Apache-2.0
"""The account by the trace of context switches alone, and the law on it."""

from __future__ import annotations

import pytest

from fairsched.accounting.traced import TracedAccount
from fairsched.model import Action, Source
from tests.unit.accounting.sampled_loop import MIXES, MS, S, SampledLoop, decoder, drawn, tenants_of, trainer
from tests.unit.accounting.traced_loop import FakeTrace, TracedLoop
from tests.unit.policy.model_gpu import Simulation


@pytest.mark.parametrize("name", ["4:2:1:1", "3:1", "1:3", "9:1", "four equals"])
def test_shares_are_right_within_seconds(name: str) -> None:
    loop = TracedLoop(MIXES[name](), seed=11)
    loop.run(25 * S)
    assert loop.error_points(5 * S, 25 * S) <= 1.5
    assert loop.least_of_due(5 * S, 25 * S, 10 * S) >= 0.25


@pytest.mark.parametrize("number", range(200, 204))
def test_drawn_mixes_are_nearer_to_their_due_than_with_nobody_held_and_nobody_is_locked_out(
    number: int,
) -> None:
    held, free = (
        TracedLoop(drawn(number), seed=number),
        TracedLoop(drawn(number), seed=number, is_enforced=False),
    )
    held.run(25 * S)
    free.run(25 * S)
    assert held.error_points(10 * S, 25 * S) <= free.error_points(10 * S, 25 * S) + 1
    assert held.least_of_due(10 * S, 25 * S, 10 * S) >= 0.25


@pytest.mark.parametrize("name", ["light", "on and off"])
def test_nobody_waits_for_who_wants_little(name: str) -> None:
    """What the GPU does is nearly what it does where nobody is held."""
    held, free = TracedLoop(MIXES[name](), seed=3), TracedLoop(MIXES[name](), seed=3, is_enforced=False)
    held.run(20 * S)
    free.run(20 * S)
    busy = [sum(loop.got(one, 5 * S, 20 * S) for one in loop.tenants) for loop in (held, free)]
    assert busy[0] >= 0.93 * busy[1]


class Alone:
    """An account of one GPU, fed by hand. ``cgroups`` and ``identities`` by process."""

    def __init__(self, load: float | None = None) -> None:
        self.loop = SampledLoop(MIXES["3:1"](), seed=1)
        self.cgroups: dict[int, int | None] = {1: 101, 2: 102, 3: 103}
        self.identities: dict[int, object] = {}
        self.load = load
        self.account = TracedAccount(
            self.loop.account,
            self.cgroups.get,
            (2 * MS, 0),
            identity_of=lambda pid: self.identities.get(pid, pid),
            load=lambda _slot: self.load,
        )
        self.account.slots = lambda: [0]
        self.account.tenant_of = {101: "a", 102: "b"}.get
        self.trace = FakeTrace(self.loop)  # type: ignore[arg-type]
        self.account.begin(0, self.trace)
        self.total: dict[int, int] = {}
        self.wants: set[int] = set()

    @property
    def now(self) -> int:
        return self.loop.now

    def give(self, pid: int | None, for_ns: int) -> None:
        self.trace.give(pid, self.now)
        self.loop.now += for_ns

    def turns(self, *pids: int, for_ns: int) -> None:
        end_ns = self.now + for_ns
        while self.now < end_ns:
            for pid in pids:
                self.give(pid, 2 * MS)
        self.read()

    def alone(self, for_ns: int) -> None:
        """Nothing is told for as long; the account is read as the daemon does."""
        for _ in range(for_ns // (100 * MS)):
            self.loop.now += 100 * MS
            self.read()

    def read(self) -> dict[int, int]:
        """GPU time by cgroup since the last call."""
        used: dict[int, int] = {}
        self.wants = set()
        for row in self.account.read(self.now):
            assert row.used_ns >= 0
            used[row.cgroup_id] = used.get(row.cgroup_id, 0) + row.used_ns
            self.total[row.cgroup_id] = self.total.get(row.cgroup_id, 0) + row.used_ns
            if row.has_demand:
                self.wants.add(row.cgroup_id)
        return used


def test_who_was_held_wants_the_gpu_until_it_is_let_go() -> None:
    one = Alone()
    one.turns(1, 2, for_ns=100 * MS)
    one.account.hold([101], one.now)
    one.give(2, 0)
    one.alone(2 * S)
    assert one.wants == {101, 102}
    one.account.thaw([101], one.now)
    one.alone(200 * MS)
    assert one.wants == {102}


def test_who_is_paused_by_others_wants_nothing() -> None:
    one = Alone()
    one.turns(1, 2, for_ns=100 * MS)
    one.account.hold([101], one.now, by_others=True)
    one.give(2, 0)
    one.alone(S)
    assert one.wants == {102}


def test_one_that_is_held_and_killed_wants_nothing() -> None:
    one = Alone()
    one.turns(1, 2, for_ns=100 * MS)
    one.account.hold([101], one.now)
    one.cgroups[1] = None
    one.give(2, 0)
    one.alone(S)
    assert one.wants == {102}


def test_a_number_that_is_another_processs_now_is_charged_to_that() -> None:
    """The one before had two seconds that were no work: that is not given to who has its number."""
    one = Alone(load=0.1)
    one.give(1, 0)
    one.alone(3 * S)
    one.account._slots[0].owners[1].refund_ns += 2 * S
    one.cgroups[1], one.identities[1] = 102, "another"
    one.loop.now += 300 * MS
    one.read()
    before = one.total.get(102, 0)
    one.turns(1, 3, for_ns=S)
    assert one.total[102] - before == pytest.approx(S // 2, rel=0.05)


def test_what_goes_on_in_the_name_of_one_that_has_ended_is_of_where_it_was() -> None:
    one = Alone()
    one.turns(1, 2, for_ns=100 * MS)
    one.cgroups[1] = None
    one.loop.now += 300 * MS
    one.turns(1, 2, for_ns=100 * MS)
    assert set(one.total) == {101, 102}


def test_who_had_ended_before_it_was_seen_is_nobodys_and_counted() -> None:
    one = Alone()
    one.turns(4, for_ns=100 * MS)
    assert set(one.total) == {0}
    assert one.account.counts()["nobodys"] == 1


def test_what_the_load_says_was_no_work_is_taken_off_what_is_charged_next() -> None:
    one = Alone(load=0.25)
    one.give(1, 0)
    one.alone(30 * S)
    assert one.total[101] == pytest.approx(0.25 * 30 * S, rel=0.25)
    assert one.total[101] >= 0.25 * 30 * S


def test_without_a_load_all_of_it_is_charged() -> None:
    one = Alone()
    one.give(1, 0)
    one.alone(10 * S)
    assert one.total[101] == pytest.approx(10 * S, rel=0.01)


def test_a_load_that_is_told_late_frees_nobody() -> None:
    """Of two readings the higher counts: work of a second that begins with the reading is charged."""
    one = Alone(load=1.0)
    one.give(1, 0)
    for second in range(20):
        one.load = float(second % 2)
        one.alone(S)
    assert one.total[101] >= 0.9 * 20 * S


def test_one_that_is_held_with_nothing_to_do_is_not_charged_without_a_load() -> None:
    """Else a quota would keep it held for being held."""
    one = Alone()
    one.give(1, MS)
    one.read()
    one.account.hold([101], one.now)
    one.alone(5 * S)
    assert one.total[101] < 3 * MS


def test_the_source_is_the_trace_while_every_gpu_has_one() -> None:
    one = Alone()
    assert one.account.source is Source.TRACE
    one.account.slots = lambda: [0, 1]
    assert one.account.source is Source.NVML
    one.account.slots = lambda: [0]
    one.account.end(0)
    one.account.end(0)
    assert (one.account.source, one.account.gpus) == (Source.NVML, set())


def test_a_lost_trace_leaves_samples_behind_and_totals_do_not_jump() -> None:
    loop = TracedLoop(MIXES["3:1"](), seed=4, is_enforced=False)
    total = {"a": 0, "b": 0}
    sums = []

    def look() -> None:
        for row in loop.account.read(loop.now):
            assert row.used_ns >= 0
            total[loop.names[row.cgroup_id]] += row.used_ns
        sums.append((loop.now, sum(total.values())))
        loop.at(loop.now + 100 * MS, look)

    def lose() -> None:
        loop.traces[name].is_lost = True

    def come_back() -> None:
        loop.traces[name] = FakeTrace(loop)
        loop.traced.begin(0, loop.traces[name])

    (name,) = loop.gpus
    loop.tick = lambda: None  # type: ignore[method-assign]
    loop.at(100 * MS, look)
    loop.at(10 * S, lose)
    loop.at(20 * S, come_back)
    Simulation.run(loop, 30 * S)
    assert loop.traced.gpus == {0}
    for now_ns, ns in sums:
        assert ns <= now_ns, "no more than the time that passed"
    assert sums[-1][1] >= 0.9 * 30 * S


def test_samples_of_the_time_before_a_trace_was_lost_are_not_charged() -> None:
    loop = TracedLoop(MIXES["3:1"](), seed=4, is_enforced=False)
    loop.tick = lambda: None  # type: ignore[method-assign]

    def look() -> None:
        loop.account.read(loop.now)
        loop.at(loop.now + S, look)

    loop.at(S // 2, look)
    Simulation.run(loop, 9 * S)
    loop.traced.end(0)
    used_ns = [row.used_ns for row in loop.account.read(loop.now)]
    assert used_ns and not any(used_ns), "half a second was sampled"


def test_where_queues_are_not_seen_nobody_is_granted_one() -> None:
    loop = TracedLoop(tenants_of(("a", 9, [decoder()]), ("b", 1, [trainer(16), trainer(16)])), seed=6)
    granted, plain = [], loop._grant

    def note(action: Action) -> None:
        granted.append(action.grant_ns)
        plain(action)

    loop._grant = note  # type: ignore[method-assign]
    loop.run(20 * S)
    assert loop.records
    assert set(granted) <= {None}


def test_holes_are_counted_and_charge_nobody_twice() -> None:
    loop = TracedLoop(MIXES["4:2:1:1"](), seed=5)
    trace = next(iter(loop.traces.values()))

    def hole() -> None:
        trace.switches = trace.switches[len(trace.switches) // 2 :]
        trace.is_whole = False
        loop.at(loop.now + 500 * MS, hole)

    loop.at(500 * MS, hole)
    loop.run(30 * S)
    assert loop.traced.counts()["holes"] > 20
    assert loop.error_points(5 * S, 30 * S) <= 3


def test_one_that_takes_the_engine_for_a_moment_whenever_its_neighbour_has_it_gains_nothing() -> None:
    """Its neighbour is always given the engine back, and wants it."""
    one = Alone()
    for _ in range(200):
        one.give(1, MS // 10)
        one.give(2, 2 * MS)
        one.read()
        assert 102 in one.wants
    assert one.total[102] >= 0.95 * 200 * 2 * MS


def test_ten_thousand_processes_are_not_all_remembered() -> None:
    one = Alone()
    for pid in range(10_000):
        one.cgroups[pid] = 101
        one.give(pid, 10_000)
        if pid % 100 == 0:
            one.read()
    one.read()
    assert one.total[101] == pytest.approx(100 * MS, rel=0.05)
    assert len(one.account._slots[0].owners) <= 4_200
