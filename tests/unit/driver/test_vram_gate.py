# SPDX-License-Identifier: Apache-2.0
"""The kernel's limits: what is believed of them is what it took, also when it refuses some."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from fairsched.bpf import abi, syscall
from fairsched.driver.vram_gate import CgroupLimit, VramGate

LIMITS = 7


class Kernel:
    """One map; ``refuses`` is for which cgroups it has no memory now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits: dict[int, int] = {}
        self.refuses: set[int] = set()
        self.changes = 0
        monkeypatch.setattr(syscall, "update", self.update)
        monkeypatch.setattr(syscall, "delete", self.delete)

    def _check(self, fd: int, key: int) -> None:
        assert fd == LIMITS
        self.changes += 1
        if key in self.refuses:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def update(self, fd: int, key: ctypes.c_uint64, value: abi.VramLimit) -> None:
        self._check(fd, key.value)
        self.limits[key.value] = value.bytes

    def delete(self, fd: int, key: ctypes.c_uint64) -> None:
        self._check(fd, key.value)
        if self.limits.pop(key.value, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


@pytest.fixture
def gate(kernel: Kernel) -> VramGate:
    fds = {"vram_by_cgroup": 5, "refused_by_key": 6, "limit_by_cgroup": LIMITS}
    return VramGate(fds, None, None, is_attached=True, forget_sum=lambda _cgroup_id: None)


def limit(tenant: str, size: int, *cgroup_ids: int) -> CgroupLimit:
    return CgroupLimit(tenant, size, cgroup_ids)


def test_a_change_that_is_refused_stops_no_other_and_is_tried_again(kernel: Kernel, gate: VramGate) -> None:
    gate.set_limits([limit("old", 1, 10), limit("a", 2, 20), limit("b", 3, 30)])
    kernel.refuses = {20, 40}
    again = [limit("a", 7, 20), limit("b", 8, 30), limit("c", 9, 40, 41)]
    for _ in range(2):
        with pytest.raises(OSError, match="memory"):
            gate.set_limits(again)
        assert kernel.limits == {20: 2, 30: 8, 41: 9}
        assert set(gate.unlimited) == {"a", "c"}
        assert "Cannot allocate memory" in gate.unlimited["c"]
    kernel.refuses = set()
    gate.set_limits(again)
    assert kernel.limits == {20: 7, 30: 8, 40: 9, 41: 9}
    assert gate.unlimited == {}
    kernel.changes = 0
    gate.set_limits(again)
    assert kernel.changes == 0


def test_a_limit_that_is_gone_already_is_no_failure(kernel: Kernel, gate: VramGate) -> None:
    gate.set_limits([limit("a", 2, 20), limit("b", 3, 30)])
    kernel.limits.clear()
    gate.set_limits([])
    kernel.changes = 0
    gate.set_limits([])
    assert kernel.changes == 0


def test_a_limit_that_the_kernel_keeps_is_taken_away_at_the_next_call(kernel: Kernel, gate: VramGate) -> None:
    gate.set_limits([limit("a", 2, 20), limit("b", 3, 30)])
    kernel.refuses = {20}
    with pytest.raises(OSError, match="memory"):
        gate.set_limits([])
    assert kernel.limits == {20: 2}
    kernel.refuses = set()
    gate.set_limits([])
    assert kernel.limits == {}
