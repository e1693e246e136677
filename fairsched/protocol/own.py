# SPDX-License-Identifier: Apache-2.0
"""Defines what the daemon tells about what it costs and what it missed: a part of the status document (see status.py).

Units are in the names. What is not known is None or absent, never 0.

Terms: a *histogram* counts durations in the buckets of fairsched/base/buckets.py, as the BPF programs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Durations since some beginning; counts never fall while that is the same."""

    first: int = 0
    """Bucket of ``counts[0]``; those before it are empty."""
    counts: tuple[int, ...] = ()
    sum_s: float = 0.0
    """Of all durations."""

    @classmethod
    def of(cls, buckets: Sequence[int], sum_ns: int) -> Histogram:
        """From buckets 0, 1, ...: the empty ones at both ends are left out."""
        filled = [index for index, count in enumerate(buckets) if count]
        if not filled:
            return cls()
        return cls(filled[0], tuple(buckets[filled[0] : filled[-1] + 1]), sum_ns / 1e9)

    @property
    def total(self) -> int:
        """How many durations."""
        return sum(self.counts)

    def since(self, before: Histogram) -> Histogram:
        """Those counted after `before`; all of them when they were counted from another beginning."""
        now, then = self.buckets(), before.buckets()
        grown = [one - other for one, other in zip_longest(now, then, fillvalue=0)]
        return (
            self
            if min(grown, default=0) < 0
            else Histogram.of(grown, round((self.sum_s - before.sum_s) * 1e9))
        )

    def buckets(self) -> list[int]:
        """From bucket 0 on."""
        return [0] * self.first + list(self.counts)

    def cumulative(self, buckets: Sequence[int]) -> list[int]:
        """How many were shorter than each of these buckets begins."""
        below = [0, *accumulate(self.counts)]
        last = len(self.counts)
        return [below[min(max(0, bucket - self.first), last)] for bucket in buckets]


@dataclass(frozen=True)
class ProcessCost:
    """The daemon or one of its helpers."""

    role: str
    """daemon, guardian, attacher or companion."""
    pid: int
    cpu_s: float
    """User and system time since it started."""
    resident_bytes: int


@dataclass(frozen=True)
class BpfMap:
    """One map that the daemon reads or writes."""

    name: str
    capacity: int
    """Most entries."""
    entries: int | None = None
    """Now; None = counting them would cost too much."""
    memory_bytes: int | None = None
    """Of the kernel, as it accounts it."""


@dataclass(frozen=True)
class OwnStatus:
    """What fairsched itself costs."""

    processes: tuple[ProcessCost, ...] = ()
    ticks: Histogram | None = None
    """How long ticks took."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """By part: ticks, actions and looks that failed."""
    maps: tuple[BpfMap, ...] = ()
    control: Mapping[str, int] = field(default_factory=dict)
    """Requests on the control socket by what became of them."""


def histogram_from_plain(data: Mapping[str, Any]) -> Histogram:
    """The inverse of ``status.to_plain``."""
    return Histogram(int(data["first"]), tuple(data["counts"]), float(data["sum_s"]))


def own_from_plain(data: Mapping[str, Any] | None) -> OwnStatus | None:
    """The inverse of ``status.to_plain``; fields of a newer daemon are ignored."""
    if data is None:
        return None
    ticks = data.get("ticks")
    return OwnStatus(
        processes=tuple(ProcessCost(*(one[key] for key in _PROCESS)) for one in data["processes"]),
        ticks=None if ticks is None else histogram_from_plain(ticks),
        errors=data["errors"],
        maps=tuple(BpfMap(*(one[key] for key in _MAP)) for one in data["maps"]),
        control=data["control"],
    )


_PROCESS = ("role", "pid", "cpu_s", "resident_bytes")
_MAP = ("name", "capacity", "entries", "memory_bytes")
