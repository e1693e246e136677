# SPDX-License-Identifier: Apache-2.0
"""Before Linux 5.11 maps and programs count as locked memory, and too much of that reads like a lack of privileges."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

import pytest

from fairsched.bpf import syscall

SMALL = (65536, 65536)


class Kernel:
    """Refuses what takes memory while the limit is small."""

    def __init__(self, patch: pytest.MonkeyPatch, *, may_lift: bool = True) -> None:
        self.limit, self.may_lift = SMALL, may_lift
        self.calls: list[int] = []
        patch.setattr(syscall, "call", self.call)
        patch.setattr(syscall.resource, "getrlimit", lambda _which: self.limit)
        patch.setattr(syscall.resource, "setrlimit", self.setrlimit)

    def call(self, command: int, _attr: Any) -> int:
        self.calls.append(command)
        if self.limit == SMALL:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return 7

    def setrlimit(self, which: int, limit: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_MEMLOCK
        if not self.may_lift:
            raise ValueError("not allowed to raise maximum limit")
        self.limit = limit


def test_the_limit_is_lifted_when_it_may_be_why_and_the_call_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch)
    assert syscall.create_map(syscall.MAP_TYPE_ARRAY, 4, 8, 1) == 7
    assert kernel.limit == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert kernel.calls == [syscall.MAP_CREATE] * 2
    assert syscall.load_program(17, b"\0" * 8) == 7
    assert kernel.calls[2:] == [syscall.PROG_LOAD]


def test_who_may_not_lift_it_is_told_what_the_kernel_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, may_lift=False)
    with pytest.raises(PermissionError):
        syscall.load_program(17, b"\0" * 8)
    assert kernel.calls == [syscall.PROG_LOAD]


def test_without_a_limit_a_refusal_is_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    kernel.limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def refuse(command: int, _attr: Any) -> int:
        kernel.calls.append(command)
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(syscall, "call", refuse)
    with pytest.raises(PermissionError):
        syscall.create_map(syscall.MAP_TYPE_ARRAY, 4, 8, 1)
    assert len(kernel.calls) == 1
