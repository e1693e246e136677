# SPDX-License-Identifier: Apache-2.0
"""What this kernel refuses leads to the next hook, with one line in the log."""

from __future__ import annotations

import fcntl
import logging
import os
import termios
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.bpf import btf, child, syscall, tracefs, typed_task
from fairsched.bpf.abi import Node
from fairsched.driver import hooks
from fairsched.driver.hooks import GENERATIONS
from fairsched.driver.probe import start
from fairsched.errors import HostUnsupported
from fairsched.host import driver_calls

FIGETBSZ = 2


def capable() -> hooks.HookFacts:
    """Facts that promise more than this kernel keeps: it has neither the driver's functions nor an LSM of ours."""
    facts = hooks.read_facts()
    return replace(facts, functions=frozenset(GENERATIONS[0]), has_kprobes=True, has_lsm=True)


def test_refused_hooks_are_skipped_with_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fairsched.driver"):
        probe = start(capable())
    try:
        assert probe.hook in ("lsm", "tracepoint")
        lines = [record.getMessage() for record in caplog.records]
        assert [line.split()[0] for line in lines] == [f"hook={hook}" for hook in probe.refused]
        assert "kprobe" in probe.refused
        in_force = hooks.HookInForce(probe.hook, None, probe.refused)
        row = driver_calls.check(hooks.choose(capable()), in_force)
        assert row.level == "ok" and f"no kprobe: {probe.refused['kprobe']}" in row.fact
    finally:
        probe.close()


def test_with_every_hook_refused_it_is_an_error_that_says_why() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(HostUnsupported, match="cannot be seen"):
        start(capable(), hooks=["kprobe"])
    assert len(os.listdir("/proc/self/fd")) == before, "no descriptor is left open"


def test_nothing_stays_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    probe = start(hooks.read_facts(), hooks=["tracepoint"])
    probe.close()
    probe.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_typed", [True, False], ids=["loaded by its type", "read by a helper"])
def test_a_file_is_found_by_its_descriptor_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    plain: Callable[..., child.Loaded] = child.load

    def load(name: str, groups: Collection[str], defines: Mapping[str, int], **more: object) -> child.Loaded:
        return plain(name, groups, {**defines, "FS_TYPED_TASK": typed_task.HELPER if is_typed else 0}, **more)

    monkeypatch.setattr(child, "load", load)
    node, other = tmp_path / "nvidia0", tmp_path / "other"
    probe = start(hooks.read_facts(), hooks=["tracepoint"], with_plain_nodes=True)
    fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in (node, other)]
    try:
        probe.set_plain_nodes({node: Node.GPU})
        fds.append(fcntl.fcntl(fds[0], fcntl.F_DUPFD, 700))  # its table is another one by then
        for fd in (*fds, 5000, 2**31 - 1):
            with pytest.raises(OSError):
                fcntl.ioctl(fd, 0xC020462A, bytes(32))
        assert [calls.ioctls for caller, calls in probe.calls() if caller.tgid == os.getpid()] == [2]
    finally:
        for fd in fds:
            os.close(fd)
        probe.close()


def test_what_the_kernel_answers_by_itself_is_no_call_to_the_driver(tmp_path: Path) -> None:
    """Rust's standard library and Python mark descriptors with FIOCLEX, those of a GPU too."""
    node = tmp_path / "nvidia0"
    probe = start(hooks.read_facts(), hooks=["tracepoint"], with_plain_nodes=True)
    fd = os.open(node, os.O_RDWR | os.O_CREAT)
    try:
        probe.set_plain_nodes({node: Node.GPU})
        with pytest.raises(OSError):
            fcntl.ioctl(fd, 0xC020462A, bytes(32))
        for request in (termios.FIOCLEX, termios.FIONCLEX, termios.FIONBIO, FIGETBSZ):
            fcntl.ioctl(fd, request, bytes(4))
        assert [calls.ioctls for caller, calls in probe.calls() if caller.tgid == os.getpid()] == [1]
    finally:
        os.close(fd)
        probe.close()


def test_this_kernel_lets_a_program_walk_by_types() -> None:
    """Else the test above has shown one way twice. Where it does not, the other way is taken."""
    offsets = btf.file_defines(btf.read_btf())
    assert typed_task.can_walk(offsets)
    for wrong in (offsets["FS_TASK_FILES"] + 2, 1 << 15):
        assert not typed_task.can_walk({**offsets, "FS_TASK_FILES": wrong})


def test_a_tracepoint_is_found_where_no_tracefs_is_mounted() -> None:
    try:
        apart = tracefs.tracepoint_id("syscalls/sys_enter_ioctl", mounts=())
    except OSError as error:
        pytest.skip(f"host: tracefs cannot be mounted here: {error}")
    assert apart == tracefs.tracepoint_id("syscalls/sys_enter_ioctl")
    with pytest.raises(FileNotFoundError):
        tracefs.tracepoint_id("syscalls/sys_enter_no_such_call", mounts=())


def test_keys_are_listed_and_found_or_not() -> None:
    import ctypes

    hash_type = 1
    fd = syscall.create_map(hash_type, 8, 8, 8)
    try:
        assert list(syscall.keys(fd, ctypes.c_uint64)) == []
        for number in (3, 7):
            syscall.update(fd, ctypes.c_uint64(number), ctypes.c_uint64(number * 10))
        assert {key.value for key in syscall.keys(fd, ctypes.c_uint64)} == {3, 7}
        value = ctypes.c_uint64()
        syscall.lookup(fd, ctypes.c_uint64(7), value)
        assert value.value == 70
        with pytest.raises(FileNotFoundError):
            syscall.lookup(fd, ctypes.c_uint64(4), value)
    finally:
        os.close(fd)
