# SPDX-License-Identifier: Apache-2.0
"""The signals of a status: who counts, who suffers, and what is not known."""

from __future__ import annotations

from fairsched.companion.escalate.model import QUEUE_DELAY, TOKEN_CV, Sufferer
from fairsched.companion.escalate.reading import read
from fairsched.model import Confidence
from fairsched.protocol.status import SliStatus, TenantGpuStatus, TenantState
from tests.unit.companion.escalate.reports import GPU, OTHER_GPU, batch, report, tenant


def test_the_worst_latency_tenant_counts_and_batch_does_not() -> None:
    seen = read(
        report([tenant("chat", delay_ms=31.5), tenant("mail", delay_ms=4), batch("night", delay_ms=900)])
    )
    assert seen.values == {QUEUE_DELAY: 31.5}
    assert seen.sufferers == {QUEUE_DELAY: Sufferer("chat", GPU)}


def test_what_fair_turns_come_to_is_the_floor_of_the_queue_delay() -> None:
    slis = SliStatus(queue_delay_floor_ms=27.5)
    assert read(report([tenant("chat", delay_ms=30)], slis=slis)).floors == {QUEUE_DELAY: 27.5}
    assert read(report([tenant("chat", delay_ms=30)])).floors == {}


def test_who_is_never_held_does_not_count() -> None:
    """It is owed nothing: a higher guarantee would not help it."""
    monitor = tenant("monitor", delay_ms=300, used=0.1, entitled=0.9, state=TenantState.EXEMPT)
    assert read(report([monitor])).values == {}
    seen = read(report([monitor, tenant("chat", delay_ms=30, used=0.2)], cv=0.1))
    assert {one.tenant for one in seen.sufferers.values()} == {"chat"}


def test_what_nobody_measures_is_absent_and_not_zero() -> None:
    seen = read(report([tenant("chat"), batch("night", delay_ms=3)]))
    assert seen.values == {} and not seen.is_idle


def test_an_old_figure_of_a_tenant_that_wants_nothing_does_not_count() -> None:
    assert read(report([tenant("chat", delay_ms=99, state=TenantState.IDLE), tenant("mail")])).values == {}


def test_by_token_rates_the_tenant_furthest_below_its_part_suffers() -> None:
    seen = read(
        report([tenant("chat", entitled=0.5, used=0.3), tenant("mail", entitled=0.5, used=0.6)], cv=0.12)
    )
    assert seen.values == {TOKEN_CV: 0.12}
    assert seen.sufferers[TOKEN_CV].tenant == "chat"


def test_the_gpu_is_the_one_on_which_most_is_owed() -> None:
    gpus = (
        TenantGpuStatus(GPU, 0.5, 0.5, -3.0, True, Confidence.HIGH),
        TenantGpuStatus(OTHER_GPU, 0.5, 0.2, 60.0, True, Confidence.HIGH),
    )
    assert read(report([tenant("chat", delay_ms=50, gpus=gpus)])).sufferers[QUEUE_DELAY].gpu == OTHER_GPU


def test_idle_is_when_nobody_wants_the_gpu_and_somebody_looks() -> None:
    asleep = [tenant("chat", state=TenantState.IDLE), tenant("mail", state=TenantState.AWAY)]
    assert read(report(asleep)).is_idle
    assert not read(report([*asleep, tenant("night")])).is_idle
    asleep.append(tenant("frozen", state=TenantState.FOREIGN))
    assert read(report(asleep)).is_idle, "whom somebody else has paused wants nothing"
    asleep.append(
        tenant("monitor", state=TenantState.EXEMPT, gpus=(TenantGpuStatus(GPU, None, 0.0, has_demand=False),))
    )
    assert read(report(asleep)).is_idle, "who is never held may be idle, too"
    assert not read(report([*asleep, tenant("probe", state=TenantState.EXEMPT)])).is_idle
    assert not read(report(asleep, source=None)).is_idle, "without an account nobody knows"
