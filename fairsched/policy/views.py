# SPDX-License-Identifier: Apache-2.0
"""What is believed of each tenant on each GPU after a decision, for ``status`` and metrics (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairsched.model import ShareView, Use
from fairsched.policy.lag import Account, Books, GpuAccount
from fairsched.policy.shares import entitlements

if TYPE_CHECKING:
    from fairsched.policy.decide import Desk


def used_ratio(account: Account, gpu: GpuAccount, of_wall: bool) -> float:
    """Of what the GPU delivered over the window, or of the window itself."""
    whole = gpu.wall_window_ns if of_wall else gpu.delivered_window_ns
    return account.used_window_ns / whole if whole > 0 else 0.0


def entitled_ratio(books: Books, use: Use) -> float:
    """Of what the GPU delivered, as `used_ratio` is: what was taken off the top is due to nobody. 0 outside of A."""
    return books.owed[use.gpu].get(use.tenant, 0.0) * books.left_ratio[use.gpu]


def views(desk: Desk) -> tuple[ShareView, ...]:
    """Of each row of the snapshot. One that is not enforced shows what its weight would be worth."""
    nominal: dict[str, dict[str, float]] = {}
    found = []
    for use in desk.snapshot.uses:
        entitled = entitled_ratio(desk.books, use)
        if use.tenant not in desk.books.enforced[use.gpu]:
            if use.gpu not in nominal:
                rows = (one for one in desk.snapshot.uses if one.gpu == use.gpu)
                nominal[use.gpu] = entitlements((one.tenant for one in rows if one.has_demand), desk.specs)
            entitled = nominal[use.gpu].get(use.tenant, 0.0)
        account = desk.books.accounts[use.tenant, use.gpu]
        found.append(
            ShareView(
                tenant=use.tenant,
                gpu=use.gpu,
                entitlement_ratio=entitled,
                used_ratio=used_ratio(account, desk.books.gpus[use.gpu], False),
                lag_ns=round(account.lag_ns),
                has_demand=use.has_demand,
                confidence=use.confidence,
            )
        )
    return tuple(found)
