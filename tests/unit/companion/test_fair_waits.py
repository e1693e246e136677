# SPDX-License-Identifier: Apache-2.0
"""A fair node is quiet, whatever the number of equal tenants; one whose neighbours take many turns is not.

A GPU that takes turns is played: slices, switches, closed-loop decoders. Of each burst is taken what BPF sees, how long
it was open and its service by the processor-sharing clock, and counted as bpf/delay.h does
(tests/unit/bpf/test_delay.py).
"""

from __future__ import annotations

import bisect
import heapq
import random
import re
from collections import deque
from collections.abc import Sequence

import pytest

from fairsched.base.buckets import COUNT, WIDEST, bucket_of
from fairsched.companion.escalate.model import QUEUE_DELAY
from fairsched.companion.exporter.family import BOUNDS, BUCKETS
from fairsched.companion.slis.formulas import queue_delay_floor_ms
from fairsched.config import Config
from fairsched.protocol.delays import quantile_ms
from fairsched.protocol.own import Histogram
from tests.unit.companion.escalate.play import Play
from tests.unit.repo.tree import ROOT

GPU = Config().gpu
SLICE_MS, SWITCH_MS = GPU.timeslice_us / 1000, GPU.switch_us / 1000
TURN_MS = SLICE_MS + SWITCH_MS
TOKEN_MS, HOST_MS = 20.7, 0.5
"""A decoder of 13 billion parameters: GPU time of a token, and between two of them on the host."""
LIMIT_MS = Config().escalation.queue_delay_p99_ms or 0.0

Edge = tuple[float, int, int]
"""When, +1 opens and -1 closes, and the burst of which context."""


def edges(contexts: int, seconds: float) -> list[Edge]:
    """What so many decoders, a context each, do on one GPU."""
    chance, found, now_ms = random.Random(7), list[Edge](), 0.0
    wakes = [(chance.uniform(0, TOKEN_MS), context) for context in range(contexts)]
    heapq.heapify(wakes)
    queue, left = deque[int](), dict[int, float]()
    while now_ms < seconds * 1000:
        while wakes and wakes[0][0] <= now_ms:
            woken_ms, context = heapq.heappop(wakes)
            left[context] = TOKEN_MS * chance.uniform(0.98, 1.02)
            queue.append(context)
            found.append((woken_ms, 1, context))
        if not queue:
            now_ms = wakes[0][0]
            continue
        context = queue.popleft()
        ran_ms = min(SLICE_MS, left[context])
        now_ms += ran_ms
        left[context] -= ran_ms
        if left[context] > 0:
            queue.append(context)
        else:
            found.append((now_ms, -1, context))
            heapq.heappush(wakes, (now_ms + HOST_MS, context))
        now_ms += SWITCH_MS if queue and queue[0] != context else 0.0
    return sorted(found)


def waits(seen: Sequence[Edge]) -> list[int]:
    """Those for a turn, by bucket."""
    counted, opened = [0] * COUNT, dict[int, tuple[float, float]]()
    clock_ms = last_ms = 0.0
    for now_ms, way, context in seen:
        clock_ms += (now_ms - last_ms) / max(1, len(opened))
        last_ms = now_ms
        if way > 0:
            opened[context] = now_ms, clock_ms
            continue
        open_ms, clock_open_ms = opened.pop(context)
        service_ms = clock_ms - clock_open_ms
        turns = max(1, int(-(-service_ms // TURN_MS)))
        counted[bucket_of(round((now_ms - open_ms - service_ms) / turns * 1e6))] += turns
    return counted


def p99_ms(counted: Sequence[int]) -> float:
    """As the status has it."""
    found = quantile_ms(counted, 0.99)
    assert found is not None
    return found


def p99_of_page_ms(counted: Sequence[int]) -> float:
    """As Prometheus finds it in the buckets of the page."""
    below = Histogram.of(counted, 0).cumulative(BUCKETS)
    rank = 0.99 * sum(counted)
    at = bisect.bisect_left(below, rank)
    low_s, high_s = float(BOUNDS[at - 1]), float(BOUNDS[at])
    return 1e3 * (low_s + (high_s - low_s) * (rank - below[at - 1]) / (below[at] - below[at - 1]))


def is_escalated(delay_ms: float, tenants: int) -> bool:
    floor_ms = queue_delay_floor_ms(tenants, TURN_MS)
    return bool(Play(floors={QUEUE_DELAY: floor_ms or 0.0}).see_for(delay_ms, 7200))


def test_four_fair_decoders_are_well_below_the_limit() -> None:
    """The scenario in which whole bursts had waited 67 ms."""
    found = p99_ms(waits(edges(4, 30)))
    assert found < LIMIT_MS / 2
    assert not is_escalated(found, 4)


def test_the_runbook_predicts_what_is_measured_within_a_bucket() -> None:
    text = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")
    said = re.search(r"([\d.]+) ms for two, ([\d.]+) for four, ([\d.]+) for eight", text)
    assert said is not None
    for tenants, predicted_ms in zip((2, 4, 8), map(float, said.groups()), strict=True):
        assert predicted_ms / WIDEST <= p99_ms(waits(edges(tenants, 30))) <= predicted_ms * WIDEST


@pytest.mark.parametrize("tenants", [2, 4, 8, 12, 20, 40, 58])
def test_equal_tenants_are_fair_however_many(tenants: int) -> None:
    counted = waits(edges(tenants, 60))
    found = p99_ms(counted)
    assert bucket_of(round(found * 1e6)) - bucket_of(round((tenants - 1) * TURN_MS * 1e6)) in (-1, 0, 1)
    assert max(found, p99_of_page_ms(counted)) <= max(LIMIT_MS, queue_delay_floor_ms(tenants, TURN_MS) or 0.0)
    assert not is_escalated(found, tenants)


def test_a_neighbour_of_twenty_contexts_is_not_excused_by_two_tenants() -> None:
    assert is_escalated(p99_ms(waits(edges(21, 30))), 2)


def test_the_floor_is_one_turn_of_each_other_tenant_and_a_bucket() -> None:
    assert queue_delay_floor_ms(None, 2.0) is None
    assert [queue_delay_floor_ms(tenants, 2.0) for tenants in (0, 1, 2, 12)] == [0.0, 0.0, 2.5, 27.5]
