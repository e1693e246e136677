# SPDX-License-Identifier: Apache-2.0
"""The law on NVML's samples: shares hold over a minute, nobody is locked out, and chance holds nobody."""

from __future__ import annotations

import itertools
import statistics

import pytest

from fairsched.model import PolicyParams, TenantClass, TenantSpec
from tests.unit.accounting.sampled_loop import (
    MIXES,
    MS,
    S,
    SampledLoop,
    decoder,
    drawn,
    drawn_even,
    tenants_of,
    trainer,
)
from tests.unit.policy.model_gpu import Tenant
from tests.unit.policy.model_processes import DeepQueue

SETTLE_NS, END_NS = 20 * S, 80 * S


def errors(mix: str, *, is_enforced: bool = True, seeds: int = 4) -> list[float]:
    """Points over a minute, by seed; every other one with an entry per sample."""
    found = []
    for seed in range(seeds):
        loop = SampledLoop(MIXES[mix](), seed=seed, shows_each=bool(seed % 2), is_enforced=is_enforced)
        loop.run(END_NS)
        found.append(loop.error_points(SETTLE_NS, END_NS))
    return found


@pytest.mark.parametrize("mix", ["4:2:1:1", "3:1", "1:3", "9:1", "four processes"])
def test_shares_hold_over_a_minute(mix: str) -> None:
    """Chance alone is 1 to 2.4 points there, of which the largest of several tenants is told."""
    assert statistics.fmean(errors(mix)) <= 4.0
    assert min(errors(mix, is_enforced=False, seeds=1)) > 20


def test_chance_holds_nobody_for_long_who_is_even_anyway() -> None:
    assert max(errors("four equals")) <= 1.0


def test_chance_holds_nobody_for_long_who_is_owed_what_its_turns_give_it() -> None:
    """Two of four turns are owed to one process of two contexts: samples say that turns are unequal, and count."""
    held = []
    for seed in range(4):
        tenants = tenants_of(("a", 2, [decoder(), decoder()]), ("b", 1, [decoder()]), ("c", 1, [decoder()]))
        loop = SampledLoop(tenants, seed=seed, one_process=("a",))
        loop.run(END_NS)
        held.append(sum(record.until_ns - record.since_ns for record in loop.records) / END_NS)
    assert statistics.fmean(held) <= 0.3


@pytest.mark.parametrize("number", range(12))
def test_who_has_an_equal_turn_and_is_owed_that_is_hardly_ever_held(number: int) -> None:
    """Of any number of tenants, and of any work that is always there: as if there was no scheduler."""
    loop, free = (SampledLoop(drawn_even(number), seed=number, is_enforced=how) for how in (True, False))
    for one in (loop, free):
        one.run(END_NS)
    for start_ns in range(SETTLE_NS, END_NS - 20 * S + 1, 20 * S):
        window = (start_ns, start_ns + 20 * S)
        assert loop.error_points(*window) <= free.error_points(*window) + 1.0


@pytest.mark.parametrize("seed", range(6))
def test_one_process_of_many_contexts_locks_nobody_out(seed: int) -> None:
    """Samples name a process, and turns go by context: its neighbours are in a tenth of the samples each."""
    loop = SampledLoop(
        MIXES["eight contexts"](),
        seed=seed,
        shows_each=bool(seed % 2),
        one_process=("x",),
        is_busy_in_switches=False,
    )
    loop.run(END_NS)
    assert loop.error_points(SETTLE_NS, END_NS) <= 8.0
    assert loop.least_of_due(SETTLE_NS, END_NS, 10 * S) >= 0.5


def test_who_wants_little_keeps_nobody_from_working() -> None:
    """Of a tenant of 4 % and one that is there for 300 ms of each second: its GPU stays busy as if nobody was held."""
    for mix in ("light", "on and off"):
        loop, free = (SampledLoop(MIXES[mix](), seed=3, is_enforced=how) for how in (True, False))
        for one in (loop, free):
            one.run(60 * S)
        busy, unhindered = (one.busy_ratio(20 * S, 60 * S) for one in (loop, free))
        assert busy >= unhindered - 0.02


@pytest.mark.parametrize("number", range(12))
def test_nobody_is_locked_out_and_it_is_no_worse_than_no_scheduler(number: int) -> None:
    loop, free = (SampledLoop(drawn(number), seed=number, is_enforced=how) for how in (True, False))
    for one in (loop, free):
        one.run(END_NS)
    assert loop.least_of_due(SETTLE_NS, END_NS, 10 * S) >= 0.25
    assert loop.error_points(SETTLE_NS, END_NS) <= free.error_points(SETTLE_NS, END_NS) + 2.0
    assert loop.busy_ratio(SETTLE_NS, END_NS) >= free.busy_ratio(SETTLE_NS, END_NS) - 0.05


def test_holds_are_pulses_and_never_longer_than_was_promised() -> None:
    loop = SampledLoop(MIXES["4:2:1:1"](), seed=1)
    loop.run(END_NS)
    lengths = sorted(record.until_ns - record.since_ns for record in loop.records)
    assert lengths[len(lengths) // 2] <= 300 * MS
    assert lengths[-1] <= PolicyParams().long_hold_ns + 20 * MS
    promised = tenants_of(("a", 9, [trainer()]), ("b", 1, [trainer(), trainer()]), max_freeze_ms=150)
    loop = SampledLoop(promised, seed=1)
    loop.run(40 * S)
    assert loop.records
    assert max(record.until_ns - record.since_ns for record in loop.records) <= 170 * MS


def greedy_of_four(max_freeze_ms: int | None = None) -> list[Tenant]:
    """Class latency, one with three processes whose queues outlast half a second beside the others."""
    tenants = tenants_of(*[(name, 1, [decoder()]) for name in "abc"])
    spec = TenantSpec("d", tenant_class=TenantClass.LATENCY, max_freeze_ms=max_freeze_ms)
    return [*tenants, Tenant(spec, [DeepQueue(19 * MS, 8) for _ in range(3)])]


def test_a_queue_that_outlasts_its_holds_has_longer_ones_unless_the_operator_forbids() -> None:
    """Unscheduled it has half of the GPU; due is a quarter."""
    promise_ns = TenantSpec("d").max_freeze_ns
    found = {}
    for max_freeze_ms in (None, 500):
        loop = SampledLoop(greedy_of_four(max_freeze_ms), seed=1)
        loop.run(END_NS)
        longest_ns = max(record.until_ns - record.since_ns for record in loop.records)
        found[max_freeze_ms] = loop.error_points(SETTLE_NS, END_NS), longest_ns
    (error, longest_ns), (promised_error, promised_ns) = found[None], found[500]
    assert error <= 6 < 15 <= promised_error
    assert promised_ns <= promise_ns + 20 * MS < longest_ns <= PolicyParams().long_hold_ns + 20 * MS


def test_after_a_pulse_it_runs_for_the_rest_of_the_frame() -> None:
    loop = SampledLoop(MIXES["1:3"](), seed=1)
    loop.run(40 * S)
    mine = [record for record in loop.records if record.tenant == "a" and record.ended is not None]
    assert len(mine) > 20
    frame_ns = loop.params.frame_ns
    for before, after in itertools.pairwise(mine):
        assert after.since_ns - before.since_ns >= frame_ns


def test_a_tenant_that_ended_is_owed_nothing() -> None:
    """It dies while it is owed most of the GPU: the other is let go within seconds."""
    tenants = MIXES["9:1"]()
    tenants[0].processes[0].stop_ns = 30 * S
    loop = SampledLoop(tenants, seed=2)
    loop.run(45 * S)
    assert loop.got("b", 33 * S, 45 * S) >= 0.98 * 12 * S


def test_a_slow_product_that_samples_once_a_second_locks_nobody_out() -> None:
    """Chance alone is 5 points over 100 s there, and takes that long to be told from a wrong share."""
    loop = SampledLoop(MIXES["3:1"](), seed=4, period_ns=S)
    loop.run(200 * S)
    assert loop.least_of_due(40 * S, 200 * S, 20 * S) >= 0.25
    assert loop.error_points(100 * S, 200 * S) <= 15
