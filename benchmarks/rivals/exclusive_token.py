# SPDX-License-Identifier: Apache-2.0
"""``token``: one tenant per GPU at a time, as Gemini and KubeShare have it.

Who wants the GPU waits for the token. It is given for a quantum (250 ms, less what is paid back, at least 100 ms) to
the one furthest below its share of the last 10 s; a quota is a limit on that window, above which nobody gets it. What
runs without the token (queues that drain after it was taken away, a start that has not been noticed yet) is overuse,
paid back from the next quantum. A holder that stops working gives the token up early; when nobody else wants it, its
holder keeps it, so the GPU does not idle.

Ours: the originals gate each launch from within the process; here those who want the GPU and have no token are frozen.
One who does nothing is left alone, and frozen within 10 ms when it begins. Who was frozen at work is taken to have more
of it. A tenant on several GPUs needs the token of each and takes them all at once; while it is the next in turn,
those that are free are kept for it.

Favoured: use and idleness are the engine's truth; the originals estimate both.

Terms. active: on a GPU, or runnable, since the last look. wanting: active without the token, or held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.rivals.base import Action, Tenant, next_tick_ns
from benchmarks.rivals.truth import Uses

QUANTUM_NS = 250_000_000
SHORTEST_QUANTUM_NS = 100_000_000
WINDOW_NS = 10_000_000_000
TICK_NS = 10_000_000
IDLE_NS = 20_000_000
"""Longer than it takes to thaw and to reach the first launch."""
_RECORD_NS = 100_000_000
"""Of the window; finer would only cost memory."""


@dataclass
class _State:
    """Of one tenant."""

    tenant: Tenant
    is_held: bool = False
    until_ns: int | None = None
    """End of its quantum; None = it has no token."""
    active_ns: int = 0
    """When it was last active, or was given the token."""
    granted_ns: int = 0
    owed_ns: int = 0
    """Overuse not paid back yet."""
    is_active: bool = False

    @property
    def has_token(self) -> bool:
        return self.until_ns is not None


class TokenLaw:
    """Who has the token."""

    def __init__(self, tenants: Iterable[Tenant], start_ns: int) -> None:
        self._states = [_State(tenant) for tenant in tenants]
        self._start_ns = start_ns
        self._last: Uses | None = None
        self._window: deque[tuple[int, Uses]] = deque()
        self.next_ns = start_ns

    def needs_reading(self, now_ns: int) -> bool:
        return True

    def holders(self) -> list[str]:
        """Who has a token."""
        return [state.tenant.leaf for state in self._states if state.has_token]

    def step(self, now_ns: int, reading: Uses | None) -> list[Action]:
        assert reading is not None
        self.next_ns = next_tick_ns(self._start_ns, TICK_NS, now_ns)
        self._observe(now_ns, reading)
        wanting = [state for state in self._states if self._still_wants(state, now_ns)]
        self._grant(now_ns, wanting, reading)
        holds, frees = [], []
        for state in wanting:
            if state.has_token and state.is_held:
                frees.append(Action(state.tenant.leaf, False))
            elif not state.has_token and not state.is_held:
                holds.append(Action(state.tenant.leaf, True))
            state.is_held = not state.has_token
        return holds + frees

    def _observe(self, now_ns: int, uses: Uses) -> None:
        last, self._last = self._last or uses, uses
        for state in self._states:
            keys = [(state.tenant.leaf, gpu) for gpu in state.tenant.gpus]
            state.is_active = any(uses[key].runnable_ns > last[key].runnable_ns for key in keys)
            if state.is_active:
                state.active_ns = now_ns
            if not state.has_token:
                owed_ns = state.owed_ns + max(uses[key].exec_ns - last[key].exec_ns for key in keys)
                state.owed_ns = min(owed_ns, WINDOW_NS)
        if not self._window or now_ns - self._window[-1][0] >= _RECORD_NS:
            self._window.append((now_ns, uses))
        while len(self._window) > 1 and self._window[1][0] <= now_ns - WINDOW_NS:
            self._window.popleft()

    @staticmethod
    def _still_wants(state: _State, now_ns: int) -> bool:
        """Takes the token from those whose quantum is over and from those who do nothing with it."""
        if state.until_ns is None:
            return state.is_held or state.is_active
        if now_ns - state.active_ns > IDLE_NS:
            state.until_ns = None
            return False
        if now_ns >= state.until_ns:
            state.until_ns = None
            return True
        return False

    def _grant(self, now_ns: int, wanting: list[_State], uses: Uses) -> None:
        taken = {gpu for state in self._states if state.has_token for gpu in state.tenant.gpus}
        since_ns, base = self._window[0]
        window_ns = now_ns - since_ns
        used_ns = {state.tenant.leaf: _used_ns(state.tenant, uses, base) for state in wanting}

        def excess_ns(state: _State) -> tuple[float, int]:
            tenant = state.tenant
            return used_ns[tenant.leaf] - tenant.weight_ratio * window_ns, state.granted_ns

        for state in sorted(wanting, key=excess_ns):
            quota_ratio = state.tenant.quota_ratio
            if quota_ratio is not None and used_ns[state.tenant.leaf] > quota_ratio * window_ns:
                continue
            if taken.isdisjoint(state.tenant.gpus):
                paid_ns = min(state.owed_ns, QUANTUM_NS - SHORTEST_QUANTUM_NS)
                state.owed_ns -= paid_ns
                state.until_ns = now_ns + QUANTUM_NS - paid_ns
                state.granted_ns = state.active_ns = now_ns
            taken.update(state.tenant.gpus)  # kept for it, even when it does not have them all yet


def _used_ns(tenant: Tenant, uses: Uses, base: Uses) -> float:
    """In the window, per GPU."""
    total_ns = sum(uses[tenant.leaf, gpu].exec_ns - base[tenant.leaf, gpu].exec_ns for gpu in tenant.gpus)
    return total_ns / len(tenant.gpus)
