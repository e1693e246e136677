# SPDX-License-Identifier: Apache-2.0
"""GPU time of processes that no call is seen of, through the account."""

from __future__ import annotations

import pytest

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.strangers import FORGOTTEN_NS
from fairsched.gpu.trace import Switch
from fairsched.model import Confidence
from tests.unit.accounting.fake_probe import MS, FakeProbe, FakeTrace, account_of

HONEST, HIDDEN = 500, 600
OWN, ITS = 5, 6
"""Their cgroups."""


def node() -> tuple[FakeProbe, EbpfAccount, FakeTrace]:
    probe, trace = FakeProbe(), FakeTrace()
    account = account_of(probe)
    account.following.begin(0, trace)
    account.cgroup_of = {HIDDEN: ITS}.get
    probe.create(0, HONEST, OWN)
    probe.launch(0, 0, 100)
    account.read(0)  # what came before there was a context is of no use
    return probe, account, trace


def used_ms(account: EbpfAccount, at_ms: int) -> dict[tuple[int, int], float]:
    return {(row.cgroup_id, row.tgid): row.used_ns / MS for row in account.read(at_ms * MS) if row.used_ns}


def test_it_is_charged_to_its_cgroup_like_anybody() -> None:
    _, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    rows = {row.tgid: row for row in account.read(40 * MS)}
    assert rows[HONEST].used_ns == rows[HIDDEN].used_ns == 20 * MS
    assert (rows[HIDDEN].cgroup_id, rows[HIDDEN].has_demand) == (ITS, True)
    assert rows[HIDDEN].confidence is Confidence.HIGH


def test_nobody_else_is_doubted_for_it() -> None:
    _, account, trace = node()
    account.intruded = {0}
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    assert {row.tgid: row.confidence for row in account.read(40 * MS)}[HIDDEN] is Confidence.HIGH


def test_one_that_goes_on_in_the_name_of_a_process_that_is_gone_is_charged_to_where_that_was() -> None:
    """A child holds the descriptor, and the driver names who opened it."""
    probe, account, trace = node()
    probe.create(1, 700, ITS)
    probe.launch(1, MS, 1)
    trace.rounds(HONEST, 700, begin_ms=0, count=5)
    assert used_ms(account, 20)[ITS, 700] > 0
    probe.end(1, 20 * MS)
    trace.rounds(HONEST, 700, begin_ms=20, count=5)
    assert used_ms(account, 40) == {(OWN, HONEST): 10, (ITS, 700): 10}


def test_who_is_nowhere_to_be_found_is_nobodys() -> None:
    _, account, trace = node()
    trace.rounds(HONEST, 999, begin_ms=0, count=10)
    assert used_ms(account, 40) == {(OWN, HONEST): 20, (0, 999): 20}


def test_one_of_which_nothing_comes_any_more_is_forgotten() -> None:
    _, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    account.read(40 * MS)
    turns = account._engines[0].replay
    assert len(list(turns.take_strangers())) == 1
    account.read(FORGOTTEN_NS + 50 * MS)
    assert list(turns.take_strangers()) == []


def test_one_whose_calls_are_seen_later_is_no_stranger_any_more() -> None:
    probe, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    account.read(40 * MS)
    probe.create(2, HIDDEN, ITS, t_ns=41 * MS)
    probe.launch(2, 42 * MS, 10)
    trace.rounds(HONEST, HIDDEN, begin_ms=44, count=10)
    assert used_ms(account, 84) == {(OWN, HONEST): 20, (ITS, HIDDEN): 20}


def test_a_lost_trace_is_followed_no_more_and_the_account_goes_on() -> None:
    _, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    account.read(40 * MS)
    assert account.traced_gpus() == {0}
    trace.is_lost = True
    assert used_ms(account, 60)[OWN, HONEST] > 15
    assert account.traced_gpus() == account.following.gpus == set()


def test_work_that_never_has_a_turn_breaks_nothing() -> None:
    """A graph of copies, a client of MPS: proven complete again and again, and the engine never was its."""
    probe, account, trace = node()
    probe.create(1, 700, ITS)
    for at in range(0, 200, 10):
        probe.launch(1, at * MS, 1, graph=0xAB if at % 20 else 0)
        probe.sync(1, (at + 5) * MS)
        trace.rounds(HONEST, begin_ms=at, count=4)
        trace.is_lost = at >= 100
        account.read((at + 9) * MS)
    assert account.traced_gpus() == set()


def test_the_time_of_a_launch_is_that_since_the_last_proof_whoever_told_it() -> None:
    """A trainer whose queue never runs empty, while the trace is lost and comes again."""
    probe, account, trace = node()
    told: dict[bool, float] = {}
    for at in range(10, 3000, 10):
        if at == 500:
            trace.is_lost = True
        elif at == 2900:
            trace = FakeTrace()
            account.following.begin(0, trace)
        probe.launch(0, (at + 1) * MS, 5)
        probe.progress(0, (at + 9) * MS, probe.contexts_by_slot[0].submitted - 100)
        trace.rounds(HONEST, begin_ms=at, count=5)
        account.read((at + 10) * MS)
        told[at < 500] = next(iter(account._contexts.all())).launch.tau_ns
    assert told[False] == pytest.approx(told[True], rel=0.1)


def test_what_it_had_up_to_its_first_call_is_not_forgiven() -> None:
    """Else a context made and destroyed each tick would be all it takes."""
    probe, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    probe.progress(0, 39 * MS, 50)
    probe.create(2, HIDDEN, ITS, t_ns=40 * MS)
    assert used_ms(account, 41) == {(OWN, HONEST): 20, (ITS, HIDDEN): 20}


def test_one_that_is_forgotten_for_others_is_not_charged_twice() -> None:
    _, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=50)
    assert used_ms(account, 200)[ITS, HIDDEN] == 100
    for pid in range(10_000, 15_000):
        account._engines[0].strangers.leave(pid, 9, 201 * MS)
    trace.rounds(HONEST, HIDDEN, begin_ms=202, count=5)
    assert used_ms(account, 222)[ITS, HIDDEN] == 10


def test_who_never_asks_is_charged_for_sure() -> None:
    """Launches without a call that proves them done: no proof is needed where the GPU tells whose turn it is."""
    probe, account, trace = node()
    probe.create(1, 700, ITS)
    sure = set()
    for at in range(0, 3000, 20):
        probe.launch(1, at * MS, 4)
        trace.rounds(HONEST, 700, begin_ms=at, count=5)
        sure |= {row.confidence for row in account.read((at + 20) * MS) if row.tgid == 700 and at}
    assert sure == {Confidence.HIGH}


def test_a_context_that_works_past_all_calls_wants_the_gpu() -> None:
    probe, account, trace = node()
    probe.create(1, 700, ITS)
    trace.rounds(HONEST, 700, begin_ms=0, count=25)
    (row,) = [row for row in account.read(100 * MS) if row.tgid == 700]
    assert (row.used_ns, row.has_demand, row.confidence) == (50 * MS, True, Confidence.HIGH)


def test_held_it_wants_what_it_wanted_until_it_is_let_go() -> None:
    """Frozen it has no turns: taken to want nothing it would be let go 25 ms later, each time."""
    _, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    account.read(40 * MS)
    account.hold([ITS], 40 * MS)
    trace.rounds(HONEST, begin_ms=40, count=100)
    assert [row.has_demand for row in account.read(240 * MS) if row.tgid == HIDDEN] == [True]
    account.thaw([ITS], 240 * MS)
    assert [row.has_demand for row in account.read(260 * MS) if row.tgid == HIDDEN] == [True]
    assert [row.has_demand for row in account.read(300 * MS) if row.tgid == HIDDEN] == []


def test_held_by_others_it_wants_nothing() -> None:
    _, account, trace = node()
    trace.rounds(HONEST, HIDDEN, begin_ms=0, count=10)
    account.read(40 * MS)
    account.hold([ITS], 40 * MS, by_others=True)
    assert [row.has_demand for row in account.read(100 * MS) if row.tgid == HIDDEN] == []


def test_nobody_is_held_for_who_waits_for_what_never_comes() -> None:
    """A launch behind an event: work by its calls, and it wants no turn. Its neighbour's are not its."""
    probe, account, trace = node()
    probe.create(1, 700, ITS)
    probe.launch(1, 0, 1)
    probe.sync(1, MS)
    probe.launch(1, 2 * MS, 1)
    probe.create(2, 800, ITS)
    probe.launch(2, 2 * MS, 1000)
    wants = {}
    for at in range(0, 400, 20):
        trace.rounds(HONEST, 800, begin_ms=at, count=5)
        wants = {row.tgid: row.has_demand for row in account.read((at + 20) * MS)}
    assert wants == {HONEST: True, 700: False, 800: True}


def test_a_flood_of_edges_does_not_ask_the_driver_for_each_portion() -> None:
    probe, account, trace = node()
    asked = 0
    read = trace.read

    def count() -> tuple[list[Switch], bool]:
        nonlocal asked
        asked += 1
        return read()

    trace.read = count  # type: ignore[method-assign]
    for at in range(1, 1000):
        probe.progress(0, at, 1)
    for _ in range(9):
        account.take_in(100)
    assert asked == 0
    account.read(MS)
    assert asked == 1
