# SPDX-License-Identifier: Apache-2.0
"""The VRAM limit in the kernel (bpf/vram_gate.h): which limits hold, what cgroups have, what was refused.

The program is attached from the first limit on, and goes with this process: kernels before 5.13 attach a program to a
security hook once only. It is told of whole limits: an entry for each cgroup at the top of a tenant's subtree, all
entries of a tenant alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from fairsched.bpf import abi, syscall

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CgroupLimit:
    """What one tenant may have on each GPU, and where it is."""

    tenant: str
    bytes: int
    cgroup_ids: tuple[int, ...]
    """The tops of its subtrees; none below another."""
    above: str | None = None
    """The nearest tenant above it that has a limit."""


@dataclass(frozen=True)
class Refused:
    """Allocations refused since the start, and the last of them."""

    count: int
    t_ns: int
    asked_bytes: int
    held_bytes: int
    pid: int


class _Word(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint64),)


class VramGate:
    """``fds``: descriptors of the maps; ``program``: of the gate, None where the kernel took none (``why_not``).

    ``is_attached``: the program is attached already, as part of the hook that sees the calls. ``forget_sum`` of a
    cgroup, by its id.
    """

    def __init__(
        self,
        fds: Mapping[str, int],
        program: int | None,
        why_not: str | None,
        *,
        is_attached: bool,
        forget_sum: Callable[[int], None],
    ) -> None:
        self._fds, self._program, self.why_not = fds, program, why_not
        self._forget_sum = forget_sum
        self._is_attached = is_attached
        self._link: int | None = None
        self._entries: dict[int, bytes] = {}
        self._numbers: dict[str, int] = {}
        """By tenant. No number is given twice: what was refused is counted under it."""
        self._next_number = 1
        self._sums = syscall.BatchReader(fds["vram_by_cgroup"], _Word, abi.CgroupVram)
        self._refused = syscall.BatchReader(fds["refused_by_key"], abi.RefusalKey, abi.Refusal)
        self.unlimited: dict[str, str] = {}
        """Tenants whose limit the kernel does not keep: why."""

    @property
    def refuses(self) -> bool:
        """Whether the kernel keeps limits here."""
        return self._is_attached or self._link is not None

    def set_limits(self, limits: Iterable[CgroupLimit]) -> None:
        """These hold from now on, and no others.

        Raises OSError when the kernel refused a change, after all were tried; the next call tries it again.
        """
        wanted = {one.tenant: one for one in limits if one.cgroup_ids}
        self.unlimited = {
            name: f"it has more than {abi.MAX_LIMIT_CGROUPS} cgroups"
            for name, one in wanted.items()
            if len(one.cgroup_ids) > abi.MAX_LIMIT_CGROUPS
        }
        if wanted and not self.refuses:
            self._attach()
        if not self.refuses:
            self.unlimited = {name: self.why_not or "the kernel cannot refuse it" for name in wanted}
            return
        kept = {name: one for name, one in wanted.items() if name not in self.unlimited}
        entries = dict(self._make_entries(kept))
        refusals = {
            cgroup_id: refusal
            for cgroup_id in [*(self._entries.keys() - entries.keys()), *entries]
            if (refusal := self._change(cgroup_id, entries.get(cgroup_id))) is not None
        }
        for name, one in kept.items():
            for cgroup_id in refusals.keys() & set(one.cgroup_ids):
                refusal = refusals[cgroup_id]
                self.unlimited[name] = f"the kernel refused it: {refusal.strerror or refusal}"
        for refusal in refusals.values():
            raise refusal

    def _change(self, cgroup_id: int, entry: bytes | None) -> OSError | None:
        """One entry of the map, and what is known of it: together, or not at all."""
        if self._entries.get(cgroup_id) == entry:
            return None
        key = ctypes.c_uint64(cgroup_id)
        try:
            if entry is not None:
                syscall.update(self._fds["limit_by_cgroup"], key, abi.VramLimit.from_buffer_copy(entry))
                self._entries[cgroup_id] = entry
                return None
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self._fds["limit_by_cgroup"], key)
            del self._entries[cgroup_id]
        except OSError as refusal:
            return refusal
        return None

    def _make_entries(self, limits: Mapping[str, CgroupLimit]) -> Iterable[tuple[int, bytes]]:
        for name, one in limits.items():
            above = one.above
            while above is not None and above not in limits:  # one that the kernel does not keep
                above = above.rpartition("/")[0] or None
            if name not in self._numbers:
                self._numbers[name], self._next_number = self._next_number, self._next_number + 1
            number = self._numbers[name]
            value = abi.VramLimit(one.bytes, limits[above].cgroup_ids[0] if above else 0, number)
            value.cgroup[: len(one.cgroup_ids)] = one.cgroup_ids
            for cgroup_id in one.cgroup_ids:
                yield cgroup_id, bytes(value)

    def _attach(self) -> None:
        if self._program is None:
            return
        try:
            only = ctypes.c_uint32(1)
            syscall.update(self._fds["is_gate_only"], ctypes.c_uint32(0), only)
            self._link = syscall.attach_lsm(self._program)
        except OSError as error:
            self.why_not = f"the kernel refused the program: {error.strerror or error}"
            self._program = None
            logger.warning("vram_gate=refused error=%r", self.why_not)

    def sums(self) -> dict[int, list[int]]:
        """VRAM by cgroup id, and there by GPU slot, of all processes at and below each cgroup."""
        return {int(key.value): list(sums.bytes) for key, sums in self._sums.read()}

    def forget(self, cgroup_ids: Iterable[int]) -> None:
        """Cgroups that are gone; what still has memory is kept."""
        for cgroup_id in cgroup_ids:
            value, key = abi.CgroupVram(), ctypes.c_uint64(cgroup_id)
            try:
                syscall.lookup(self._fds["vram_by_cgroup"], key, value)
                if not any(value.bytes):
                    self._forget_sum(cgroup_id)
            except FileNotFoundError:
                continue

    @property
    def numbered(self) -> Collection[str]:
        """Tenants that had a limit at some time."""
        return self._numbers.keys()

    def forget_tenants(self, names: Collection[str]) -> None:
        """Who is gone, and what was refused to it. Raises OSError."""
        numbers = {self._numbers.pop(name) for name in names if name in self._numbers}
        for key in [key for key, _ in self._refused.read() if key.tenant in numbers] if numbers else ():
            with contextlib.suppress(FileNotFoundError):
                syscall.delete(self._fds["refused_by_key"], key)

    def refused(self) -> dict[tuple[str, int], Refused]:
        """By (tenant whose limit it was, GPU slot)."""
        names = {number: name for name, number in self._numbers.items()}
        return {
            (names[key.tenant], key.gpu): Refused(
                one.refused, one.t_ns, one.asked_bytes, one.held_bytes, one.tgid
            )
            for key, one in self._refused.read()
            if key.tenant in names
        }

    def close(self) -> None:
        """Refuse nothing any more. The maps are the probe's."""
        if self._link is not None:
            os.close(self._link)
            self._link = None
