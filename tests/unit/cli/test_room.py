# SPDX-License-Identifier: Apache-2.0
"""One screen is enough: a status of a busy node, and a minute with hundreds of holds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fairsched.cli import explain, status
from fairsched.cli.status_text import SCREEN_LINES, Detail
from fairsched.model import ActionKind, MisbehaviourKind, Reason, ReasonCode
from fairsched.protocol.status import (
    DecisionRecord,
    GpuStatus,
    MisbehaviourStatus,
    SliStatus,
    StatusReport,
    TenantState,
    TenantStatus,
    TokenRate,
    VramStatus,
)
from tests.unit.protocol import fakes
from tests.unit.protocol.fakes import GPU, hold, thaw

MS = 1_000_000


def tenants(count: int) -> tuple[TenantStatus, ...]:
    """All have been held, each fourth one is; each has a note."""
    batch = next(one for one in fakes.status().tenants if one.name == "batch")
    states = (TenantState.HELD, TenantState.RUN, TenantState.RUN, TenantState.IDLE)
    return tuple(
        replace(batch, name=f"tenant-{number}", state=states[number % 4], note="something to know " * 6)
        for number in range(count)
    )


def busy(count: int, gpus: int = 1) -> StatusReport:
    cards = tuple(
        GpuStatus(f"GPU-{n:08x}-0", n, "NVIDIA L40S", 0.9, 0.0, 1 << 34, 45 << 30) for n in range(gpus)
    )
    slis = SliStatus(3.25, 0.021, 0.031, True)
    return replace(fakes.status(), tenants=tenants(count), gpus=cards, warnings=(), slis=slis)


@pytest.mark.parametrize(("count", "gpus"), [(3, 1), (8, 1), (12, 1), (12, 8), (14, 2)])
def test_a_dozen_tenants_fit_on_one_screen(count: int, gpus: int) -> None:
    lines = [part for line in status.render(busy(count, gpus)) for part in line.split("\n")]
    assert len(lines) <= SCREEN_LINES
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.startswith("tenant-") for line in lines) == count
    assert "queue delay p99 3.2 ms, SM stdev 2.1 %, token/s CV 3.1 %: fair" in lines


def test_what_gives_way_gives_way_in_steps() -> None:
    def reasons(count: int, gpus: int = 1) -> int:
        return "\n".join(status.render(busy(count, gpus))).count("held 12 ms ago")

    assert reasons(2) == 2, "everything that was decided last"
    assert reasons(8) == 2, "why of those who are held"
    assert reasons(12, 8) == 0
    assert "why: fairsched status --full" in status.render(busy(8))[-1]
    assert "--full" not in "\n".join(status.render(busy(2)))
    full = "\n".join(status.render(busy(40), Detail.FULL))
    assert full.count("held 12 ms ago") == 40


def test_what_needs_a_person_never_gives_way() -> None:
    bad = MisbehaviourStatus(MisbehaviourKind.ENDLESS, 1_700_000_000.0, GPU, "never ends " * 20, "warn")
    worst = replace(
        tenants(1)[0], misbehaviours=(bad,), vram=(VramStatus(GPU, 1, 2, over_since_s=1_700_000_000.0),)
    )
    report = replace(
        busy(60), tenants=(*tenants(60), replace(worst, name="worst")), warnings=("BPF lost events",)
    )
    screen = "\n".join(status.render(report))
    assert "  ! endless GPU work on GPU-5f2c1a90" in screen
    assert "  ! beyond its GPU memory" in screen
    assert "warning: BPF lost events" in screen
    assert all(len(line) <= 80 for line in screen.split("\n"))


def test_an_unfair_or_unknown_verdict_is_said_as_such() -> None:
    def line(is_fair: bool | None) -> str:
        report = replace(busy(1), slis=SliStatus(None, None, None, is_fair))
        return next(line for line in status.render(report) if line.startswith("queue delay"))

    assert line(False).endswith("CV n/a: unfair")
    assert line(None).endswith("CV n/a")


# ---- explain ----


def minute(count: int) -> list[DecisionRecord]:
    """`count` holds of 20 to 59 ms with different numbers, ended for two reasons; the last fails."""
    found = []
    for number in range(count):
        begin_ns, length_ns = number * 1000 * MS, (20 + number % 40) * MS
        reason = Reason(ReasonCode.OVER_ENTITLEMENT, GPU, -(11 + number) * MS, 0.25, 0.28 + number / 1000)
        found.append(replace(hold(begin_ns), reason=reason))
        code = ReasonCode.GPU_IDLE if number % 3 == 0 else ReasonCode.CAUGHT_UP
        found.append(replace(thaw(begin_ns + length_ns, code), held_ns=length_ns))
    return found


def text(lines: list[str]) -> str:
    assert all(len(line) <= 80 for line in lines), lines
    return re.sub(r"\s+", " ", " ".join(lines))


def test_many_holds_are_summed_up_and_the_last_ones_told() -> None:
    lines = explain.render("batch", minute(50), 60_000 * MS)
    assert len(lines) <= SCREEN_LINES, "300 holds are one screen, too"
    told = text(lines)
    assert "batch was held 50 times in the last minute" in told
    assert (
        "held 50 times: it is ahead of its share; 1825 ms in all, 20 to 59 (median 34) ms each; "
        "used 28.0 to 32.9 (median 30.5)%, entitled 25.0% of GPU-5f2c1a90, lag -60 to -11 (median -36) ms"
        in told
    )
    assert "thawed 33 times: the others caught up thawed 17 times: the GPU would have idled" in told
    assert "the last 5 of 50; --all tells all of them:" in told
    assert told.count("; thawed: ") == 5
    everything = text(explain.render("batch", minute(50), 60_000 * MS, is_all=True))
    assert everything.count("; thawed: ") == 50
    assert "the last 5" not in everything


def test_a_few_holds_are_told_one_by_one() -> None:
    told = text(explain.render("batch", minute(explain.FEW), 60_000 * MS))
    assert told.count("; thawed: ") == explain.FEW
    assert "held 8 times: " not in told


def test_each_reason_has_a_line_of_its_own_and_failures_are_counted() -> None:
    records = minute(10)
    quota = Reason(ReasonCode.OVER_QUOTA, GPU, used_ratio=0.5)
    records += [replace(hold(20_000 * MS + number), reason=quota, error="no space") for number in range(2)]
    told = text(explain.render("batch", records, 60_000 * MS))
    assert "held 10 times: it is ahead of its share" in told
    assert (
        "held 2 times: it used up its quota; 0 ms in all, 0 ms each; used 50.0% of GPU-5f2c1a90; 2 of them"
        in told
    )


def test_explain_says_how_it_stands_now() -> None:
    now = TenantStatus(
        "batch",
        TenantState.HELD,
        1,
        entitled_ratio=0.25,
        used_ratio=0.31,
        lag_ms=-62.0,
        queue_delay_p50_ms=1.25,
        queue_delay_p99_ms=8.0,
        tokens=TokenRate(51.5),
    )
    assert explain.render("batch", [], 0, now=now) == [
        "batch was not held in the last minute.",
        "now held: used 31.0%, entitled 25.0%, lag -62 ms; its work waits 1.2 ms, p99 8.0",
        "  ms; 51.5 tokens/s",
    ]
    bare = TenantStatus("batch", TenantState.AWAY, 1)
    assert explain.render("batch", [], 0, now=bare)[1:] == ["now away"]


def test_a_hold_that_lasts_while_others_are_summed_up_is_not_lost() -> None:
    records = [*minute(20), replace(hold(30_000 * MS), action=ActionKind.HOLD)]
    told = text(explain.render("batch", records, 30_120 * MS))
    assert "held, for 120 ms so far" in told
    assert "held 21 times" in told


def test_graphs_are_told_with_their_length_and_how_well_that_is_known() -> None:
    chat = fakes.status().tenants[0]
    told = text(explain.render("chat", [], 60_000 * MS, now=chat))
    assert (
        "graph launches of 20 to 95 ms (3 graphs; the longest +-4.0%, measured alone): each runs as one piece"
        in told
    )
    one = replace(fakes.GRAPHS, count=1, shortest_ms=95.4, is_measured=False)
    both = (replace(chat.gpus[0], graphs=one), replace(chat.gpus[0], uuid="GPU-other", graphs=None))
    told = text(explain.render("chat", [], 60_000 * MS, now=replace(chat, gpus=both)))
    assert "graph launches of 95 ms on " in told
    assert "(1 graph +-4.0%, as charged beside others)" in told
