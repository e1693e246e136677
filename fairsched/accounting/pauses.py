# SPDX-License-Identifier: Apache-2.0
"""How long the programs on a GPU pause between two bursts: for those where the pause cannot be seen."""

from __future__ import annotations

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
