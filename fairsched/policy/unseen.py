# SPDX-License-Identifier: Apache-2.0
"""Tells how much of a GPU tenants have beyond what their calls account for (pure).

Problem. Work that no probe sees is in no account: who does it is charged nothing, and the others are charged its time.
And an account can be wrong of work that it does see: the GPU takes turns otherwise than is assumed, or what goes on
while its owner is held is taken to be over. Then the wrong one is held, or nobody.

Approach. NVML's samples say what a tenant had, right on the average and whatever it is that the account does not know.
Where all its samples together, of whichever of its processes, are more than chance makes of what it is charged, the
samples are right. What they say beyond the charge is a *rate*: the part of the GPU that it has in this way while it
runs. It is charged that for all the time in which it is not held, and held for it. The others are left what it leaves,
all in the same proportion, so they are as fair among each other as before.

Nobody is accused by that: suspicion is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairsched.model import TenantGpu, Unseen
from fairsched.policy.evidence import Evidence, Where
from fairsched.policy.launches import NO_TIMINGS, Timings
from fairsched.policy.misbehaviour import WatchState
from fairsched.policy.sampled import (
    LEAST_SAMPLES,
    LONG_WINDOW_NS,
    SHORT_WINDOW_NS,
    SUSPECT_CHANCE,
    Seen,
    binomial_tail,
    summed,
)


def unseen_rates(state: WatchState, evidence: Evidence, timings: Timings = NO_TIMINGS) -> Unseen:
    """What tenants have beyond what they are charged. ``timings``: of whom the account was set right."""
    seen: dict[TenantGpu, list[Seen]] = {}
    for where, looks in state.seen.items():
        tenant = next((look.tenant for look in reversed(looks) if look.tenant is not None), None)
        if tenant is not None and tenant not in evidence.over_budget:
            seen.setdefault((tenant, where[1]), []).extend(looks)
    # In the short window, so that it is over soon after it has ended.
    begin_ns = evidence.now_ns - SHORT_WINDOW_NS
    rates, had, charged = dict[TenantGpu, float](), dict[str, float](), dict[str, float]()
    for (tenant, gpu), own in seen.items():
        told_ns = timings.begin_ns(tenant, gpu)
        had_ns, charged_ns = _recent_ns(own, max(begin_ns, told_ns))
        if had_ns > charged_ns and _is_contradicted(state, own, evidence.now_ns, told_ns):
            first_ns = min((look.first_ns - look.period_ns for look in own if look.samples), default=0)
            rates[tenant, gpu] = (had_ns - charged_ns) / state.free_ns(tenant, begin_ns, first_ns)
            had[gpu] = had.get(gpu, 0.0) + had_ns / state.lasted_ns(begin_ns, first_ns)
        else:
            charged[gpu] = charged.get(gpu, 0.0) + charged_ns / state.lasted_ns(begin_ns)
    return Unseen(rates, {gpu: _left_ratio(part, charged.get(gpu, 0.0)) for gpu, part in had.items()})


def borne_out(state: WatchState, now_ns: int) -> frozenset[Where]:
    """Processes that had what they were charged: no fewer samples are of them than chance makes of that."""
    return frozenset(
        where for where, looks in state.seen.items() if _is_borne_out(state, looks, now_ns - LONG_WINDOW_NS)
    )


def suspected_gpus(state: WatchState, unseen: Unseen) -> frozenset[str]:
    """GPUs on which somebody may have what it is not charged."""
    return frozenset({gpu for _, gpu in state.unknown} | unseen.left.keys())


def _left_ratio(had: float, charged: float) -> float:
    """Part of what the others were charged that they can have had beside that: there is no more time."""
    return min(1.0, max(0.0, 1.0 - had) / charged) if charged > 0 else 1.0


def _recent_ns(looks: Iterable[Seen], begin_ns: int) -> tuple[float, int]:
    """What they had, by their samples, and what they were charged, by looks after ``begin_ns``."""
    recent = [look for look in looks if look.t_ns > begin_ns]
    return sum(look.periods * look.period_ns for look in recent), sum(look.charged_ns for look in recent)


def _is_contradicted(state: WatchState, looks: Iterable[Seen], now_ns: int, least_ns: int) -> bool:
    """Whether, in either window, more samples are of them than of who had what they were charged, but by chance."""
    for begin_ns in (now_ns - SHORT_WINDOW_NS, now_ns - LONG_WINDOW_NS):
        lot = _Lot.since(state, looks, max(begin_ns, least_ns))
        if lot is not None and binomial_tail(lot.periods, lot.of, lot.charged) < SUSPECT_CHANCE:
            return True
    return False


def _is_borne_out(state: WatchState, looks: Iterable[Seen], begin_ns: int) -> bool:
    lot = _Lot.since(state, looks, begin_ns)
    if lot is None or not lot.charged:
        return False
    return binomial_tail(lot.of - lot.periods, lot.of, 1 - lot.charged) > SUSPECT_CHANCE


class _Lot(NamedTuple):
    """So many sample periods are of them, ``of`` all that there were, and so large a part was charged."""

    periods: int
    of: int
    charged: float

    @classmethod
    def since(cls, state: WatchState, looks: Iterable[Seen], begin_ns: int) -> _Lot | None:
        """None where samples are too few to say anything."""
        samples, periods, charged_ns, period_ns = summed(looks, begin_ns)
        if samples < LEAST_SAMPLES:
            return None
        lasted_ns = state.lasted_ns(begin_ns)
        return cls(round(periods), round(lasted_ns / period_ns), min(1.0, charged_ns / lasted_ns))
