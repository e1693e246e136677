# SPDX-License-Identifier: Apache-2.0
"""Predicts when the next decision is likely, and when it is due (pure).

Problem. Deciding costs a cold processor most of a millisecond, and most moments decide nothing; but a deadline, a full
quota or a queue that fills must not wait.

Approach. Two moments. Before ``quiet_until`` no threshold should be crossed, as the work of those with demand runs
now; ``wake`` is the first moment that must not be missed, among them the end of a hold that is repaid: every
millisecond later is one of latency.
"""

from __future__ import annotations

from fairsched.model import ActionKind
from fairsched.policy.draft import Draft, JudgedUse
from fairsched.policy.lag import Gate, GpuAccount
from fairsched.policy.shares import ancestors

_AIM_RATIO = 0.05
"""Of a threshold: look that much behind it, because a look just before it would be in vain."""
_PATIENCE = 3
_FEW = 2
"""As many on a GPU wait for nobody but each other, so that a look that comes late is latency. Where more share it, the
looks that are due anyway are often enough, and more and briefer runs teach the account less of what kernels cost."""
_CATCH_UP_LOOK_NS = 3_000_000
"""For each that is held: a hold that is nearly repaid is not looked at sooner, ..."""
_CATCH_UP_SHORT_NS = 100_000_000
"""... and not for its own sake if it lasts longer: a look more or less makes no difference then, and a queue as long as
that calls for longer runs, too."""
_BACK_LOOK_NS = 8_000_000
"""Whoever has come back is owed something only when the others have had their turns."""
_GRANT_LOOK_NS = 5_000_000
"""After a grant: what was queued is known to the account only when that is read."""


def quiet_until(draft: Draft) -> int | None:
    """When the first tenant should reach its threshold; a decision before, or just before, would be in vain.

    A held tenant earns its entitlement of what the GPU delivers. One that runs takes its part (of as many as run, or
    what it took lately, if that is more). Of _FEW it has by then as much queued as lately: the queue of one that was
    let go just now is still empty. Should the others stop it takes everything: so it is looked at no later than
    _PATIENCE times as long as it then needs, which bounds how far it overshoots.
    """
    waits = []
    paces = {gpu: _pace(account) for gpu, account in draft.books.gpus.items()}
    evens = {gpu: 1 / max(1, len(running)) for gpu, running in draft.running.items()}
    interval_ns = max(draft.snapshot.interval_ns, 1)
    for tenant, rows in draft.rows.items():
        for row in rows:
            use, account, margin, threshold = row
            if not use.has_demand:
                continue
            gpu, aim = use.gpu, _AIM_RATIO * threshold
            owed = draft.books.owed[gpu].get(tenant, 0.0)
            earns = owed * paces[gpu]
            if tenant in draft.held:
                waits.append(_catch_up_ns(draft, row, earns))
                continue
            if draft.grant_ns(row) is not None:
                return None  # its queue may fill at any moment
            is_few = len(draft.books.owed[gpu]) <= _FEW
            refill = max(0.0, account.drain_ns - use.outstanding_ns) if is_few else 0.0
            room = aim + max(margin - refill + threshold, account.lag_ns - draft.lag_limit_ns(row))
            takes = max(evens[gpu], min(1.0, use.used_ns / interval_ns))
            alone = room / max(1.0 - owed, 0.01)
            waits.append(min(room / max(takes - earns, 0.01), _PATIENCE * alone))
    if not waits:
        return None
    return draft.snapshot.now_ns + max(0, round(min(waits)))


def _catch_up_ns(draft: Draft, row: JudgedUse, earns: float) -> float:
    """Until one that is held should have repaid, and a little more. ``earns``: of each ns."""
    lacks = _AIM_RATIO * row.threshold_ns - draft.params.thaw_ratio * row.threshold_ns - row.margin_ns
    return lacks / max(earns, 0.01)


def _pace(gpu: GpuAccount) -> float:
    """Part of the time in which the GPU delivered lately: switching and gaps take the rest."""
    return min(1.0, max(0.5, gpu.delivered_window_ns / max(gpu.wall_window_ns, 1.0)))


def wake(draft: Draft) -> int | None:
    moments = [hold.deadline_ns for hold in draft.snapshot.holds.values() if hold.tenant in draft.held]
    moments += [action.deadline_ns for action in draft.plan if action.kind is ActionKind.HOLD]
    moments += [one.until_ns for one in draft.solos.latest.values() if not one.is_over]
    if draft.held:
        for account in draft.books.gpus.values():
            if account.idle_since_ns is not None:
                moments.append(account.idle_since_ns + draft.params.idle_confirm_ns)
    if any(action.grant_ns is not None for action in draft.plan):
        moments.append(draft.snapshot.now_ns + _GRANT_LOOK_NS)
    if any(account.back_ns == draft.snapshot.now_ns for account in draft.books.gpus.values()):
        moments.append(draft.snapshot.now_ns + _BACK_LOOK_NS)
    moments += _catch_up_moments(draft)
    moments += _quota_moments(draft)
    ahead = [moment for moment in moments if moment > draft.snapshot.now_ns]
    return min(ahead, default=None)


def _catch_up_moments(draft: Draft) -> list[int]:
    """When short holds for entitlement should be repaid on every GPU that objects. What a held tenant earns is known
    exactly, unlike what others will take: its hold need not last until the next look that is due anyway."""
    moments = []
    now_ns, soonest_ns = draft.snapshot.now_ns, _CATCH_UP_LOOK_NS * len(draft.held)
    paces = {gpu: _pace(account) for gpu, account in draft.books.gpus.items()}
    owed = draft.books.owed
    for tenant in draft.held:
        hold = draft.snapshot.holds.get(tenant)
        if draft.gates.get(tenant, Gate()).is_quota or (hold is not None and not hold.is_ours):
            continue
        rows = draft.contended(tenant)
        if not rows or any(len(owed[row.gpu]) > _FEW for row in rows):
            continue
        since_ns = now_ns if hold is None else hold.since_ns
        wait = max(_catch_up_ns(draft, row, owed[row.gpu].get(tenant, 0.0) * paces[row.gpu]) for row in rows)
        if now_ns + wait - since_ns <= _CATCH_UP_SHORT_NS:
            moments.append(max(now_ns + max(round(wait), soonest_ns), since_ns + draft.dwell_ns(tenant)))
    return moments


def _quota_moments(draft: Draft) -> list[int]:
    """When a bucket in use will be full (nobody runs slower than alone) or, being over, paid off."""
    moments = []
    for (node, gpu), level in draft.books.quota_level_ns.items():
        quota = draft.specs[node].quota_ratio or 0.0
        if not any(node in ancestors(tenant) for tenant in draft.books.owed.get(gpu, ())):
            continue
        due = level + draft.outstanding_ns.get((node, gpu), 0)
        room = draft.params.quota_burst_ratio * quota * draft.params.window_ns - due
        wait = room / (1 - quota) if room > 0 and quota < 1 else due / max(quota, 0.01)
        moments.append(draft.snapshot.now_ns + max(round(wait), draft.params.threshold_floor_ns))
    return moments
