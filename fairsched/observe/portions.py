# SPDX-License-Identifier: Apache-2.0
"""Takes in a flood of edges by portions, with a look at all else in between.

Problem: a tenant may make 2,000 edges at once (bpf/budgets.py), and each takes the account some 7 us. A tick that takes
in all of them does nothing else for 14 ms.

Approach: before a tick what is unread is taken in, one portion for each turn of the loop, until no more than a portion
of it is left. Who decides sees what it would have seen, a moment later. What comes in meanwhile is counted for the next
tick: no flood keeps one from being made. A portion that fails is a read that fails, so that the tick does.
"""

from __future__ import annotations

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf.gpu_time import GpuTimeProbe

PORTION = 300
"""Edges that are taken in at one time: some 2 ms."""


class Portions:
    """What is left of the flood before one tick."""

    def __init__(self, probe: GpuTimeProbe, account: EbpfAccount) -> None:
        self._probe, self._account = probe, account
        self._left: int | None = None
        """Edges that were there when the tick was due; None = none is due."""
        self._error: Exception | None = None
        """Of a portion."""

    def has_caught_up(self) -> bool:
        """Take in a portion; False: there is more. True: what is left is for the read that is to follow."""
        if self._left is None:
            self._left = self._probe.unread_edges
        if self._left > PORTION:
            try:
                self._account.take_in(PORTION)
            except Exception as error:
                self._left, self._error = None, error
                return True
            self._left -= PORTION
        if self._left > PORTION:
            return False
        self._left = None
        return True

    def check(self) -> None:
        """Raise what a portion before this read raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error
