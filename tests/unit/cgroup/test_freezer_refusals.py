# SPDX-License-Identifier: Apache-2.0
"""What the kernel refuses to thaw when a hold is undone: it keeps nothing else frozen, and ends at its deadline."""

from __future__ import annotations

import os
import time

import pytest

from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.errors import KernelRefused
from tests.support import FakeTree

SECOND_NS = 1_000_000_000


def test_a_gang_that_is_undone_is_thawed_as_far_as_the_kernel_lets_us(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [fake.make(name) for name in ("a", "b")] + [fake.make("c", frozen=True)]
    real_pwrite, stuck = os.pwrite, os.stat(fake.freeze_file("a")).st_ino

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if data == b"0" and os.fstat(fd).st_ino == stuck:
            raise OSError(16, "busy")
        return real_pwrite(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(KernelRefused, match="cannot thaw"):
            freezer.hold_gang(refs, "train", time.monotonic_ns() + SECOND_NS, "over_entitlement")
    assert [fake.is_asked(name) for name in "abc"] == [True, False, True]
    assert len(journal.entries()) == 1
    (result,) = freezer.thaw_expired(time.monotonic_ns() + 2 * SECOND_NS)
    assert result.kind is HoldKind.THAWED
    assert [fake.is_asked(name) for name in "abc"] == [False, False, True]
    for ref in refs:
        ref.close()


@pytest.mark.parametrize("what", ["thaw", "record"])
def test_a_hold_that_can_be_neither_made_nor_undone_is_ended_at_its_deadline(
    fake: FakeTree, freezer: Freezer, journal: Journal, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real_pwrite = os.pwrite

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if data == b"1" or what == "record":
            real_pwrite(fd, data, offset)
        if data == b"1" or what == "thaw":
            raise OSError(16, "busy")
        return len(data)

    def keep(_name: str) -> None:
        raise KernelRefused(journal.directory, 30, "cannot remove")

    with fake.make("a") as ref:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            if what == "record":
                patch.setattr(journal, "remove", keep)
            with pytest.raises(KernelRefused, match="cannot freeze"):
                freezer.hold(ref, "chat", time.monotonic_ns() + SECOND_NS, "over_entitlement")
        assert len(journal.entries()) == 1
        freezer.thaw_expired(time.monotonic_ns() + 2 * SECOND_NS)
        assert not fake.is_asked("a")
        assert freezer.holds == {}
