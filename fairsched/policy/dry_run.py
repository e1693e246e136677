# SPDX-License-Identifier: Apache-2.0
"""Rewrites a snapshot of a dry run as if its holds were real, so that one law begins and ends both kinds (pure).

Problem. Nobody is frozen in a dry run. A tenant that would be held goes on running, so its debt grows, no hold of it is
ever repaid, and the others are never given what the hold was for: the law would see another node than in enforce.

Approach. A lag is moved by what each would have had in the interval (``Use.simulated_ns``). What each really had stays
in ``Use.used_ns``, and with it the shares that are shown. On each GPU

- a held tenant gets what it really got until the queue it had when its hold began is drained, and then nothing. It
  queues nothing, and goes on wanting the GPU;
- the others get what it thereby leaves: of the time in which they had work and did not run, each the same part.

A grant (``Action.grant_ns``) is queued at once, and the hold goes on.

Limits. Work of the others comes as it really came, though it would come sooner if the work before it ended sooner.
That a GPU would be idle is not seen while a held tenant really uses it, so a hold that GPU_IDLE would end lasts until
LAST_WITH_DEMAND or another reason ends it. Both matter where the others pause much. And nobody is alone while others
are held to measure what its work costs (solo.py), so that is tried again as where a measurement brought nothing.
"""

from __future__ import annotations

from dataclasses import replace

from fairsched.model import Snapshot, Use
from fairsched.policy.decide import Decision


def as_if_held(seen: Snapshot, before: Decision | None) -> Snapshot:
    """``seen``: with the holds of the dry run. ``before``: the decision before, made from such a snapshot."""
    if before is None or before.draft is None:
        return seen
    last = {(use.tenant, use.gpu): use for use in before.draft.snapshot.uses}
    granted = {(action.tenant, action.reason.gpu): action.grant_ns or 0 for action in before.plan}
    uses: list[Use] = []
    left_ns: dict[str, int] = {}
    room_ns: dict[str, int] = {}
    for use in seen.uses:
        key, gpu = (use.tenant, use.gpu), use.gpu
        hold = seen.holds.get(use.tenant)
        if hold is not None and hold.is_ours:
            stopped = _stopped(use, last.get(key), granted.get(key, 0))
            left_ns[gpu] = left_ns.get(gpu, 0) + use.charged_ns - stopped.charged_ns
            use = stopped
        elif hold is None:
            room_ns[gpu] = room_ns.get(gpu, 0) + _room_ns(use, seen.interval_ns)
        uses.append(use)
    parts = {gpu: min(1.0, left / room_ns[gpu]) for gpu, left in left_ns.items() if room_ns.get(gpu)}
    for number, use in enumerate(uses):
        if use.gpu in parts and use.tenant not in seen.holds:
            more_ns = round(parts[use.gpu] * _room_ns(use, seen.interval_ns))
            uses[number] = use._replace(simulated_ns=use.charged_ns + more_ns)
    return replace(seen, uses=tuple(uses))


def _stopped(use: Use, was: Use | None, granted_ns: int) -> Use:
    """A held tenant; ``was``: it at the decision before."""
    queued_ns = granted_ns + (was.outstanding_ns if was is not None else 0)
    got_ns = min(use.charged_ns, queued_ns)
    return use._replace(
        has_demand=was is not None and was.has_demand,
        outstanding_ns=queued_ns - got_ns,
        paused_ns=0,
        idle_ns=0,
        simulated_ns=got_ns,
    )


def _room_ns(use: Use, interval_ns: int) -> int:
    """For how long it had work, and did not run."""
    return max(0, interval_ns - use.paused_ns - use.charged_ns) if use.has_demand else 0
