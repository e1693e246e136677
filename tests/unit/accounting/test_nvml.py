# SPDX-License-Identifier: Apache-2.0
"""NVML's samples: a lottery with the right expectation, never claimed to be more."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.gpu.sampler import NvmlReader, Sample, Sampler, is_each

WINDOW_US = 139_000
S_NS = 1_000_000_000


def ring(pids: Sequence[int], busy: float = 1.0, start_us: int = 10**15) -> list[Sample]:
    """One sample a window; pid 0 = the driver saw nobody and keeps none."""
    return [Sample(start_us + n * WINDOW_US, pid, busy) for n, pid in enumerate(pids) if pid]


def ns(sampler: Sampler, samples: Sequence[Sample], now_us: int | None = None) -> dict[int, int]:
    """GPU time by process of one answer, which came as soon as it could."""
    newest_us = max((sample.time_us for sample in samples), default=0)
    return {pid: one.busy_ns for pid, one in sampler.take(samples, now_us or newest_us).items()}


def averaged(pids: Sequence[int], after_us: int, busy: float = 1.0, start_us: int = 10**15) -> list[Sample]:
    """What nvml.h says of such a ring: for each process the mean since ``after_us``, and its latest moment."""
    new = [
        (start_us + n * WINDOW_US, pid) for n, pid in enumerate(pids) if start_us + n * WINDOW_US > after_us
    ]
    means = Counter(pid for _, pid in new if pid)
    return [
        Sample(max(at for at, one in new if one == pid), pid, round(100 * busy * many / len(new)) / 100)
        for pid, many in means.items()
    ]


# ---- samples to time ----


def test_what_was_before_the_first_look_is_not_charged() -> None:
    sampler = Sampler()
    assert ns(sampler, ring([1])) == {}
    assert sampler.last_us == 10**15


def test_each_sample_stands_for_its_window() -> None:
    sampler = Sampler()
    used = ns(sampler, ring([1, 1, 2, 1]))
    assert used == {1: 2 * WINDOW_US * 1000, 2: WINDOW_US * 1000}


def test_a_sample_is_counted_once_however_often_it_comes() -> None:
    sampler, samples = Sampler(), ring([1, 2, 1, 2, 1, 2])
    first = ns(sampler, samples[:4])
    assert ns(sampler, samples[:4]) == {}
    second = ns(sampler, samples)
    assert first.get(2, 0) + second.get(2, 0) == 3 * WINDOW_US * 1000


def test_only_the_busy_part_of_a_window_is_charged() -> None:
    assert ns(Sampler(), ring([1, 1], busy=0.25)) == {1: WINDOW_US * 250}


def test_a_gap_without_samples_is_nobodys() -> None:
    sampler = Sampler()
    used = ns(sampler, ring([1, 1, 0, 0, 0, 0, 0, 1]))
    assert used == {1: 2 * WINDOW_US * 1000}


def test_several_processes_of_one_moment_share_its_window() -> None:
    at = 10**15
    samples = [Sample(at, 1, 0.5), Sample(at + WINDOW_US, 1, 0.5), Sample(at + WINDOW_US, 2, 0.25)]
    assert ns(Sampler(), samples) == {1: WINDOW_US * 500, 2: WINDOW_US * 250}


@pytest.mark.parametrize("bad", [Sample(10**15 + WINDOW_US, 1, 6.55), Sample(10**15 + WINDOW_US, 0, 1.0)])
def test_garbage_is_passed_over(bad: Sample) -> None:
    assert ns(Sampler(), [*ring([1]), bad]) == {}


@given(st.lists(st.tuples(st.integers(1, 10**13), st.integers(0, 4), st.floats(0, 2)), max_size=40))
def test_no_more_time_is_charged_than_passed(raw: list[tuple[int, int, float]]) -> None:
    by_moment = {time_us: Sample(time_us, pid, busy) for time_us, pid, busy in raw}
    samples = sorted(by_moment.values())
    used = ns(Sampler(), samples)
    passed_us = samples[-1].time_us - samples[0].time_us if samples else 0
    assert sum(used.values()) <= passed_us * 1000
    assert min(used.values(), default=0) >= 0


def test_means_since_the_answer_before_are_its_time() -> None:
    sampler = Sampler()
    pids = [1, 1, 2, 1, 2, 2, 0, 1]
    assert ns(sampler, ring([1])) == {}
    assert ns(sampler, averaged(pids[:4], sampler.after_us)) == pytest.approx(
        {1: 2 * WINDOW_US * 1000, 2: WINDOW_US * 1000}, rel=0.02
    )
    assert ns(sampler, averaged(pids, sampler.after_us)) == pytest.approx(
        {1: WINDOW_US * 1000, 2: 2 * WINDOW_US * 1000}, rel=0.02
    )
    assert not sampler.is_each


def test_what_the_first_answer_averages_is_not_known() -> None:
    sampler = Sampler()
    assert ns(sampler, averaged([1, 2, 1, 2, 2], 0)) == {}
    assert sampler.last_us == 10**15 + 4 * WINDOW_US


def test_a_gpu_that_was_idle_is_nobodys_where_means_are_told() -> None:
    """Nothing for nine seconds, then one sample: it stands for no more than the time since the last answer."""
    sampler = Sampler()
    ns(sampler, ring([1]))
    ns(sampler, averaged([1, 2, 1, 2], sampler.after_us))
    begin_us = 10**15 + 3 * WINDOW_US
    for half in range(1, 19):
        assert ns(sampler, [], begin_us + half * 500_000) == {}
    assert sampler.after_us == begin_us + 9_000_000 - 2 * sampler.window_us
    used = ns(sampler, [Sample(begin_us + 9_400_000, 1, 1.0)], begin_us + 9_500_000)
    assert 0 < used[1] <= (500_000 + sampler.window_us) * 1000


def test_a_clock_that_is_set_counts_nothing_and_all_goes_on_afterwards() -> None:
    for step_us in (3_600_000_000, 10_000_000, -500_000, -3_600_000_000):
        sampler = Sampler()
        used_ms, after_ms = 0.0, 0.0
        for number in range(240):  # half a second each, half of it busy
            now_us = 10**10 + number * 500_000
            stamp_us = 10**15 + number * 500_000 + (step_us if number >= 40 else 0)
            answer = [Sample(stamp_us, 1, 0.5)] if stamp_us > sampler.after_us else []
            told_ms = ns(sampler, answer, now_us).get(1, 0) / 1e6
            assert told_ms <= 325, step_us
            used_ms += told_ms
            after_ms += told_ms if number >= 80 else 0
        assert used_ms <= 250 * 240, step_us
        assert after_ms == pytest.approx(250 * 160, rel=0.05), step_us


@pytest.mark.parametrize("stall_us", [600_000, 1_000_000, 3_000_000, 60_000_000])
def test_a_call_that_is_kept_waiting_neither_blinds_nor_adds_time(stall_us: int) -> None:
    sampler, now_us, told_ms = Sampler(), 10**10, []
    for number in range(200):
        asked_us = now_us + 500_000
        now_us = asked_us + (stall_us if number == 40 else 0)
        stamp_us = 10**15 + now_us // WINDOW_US * WINDOW_US
        answer = [Sample(stamp_us, 1, 0.5)] if stamp_us > sampler.after_us else []
        told_ms.append(ns(sampler, answer, now_us).get(1, 0) / 1e6)
    assert max(told_ms) <= 1000
    assert sum(told_ms[50:]) == pytest.approx(250 * 150, rel=0.05)


def test_garbage_moves_nothing_and_one_odd_answer_changes_no_reading() -> None:
    sampler = Sampler()
    for number in range(1, 40):
        at_us = 10**15 + number * WINDOW_US
        answer = [Sample(at_us, 1, 0.5), Sample(at_us - 1, 2, 0.3)]
        if number == 20:
            answer += [
                Sample(2 * 10**17, 50554, 371.0),
                Sample(3 * 10**17, 0, 1.0),
                Sample(at_us - 2, 1, 0.02),
            ]
        used = ns(sampler, answer, at_us)
        assert sampler.last_us == at_us and not sampler.is_each
        if number > 21:
            assert used == {1: WINDOW_US * 500, 2: WINDOW_US * 300}


def test_one_short_distance_is_no_period() -> None:
    sampler = Sampler()
    ns(sampler, ring([1, 1, 1]))
    ns(sampler, [Sample(sampler.last_us + 30_000, 1, 1.0)])
    assert sampler.window_us == WINDOW_US
    for _ in range(2):
        ns(sampler, [Sample(sampler.last_us + 100_000, 1, 1.0)])
    assert sampler.window_us == 100_000


def test_means_that_were_rounded_up_make_no_time() -> None:
    sampler = Sampler()
    ns(sampler, [Sample(10**15 + WINDOW_US, 9, 1.0)])
    ratios = {1: 0.34, 2: 0.34, 3: 0.33}
    fresh = [Sample(10**15 + 2 * WINDOW_US, pid, ratio) for pid, ratio in ratios.items()]
    used = ns(sampler, fresh)
    assert not sampler.is_each
    assert WINDOW_US * 1000 - 3 <= sum(used.values()) <= WINDOW_US * 1000


@pytest.mark.parametrize(
    ("ratios", "each"),
    [
        ([(1, 0.5), (1, 0.5)], True),
        ([(1, 0.6), (2, 0.6)], True),
        ([(1, 0.34), (2, 0.34), (3, 0.33)], False),
        ([(1, 0.6), (2, 0.4)], False),
        ([], False),
    ],
)
def test_a_process_told_twice_or_more_than_the_gpu_can_is_no_mean(
    ratios: list[tuple[int, float]], each: bool
) -> None:
    assert is_each([Sample(1 + n, pid, ratio) for n, (pid, ratio) in enumerate(ratios)]) is each


@pytest.mark.parametrize("reading", ["each", "averaged"])
def test_both_readings_find_the_same_time(reading: str) -> None:
    """Three processes and idleness, asked about every half second for a minute."""
    rnd, sampler = random.Random(7), Sampler()
    pids = rnd.choices([0, 1, 1, 2, 3, 3, 3], k=432)
    used: dict[int, int] = {}
    for upto in range(1, len(pids), 4):
        now_us = 10**15 + (upto - 1) * WINDOW_US
        if reading == "each":
            answer = [sample for sample in ring(pids[:upto], 0.8) if sample.time_us > sampler.after_us]
        else:
            answer = averaged(pids[:upto], sampler.after_us, 0.8)
        for pid, busy_ns in ns(sampler, answer, now_us).items():
            used[pid] = used.get(pid, 0) + busy_ns
    assert sampler.is_each is (reading == "each")
    for pid in (1, 2, 3):
        assert used[pid] == pytest.approx(0.8 * pids.count(pid) * WINDOW_US * 1000, rel=0.08)


def test_the_error_is_what_the_status_says_it_is() -> None:
    """Two processes that share a GPU evenly, over 1 s and over 60 s: 19 and 2.4 points."""
    rnd = random.Random(5)
    for seconds, points in ((1, 0.19), (60, 0.024)):
        count = round(seconds * 1e6 / WINDOW_US)
        shares = []
        for _ in range(400):
            used = ns(Sampler(), ring([9, *rnd.choices([1, 2], k=count)]))
            shares.append(used.get(1, 0) / sum(used.values()))
        assert statistics.pstdev(shares) == pytest.approx(points, rel=0.15)
        assert statistics.fmean(shares) == pytest.approx(0.5, abs=0.03)


# ---- the calls ----


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """The two calls and the codes around them."""

    NVMLError = FakeError
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25

    def __init__(self, new: int | list[Any], old: int | list[Any]) -> None:
        self._answers = {"new": new, "old": old}
        self.calls: list[str] = []

    def _answer(self, which: str) -> list[Any]:
        self.calls.append(which)
        answer = self._answers[which]
        if isinstance(answer, int):
            raise FakeError(answer)
        return answer

    def nvmlDeviceGetProcessesUtilizationInfo(self, _handle: object, _after: int) -> list[Any]:
        return self._answer("new")

    def nvmlDeviceGetProcessUtilization(self, _handle: object, _after: int) -> list[Any]:
        return self._answer("old")


ENTRY = SimpleNamespace(timeStamp=7, pid=1, smUtil=50)


def test_the_new_call_comes_first() -> None:
    nvml = FakeNvml([ENTRY], 3)
    assert NvmlReader(nvml, "GPU 0").read(0) == [Sample(7, 1, 0.5)]
    assert nvml.calls == ["new"]


@pytest.mark.parametrize("code", [3, 13, 25])
def test_where_the_new_call_is_lacking_the_old_one_is_used_from_then_on(code: int) -> None:
    nvml = FakeNvml(code, [ENTRY])
    reader = NvmlReader(nvml, "GPU 0")
    assert reader.read(0) == reader.read(0) == [Sample(7, 1, 0.5)]
    assert nvml.calls == ["new", "old", "old"]


@pytest.mark.parametrize("code", [0, 6])
def test_nothing_new_is_not_an_error(code: int, caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(code, [ENTRY])
    assert NvmlReader(nvml, "GPU 0").read(0) == []
    assert nvml.calls == ["new"]
    assert not caplog.records


def test_a_gpu_that_has_no_samples_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = NvmlReader(FakeNvml(3, 3), "GPU 0")  # MIG
    assert reader.read(0) == reader.read(0) == []
    assert len(caplog.records) == 1
