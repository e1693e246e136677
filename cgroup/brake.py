# SPDX-License-Identifier: Apache-2.0
"""Says what every brake does: the one protocol behind which the mechanisms that stop a tenant's processes stand.

Problem. Not every host has cgroup.freeze. The policy, the guardian and ``fairsched release`` must not care how a
cgroup is held.

Approach. A brake keeps five promises, whatever its mechanism. tests/unit/cgroup/test_brakes.py asks each for them:

* journal before act: a hold is on record before the first process is stopped;
* deadline: a hold past its deadline is ended by ``thaw_expired``, and by the guardian;
* foreign pause: what somebody else stopped is neither held nor thawed;
* the guardian thaws, and so does ``release``, from the journal alone (:mod:`fairsched.cgroup.release`);
* leaving the brake undoes everything it holds.

Terms: *hold* is a stop made by us, with a reason and a deadline; *at rest* means that no process of a held cgroup
runs any more. A brake is used by one thread.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, KeysView, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from fairsched.base.process import ProcessId
from fairsched.cgroup.journal import Entry, Journal, read_boot_id
from fairsched.cgroup.outcome import GangResult, HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef
from fairsched.errors import KernelRefused

_LATENCY_WEIGHT = 0.25  # of the newest sample: four or five holds forget an outlier


class Brake(Protocol):
    """Holds and thaws cgroups. Times are nanoseconds of CLOCK_MONOTONIC."""

    def fileno(self) -> int:
        """Readable when ``settle`` has something to look at. Wait on it; never read from it."""

    @property
    def holds(self) -> dict[int, Entry]:
        """What is held now, by cgroup id."""

    @property
    def held(self) -> KeysView[int]:
        """The ids of what is held at any time, not a copy."""

    def held_for(self, tenant: str) -> list[int]:
        """The ids of the cgroups that are held for a tenant."""

    def latency_ns(self, cgroup_id: int) -> int | None:
        """Smoothed time from a hold to rest; None before it was measured."""

    def forget_others(self, cgroup_ids: Collection[int]) -> None:
        """Drop what was learned of all cgroups but these, which are the tenants', and those that are held."""

    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        """Hold a cgroup until ``thaw`` or the deadline: HELD, ALREADY_HELD, FOREIGN, GONE or EXPIRED.

        Raises FairschedError where the kernel or the journal refuses; then nothing is held by us.
        """

    def hold_gang(self, refs: Sequence[CgroupRef], tenant: str, deadline_ns: int, reason: str) -> GangResult:
        """Hold all cgroups of one tenant or none: GPU peers of a stopped process spin on their own GPUs.

        Cgroups that are gone are left out; GONE when all are. FOREIGN or EXPIRED members undo the
        others. Members that were held before stay held. Raises as ``hold`` does, after undoing.
        """

    def thaw(self, cgroup_id: int) -> HoldResult:
        """End a hold, verified: THAWED, NOT_HELD, FOREIGN, RELEASED or GONE. Raises KernelRefused; then it stays."""

    def pulse(
        self,
        cgroup_ids: Sequence[int],
        deadline_ns: int,
        reason: str,
        used: Callable[[], float],
        limit_ns: int,
    ) -> HoldKind:
        """Let held cgroups run until ``used()`` says 1, and hold them again: HELD, or THAWED where that took longer.

        Raises as ``thaw`` and ``hold`` do; then none is held.
        """

    def thaw_expired(self, now_ns: int) -> list[HoldResult]:
        """Thaw what has passed its deadline. One refusal does not keep the others held."""

    def settle(self) -> list[HoldResult]:
        """What happened since the last call: SETTLED, FOREIGN, RELEASED, GONE. Never blocks."""

    def close(self) -> list[HoldResult]:
        """Thaw everything we hold and give the descriptors back. Called twice it does nothing."""


def result_of(kind: HoldKind, entry: Entry, latency_ns: int | None = None) -> HoldResult:
    """What happened to the cgroup of an entry."""
    return HoldResult(kind, entry.cgroup_id, entry.path, entry.tenant, latency_ns)


class Latencies:
    """How long cgroups take to come to rest, smoothed (EWMA), by cgroup id."""

    def __init__(self) -> None:
        self._by_id: dict[int, float] = {}

    def of(self, cgroup_id: int) -> int | None:
        """None before it was measured."""
        value = self._by_id.get(cgroup_id)
        return None if value is None else int(value)

    def learn(self, cgroup_id: int, sample_ns: int, *, is_lower_bound: bool = False) -> None:
        known = self._by_id.get(cgroup_id)
        if known is None:
            self._by_id[cgroup_id] = sample_ns
        elif not is_lower_bound or sample_ns > known:
            self._by_id[cgroup_id] = known + _LATENCY_WEIGHT * (sample_ns - known)

    def forget(self, cgroup_id: int) -> None:
        self._by_id.pop(cgroup_id, None)

    def keep(self, *wanted: Collection[int]) -> None:
        """Drop all that is in none of these."""
        self._by_id = {key: ns for key, ns in self._by_id.items() if any(key in ids for ids in wanted)}


@dataclass
class Held:
    """A hold of ours; each brake adds what it needs to end it."""

    entry: Entry


HeldT = TypeVar("HeldT", bound=Held)
_BookT = TypeVar("_BookT", bound="BrakeBook[Any]")


class BrakeBook(ABC, Generic[HeldT]):
    """What brakes write down alike: who is held, until when, and how long it took. A brake extends it."""

    def __init__(self, journal: Journal, clock_ns: Callable[[], int]) -> None:
        self._journal = journal
        self._clock_ns = clock_ns
        self._me = ProcessId.me()
        self._boot_id = read_boot_id()
        self._held: dict[int, HeldT] = {}
        self._changes: list[HoldResult] = []
        self._latencies = Latencies()

    def __enter__(self: _BookT) -> _BookT:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abstractmethod
    def hold(self, ref: CgroupRef, tenant: str, deadline_ns: int, reason: str) -> HoldResult:
        """See :class:`Brake`."""

    @abstractmethod
    def thaw(self, cgroup_id: int) -> HoldResult:
        """See :class:`Brake`."""

    @abstractmethod
    def close(self) -> list[HoldResult]:
        """See :class:`Brake`."""

    @property
    def holds(self) -> dict[int, Entry]:
        """What is held now, by cgroup id."""
        return {cgroup_id: held.entry for cgroup_id, held in self._held.items()}

    @property
    def held(self) -> KeysView[int]:
        """The ids of what is held at any time, not a copy."""
        return self._held.keys()

    def held_for(self, tenant: str) -> list[int]:
        """The ids of the cgroups that are held for a tenant."""
        return [cgroup_id for cgroup_id, held in self._held.items() if held.entry.tenant == tenant]

    def latency_ns(self, cgroup_id: int) -> int | None:
        """Smoothed (EWMA) time from a hold to rest; None before it was measured."""
        return self._latencies.of(cgroup_id)

    def forget_others(self, cgroup_ids: Collection[int]) -> None:
        """Drop what was learned of all cgroups but these, which are the tenants', and those that are held."""
        self._latencies.keep(cgroup_ids, self._held)

    def hold_gang(self, refs: Sequence[CgroupRef], tenant: str, deadline_ns: int, reason: str) -> GangResult:
        """Hold all cgroups of one tenant or none. Raises as ``hold`` does, after undoing."""
        members: list[HoldResult] = []
        with contextlib.ExitStack() as undo:  # it thaws all, whichever the kernel refuses, and raises then
            for ref in refs:
                member = self.hold(ref, tenant, deadline_ns, reason)
                members.append(member)
                if member.kind is HoldKind.HELD:
                    undo.callback(self.thaw, ref.id)
                elif member.kind not in (HoldKind.ALREADY_HELD, HoldKind.GONE):
                    return GangResult(member.kind, tuple(members))
            undo.pop_all()
        is_any = any(member.kind is not HoldKind.GONE for member in members)
        return GangResult(HoldKind.HELD if is_any else HoldKind.GONE, tuple(members))

    def thaw_expired(self, now_ns: int) -> list[HoldResult]:
        """Thaw what has passed its deadline. One refusal does not keep the others held; it stays held."""
        return self._thaw_all([key for key, held in self._held.items() if held.entry.deadline_ns <= now_ns])

    def _thaw_all(self, cgroup_ids: Collection[int]) -> list[HoldResult]:
        results = []
        for cgroup_id in cgroup_ids:
            with contextlib.suppress(KernelRefused):  # the guardian is the second line
                results.append(self.thaw(cgroup_id))
        return results

    def _record_next(self, held: HeldT, deadline_ns: int, reason: str) -> None:
        """Put the next hold on record in place of this one."""
        old = held.entry
        entry = replace(old, reason=reason, since_ns=self._clock_ns(), deadline_ns=deadline_ns)
        self._journal.write(entry)
        held.entry = entry
        if entry.name != old.name:
            self._journal.remove(old.name)
