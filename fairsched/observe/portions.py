# SPDX-License-Identifier: Apache-2.0
"""Takes in a flood of edges by portions, with a look at all else in between.

Problem: a tenant may make 2,000 edges at once (bpf/budgets.py), and each takes the account some 7 us. A tick that takes
in all of them does nothing else for 14 ms.

Approach: before a tick what is unread is taken in, one portion for each turn of the loop, until no more than a portion
is left. Who decides sees what it would have seen, a moment later. A read is put off for some moments only, whatever
comes in meanwhile.
"""

from __future__ import annotations

from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf.gpu_time import GpuTimeProbe

PORTION = 300
"""Edges that are taken in at one time: some 2 ms."""
PUT_OFF_NS = 20_000_000


def has_caught_up(probe: GpuTimeProbe, account: EbpfAccount, late_ns: int) -> bool:
    """Take in a portion; False: there is more than a read should have to take in.

    ``late_ns``: for how long a read has been due.
    """
    if late_ns > PUT_OFF_NS or probe.unread_edges <= PORTION:
        return True
    account.take_in(PORTION)
    return probe.unread_edges <= PORTION
