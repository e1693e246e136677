# SPDX-License-Identifier: Apache-2.0
"""Who may be working on a GPU, and so who had it to itself (pure).

Problem. A burst that was alone tells what its launches cost, whatever the hardware. Whether it was alone is not told by
anybody: who is held drains for a while, and nobody reports the end of that.

Approach. Whoever has work, or may still drain, is *there*. While all that are there belong to one tenant, that tenant
is alone; its own processes share the time, and the replay divides it between them. A GPU on which nobody is there is
still the last one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from fairsched.model import ContextKey


class Company:
    """Of one GPU."""

    def __init__(self) -> None:
        self._there: dict[Hashable, Hashable] = {}
        """By context: its tenant."""
        self._tenants: Counter[Hashable] = Counter()
        self._alone: Hashable | None = None
        self._since_ns = 0

    def note(self, key: ContextKey, tenant: Hashable, now_ns: int, *, is_there: bool) -> None:
        """Whether a context has work, or may have."""
        if (key in self._there) is is_there:
            return
        if is_there:
            self._there[key] = tenant
            self._tenants[tenant] += 1
        else:
            tenant = self._there.pop(key)
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
        if len(self._tenants) == 1:
            (alone,) = self._tenants
            if alone != self._alone:
                self._alone, self._since_ns = alone, now_ns
        elif self._tenants:
            self._alone = None

    def is_alone(self, tenant: Hashable, since_ns: int) -> bool:
        """Whether nobody else has been there since then."""
        return tenant == self._alone and self._since_ns <= since_ns
