# SPDX-License-Identifier: Apache-2.0
"""Tells how much of a GPU tenants have beyond what their calls account for (pure).

Problem. Work that no probe sees is in no account: who does it is charged nothing, and the others are charged its time.
Then nobody can be held for anything, and that is what it is good for.

Approach. NVML's samples say what a process had, right on the average. A process that was accused (misbehaviour.py) has
what it is sampled beyond its charge. Of processes that end, or have only begun, before anything can be said of one, the
same is asked of all those of a tenant together, by the same test: so it matters not for how long each of them lives.
That is a *rate*: the part of the GPU that the tenant has in this way while it runs. It is charged that for all the
time in which it is not held, and held for it; the others had that much less than the account says, all in the same
proportion, so they are as fair among each other as before.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairsched.model import MisbehaviourKind, TenantGpu, Unseen
from fairsched.policy.evidence import Evidence, Where
from fairsched.policy.misbehaviour import WatchState
from fairsched.policy.sampled import (
    CHANCE,
    LEAST_SAMPLES,
    LONG_WINDOW_NS,
    SHORT_WINDOW_NS,
    Seen,
    is_beyond,
    summed,
)


def unseen_rates(state: WatchState, evidence: Evidence) -> Unseen:
    """What tenants have beyond what they are charged."""
    now_ns, accused = evidence.now_ns, _unseen_processes(state)
    dark: dict[TenantGpu, list[Seen]] = {}
    for where, looks in state.seen.items():
        tenant = next((look.tenant for look in reversed(looks) if look.tenant is not None), None)
        if tenant is None or tenant in evidence.over_budget:
            continue
        is_brief = looks[-1].t_ns - looks[0].t_ns < SHORT_WINDOW_NS
        if is_brief or where in accused or not any(look.charged_ns for look in looks):
            dark.setdefault((tenant, where[1]), []).extend(looks)
    rates, taken = dict[TenantGpu, float](), dict[str, float]()
    begin_ns = now_ns - SHORT_WINDOW_NS
    for (tenant, gpu), together in dark.items():
        is_unsure = gpu in evidence.unsure and any(look.charged_ns for look in together)
        if _is_evident(state, tenant, together, now_ns) and not is_unsure:
            # In the short window, so that it is over soon after it has ended.
            beyond_ns, since_ns = _beyond_ns(together, begin_ns), _first_ns(together)
            rates[tenant, gpu] = beyond_ns / state.free_ns(tenant, begin_ns, since_ns)
            taken[gpu] = taken.get(gpu, 0.0) + beyond_ns / state.lasted_ns(begin_ns, since_ns)
    return Unseen(rates, {gpu: _left_ratio(state, gpu, part, begin_ns) for gpu, part in taken.items()})


def _left_ratio(state: WatchState, gpu: str, taken: float, begin_ns: int) -> float:
    """Part of what all were charged on a GPU that they can have had beside that: there is no more time."""
    charged_ns = sum(
        look.charged_ns
        for where, looks in state.seen.items()
        if where[1] == gpu
        for look in looks
        if look.t_ns > begin_ns
    )
    charged = charged_ns / state.lasted_ns(begin_ns)
    return min(1.0, max(0.0, 1.0 - taken) / charged) if charged > 0 else 1.0


def suspected_gpus(state: WatchState, unseen: Unseen) -> frozenset[str]:
    """GPUs on which somebody may have what it is not charged."""
    return frozenset({gpu for _, gpu in state.unknown} | unseen.left.keys())


def _unseen_processes(state: WatchState) -> frozenset[Where]:
    """Those that are accused of it."""
    unseen = (one for one in state.episodes.values() if one.kind is MisbehaviourKind.UNSEEN)
    return frozenset((pid, one.gpu) for one in unseen for pid in one.pids)


def _is_evident(state: WatchState, tenant: str, looks: Iterable[Seen], now_ns: int) -> bool:
    """Whether there is evidence enough, in either window, that they had more than they were charged."""
    for begin_ns in (now_ns - SHORT_WINDOW_NS, now_ns - LONG_WINDOW_NS):
        samples, periods, charged_ns, period_ns = summed(looks, begin_ns)
        free_ns = state.free_ns(tenant, begin_ns)
        if samples >= LEAST_SAMPLES and is_beyond(periods, charged_ns / period_ns, free_ns, CHANCE):
            return True
    return False


def _beyond_ns(looks: Iterable[Seen], begin_ns: int) -> float:
    """What they had beyond their charge, by looks after ``begin_ns``."""
    recent = (look for look in looks if look.t_ns > begin_ns)
    return max(0.0, sum(look.periods * look.period_ns - look.charged_ns for look in recent))


def _first_ns(looks: Iterable[Seen]) -> int:
    """When they were first on the GPU, as far as is known."""
    return min((look.first_ns - look.period_ns for look in looks if look.samples), default=0)
