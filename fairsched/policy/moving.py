# SPDX-License-Identifier: Apache-2.0
"""Detects processes that repeatedly leave their cgroup while they use a GPU (pure).

Problem. Who is held is said by cgroup. A process that may write the cgroup.procs of one outside its tenant (root, or
whoever was delegated a parent) leaves when it is held, and comes back: no freezer can follow. A runtime also moves
processes, and so does an operator: once, and seldom while they use a GPU.

Approach. BPF notes the cgroup at each submit, and the account tells each change. What counts is a context that was in a
cgroup of the tenant and then is in none of it. _LEAVES of the same context within the window are neither a runtime's
nor an operator's. It stays held while it is there: what it does inside is in the account.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairsched.model import ContextKey, MisbehaviourKind
from fairsched.policy.evidence import Episode, EpisodeKey, Leave

_WINDOW_NS = 5_000_000_000
_LEAVES = 3
_MOST = 4096


def recent_leaves(leaves: tuple[Leave, ...], now_ns: int) -> tuple[Leave, ...]:
    """The leaves that still count; of too many the last ones."""
    return tuple(one for one in leaves[-_MOST:] if now_ns - one.t_ns <= _WINDOW_NS)


def moving(leaves: Iterable[Leave], now_ns: int) -> dict[EpisodeKey, Episode]:
    """One episode per tenant and GPU, of all the processes that leave repeatedly there."""
    by_context: dict[tuple[str, str, int, ContextKey], list[int]] = {}
    for one in leaves:
        by_context.setdefault((one.tenant, one.gpu, one.pid, one.key), []).append(one.t_ns)
    guilty = {who: times for who, times in by_context.items() if len(times) >= _LEAVES}
    found: dict[EpisodeKey, Episode] = {}
    for tenant, gpu in {who[:2] for who in guilty}:
        mine = {who: times for who, times in guilty.items() if who[:2] == (tenant, gpu)}
        since_ns = min(min(times) for times in mine.values())
        found[tenant, gpu, MisbehaviourKind.MOVING] = Episode(
            tenant,
            gpu,
            MisbehaviourKind.MOVING,
            since_ns,
            now_ns,
            tuple(sorted({who[2] for who in mine})),
            leaves=max(map(len, mine.values())),
            window_ns=now_ns - since_ns,
        )
    return found
