# SPDX-License-Identifier: Apache-2.0
"""Tells on which unseen work the account can count, beside which no account is sure, and who is to be charged (pure).

One that always has work takes the turns of a context, so the account can give it these. Of one that comes and goes,
or is only suspected, it is known that the others are charged too much, and not by how much: that is the most they had.

Whoever does it is no freer for that. NVML's samples tell how much its processes had beyond what they were charged, and
that is charged to their tenant. Processes of which hardly anything was charged are taken together: else who starts one
more whenever two samples were taken of the last would be charged nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairsched.model import MisbehaviourKind, TenantGpu
from fairsched.policy.evidence import Evidence, Where
from fairsched.policy.misbehaviour import SHORT_WINDOW_NS, Seen, WatchState, is_suspect, summed

_FULL_RATIO = 0.7
"""Of its turn: a process that uses less has pauses."""
_KEPT_RATIO = 0.4
"""One that was counted on."""
_INTRUDER_RATIO = 0.08
"""Of a GPU: more than two samples in the short window."""
_LEAST_WINDOW_NS = 1_000_000_000
_HARDLY_NS = 10_000_000
"""Charged to a process in the short window: if that is all it had, fourteen of these are in one sample."""


def used_ratio(state: WatchState, where: Where, now_ns: int) -> float:
    """Part of the short window in which the GPU worked for a process, by its samples; of its time, if it is younger."""
    looks, begin_ns = state.seen.get(where, ()), now_ns - SHORT_WINDOW_NS
    recent = [look for look in looks if look.t_ns > begin_ns]
    first_ns = min((look.first_ns - look.period_ns for look in looks if look.samples), default=begin_ns)
    lasted_ns = max(now_ns - max(first_ns, begin_ns), _LEAST_WINDOW_NS)
    return sum(look.periods * look.period_ns for look in recent) / lasted_ns


def steady_unseen(state: WatchState, evidence: Evidence, before: frozenset[Where]) -> frozenset[Where]:
    """Unseen processes that use what one context with endless work would get: the account can count on them.

    ``before``: what the last look found. Samples are few, so who was counted on is given up only for clearly less.
    """
    rivals = Counter(
        gpu for (_, gpu), works in evidence.works.items() for work in works if work.is_outstanding
    )
    return frozenset(
        where
        for where in _unseen_processes(state)
        if used_ratio(state, where, evidence.now_ns)
        >= (_KEPT_RATIO if where in before else _FULL_RATIO) / (1 + rivals[where[1]])
    )


def intruded_gpus(state: WatchState, steady: frozenset[Where], now_ns: int) -> frozenset[str]:
    """GPUs with unseen work on which the account cannot count, or not yet, and which shows in that of the others."""
    others = (_unseen_processes(state) | state.unknown) - steady
    return frozenset(where[1] for where in others if used_ratio(state, where, now_ns) >= _INTRUDER_RATIO)


def uncharged(state: WatchState, evidence: Evidence) -> dict[TenantGpu, float]:
    """The part of the short window for which processes of a tenant had a GPU beyond what they were charged.

    Of one that is charged for its work chance makes a sample more or less, so that counts of those that are suspected.
    """
    begin_ns, unseen = evidence.now_ns - SHORT_WINDOW_NS, _unseen_processes(state)
    found: dict[TenantGpu, float] = {}
    together: dict[TenantGpu, list[Seen]] = {}
    for where, looks in state.seen.items():
        tenant = next((look.tenant for look in reversed(looks) if look.tenant is not None), None)
        if tenant is None or tenant in evidence.over_budget:
            continue
        _, _, charged_ns, _ = summed(looks, begin_ns)
        if charged_ns <= _HARDLY_NS:
            together.setdefault((tenant, where[1]), []).extend(looks)
        elif where[0] in state.suspects or where in unseen:
            found[tenant, where[1]] = found.get((tenant, where[1]), 0.0) + _beyond_ns(looks, begin_ns)
    for key, all_looks in together.items():
        if is_suspect(all_looks, evidence.now_ns):
            found[key] = found.get(key, 0.0) + _beyond_ns(all_looks, begin_ns)
    return {key: beyond_ns / SHORT_WINDOW_NS for key, beyond_ns in found.items() if beyond_ns > 0}


def _beyond_ns(looks: Iterable[Seen], begin_ns: int) -> float:
    _, periods, charged_ns, period_ns = summed(looks, begin_ns)
    return max(0.0, periods * period_ns - charged_ns)


def _unseen_processes(state: WatchState) -> frozenset[Where]:
    unseen = (one for one in state.episodes.values() if one.kind is MisbehaviourKind.UNSEEN)
    return frozenset((pid, one.gpu) for one in unseen for pid in one.pids)
