# SPDX-License-Identifier: Apache-2.0
"""How long the programs on a GPU pause between two bursts: for those where the pause cannot be seen, and of tenants."""

from __future__ import annotations

from collections.abc import Hashable

from fairsched.accounting.company import Presence
from fairsched.accounting.context import DEMAND_LINGER_NS
from fairsched.model import ContextKey

_PAUSE_NS = 300_000
"""Where nothing was seen yet."""
_LONGEST_NS = 5_000_000
"""What takes longer waits for something: a request, a batch."""
_MEMORY = 1 / 32


class Pauses:
    """By GPU: between the end of a burst and the next, of those where both can be seen."""

    def __init__(self) -> None:
        self._mean_ns: dict[int, int] = {}

    def note(self, gpu: int, pause_ns: int) -> None:
        """One that was seen."""
        if pause_ns < _LONGEST_NS:
            known_ns = self.mean_ns(gpu)
            self._mean_ns[gpu] = known_ns + round((pause_ns - known_ns) * _MEMORY)

    def mean_ns(self, gpu: int) -> int:
        return self._mean_ns.get(gpu, _PAUSE_NS)


class TenantPauses:
    """On one GPU: how long each tenant had no work at all, in none of its contexts, and was not held."""

    def __init__(self) -> None:
        self._wanting = Presence()
        self._since_ns: dict[Hashable, int] = {}
        """Of who pauses."""
        self._over_ns: dict[Hashable, int] = {}
        """Of pauses that have ended ..."""
        self._read_ns = 0
        """... since this moment, and what was before it has been told."""

    def note(self, key: ContextKey, tenant: Hashable, now_ns: int, *, wants: bool) -> None:
        """Whether a context has work, or had some when it was held."""
        came, gone = self._wanting.note(key, tenant, is_there=wants)
        since_ns = self._since_ns.pop(came, None)
        if since_ns is not None:
            paused_ns = now_ns - max(since_ns, self._read_ns)
            self._over_ns[came] = self._over_ns.get(came, 0) + max(0, paused_ns)
        if gone is not None and gone == tenant:  # else it went to another one, and that may be gone
            self._since_ns[gone] = now_ns

    def paused_ns(self, tenant: Hashable, now_ns: int) -> int:
        """What it paused since :meth:`go_on`."""
        since_ns = self._since_ns.get(tenant)
        going_on_ns = 0 if since_ns is None else max(0, now_ns - max(since_ns, self._read_ns))
        return self._over_ns.get(tenant, 0) + going_on_ns

    def go_on(self, now_ns: int) -> None:
        """What was paused up to here has been told. Who has paused for longer wants nothing any more."""
        self._over_ns.clear()
        self._read_ns = now_ns
        self._since_ns = {
            tenant: since_ns
            for tenant, since_ns in self._since_ns.items()
            if now_ns - since_ns <= DEMAND_LINGER_NS
        }

    def forget(self, key: ContextKey, tenant: Hashable, now_ns: int) -> None:
        """The context is gone; who has no other one with work does not pause but is away."""
        self.note(key, tenant, now_ns, wants=False)
        if tenant not in self._wanting.tenants:
            self._since_ns.pop(tenant, None)
