# SPDX-License-Identifier: Apache-2.0
"""What the eBPF account keeps of each context, and the rows and events it hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.accounting.launch_time import LaunchTime
from fairsched.bpf import abi
from fairsched.model import Confidence

DEMAND_LINGER_NS = 25_000_000
"""How long after its last work a context still counts as wanting the GPU."""

WAITED_NS = 50_000
"""A call that waited this long ended because the work did; a shorter one may have found it finished."""

Key = tuple[int, int]
"""(slot, generation)."""


@dataclass
class Row:
    """One process on one GPU since the previous read."""

    cgroup_id: int
    tgid: int
    gpu: int
    """Slot number, as given to ``set_device``."""
    used_ns: int
    has_demand: bool
    outstanding_ns: int
    confidence: Confidence
    launches: int


class Still(NamedTuple):
    """What a look found at a context to which nothing may happen for a while."""

    seen: tuple[int, int, int, float]
    """While these are the same, so is the rest."""
    is_running: bool
    outstanding_ns: int
    sure: Confidence


@dataclass
class Context:
    key: Key
    tgid: int
    cgroup_id: int
    gpu: int
    rank: tuple[int, ...] = ()
    reported_ns: int = 0
    """Of the replay's total, already handed out in rows."""
    clock_ns: int | None = None
    """The clock's total at the last row; None while the replay is the account."""
    launches: int = 0
    seq: int = 0
    """Highest sequence number proven complete."""
    seq_exec_ns: int = 0
    """The replay's total at that moment."""
    seq_ns: int = 0
    """The time of that moment."""
    launch: LaunchTime = field(default_factory=LaunchTime)
    proven_ns: int = 0
    """When completion was last proven, or the context appeared."""
    busy_ns: int = -DEMAND_LINGER_NS
    """When it last was seen with outstanding work."""
    closed_at_ns: int = -DEMAND_LINGER_NS
    """When a burst of it last ended where that could be seen."""
    is_held: bool = False
    held_with_demand: bool = False
    is_unseen: bool = False
    """Older than our probes."""
    drain_ns: int = 0
    """The last drain as it was estimated."""
    drain_doubt_ns: int = 0
    drain_odds: float = 0.0
    """Logarithm of the odds that it still runs, while it is open."""
    pending: dict[Key, int] = field(default_factory=dict)
    """By witness: time in ns that is this drain's if the replay is wrong about it, while that is undecided."""
    exec_before: dict[Key, int] = field(default_factory=dict)
    """The replay's totals when ``pending`` began."""
    is_drain_known: bool = False
    """Witnesses told when it ended."""
    drain_seq: int = -1
    """submitted when the drain was last estimated; -1 = not held or not yet."""
    thawed_ns: int | None = None
    """When the hold ended, while the context has not said yet how far its drain came."""
    is_open: bool = False
    """Whether its last drain still runs is not known."""
    closed_ns: int = -1
    """When that became known."""
    believed_ns: int = 0
    """Since when the replay takes its drain to be running, or to be over."""
    is_ended_in_bpf: bool = False
    """BPF was told that its drain is over: it holds the context to be idle until the next submit."""
    at_rest: Confidence | None = None
    """Held and drained at the last read, and how sure that is; until something of it changes."""
    still: Still | None = None
    """What was found at the last read, until something of it changes; None = look at it each time."""
    is_tainted: bool = False
    """Held since the last proof: the next one says nothing about tau."""

    def is_anchor(self, waited_ns: int) -> bool:
        """Whether the work ended as the call that proved it returned: it had waited, and not through a hold."""
        return waited_ns >= WAITED_NS and not self.is_tainted

    def may_be_still(self, live: abi.Ctx) -> bool:
        """Whether nothing is to be done about it at some later time, but for what its own edges say.

        Silence ends the work of one that never asked for completion, and tells of a drain. What the clock charges
        goes on.
        """
        return not self.is_held and self.thawed_ns is None and self.clock_ns is None and live.synced != 0


@dataclass
class Events:
    """What the edges of one read said besides time."""

    new_processes: list[int] = field(default_factory=list)
    gone_processes: list[int] = field(default_factory=list)
