# SPDX-License-Identifier: Apache-2.0
"""The sampled account: whose time it is, who still wants the GPU, and who pauses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from fairsched.accounting.lots import MISSES, Lots
from fairsched.accounting.nvml import NvmlAccount
from fairsched.gpu.sampler import Sample
from fairsched.model import Confidence
from tests.support import wait_until
from tests.unit.accounting.test_nvml import S_NS, WINDOW_US, ring


class ScriptedReader:
    """Stands in for a GPU: hands out what the test put in."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.asked: list[int] = []
        self.gate: threading.Event | None = None
        """Keeps whoever asks until it is set."""

    def read(self, after_us: int) -> list[Sample]:
        self.asked.append(after_us)
        if self.gate is not None:
            self.gate.wait(5)
        return [sample for sample in self.samples if sample.time_us > after_us]


@pytest.fixture
def reader() -> ScriptedReader:
    return ScriptedReader()


def account_of(reader: Any, cgroups: dict[int, int], **more: Any) -> NvmlAccount:
    """Questions take no time."""
    return NvmlAccount([reader], cgroups.get, clock_ns=lambda: 0, **more)


def test_time_goes_to_the_cgroup_of_the_process_as_sampled(reader: ScriptedReader) -> None:
    account = account_of(reader, {1: 100, 2: 200})
    assert account.read(0) == []
    reader.samples = ring([1, 1, 2])
    rows = account.read(S_NS)
    assert {(row.cgroup_id, row.tgid, row.used_ns) for row in rows} == {
        (100, 1, WINDOW_US * 1000),
        (200, 2, WINDOW_US * 1000),
    }
    assert all(
        row.confidence is Confidence.SAMPLED and row.outstanding_ns == 0 and row.gpu == 0 for row in rows
    )


def test_asked_beside_the_loop_a_read_asks_nothing(reader: ScriptedReader) -> None:
    account = account_of(reader, {1: 100}, poll_ns=1)
    gate = threading.Event()
    reader.gate = gate
    account.start()
    try:
        wait_until(lambda: len(reader.asked) > 0, 10, "the thread asks")
        assert account.read(S_NS) == []
        assert len(reader.asked) == 1
    finally:
        account.close()
        gate.set()


def test_between_two_polls_demand_is_known_and_no_time_is_charged_twice(reader: ScriptedReader) -> None:
    account = account_of(reader, {1: 100})
    reader.samples = ring([1, 1])
    assert account.read(S_NS)[0].used_ns > 0
    rows = account.read(S_NS + 1_000_000)
    assert [(row.used_ns, row.has_demand) for row in rows] == [(0, True)]
    assert len(reader.asked) == 1


def clock_ns(reader: ScriptedReader) -> int:
    """Ours, as the newest sample comes."""
    return (max(one.time_us for one in reader.samples) - 10**15) * 1000 + S_NS


def missing_for(account: NvmlAccount, reader: ScriptedReader, pids: Sequence[int], polls: int) -> list[int]:
    """Those of whom there are rows after so many polls, each of which found one new sample of ``pids``."""
    begin_us, rows = max(one.time_us for one in reader.samples), []
    for poll in range(1, polls + 1):
        for pid in pids:
            reader.samples.append(Sample(begin_us + poll * WINDOW_US, pid, 1.0))
        rows = account.read(clock_ns(reader))
    return sorted(row.tgid for row in rows if row.has_demand)


def with_three(reader: ScriptedReader) -> NvmlAccount:
    account = account_of(reader, {1: 100, 2: 200, 3: 300}, poll_ns=1)
    reader.samples = ring([1, 2, 3, 1])
    account.read(clock_ns(reader))
    return account


def test_who_is_missing_from_samples_that_it_should_have_been_in_wants_nothing(
    reader: ScriptedReader,
) -> None:
    """Of three it should be in every third; 5 such are missing after 15 samples, 2 after 6."""
    account = with_three(reader)
    assert missing_for(account, reader, [1, 2], 6) == [1, 2, 3]
    assert missing_for(account, reader, [1, 2], round(3 * MISSES)) == [1, 2]


def test_time_in_which_it_is_held_proves_nothing(reader: ScriptedReader) -> None:
    account = with_three(reader)
    account.hold([300], 0)
    assert missing_for(account, reader, [1, 2], 60) == [1, 2, 3]
    account.thaw([300], 0)
    assert missing_for(account, reader, [1, 2], 60) == [1, 2]


def test_one_that_has_ended_wants_nothing_even_if_it_is_held(reader: ScriptedReader) -> None:
    cgroups = {1: 100, 2: 200}
    account = account_of(reader, cgroups, poll_ns=1)
    reader.samples = ring([1, 2, 1])
    account.read(clock_ns(reader))
    account.hold([200], 0)
    assert missing_for(account, reader, [1], 40) == [1, 2]
    del cgroups[2]
    assert missing_for(account, reader, [1], 1) == [1]


def test_one_that_others_have_paused_wants_nothing_until_it_runs_again(reader: ScriptedReader) -> None:
    account = with_three(reader)
    account.hold([300], 0, by_others=True)
    assert missing_for(account, reader, [1, 2], 1) == [1, 2]
    account.thaw([300], 0)
    assert missing_for(account, reader, [1, 2], 1) == [1, 2, 3]


def test_a_pause_that_nobody_ended_is_forgotten_with_its_processes(reader: ScriptedReader) -> None:
    cgroups = {1: 100, 2: 200}
    account = account_of(reader, cgroups, poll_ns=1)
    reader.samples = ring([1, 2, 1])
    account.read(clock_ns(reader))
    account.hold([200], 0, by_others=True)
    del cgroups[2]
    assert missing_for(account, reader, [1], 2) == [1]
    cgroups[3] = 200
    assert missing_for(account, reader, [1, 3], 1) == [1, 3]
    assert missing_for(account, reader, [1], 20) == [1], "and it is not taken to be held"


def test_where_nobody_is_sampled_whoever_is_not_held_wants_nothing(reader: ScriptedReader) -> None:
    """With sixty processes one would be missed for a minute otherwise, and others be held for it."""
    pids = range(1, 61)
    account = account_of(reader, {pid: 100 + pid for pid in pids}, poll_ns=1)
    reader.samples = ring([1, *pids])
    account.read(clock_ns(reader))
    now_ns = clock_ns(reader)
    rows = [row for k in range(1, 8) for row in account.read(now_ns + k * WINDOW_US * 1000) if k == 7]
    assert rows == []


def test_a_gpu_without_samples_says_nothing_of_how_often_there_are_any(reader: ScriptedReader) -> None:
    account = NvmlAccount([reader, ScriptedReader()], {1: 100}.get, poll_ns=1)  # type: ignore[list-item]
    assert account.period_ns == 1_000_000_000
    reader.samples = ring([1, 1, 1])
    account.read(clock_ns(reader))
    assert account.period_ns == WINDOW_US * 1000


def test_a_process_that_moves_is_charged_where_it_is(reader: ScriptedReader) -> None:
    cgroups = {1: 100}
    account = account_of(reader, cgroups)
    reader.samples = ring([1, 1])
    assert [row.cgroup_id for row in account.read(S_NS)] == [100]
    cgroups[1] = 101
    assert [row.cgroup_id for row in account.read(2 * S_NS)] == [101]


def paused(account: NvmlAccount, reader: ScriptedReader, pids: Sequence[int]) -> dict[int, float]:
    """In parts of the time, over as many polls as samples."""
    begin_us = max(one.time_us for one in reader.samples)
    found: dict[int, float] = {}
    account.tenant_of = str
    for place, pid in enumerate(pids, 1):
        reader.samples.append(Sample(begin_us + place * WINDOW_US, pid, 1.0))
        for row in account.read(clock_ns(reader)):
            found[row.tgid] = found.get(row.tgid, 0.0) + row.paused_ns / (len(pids) * WINDOW_US * 1000)
    return found


def test_who_has_less_than_its_turns_may_wait_for_a_neighbour(reader: ScriptedReader) -> None:
    """A process of many contexts takes many turns: that three are not in a third of the samples each says nothing."""
    assert paused(with_three(reader), reader, ([1, 2] * 4 + [1, 3]) * 3)[3] == 0


def test_who_leaves_the_gpu_idle_while_its_rivals_are_held_is_taken_to_pause(reader: ScriptedReader) -> None:
    """From then on, who is in a tenth of the samples of three paused for 70 % of the time."""
    account = with_three(reader)
    account.tenant_of = str
    account.hold([100, 200], 0)
    now_ns = clock_ns(reader)
    for number in range(1, 5):
        account.read(now_ns + number * WINDOW_US * 1000)
    for _ in range(3):
        reader.samples.append(Sample(max(one.time_us for one in reader.samples) + 4 * WINDOW_US, 3, 1.0))
        account.read(clock_ns(reader))
    account.thaw([100, 200], 0)
    assert paused(account, reader, ([1, 2] * 4 + [1, 3]) * 3)[3] == pytest.approx(0.7, abs=0.01)


def test_a_gpu_that_idled_with_nobody_held_says_nothing_of_pauses(reader: ScriptedReader) -> None:
    """Programs start, and wait for their first request."""
    account = with_three(reader)
    account.tenant_of = str
    now_ns = clock_ns(reader)
    for number in range(1, 20):
        account.read(now_ns + number * WINDOW_US * 1000)
    for pid in (1, 2, 3):
        reader.samples.append(Sample(max(one.time_us for one in reader.samples) + 20 * WINDOW_US, pid, 1.0))
        account.read(clock_ns(reader))
    assert paused(account, reader, ([1, 2] * 4 + [1, 3]) * 3)[3] == 0


def test_who_fills_the_gpu_while_its_rival_is_held_never_paused(reader: ScriptedReader) -> None:
    account = account_of(reader, {1: 100, 2: 200}, poll_ns=1)
    reader.samples = ring([1, 2, 1])
    account.read(clock_ns(reader))
    account.tenant_of = str
    account.hold([200], 0)
    assert paused(account, reader, [1] * 8)[1] == pytest.approx(0.0, abs=0.1)
    account.thaw([200], 0)
    assert paused(account, reader, ([2] * 9 + [1]) * 3)[1] <= 0.01


def test_the_error_falls_with_the_window_and_the_share(reader: ScriptedReader) -> None:
    account = with_three(reader)
    account.tenant_of = {100: "chat", 200: "batch"}.get
    points = [account.error_points(window_s) for window_s in (1, 10, 60)]
    assert points == pytest.approx([36.5, 11.6, 4.7], abs=0.2)
    assert account.error_ratio("chat", 0) is None
    missing_for(account, reader, [1], 36)
    missing_for(account, reader, [2], 36)
    error_ratio = account.error_ratio("batch", 0)
    assert error_ratio is not None
    assert 0.2 < error_ratio < 0.35
    assert account.error_ratio("nobody", 0) is None


def test_a_process_that_is_gone_is_charged_where_it_was(reader: ScriptedReader) -> None:
    cgroups = {1: 100}
    account = account_of(reader, cgroups)
    samples = ring([1, 1, 1, 2])
    reader.samples = samples[:2]
    account.read(S_NS)
    cgroups.clear()
    reader.samples = samples
    rows = {row.tgid: row.cgroup_id for row in account.read(2 * S_NS)}
    assert rows == {1: 100, 2: 0}  # the other was never seen alive: nobody's


def test_who_takes_turns_is_counted_once_a_look_however_many_tenants_there_are(
    reader: ScriptedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, found = [], Lots.there
    monkeypatch.setattr(Lots, "there", lambda lots: looks.append(lots) or found(lots))
    account = account_of(reader, {pid: 100 * pid for pid in range(1, 9)})
    account.tenant_of = str
    for number in range(1, 6):
        reader.samples = ring([1 + place % 8 for place in range(8 * number)])
        assert len(account.read(number * S_NS)) >= 7
    assert len(looks) == 5


def test_questions_that_take_long_keep_the_loop_for_one_of_them_and_everybody_has_a_turn(
    reader: ScriptedReader,
) -> None:
    """Two GPUs with eight processes each, of which one GPU's are a thousand levels deep."""
    now_ns, asked = 0, Counter[int]()

    def cgroup_of(pid: int) -> int:
        nonlocal now_ns
        now_ns += 5_000_000 if pid <= 8 else 30_000
        asked[pid] += 1
        return pid

    other = ScriptedReader()
    account = NvmlAccount([reader, other], cgroup_of, poll_ns=1, clock_ns=lambda: now_ns)  # type: ignore[list-item]
    reader.samples, other.samples = ring([8, *range(1, 9)]), ring([16, *range(9, 17)])
    account.read(S_NS)  # asks for each, as the thread does
    reader.samples = other.samples = []
    asked.clear()
    for look in range(2, 26):
        before_ns = now_ns
        account.read(look * S_NS)
        assert now_ns - before_ns < 2_000_000 + 5_000_000
    assert set(asked) == set(range(1, 17))
    assert min(asked[pid] for pid in range(9, 17)) >= 8
