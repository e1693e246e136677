# SPDX-License-Identifier: Apache-2.0
"""Tells on which unseen work the account can count, and beside which no account is sure (pure).

One that always has work takes the turns of a context, so the account can give it these. Of one that comes and goes,
or is only suspected, it is known that the others are charged too much, and not by how much.
"""

from __future__ import annotations

from collections import Counter

from fairsched.model import MisbehaviourKind
from fairsched.policy.evidence import Evidence, Where
from fairsched.policy.misbehaviour import SHORT_WINDOW_NS, WatchState

_FULL_RATIO = 0.7
"""Of its turn: a process that uses less has pauses."""
_KEPT_RATIO = 0.4
"""One that was counted on."""
_INTRUDER_RATIO = 0.08
"""Of a GPU: more than two samples in the short window."""
_LEAST_WINDOW_NS = 1_000_000_000


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


def _unseen_processes(state: WatchState) -> frozenset[Where]:
    unseen = (one for one in state.episodes.values() if one.kind is MisbehaviourKind.UNSEEN)
    return frozenset((pid, one.gpu) for one in unseen for pid in one.pids)
