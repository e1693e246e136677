# SPDX-License-Identifier: Apache-2.0
"""Who may be working on a GPU, and so who had it to itself (pure).

Problem. A burst that was alone tells what its launches cost, whatever the hardware. Whether it was alone is not told by
anybody: who is held drains for a while, and nobody reports the end of that.

Approach. Whoever has work, or may still drain, is *there*. While all that are there belong to one tenant, that tenant
is alone; its own processes share the time, and the replay divides it between them. A GPU on which nobody is there is
still the last one's.
"""

from __future__ import annotations

from collections.abc import Hashable

from fairsched.model import ContextKey


class Presence:
    """Which contexts are there, and of whom."""

    def __init__(self) -> None:
        self._whose: dict[Hashable, Hashable] = {}
        """By context: its tenant."""
        self.tenants: dict[Hashable, int] = {}
        """How many contexts of each are there."""

    def note(
        self, key: ContextKey, tenant: Hashable, *, is_there: bool
    ) -> tuple[Hashable | None, Hashable | None]:
        """Who came of whom nothing was there, and of whom nothing is there any more.

        One that is there already may be another tenant's now: it went to another cgroup, or whose that is became known.
        """
        before, after = self._whose.get(key), tenant if is_there else None
        if before == after:
            return None, None
        came = gone = None
        if before is not None:
            del self._whose[key]
            left = self.tenants.pop(before) - 1
            if left:
                self.tenants[before] = left
            else:
                gone = before
        if after is not None:
            self._whose[key] = after
            many = self.tenants.get(after, 0)
            came = None if many else after
            self.tenants[after] = many + 1
        return came, gone


class Company:
    """Of one GPU."""

    def __init__(self) -> None:
        self._presence = Presence()
        self._alone: Hashable | None = None
        self._since_ns = 0

    def note(self, key: ContextKey, tenant: Hashable, now_ns: int, *, is_there: bool) -> None:
        """Whether a context has work, or may have."""
        came, gone = self._presence.note(key, tenant, is_there=is_there)
        if came is None and gone is None:
            return
        tenants = self._presence.tenants
        if len(tenants) == 1:
            (alone,) = tenants
            if alone != self._alone:
                self._alone, self._since_ns = alone, now_ns
        elif tenants:
            self._alone = None

    def is_alone(self, tenant: Hashable, since_ns: int) -> bool:
        """Whether nobody else has been there since then."""
        return tenant == self._alone and self._since_ns <= since_ns
