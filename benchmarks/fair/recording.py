# SPDX-License-Identifier: Apache-2.0
"""What happened on the stage: plain data from the engine's truth and the workloads' own logs.

Nothing here comes from the account that is being judged, but ``account`` itself. All times are nanoseconds
of CLOCK_MONOTONIC. Leaves (tenants with loads) are named by path, GPUs by index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairsched.model import TenantSpec
from fairsched.simgpu import Step


@dataclass(frozen=True)
class Sample:
    """The engine's counters at one moment, about every 20 ms."""

    at_ns: int
    busy_ns: tuple[int, ...]
    """By GPU: executing kernels, whoever's."""
    exec_ns: Mapping[tuple[str, int], int]
    """(leaf, GPU) -> execution time so far. Strangers are not in it (busy - sum is theirs)."""
    wait_ns: Mapping[tuple[str, int], int]
    """(leaf, GPU) -> time its contexts were runnable and did not run, so far."""


@dataclass(frozen=True)
class Stay:
    """One uninterrupted stay of a leaf's context on a GPU."""

    leaf: str
    gpu: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class HeldTime:
    """A leaf was kept from running its CPUs: frozen, or stopped by a rival policy."""

    leaf: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class AccountReading:
    """What the daemon said at about ``at_ns``; compare growth with the truth of the same two moments."""

    at_ns: int
    gpu_time_ns: Mapping[str, int]
    """By leaf."""
    truth_ns: Mapping[str, int]
    confidence: Mapping[str, str]
    misbehaviour: Mapping[str, str] = field(default_factory=dict)
    """By leaf: what the daemon says about it, where it says anything."""


@dataclass(frozen=True)
class Recording:
    """One scenario under one policy with one seed."""

    scenario: str
    policy: str
    seed: int
    start_ns: int
    end_ns: int
    """The measured part; samples, stays, steps and holds may begin before it and end after it."""
    specs: Mapping[str, TenantSpec]
    """Inner nodes too."""
    leaves: tuple[str, ...]
    hostile: frozenset[str]
    present_ns: Mapping[str, tuple[int, int]]
    """Leaf -> when its processes were there."""
    samples: tuple[Sample, ...]
    stays: tuple[Stay, ...]
    steps: Mapping[str, tuple[tuple[Step, ...], ...]]
    """Leaf -> one log per process. A step lasts from ``end_ns - latency_ns`` to ``end_ns``."""
    is_always_wanting: Mapping[str, bool]
    """Leaf -> its logs do not tell when it wants the GPU (it never waits for its work): take always."""
    held: tuple[HeldTime, ...]
    think_ns: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Leaf -> by log of ``steps`` the pause of a closed loop between two of them; None where steps come by a clock."""
    comes: Mapping[str, tuple[tuple[float, float] | None, ...]] = field(default_factory=dict)
    """Leaf -> by log of ``steps``: how many a second, and the GPU time of each in ns, of steps that come at times of
    their own, and wait if they are not served; None where a step follows the last one."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Leaf -> what it is to be called, of those that are there to be found out."""
    accounts: tuple[AccountReading, ...] = ()
    """Empty for a policy without an account."""
    cpu_ratio: float | None = None
    """Of the policy's processes, of one core."""
    rss_bytes: int | None = None
    overlap: int = 1
    """Largest number of contexts the GPUs run at once; stays are only exclusive when it is 1."""
    notes: tuple[str, ...] = ()
    """Warnings of the daemon, tricks that failed, ..."""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9
