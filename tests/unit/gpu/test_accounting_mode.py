# SPDX-License-Identifier: Apache-2.0
"""NVML's accounting mode: what it adds to the samples, and what it must not."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.base.process import ProcessId
from fairsched.gpu.accounting_mode import LATE_NS, Arrears, Booked
from fairsched.gpu.sampler import LONGEST_WINDOW_US, NoReader
from fairsched.gpu.samples import ProcessSamples, SampleWatch
from tests.unit.gpu.fake_nvml import FakeNvml

MS = 1_000_000
S = 1000 * MS
PERIOD_NS = 139 * MS
POLL_NS = 100 * MS


class World:
    """One GPU, its processes and the watch on them, in steps of our clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, *, has_mode: bool = True) -> None:
        self.nvml, self.now_ns = nvml, 0
        self.cgroups: dict[int, int] = {}
        reader = nvml.reader
        modes = [nvml.mode(reader)] if has_mode else []
        self.watch = SampleWatch([reader], self.cgroups.get, modes=modes)
        self.gpu = self.watch._gpus[0]
        self.used: dict[int | None, int] = {}
        """By cgroup, in ns."""
        self.is_asking = True
        self._next_sample_ns, self._next_poll_ns = PERIOD_NS, 0
        monkeypatch.setattr(ProcessId, "of", lambda pid: ProcessId(pid, 1) if pid in self.cgroups else None)

    def start(self, pid: int, cgroup_id: int) -> None:
        self.cgroups[pid] = cgroup_id
        self.nvml.start(pid, self.now_ns)

    def end(self, pid: int) -> None:
        del self.cgroups[pid]
        self.nvml.end(pid, self.now_ns)

    def run(self, until_ns: int, rng: random.Random | None = None) -> None:
        """Whoever is there takes turns: a sample names one of them, by lot."""
        while self.now_ns < until_ns:
            self.now_ns = min(self._next_sample_ns, self._next_poll_ns, until_ns)
            if self.now_ns == self._next_sample_ns:
                self._next_sample_ns += PERIOD_NS
                there = sorted(self.nvml.there)
                if there:
                    self.nvml.keep(self.now_ns, there[0] if rng is None else rng.choice(there))
            if self.now_ns == self._next_poll_ns:
                self._next_poll_ns += POLL_NS
                if self.is_asking:
                    self.watch.poll(self.now_ns)
                    self.take(self.watch.take())

    def take(self, found: list[ProcessSamples]) -> None:
        for one in found:
            assert one.busy_ns >= 0
            self.used[one.cgroup_id] = self.used.get(one.cgroup_id, 0) + one.busy_ns


def test_samples_and_sums_that_agree_are_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, FakeNvml())
    world.start(1, 100)
    world.run(120 * S)
    assert world.used[100] == pytest.approx(120 * S, rel=0.01)


def test_what_was_missed_while_nobody_could_ask_is_charged_once_the_sums_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 40 s of silence samples remember ten, and a mean over so long is cut to two."""
    used = {}
    for has_mode in (False, True):
        world = World(monkeypatch, FakeNvml(), has_mode=has_mode)
        world.start(1, 100)
        world.run(20 * S)
        world.is_asking = False
        world.run(60 * S)
        world.is_asking = True
        world.run(80 * S)
        used[has_mode] = world.used[100]
    assert used[False] < 45 * S
    assert 77 * S < used[True] <= 80 * S


@pytest.mark.parametrize("error", [FakeNvml.NVML_ERROR_NOT_SUPPORTED, FakeNvml.NVML_ERROR_GPU_IS_LOST])
def test_where_samples_fail_the_sums_are_the_account(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    nvml = FakeNvml()
    nvml.errors["ProcessesUtilization"] = nvml.errors["ProcessUtilization"] = error
    world = World(monkeypatch, nvml)
    world.start(1, 100)
    world.start(2, 200)
    world.run(60 * S, random.Random(3))
    assert sum(world.used.values()) == pytest.approx(60 * S, rel=0.1)
    assert sum(world.used.values()) <= 60 * S
    assert world.used[100] / sum(world.used.values()) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("wish", [{}, {"is_wanted": True}])
def test_a_gpu_that_falls_off_the_bus_and_comes_back_is_an_error_once_and_a_gap(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wish: dict[str, bool]
) -> None:
    nvml = FakeNvml()
    world = World(monkeypatch, nvml)
    world.gpu.mode = nvml.mode(world.gpu.reader, **wish)
    world.start(1, 100)
    world.run(20 * S)
    nvml.errors[""] = nvml.NVML_ERROR_GPU_IS_LOST  # whatever is asked
    world.run(30 * S)
    before = dict(world.used)
    nvml.errors.clear()
    world.run(60 * S)
    assert before[100] < 21 * S
    assert 57 * S <= world.used[100] <= 60 * S, "what the driver booked in the gap is charged, and no more"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2


def test_who_came_before_the_mode_was_on_is_charged_by_its_samples_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(is_on=False)
    world = World(monkeypatch, nvml)
    world.start(1, 100)
    world.run(5 * S)
    nvml.is_on = True
    world.run(30 * S)
    assert world.used[100] == pytest.approx(30 * S, rel=0.02)
    assert nvml.nvmlDeviceGetAccountingPids(None) == []


def part_of_somebody(monkeypatch: pytest.MonkeyPatch, life_ms: int, *, is_listed: bool) -> float:
    """Of the GPU time of one short process after the other, what was charged to the cgroup that all were in."""
    world, rng = World(monkeypatch, FakeNvml(is_on=False), has_mode=is_listed), random.Random(life_ms)
    for pid in range(1000, 1400):
        world.start(pid, 100)
        world.run(world.now_ns + round(rng.uniform(0.7, 1.3) * life_ms * MS))
        world.end(pid)
    return world.used.get(100, 0) / sum(world.used.values())


@pytest.mark.parametrize(
    ("life_ms", "without", "listed"), [(60, 0.35, 0.55), (150, 0.75, 0.99), (400, 0.95, 1.0)]
)
def test_whose_a_short_process_was_is_known_from_the_list_of_who_is_there(
    monkeypatch: pytest.MonkeyPatch, life_ms: int, without: float, listed: float
) -> None:
    """Without the list one that ended between its sample and the answer is nobody's."""
    assert part_of_somebody(monkeypatch, life_ms, is_listed=False) < without
    assert part_of_somebody(monkeypatch, life_ms, is_listed=True) >= listed


def test_another_process_of_the_same_pid_is_looked_up_anew_and_the_gone_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, FakeNvml(is_on=False))
    world.start(1, 100)
    world.run(S)
    world.end(1)
    world.run(2 * S)
    world.start(1, 200)
    world.run(2 * S + 150 * MS)
    assert world.gpu.met[1].cgroup_id == 200
    world.end(1)
    world.run(20 * S)
    assert world.gpu.met == {}


def test_the_drivers_account_of_short_processes_is_worse_than_their_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It books once a second to those that are there: so nothing is taken from it that samples tell."""
    nvml = FakeNvml()
    world = World(monkeypatch, nvml)
    for number in range(200):
        world.start(1000 + number, 100)
        world.run((number + 1) * 300 * MS)
        world.end(1000 + number)
    booked_ns = sum(entry.sum_pct100 for entry in nvml.entries.values()) * PERIOD_NS / 10_000
    assert booked_ns < 0.35 * 60 * S
    assert world.used[100] == pytest.approx(60 * S, rel=0.02)


def test_who_came_and_went_between_two_looks_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_sums in (True, False):
        nvml = FakeNvml(has_sums=has_sums)
        world = World(monkeypatch, nvml)
        world.start(1, 100)
        world.run(2 * S + MS)
        world.start(2, 200)
        world.now_ns += 60 * MS
        world.end(2)
        world.run(4 * S)
        assert world.gpu.mode is not None
        assert (world.gpu.mode.unseen, world.gpu.mode.unseen_ms) == (1, 60)
        assert world.watch.counts() == {"unseen_process": 1}


def test_a_driver_that_is_loaded_anew_has_the_mode_off_and_on_again_if_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_wanted in (False, True):
        nvml = FakeNvml()
        world = World(monkeypatch, nvml)
        world.gpu.mode = nvml.mode(world.gpu.reader, is_wanted=is_wanted)
        world.start(1, 100)
        world.run(5 * S)
        nvml.reload()
        world.run(30 * S)
        assert nvml.is_on == is_wanted
        assert world.used[100] == pytest.approx(30 * S, rel=0.03)


def test_the_mode_is_never_switched_on_unasked_nor_asked_for_where_it_is_off_limits() -> None:
    nvml = FakeNvml(is_on=False)
    for is_used in (True, False):
        mode = nvml.mode(nvml.reader, is_used=is_used)
        mode.look()
        assert not mode.is_on and mode.booked([1]) == {}
    assert nvml.asked == ["AccountingMode"]
    mode = nvml.mode(nvml.reader, is_wanted=True)
    mode.look()
    assert mode.is_on and nvml.is_on


def test_who_may_not_switch_it_on_is_told_once_and_samples_go_on(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(is_on=False)
    nvml.errors["SetAccounting"] = nvml.NVML_ERROR_NO_PERMISSION
    mode = nvml.mode(nvml.reader, is_wanted=True)
    mode.look()
    mode.look()
    assert not mode.is_on
    assert [record.message for record in caplog.records] == [
        "source=nvml accounting_mode=unused error='NVML error 4'"
    ]


# ---- what is owed ----


def paid(
    arrears: Arrears, sums: Mapping[int, Booked], at_s: float, told_ns: Mapping[int, int] | None = None
) -> dict[int, int]:
    return arrears.take(sums, told_ns or {}, round(at_s * S), window_us=139_000, is_blind=False)


def booked(sum_ratio: float, samples: int = 1000, start_us: int = 1) -> Booked:
    return Booked(start_us, samples, sum_ratio)


def test_what_was_there_at_the_first_look_is_not_charged() -> None:
    arrears = Arrears()
    assert paid(arrears, {1: booked(900)}, 1) == {}
    assert paid(arrears, {1: booked(900)}, 2) == {}


def test_less_than_the_driver_can_be_late_is_not_paid() -> None:
    arrears = Arrears()
    paid(arrears, {1: booked(0)}, 0)
    for second in range(1, 60):
        told_ns = (
            {1: S} if second % 2 else {1: 0}
        )  # one second is told, the next is not: booked a second later
        assert paid(arrears, {1: booked(7 * (second - second % 2), 10**6)}, second, told_ns) == {}


def test_what_one_second_is_told_too_little_and_the_next_too_much_is_not_paid() -> None:
    """Else each second that was told too little would be paid, and none taken back."""
    arrears, rng = Arrears(), random.Random(1)
    paid(arrears, {1: booked(0, samples=10)}, 0)
    for second in range(1, 600):
        sums = {1: booked(second * S / PERIOD_NS, samples=10 + 10 * second)}
        assert paid(arrears, sums, second, {1: S + rng.randrange(-S // 10, S // 10)}) == {}


def test_one_whose_sums_were_too_small_for_long_is_paid_what_is_missed_later() -> None:
    arrears = Arrears()
    paid(arrears, {1: booked(0)}, 0)
    for second in range(1, 60):
        assert paid(arrears, {1: booked(0, samples=1000 + 8 * second)}, second, {1: S}) == {}
    missed = [
        paid(arrears, {1: booked((second - 59) * 7, samples=1000 + 8 * second)}, second)
        for second in range(60, 70)
    ]
    assert sum(ns for found in missed for ns in found.values()) > 10 * S - 2 * LATE_NS - S


def test_sums_that_fall_another_process_and_garbage_are_counted_and_not_charged() -> None:
    arrears = Arrears()
    paid(arrears, {1: booked(500)}, 0)
    assert paid(arrears, {1: booked(100)}, 10) == {}
    assert arrears.odd["fallen_sum"] == 1
    assert paid(arrears, {1: booked(1_000, samples=1_100)}, 20) == {}
    assert arrears.odd["more_than_samples"] == 1
    assert paid(arrears, {1: booked(2_000, samples=2_400)}, 30) == {}
    assert arrears.odd["more_than_time"] == 1
    found = paid(arrears, {1: booked(36, samples=40, start_us=2)}, 40)
    assert arrears.odd["reused_pid"] == 1
    assert found == {1: pytest.approx(36 * PERIOD_NS, rel=0.01)}


def test_all_together_are_paid_no_more_than_the_gpu_had_left() -> None:
    arrears = Arrears()
    paid(arrears, {pid: booked(0) for pid in (1, 2)}, 0)
    found = paid(arrears, {pid: booked(70, samples=1080) for pid in (1, 2)}, 10, {3: 4 * S})
    assert found[1] == found[2] == pytest.approx(3 * S, rel=0.01)


def test_a_period_that_samples_do_not_tell_comes_from_the_counts() -> None:
    arrears, total_ns = Arrears(), 0
    for second in range(1, 61):
        samples = second * S // PERIOD_NS
        sums = {1: booked(samples / 2, samples)}
        found = arrears.take(sums, {}, second * S, window_us=LONGEST_WINDOW_US, is_blind=True)
        total_ns += found.get(1, 0)
    assert total_ns == pytest.approx(30 * S, rel=0.1)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 200),
            st.floats(0, 200),
            st.integers(0, 3),
            st.integers(0, 2_000_000_000),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_no_more_is_paid_than_the_time_that_passed_whatever_the_driver_says(
    answers: list[tuple[int, int, float, int, int, bool]],
) -> None:
    arrears, now_ns, whole_ns, told_whole_ns = Arrears(), 0, 0, 0
    for pid, samples, sum_ratio, start_us, step_ns, is_blind in answers:
        now_ns += step_ns
        told_ns = {} if is_blind else {pid: step_ns // 2}
        sums = {pid: Booked(start_us, samples, sum_ratio), 9: Booked(1, samples, sum_ratio)}
        found = arrears.take(sums, told_ns, now_ns, window_us=139_000, is_blind=is_blind)
        assert all(ns > 0 for ns in found.values())
        whole_ns, told_whole_ns = whole_ns + sum(found.values()), told_whole_ns + sum(told_ns.values())
        assert whole_ns + told_whole_ns <= now_ns + LATE_NS


def test_an_instance_that_nvml_takes_no_samples_of_is_not_asked() -> None:
    nvml = FakeNvml(is_on=True)
    mode = nvml.mode(NoReader(nvml, None), is_wanted=True)
    mode.look()
    assert not mode.is_on
    assert mode.running() == []
    assert nvml.asked == []


def test_who_has_moved_and_ended_is_charged_to_where_it_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, FakeNvml())
    world.start(1, 100)
    world.run(5 * S)
    world.cgroups[1] = 200
    world.run(10 * S)
    world.used.clear()
    world.nvml.keep(world.now_ns, 1)
    world.end(1)
    world.run(12 * S)
    assert set(world.used) == {200}
