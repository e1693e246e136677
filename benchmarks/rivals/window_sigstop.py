# SPDX-License-Identifier: Apache-2.0
"""``window-sigstop``: a quota per window, kept with SIGSTOP.

What it stands for: the watchdogs that look every so often and stop whoever has had enough. Fixed windows of 1 s; every
100 ms each tenant's use in the window is compared with limit x window, and who is above it is stopped until the window
turns. It is a cap: what a stopped tenant leaves is used only by those below their limits.

Favoured: the use is the engine's truth, not a sample. Kept: the scan (a tenant goes on for up to 100 ms after it has
had enough), the drain (work queued before the stop still runs; what of it falls into the next window counts there), and
that all start together when a window turns.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.rivals.base import Action, Tenant, next_tick_ns
from benchmarks.rivals.truth import Uses

WINDOW_NS = 1_000_000_000
SCAN_NS = 100_000_000


class WindowLaw:
    """Who is stopped."""

    def __init__(self, tenants: Iterable[Tenant], start_ns: int) -> None:
        self._tenants = tuple(tenants)
        self._start_ns = start_ns
        self._window_end_ns = start_ns  # the first step begins the first window
        self._base: Uses = {}
        self._held: set[str] = set()
        self.next_ns = start_ns

    def needs_reading(self, now_ns: int) -> bool:
        return True

    def step(self, now_ns: int, reading: Uses | None) -> list[Action]:
        assert reading is not None
        self.next_ns = next_tick_ns(self._start_ns, SCAN_NS, now_ns)
        if now_ns >= self._window_end_ns:
            return self._turn(now_ns, reading)
        self._held.update(tenant.leaf for tenant in self._tenants if self._is_over(tenant, reading))
        # Also those held already: they may have new processes, or have continued themselves.
        return [Action(tenant.leaf, True) for tenant in self._tenants if tenant.leaf in self._held]

    def _turn(self, now_ns: int, uses: Uses) -> list[Action]:
        self._base = uses
        self._window_end_ns = next_tick_ns(self._start_ns, WINDOW_NS, now_ns)
        freed = [Action(tenant.leaf, False) for tenant in self._tenants if tenant.leaf in self._held]
        self._held.clear()
        return freed

    def _is_over(self, tenant: Tenant, uses: Uses) -> bool:
        """On any of its GPUs."""
        most_ns = max(uses[tenant.leaf, g].exec_ns - self._base[tenant.leaf, g].exec_ns for g in tenant.gpus)
        return most_ns > tenant.limit_ratio * WINDOW_NS
