# SPDX-License-Identifier: Apache-2.0
"""Shows what is believed of each tenant on each GPU after a decision, for ``status`` and metrics (pure)."""

from __future__ import annotations

from fairsched.model import ShareView
from fairsched.policy.draft import Draft, entitled_ratio, used_ratio
from fairsched.policy.shares import entitlements


def views(draft: Draft) -> tuple[ShareView, ...]:
    """The view of each row of the snapshot. One that is not enforced shows what its weight would be worth."""
    nominal: dict[str, dict[str, float]] = {}
    found = []
    for use in draft.snapshot.uses:
        entitled = entitled_ratio(draft.books, use)
        if use.tenant not in draft.books.enforced[use.gpu]:
            if use.gpu not in nominal:
                rows = (one for one in draft.snapshot.uses if one.gpu == use.gpu)
                active = (one.tenant for one in rows if one.has_demand)
                nominal[use.gpu] = entitlements(active, draft.specs, use.gpu)
            entitled = nominal[use.gpu].get(use.tenant, 0.0)
        account = draft.books.accounts[use.tenant, use.gpu]
        found.append(
            ShareView(
                tenant=use.tenant,
                gpu=use.gpu,
                entitlement_ratio=entitled,
                used_ratio=used_ratio(account, draft.books.gpus[use.gpu], False),
                lag_ns=round(account.lag_ns),
                has_demand=use.has_demand,
                confidence=use.confidence,
            )
        )
    return tuple(found)
