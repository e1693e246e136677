# SPDX-License-Identifier: Apache-2.0
"""Scales the GPU time of sampled processes to what DCGM says the GPU was active for (pure, but for the load's source).

Problem. An NVML sample names who is on the GPU at one moment and how busy the GPU was since the sample before; a moment
at which the GPU idles names nobody. So of a GPU that is active for the part a of the time only the part a of that is
sampled, a squared in all: at 40 % load 16 % are charged. DCGM's GR_ENGINE_ACTIVE is that a, exact to its period, and
attributed to nobody.

Approach. A ledger per GPU: what is due grows with a times the time that passed, what was charged is taken off, and
each look at the samples charges all that is due to those who were sampled, in proportion. Nothing is charged while
nobody is sampled: it stays due to those who are next, for as long as the driver remembers samples (10 s), then it is
nobody's. Who was sampled does not depend on how much is due, so shares are as NVML has them: no better, no worse. The
load is that of the period that ended last, so the sum is right but for one period.

What NVML never names (a process of a pid namespace that is not below ours) is charged to those whom it names; without
the load it was charged to nobody.

Where the load is not known, samples count as they are, and the ledger begins anew: totals never jump.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MEMORY_NS = 10_000_000_000
"""What is due for longer is nobody's: the driver's ring of samples is as deep."""
_MOST_POINTS = 1024


@dataclass
class _Ledger:
    """Of one GPU since its load is known."""

    last_ns: int
    active_ns: float = 0.0
    charged_ns: float = 0.0
    points: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    """(moment, active until then), as far back as MEMORY_NS."""

    def pass_time(self, active_ratio: float, now_ns: int) -> None:
        self.points.append((self.last_ns, self.active_ns))
        self.active_ns += active_ratio * max(0, now_ns - self.last_ns)
        self.last_ns = now_ns
        while self.points and now_ns - self.points[0][0] > MEMORY_NS:
            _, forgotten_ns = self.points.popleft()
            self.charged_ns = max(self.charged_ns, forgotten_ns)

    def charge(self, used_ns: Mapping[int, int]) -> dict[int, int]:
        sampled_ns = sum(used_ns.values())
        due_ns = max(0.0, self.active_ns - self.charged_ns)
        if not sampled_ns:
            return dict.fromkeys(used_ns, 0)
        charged = {pid: int(due_ns * ns / sampled_ns) for pid, ns in used_ns.items()}
        self.charged_ns += sum(charged.values())
        return charged


class Normaliser:
    """``load`` tells the active part of a GPU's last period by slot; None = not known now."""

    def __init__(self, load: Callable[[int], float | None]) -> None:
        self._load = load
        self._ledgers: dict[int, _Ledger] = {}

    def scaled(self, slot: int, used_ns: Mapping[int, int], now_ns: int) -> dict[int, int]:
        """GPU time by process since the call before, from what samples say of it."""
        load = self._load(slot)
        if load is None:
            self._ledgers.pop(slot, None)
            return dict(used_ns)
        ledger = self._ledgers.get(slot)
        if ledger is None:
            self._ledgers[slot] = _Ledger(now_ns)
            return dict(used_ns)
        ledger.pass_time(min(1.0, max(0.0, load)), now_ns)
        return ledger.charge(used_ns)
