# SPDX-License-Identifier: Apache-2.0
"""What samples say of drains that were taken to be over; and what is known to be done is not set back."""

from __future__ import annotations

import pytest

from fairsched.accounting.ebpf import EbpfAccount
from tests.unit.accounting.fake_probe import FakeProbe
from tests.unit.accounting.test_drains import CHAT, LONG, context_of, two

MS = 1_000_000


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


@pytest.mark.parametrize(("after_ms", "runs"), [(290, False), (310, True)])
def test_a_sample_of_who_is_held_long_after_its_drain_takes_back_that_it_is_over(
    probe: FakeProbe, after_ms: int, runs: bool
) -> None:
    """Whoever had the GPU to itself meanwhile, as far as was known, had not, and its cost is not known."""
    account, now = two(probe)
    engine = account._engines[0]
    probe.launch(0, now, 10)
    account.read(now)
    account.hold([LONG], now)
    for number in range(14):
        probe.launch(1, now + 21 * number * MS, 10)
        probe.sync(1, now + (21 * number + 20) * MS)
        account.read(now + (21 * number + 20) * MS)
    over_ns = max(context_of(account, 0).believed_ns, context_of(account, 0).closed_ns)
    cost = engine.costs.of(engine._owner_of(CHAT))
    assert cost.is_measured
    account.sample_period_ns = lambda _: 20 * MS
    account.seen_running = {(11, 0): over_ns + (after_ms + 20) * MS}
    account.read(over_ns + 350 * MS)
    assert engine.replay.is_runnable((0, 1)) is runs
    assert cost.is_measured is not runs


def drained(probe: FakeProbe) -> tuple[EbpfAccount, int]:
    """Two contexts of one held process, the second with more queued, both taken to be over; and when that was."""
    account, now = two(probe)
    probe.create(2, 11, LONG, t_ns=now)
    for launches in (10, 10, 10):
        probe.launch(2, now, launches)
        probe.sync(2, now + 20 * MS)
        now += 21 * MS
    probe.launch(0, now, 10)
    probe.launch(2, now, 20)
    account.read(now)
    account.hold([LONG], now)
    account.read(now + 500 * MS)
    return account, now + 500 * MS


def test_one_sample_takes_back_the_end_of_one_drain_and_no_more_of_it_than_there_was_time(
    probe: FakeProbe,
) -> None:
    """Of several contexts of its process, that with the most to do. How long it has run without a proof says little."""
    account, now = drained(probe)
    replay = account._engines[0].replay
    context_of(account, 2).seq_exec_ns -= 3600 * 1000 * MS
    account.seen_running = {(11, 0): now}
    account.read(now)
    assert [replay.is_runnable((slot, 1)) for slot in (0, 2)] == [False, True]
    assert 0 < (replay.left_ns((2, 1)) or 0) <= 500 * MS


def test_where_the_gpu_tells_its_switches_no_sample_takes_anything_back(
    probe: FakeProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, now = drained(probe)
    engine = account._engines[0]
    monkeypatch.setattr(engine.replay, "is_traced", True)
    engine.see({11: now}, now)
    assert not any(engine.replay.is_runnable((slot, 1)) for slot in (0, 2))


@pytest.mark.parametrize("before", [5, 60])
def test_edges_that_were_lost_never_set_back_what_is_known_to_be_done(probe: FakeProbe, before: int) -> None:
    """Proofs of a stream that is asked about late may be far behind what its context is known to have done."""
    account, now = two(probe)
    context, live = context_of(account, 0), probe.context(0)
    live.proven = before
    account._engines[0].resync(context, live, now)
    assert context.seq == 60


def test_a_proof_of_what_was_proven_sets_nothing_back(probe: FakeProbe) -> None:
    account, now = two(probe)
    probe.launch(0, now, 10)
    probe.progress(0, now + MS, completed=5)
    account.read(now + MS)
    assert context_of(account, 0).asked_seq == 60


def test_a_gpu_that_is_new_and_has_no_samples_yet_is_asked_for_no_period(probe: FakeProbe) -> None:
    """An instance of a GPU that was split anew: its samples begin later, and nobody else's account stops for that."""
    account, now = two(probe)
    account.sample_period_ns = [20 * MS].__getitem__
    probe.create(2, 13, CHAT, t_ns=now, gpu=1)
    probe.launch(2, now, 10)
    account.seen_running = {(11, 0): now}
    assert {row.gpu for row in account.read(now + MS)} >= {1}


def test_a_sample_is_of_the_context_of_its_process_that_is_known_to_run(probe: FakeProbe) -> None:
    account, now = two(probe)
    engine = account._engines[0]
    probe.create(2, 11, LONG, t_ns=now)
    probe.launch(0, now, 10)
    probe.launch(2, now, 1000)
    account.read(now)
    account.hold([LONG], now)
    account.read(now + 600 * MS)
    assert [engine.replay.is_runnable((slot, 1)) for slot in (0, 2)] == [False, True]
    account.seen_running = {(11, 0): now + 590 * MS}
    account.read(now + 610 * MS)
    assert not engine.replay.is_runnable((0, 1))
