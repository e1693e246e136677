# SPDX-License-Identifier: Apache-2.0
"""Gives a tenant the GPU to itself for a moment, so that what its launches cost is measured (pure).

Problem. How time was divided among tenants that share a GPU can only be inferred, by a model of how that GPU takes
turns. What a launch costs alone is simply seen, and from then on no model is needed (accounting/costs.py). But on a
busy GPU nobody is ever alone.

Approach. While the account says of a tenant that too little is known (``unmeasured_ns``), all others on its GPU are
held once, for :data:`LONGEST_NS`: their queues drain, and bursts of the one end. For a fixed time and not until so
many ended, because quick ones would count too often. Nothing is lost: the GPU works, what the one has now it owes to
the others, and the law repays it. So that this takes no longer than :data:`_REPAID_NS`, whoever is entitled to little
has little time, and where that does not suffice for a burst it is left as it is. Between two such moments all run for
as long. A measurement that brought nothing is tried again twice, and then every 20 s.

Not while somebody on that GPU may not be held, is a gang (it would stand still elsewhere, too) or has its own limit
for holds that is too short; and it ends at once when the one has nothing to do: then the GPU is the others'.

Terms. solo: such a moment, and who has it.
"""

from __future__ import annotations

import itertools

from fairsched.model import ReasonCode
from fairsched.policy.draft import Draft, JudgedUse
from fairsched.policy.lag import Solo, Solos
from fairsched.policy.shares import spec_for

LONGEST_NS = 500_000_000
_REPAID_NS = 2_000_000_000
_MOST_TRIES = 3
_FORGIVEN_NS = 20_000_000_000
"""After so long there is one more: work changes, and so does what it costs."""
_DRAIN_RATIO = 5.0
"""Of what the others have queued as it is estimated: until it is surely over. A moment in which it is not is lost, and
there comes a better one: most of them are held most of the time, with nothing queued any more."""


def go_on(draft: Draft, solos: Solos) -> Solos:
    """End those whose time is over or who have nothing to do; forget what is gone."""
    now_ns = draft.snapshot.now_ns
    latest = {}
    for gpu, solo in solos.latest.items():
        account = draft.books.gpus.get(gpu)
        if account is None or solo.begin_ns > now_ns:  # of a GPU that is gone, or of before a reboot
            continue
        idle_ns = account.idle_since_ns
        is_idle = idle_ns is not None and now_ns - idle_ns >= draft.params.idle_confirm_ns
        is_idle |= gpu in draft.snapshot.contradicted
        is_known = not any(
            row.gpu == gpu and row.use.unmeasured_ns for row in draft.rows.get(solo.tenant, ())
        )
        is_done = now_ns >= solo.until_ns or is_idle or is_known or not _wants(draft, solo.tenant, gpu)
        if not solo.is_over and is_done:
            solo = solo._replace(until_ns=min(now_ns, solo.until_ns), is_over=True)
        latest[gpu] = solo
    accounts = draft.books.accounts
    return Solos(latest, {key: tried for key, tried in solos.tries.items() if key in accounts})


def _tried(solos: Solos, tenant: str, gpu: str, now_ns: int) -> int:
    """How often lately."""
    many, at_ns = solos.tries.get((tenant, gpu), (0, 0))
    return max(0, many - max(0, now_ns - at_ns) // _FORGIVEN_NS)


def begin(draft: Draft, solos: Solos) -> Solos:
    """Begin at most one on each GPU: hold the others, let it go."""
    latest, tries = dict(solos.latest), dict(solos.tries)
    by_gpu: dict[str, list[JudgedUse]] = {}
    for row in itertools.chain.from_iterable(draft.rows.values()):
        if row.use.unmeasured_ns and row.use.most_ns is None:  # of who hides work its costs say nothing
            by_gpu.setdefault(row.gpu, []).append(row)
    for gpu, rows in by_gpu.items():
        last = latest.get(gpu)
        if last is not None and (not last.is_over or draft.snapshot.now_ns < last.next_ns):
            continue
        others = _others(draft, gpu)
        if others is None or gpu in draft.snapshot.contradicted:
            continue
        candidates = []
        for row in rows:
            length_ns = _length_ns(draft, row, [one for one in others if one is not row])
            many = _tried(solos, row.use.tenant, gpu, draft.snapshot.now_ns)
            if length_ns is not None and many < _MOST_TRIES:
                candidates.append((many, -draft.books.owed[gpu][row.use.tenant], row.use.tenant, length_ns))
        if candidates:
            many, _, tenant, length_ns = min(candidates)
            _hold_others(draft, tenant, others)
            latest[gpu] = Solo(tenant, draft.snapshot.now_ns, draft.snapshot.now_ns + length_ns)
            tries[tenant, gpu] = (many + 1, draft.snapshot.now_ns)
    return Solos(latest, tries)


def _wants(draft: Draft, tenant: str, gpu: str) -> bool:
    return tenant in draft.books.owed.get(gpu, ()) and not draft.gates_quota(tenant)


def _others(draft: Draft, gpu: str) -> list[JudgedUse] | None:
    """All who have work there; None: somebody among them may not be held, or was held or let go just now."""
    found, changed = [], {action.tenant for action in draft.plan}
    for tenant, rows in draft.rows.items():
        for row in rows:
            if row.gpu != gpu or not (row.use.has_demand or row.use.outstanding_ns):
                continue
            hold = draft.snapshot.holds.get(tenant)
            if hold is not None and not hold.is_ours:
                if row.use.outstanding_ns:
                    return None
                continue
            if not row.use.has_demand or tenant not in draft.books.enforced[gpu]:
                return None
            if len(rows) > 1 or tenant in changed:
                return None
            found.append(row)
    return found if len(found) > 1 else None


def _length_ns(draft: Draft, row: JudgedUse, others: list[JudgedUse]) -> int | None:
    """How long it takes; None: too long, or it may not have it."""
    tenant, gpu = row.use.tenant, row.gpu
    owed = draft.books.owed[gpu].get(tenant)
    if owed is None or draft.gates_quota(tenant) or not row.use.has_demand:
        return None
    if row.account.most_ratio < owed:
        return None  # most of the moment would be pauses, and what its work costs makes little difference
    most_ns = min(LONGEST_NS, _REPAID_NS * owed)
    for one in others:
        hold = draft.snapshot.holds.get(one.use.tenant) if one.use.tenant in draft.held else None
        most_ns = min(most_ns, spec_for(one.use.tenant, draft.specs).max_freeze_ns)
        if hold is not None:
            most_ns = min(most_ns, hold.deadline_ns - draft.snapshot.now_ns)
    drain_ns = _DRAIN_RATIO * sum(one.use.outstanding_ns for one in others)
    if drain_ns + row.use.unmeasured_ns > most_ns:
        return None
    return round(most_ns)


def _hold_others(draft: Draft, tenant: str, others: list[JudgedUse]) -> None:
    for row in others:
        if row.use.tenant != tenant and row.use.tenant not in draft.held:
            draft.hold(row, ReasonCode.MEASURING)
    if tenant in draft.held:
        draft.thaw(tenant, ReasonCode.MEASURING, draft.worst(tenant))
