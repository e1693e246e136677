# SPDX-License-Identifier: Apache-2.0
"""What the other tests take for granted about the guest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def test_the_kernel_is_the_one_that_was_asked_for(facts) -> None:
    assert facts.release.startswith(f"{facts.series}.") or facts.release.startswith(f"{facts.series}+")
    assert Path(f"/usr/lib/modules/{facts.release}/modules.dep").exists()


def test_the_kernel_has_what_the_hooks_need(facts, record) -> None:
    assert facts.has_btf
    assert facts.has_kprobes
    assert "bpf" in facts.lsm
    record("kprobes", "works", "")
    record("BPF LSM", "works", "lsm=...,bpf on the command line" if facts.series == "5.10" else "")


def test_cgroup_v2_has_every_controller_and_a_freezer(tmp_path) -> None:
    root = Path("/sys/fs/cgroup")
    assert {"cpu", "memory", "pids"} <= set((root / "cgroup.controllers").read_text().split())
    cgroup = root / "smoke"
    cgroup.mkdir()
    try:
        assert (cgroup / "cgroup.freeze").exists()
    finally:
        cgroup.rmdir()


def test_what_the_guest_writes_stays_in_the_guest() -> None:
    path = Path("/usr/fairsched-was-here")
    path.write_text("only in memory")
    assert os.stat(path).st_size == 14
    with pytest.raises(OSError):
        (Path("/proc/1/nothing")).write_text("")
