# SPDX-License-Identifier: Apache-2.0
"""Defines what every account of GPU time offers, wherever its numbers come from.

Problem. The daemon has one loop and one law; its eyes are probes on one host and NVML's samples on another, and may
change while it runs.

Approach. One protocol, and one contract test that every source passes (tests/unit/accounting/test_source.py). A source
tells what was used since the last read, is told of holds, and says how far off it may be.

Terms. error: how far what a tenant was charged over a window may be from what it had, in 19 of 20 windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from fairsched.accounting.context import ProcessUse
from fairsched.model import GraphWork, Source


class GpuTimeSource(Protocol):
    """An account of all GPUs of this node. One reader, one thread."""

    @property
    def source(self) -> Source:
        """Which it is now."""

    tenant_of: Callable[[int], str | None]
    """Of a cgroup: what one tenant's cgroups say is one voice."""

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read, one row per (cgroup, process, GPU); never a time below 0."""

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These cgroups were just frozen. ``by_others``: they want nothing any more."""

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These cgroups run again."""

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """GPU time these cgroups have submitted since they were last held; 0 where that is not seen."""

    def error_points(self, window_s: float) -> float:
        """How far a share may be off over a window, in points of a GPU, in 19 of 20 windows."""

    def error_ratio(self, tenant: str, gpu: int) -> float | None:
        """How far what a tenant is charged on a GPU (slot) now may be off, in parts of it: over 2 s where
        calls are seen, over 10 s where it is sampled."""

    def graph_work(self, tenant: str, gpu: int) -> GraphWork | None:
        """The graphs that a tenant launches on a GPU (slot); None where there are none or that is not seen."""
