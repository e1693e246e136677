# SPDX-License-Identifier: Apache-2.0
"""Contexts whose launches are timed by NVML's samples, since nobody waits for what they do."""

from __future__ import annotations

import pytest

from fairsched.accounting.context import ProcessUse
from fairsched.bpf import abi
from fairsched.model import Confidence, SampledLaunch
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of

CGROUP, TGID = 7, 11
STEP_MS, STEP = 100, 10
TICK = 20 * MS


class Late:
    """Launches ten, asks for the ten before without waiting, and pauses; alone on the GPU, looked at every 20 ms."""

    def __init__(self) -> None:
        self.probe = FakeProbe()
        self.account = account_of(self.probe, gpus=2)
        self.probe.create(0, TGID, CGROUP)
        self.now = self.steps = 0
        self.used_ns = 0
        self.row: ProcessUse | None = None

    def crowd(self) -> None:
        """Four neighbours always have work."""
        for slot in range(1, 5):
            self.probe.create(slot, TGID + slot, CGROUP + slot, t_ns=self.now)
            self.probe.launch(slot, self.now, 100_000)

    def tell(self, ns: float, *, is_needed: bool = True, is_less: bool = True) -> None:
        self.account.sampled = {(TGID, 0): SampledLaunch(ns, is_needed, is_less)}

    def run(self, steps: int, *, waited_ns: int = 1000, is_told: bool = True) -> int:
        """What that was charged, in ns. ``is_told``: BPF tells what it proves."""
        before_ns = self.used_ns
        for _ in range(steps):
            self.probe.launch(0, self.now, STEP)
            if self.steps and is_told:
                self.probe.progress(0, self.now + 1000, STEP * self.steps, waited_ns)
            self.steps += 1
            for _ in range(STEP_MS * MS // TICK):
                self.now += TICK
                self.look()
        return self.used_ns - before_ns

    def look(self) -> None:
        for row in self.account.read(self.now):
            if row.tgid == TGID:
                self.used_ns += row.used_ns
                self.row = row

    @property
    def is_timed(self) -> bool:
        (context,) = self.account._contexts.all()
        return context.is_timed


@pytest.fixture
def late() -> Late:
    one = Late()
    one.run(20)
    return one


def test_who_asks_late_is_charged_its_pauses_where_samples_say_nothing(late: Late) -> None:
    assert late.run(10) == pytest.approx(10 * STEP_MS * MS, rel=0.01)


def test_who_asks_late_is_charged_what_its_launches_take(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    assert late.run(10) == pytest.approx(10 * STEP * MS, rel=0.02)
    assert late.row is not None and late.row.confidence is Confidence.SAMPLED


def test_what_nothing_contradicts_is_left_alone(late: Late) -> None:
    late.tell(MS, is_needed=False)
    assert late.run(10) == pytest.approx(10 * STEP_MS * MS, rel=0.01)


def test_of_whom_nothing_is_proven_samples_tell_though_they_contradict_nothing() -> None:
    """A stream that is waited for proves nothing while others of the context go on. What is not known for good was
    left alone for good."""
    one = Late()
    one.probe.context(0).synced = 1
    one.run(20, is_told=False)
    one.tell(MS, is_needed=False)
    one.run(1, is_told=False)
    assert one.is_timed and one.row is not None and one.row.confidence is Confidence.SAMPLED


def test_it_is_timed_by_what_is_known_later_even_if_that_contradicts_nothing(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    late.tell(2 * MS, is_needed=False)
    late.run(1)
    assert late.run(10) == pytest.approx(10 * STEP * 2 * MS, rel=0.02)


def test_its_account_begins_anew_where_it_had_less(late: Late) -> None:
    late.tell(MS)
    late.look()
    assert late.row is not None and late.row.is_anew
    late.now += TICK
    late.look()
    assert not late.row.is_anew


def test_who_had_more_than_it_was_charged_has_as_much_queued_as_there_is_room_for(late: Late) -> None:
    late.probe.launch(0, late.now, 500)
    late.tell(2 * MS, is_less=False)
    late.look()
    assert late.row is not None and not late.row.is_anew
    assert late.row.outstanding_ns == pytest.approx((500 + STEP) * 2 * MS, rel=0.02)


def test_no_more_is_queued_than_fits(late: Late) -> None:
    late.probe.launch(0, late.now, 5000)
    late.tell(2 * MS, is_less=False)
    late.look()
    assert late.row is not None
    assert late.row.outstanding_ns == pytest.approx(1024 * 2 * MS, rel=0.02)


def test_who_waits_now_and_then_is_timed_all_the_same(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    late.run(1, waited_ns=MS)
    assert late.is_timed
    assert late.run(10) == pytest.approx(10 * STEP * MS, rel=0.02)


def test_who_waits_for_its_work_is_not_timed_any_more(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    late.run(8, waited_ns=MS)
    assert not late.is_timed


def test_that_bpf_was_told_that_it_is_idle_is_no_proof(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    live = late.probe.contexts_by_slot[0]
    late.probe.launch(0, late.now, STEP)
    late.probe._emit(abi.EdgeKind.CLOSE, 0, late.now + 1000, seq=live.completed)
    late.now += TICK
    before_ns = late.used_ns
    late.look()
    assert late.used_ns - before_ns == pytest.approx(STEP * MS, rel=0.02)


def test_that_it_is_idle_is_no_proof_that_nobody_waited_for(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    for _ in range(8):
        late.run(1, waited_ns=MS)
        for _ in range(8):
            live = late.probe.contexts_by_slot[0]
            late.probe._emit(abi.EdgeKind.CLOSE, 0, late.now, seq=live.completed)
    assert not late.is_timed


def test_what_samples_say_is_right_though_what_was_learnt_of_the_gpu_was_wrong(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    late.account.relearn(0)
    assert late.run(10) == pytest.approx(10 * STEP * MS, rel=0.02)


def test_what_is_all_done_is_over(late: Late) -> None:
    late.tell(50 * MS)
    late.run(2)
    late.probe.sync(0, late.now + 1000, 1000)
    late.now += TICK
    late.look()
    assert late.row is not None and late.row.outstanding_ns == 0
    before_ns = late.used_ns
    late.now += TICK
    late.look()
    assert late.used_ns == before_ns


def test_what_it_had_queued_is_known_when_it_is_held(late: Late) -> None:
    late.tell(2 * MS, is_less=False)
    late.look()
    late.probe.launch(0, late.now, 200)
    late.look()
    late.account.hold([CGROUP], late.now)
    late.look()
    assert late.row is not None
    assert late.row.outstanding_ns == pytest.approx((200 + STEP) * 2 * MS, rel=0.05)
    late.now += 100 * MS
    late.look()
    late.account.thaw([CGROUP], late.now)
    late.look()
    assert late.row.outstanding_ns == pytest.approx((200 + STEP) * 2 * MS - 100 * MS, rel=0.1)


def test_who_launches_wants_the_gpu_though_it_is_done_at_the_look(late: Late) -> None:
    late.tell(MS / 100)
    late.run(2)
    late.probe.launch(0, late.now, STEP)
    late.probe.launch(0, late.now + 80 * MS, STEP)
    late.now += 100 * MS
    late.look()
    assert late.row is not None and late.row.has_demand and late.row.outstanding_ns < MS


def test_what_is_proven_done_was_had_beside_others(late: Late) -> None:
    """By turns it had half of what it asks for."""
    late.crowd()
    late.tell(4 * MS)
    late.run(2)
    assert late.run(10) == pytest.approx(10 * STEP * 4 * MS, rel=0.1)


def test_a_proof_of_some_of_it_ends_none_of_the_rest(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    late.probe.launch(0, late.now, 300)
    late.look()
    late.probe.progress(0, late.now + 1000, STEP * late.steps + 100, 1000)
    late.account.take_in()
    (context,) = late.account._contexts.all()
    assert late.account._engines[0].replay.is_runnable(context.key)
    late.now += TICK
    late.look()
    assert late.row is not None
    assert late.row.outstanding_ns == pytest.approx(200 * MS, abs=TICK)


def test_what_is_proven_bit_by_bit_was_had_beside_others(late: Late) -> None:
    """Each step is asked for while the next one is queued."""
    late.crowd()
    late.tell(4 * MS)
    late.run(2)
    before_ns = late.used_ns
    for _ in range(10):
        late.probe.launch(0, late.now, 2 * STEP)
        late.steps += 2
        late.look()
        late.now += STEP_MS * MS
        late.probe.progress(0, late.now - 1000, STEP * (late.steps - 1), 1000)
        late.look()
    assert late.used_ns - before_ns == pytest.approx(10 * STEP_MS * MS * 0.8, rel=0.1)


def test_a_burst_of_who_launched_little_had_no_more_than_there_was_time_for(late: Late) -> None:
    late.tell(8 * MS)
    late.run(2)
    for _ in range(100):
        late.now += TICK
        late.look()
    before_ns, began_ns = late.used_ns, late.now
    late.probe.launch(0, late.now, 500)
    late.look()
    late.now += TICK
    late.probe.progress(0, late.now - 1000, STEP * late.steps + 400, 1000)
    late.look()
    assert late.used_ns - before_ns <= late.now - began_ns


def test_edges_that_were_lost_forgive_nothing_that_is_owed(late: Late) -> None:
    late.tell(20 * MS)
    late.run(2)
    late.probe.launch(0, late.now, STEP)
    late.look()
    late.probe.dropped += 1
    late.now += TICK
    late.look()
    assert late.row is not None and late.row.outstanding_ns > 100 * MS
    late.now += 10 * TICK
    before_ns = late.used_ns
    late.look()
    late.now += 50 * TICK
    late.look()
    assert late.used_ns - before_ns < STEP * 2 * 20 * MS


def test_on_another_gpu_it_is_not_timed(late: Late) -> None:
    late.tell(MS)
    late.run(2)
    assert late.is_timed
    late.probe.contexts_by_slot[0].gpu = 1
    late.probe.launch(0, late.now, STEP)
    late.account.take_in()
    assert not late.is_timed


def test_the_end_of_timed_work_is_no_drain_of_which_others_tell(late: Late) -> None:
    late.tell(MS)
    late.run(5)
    (context,) = late.account._contexts.all()
    assert late.is_timed and context.exec_before == {}


def test_for_whose_work_somebody_waits_is_known(late: Late) -> None:
    assert late.account.unanchored() == {(TGID, 0)}
    assert late.row is not None
    assert (late.row.anchored_ns, late.row.unanchored_launches) == (0, late.row.launches)
    late.run(10, waited_ns=MS)
    assert late.account.unanchored() == set()
    assert (late.row.anchored_ns, late.row.unanchored_launches) == (late.row.used_ns, 0)


def test_a_context_for_whose_work_somebody_waits_shields_no_other_of_its_process(late: Late) -> None:
    late.probe.create(1, TGID, CGROUP, t_ns=late.now)
    late.probe.launch(1, late.now)
    late.probe.sync(1, late.now + MS)
    late.look()
    assert late.account.unanchored() == {(TGID, 0)}
    late.tell(MS)
    late.run(2)
    assert late.run(10) == pytest.approx(10 * STEP * MS, rel=0.02)
