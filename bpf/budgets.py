# SPDX-License-Identifier: Apache-2.0
"""How the room in the tables that all tenants share is divided among them (pure).

Problem: whoever fills a table hides the work of everybody who comes later, and its own.

Approach: of each table one half is kept for the tenants in equal parts, which nobody else can have; the other half is
for whoever comes first, of which one tenant gets a half at most. Events have no room but a rate: the ring must hold
what comes between two looks, and each costs the daemon some microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairsched.bpf import abi

GPU_TIME = {abi.Table.CONTEXTS: abi.MAX_CTXS, abi.Table.PROCESSES: abi.MAX_PROCS}
DRIVER = {
    abi.Table.CLIENTS: abi.MAX_CLIENTS,
    abi.Table.OBJECTS: abi.MAX_OBJECTS,
    abi.Table.CALLERS: abi.MAX_CALLERS,
    abi.Table.THREADS: abi.MAX_CALLERS,
    abi.Table.CGROUPS: abi.MAX_VRAM_CGROUPS,
}
VIEW = {abi.Table.PIDS: abi.MAX_VIEW_PIDS, abi.Table.CALLS: abi.MAX_VIEW_CALLS}
ORDINALS = {abi.Table.ORDINALS: abi.MAX_DEVS}
"""The tables of each set of programs, and how many entries they have."""
EDGE_NS = 250_000
"""Between two edges of one tenant: 4,000 a second. A decoder of 10 ms a token makes 200."""
EDGE_BURST = 2_000
"""Edges at once; the ring holds nine such bursts."""


class Part(NamedTuple):
    """What a tenant may have of one table, in entries."""

    reserve: int
    """Kept for it."""
    ceiling: int
    shared: int
    """Beyond the reserves, of all tenants together."""


def divide(owners: int, tables: Mapping[abi.Table, int] = GPU_TIME) -> dict[abi.Table, Part]:
    """The parts of each of so many tenants."""
    found = {}
    for table, room in tables.items():
        reserve = room // 2 // max(1, owners)
        shared = room - room // 2
        found[table] = Part(reserve, reserve + shared // 2, shared)
    return found


def write(
    limits: abi.Limits, owners: int, tables: Mapping[abi.Table, int] = GPU_TIME, numbers: int = 0
) -> abi.Limits:
    """What each of so many tenants may have, into the map's value; what is in use there is left alone.

    ``numbers``: one more than the highest of theirs. The marks of events have parts by number, all of one size, a power
    of two: when tenants have doubled, or are half as many, what was marked is forgotten.
    """
    limits.mark_bits = (max(1, owners, numbers) - 1).bit_length()
    for table, part in divide(owners, tables).items():
        limits.reserve[table], limits.ceiling[table], limits.shared[table] = part
    limits.edge_ns, limits.edge_burst_ns = EDGE_NS, EDGE_NS * EDGE_BURST
    return limits
