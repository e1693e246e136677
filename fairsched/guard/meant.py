# SPDX-License-Identifier: Apache-2.0
"""Says who is meant by a breach: whom an end hits, who is named, whose tenants may be held (pure).

Units: bytes, counts, seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fairsched.guard.breach import What
from fairsched.guard.choice import Portion, needed, whose, youngest_first
from fairsched.guard.rules import Bound
from fairsched.guard.sample import Process
from fairsched.guard.tally import Bucket, Row, Sum

_PARTS: dict[What, Callable[[Row], float | None]] = {
    What.VRAM: lambda row: row[1].vram_bytes,
    What.CONTEXTS: lambda row: row[1].contexts,
    What.PROCESSES: lambda row: 1.0,
    What.GPU_SECONDS: lambda row: row[2],
}
"""What one process has on one GPU; of GPU time what it has used just now: who does not work needs not go."""


def _portions(bound: Bound, rows: list[Row], *, has_allowed: bool = False) -> list[Portion]:
    """Of each process that may be ended, over all rows; ``has_allowed``: also of those that may not."""
    part = _PARTS[bound.what]
    found: dict[int, Portion] = {}
    for row in rows:
        if row[0].is_allowed and not has_allowed:
            continue
        process, amount = row[0].process, part(row)
        old = found.get(id(row[0]))
        if old is None:
            found[id(row[0])] = Portion(process, amount or 0.0, amount is not None)
        elif bound.what is not What.PROCESSES:  # of a process on several GPUs
            found[id(row[0])] = Portion(
                process, old.amount + (amount or 0.0), old.is_known and amount is not None
            )
    return list(found.values())


def ended(bound: Bound, rows: list[Row], used: float) -> tuple[Process, ...]:
    """Whom to end now."""
    if bound.amount is None:
        return youngest_first(row[0].process for row in rows)
    excess = math.inf if bound.what is What.GPU_SECONDS else used - bound.amount
    return needed(_portions(bound, rows), excess)


def blamed(bound: Bound, rows: list[Row], *, is_gpu: bool) -> tuple[list[Row], str | None]:
    """Rows of those who are named, and the user with most: of a GPU nobody else is named."""
    uid = whose(_portions(bound, rows))
    mine = [row for row in rows if row[0].process.uid == uid] if uid is not None else []
    has_allowed = any(row[0].is_allowed for row in rows)
    is_most = uid is not None and (not has_allowed or uid == whose(_portions(bound, rows, has_allowed=True)))
    return (mine if is_gpu else rows), mine[0][0].process.user or str(uid) if is_most else None


def holdable(one: Sum, blamed: list[Row], active: Iterable[Bucket]) -> tuple[str, ...]:
    """Tenants that have one of `blamed`, of which all belong to the subject and none is allowed.

    Of a GPU all must be of `blamed`, which are those of the user with most.
    """
    wanted = {seat.bucket.tenant for seat, _, _ in blamed} - {None}
    mine = [
        seat.bucket.tenant
        for seat, _, _ in (blamed if one.gpu is not None else one.rows())
        if not seat.is_allowed
    ]
    found = []
    for tenant in wanted:
        assert tenant is not None
        there = sum(len(bucket.rows) for bucket in active if _is_in(bucket.tenant, tenant))
        if there == sum(_is_in(name, tenant) for name in mine):
            found.append(tenant)
    return tuple(sorted(found))


def _is_in(tenant: str | None, parent: str) -> bool:
    return tenant is not None and (tenant == parent or tenant.startswith(f"{parent}/"))
