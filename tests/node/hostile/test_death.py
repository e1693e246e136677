# SPDX-License-Identifier: Apache-2.0
"""Contexts go with the last thread of their process, whichever thread that is and however it ends.

A context that stays is a ghost: it counts as busy for ever, its tenant is charged though it has no process, and the
living are held for it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fairsched.bpf import abi
from tests.node.daemon.maps import take_free_slots
from tests.node.daemon.site import COMMAND, PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

TENANT = "ghost"
GONE_S = 1.0
"""The bar. It takes 5 ms; this machine may do other work as well."""
SWEPT_S = 4.0
"""A round of a second may have begun just before, and a look that is late is late again."""
STORM = 60
TOGETHER = 10
BUSY_RATIO = 0.85
"""Two steady loads keep a GPU busy to .95; with the ghost it was .26."""

WITHOUT_TYPES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, BIND, REC, PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
assert libc.unshare(NEW_MOUNTS) == 0
assert libc.mount(None, b"/", None, REC | PRIVATE, None) == 0
assert libc.mount(b"/dev/null", b"/sys/kernel/btf/vmlinux", None, BIND, None) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(site: Site, ghost_program: Path) -> Iterator[Start]:
    """start("leaves", 2): a ghost with that many threads in the tenant's cgroup, all of whose contexts have work."""
    with contextlib.ExitStack() as stack:

        def begin(mode: str, threads: int = 1) -> subprocess.Popen[bytes]:
            argv = [str(ghost_program), mode, str(threads)]
            process = site.host.popen(argv, site.cgroup(TENANT), stdout=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            return process

        yield begin


def has_left(pid: int) -> bool:
    """Its first thread has ended, and others have not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return fields[0] == "Z" and int(fields[17]) > 1


def begin(site: Site, command: Sequence[str] = COMMAND) -> None:
    site.command = [*command]
    site.configure({TENANT: {"weight": 8}, "good": {}, "third": {}})
    site.start()
    site.attach()


@pytest.mark.alone
def test_a_killed_process_whose_first_thread_had_left_holds_nobody(site: Site, start: Start) -> None:
    begin(site)
    ghost = start("leaves")
    wait_until(lambda: has_left(ghost.pid), PATIENCE_S, "its first thread has ended")
    with site.maps() as maps:
        (context,) = [one for one in maps.contexts() if one.tgid == ghost.pid]
        let_run(0.3)
        (same,) = [one for one in maps.contexts() if one.tgid == ghost.pid]
        assert same.handle == context.handle != 0, "that ends no context"
        assert same.submitted > context.submitted
        for tenant in ("good", "third"):
            site.spawn(tenant, STEADY)
        let_run(1)
        ghost.kill()
        begun_s = time.monotonic()
        wait_until(lambda: ghost.pid not in maps.pids(), GONE_S, "its contexts are gone")
        assert time.monotonic() - begun_s < GONE_S
        let_run(0.5)
        charged_s, busy_ns, begun_s = site.gpu_time_s(TENANT), site.host.gpu_truth().busy_ns, time.monotonic()
        expect_shares(site, {"good": 0.5, "third": 0.5}, 4, 0.1)
        busy_ratio = (site.host.gpu_truth().busy_ns - busy_ns) / 1e9 / (time.monotonic() - begun_s)
        assert site.gpu_time_s(TENANT) == charged_s, "nobody is charged who has no process"
        assert busy_ratio > BUSY_RATIO
        assert maps.counts()["exit_missed"] == 0, "the kernel tells"


def test_processes_killed_in_mid_work_leave_no_context(site: Site, start: Start) -> None:
    begin(site)
    with site.maps() as maps:
        for number in range(0, STORM, TOGETHER):
            group = [start("leaves" if n % 2 else "stays", 3) for n in range(number, number + TOGETHER)]
            assert maps.pids() >= {one.pid for one in group}
            for one in group:
                one.kill()
        wait_until(lambda: not maps.contexts(), GONE_S, "no context is left")
        wait_until(lambda: maps.busy_contexts() == 0, GONE_S, "none counts as busy")
        assert maps.counts()["exit_missed"] == 0
        wait_until(lambda: not any(maps.used_room()), GONE_S, "their room is given back, and once")
        slots = take_free_slots(site.helpers()["attacher"])
        assert sorted(slots) == list(range(abi.MAX_CTXS)), "each is given back, and once"


def test_what_the_kernel_does_not_tell_is_found_within_seconds(site: Site, start: Start) -> None:
    """Without type information the first thread stands for the process; what that misses is looked for."""
    begin(site, [sys.executable, "-c", WITHOUT_TYPES, *COMMAND])
    ghost = start("leaves")
    wait_until(lambda: has_left(ghost.pid), PATIENCE_S, "its first thread has ended")
    with site.maps() as maps:
        wait_until(lambda: ghost.pid in maps.pids(), PATIENCE_S, "its other thread goes on")
        let_run(1.5)
        assert ghost.pid in maps.pids(), "and is not taken for gone"
        ghost.kill()
        wait_until(lambda: ghost.pid not in maps.pids(), SWEPT_S, "its contexts are found")
        assert maps.counts()["exit_missed"] >= 1
    assert logged(site.log(), rf"pids=\[{ghost.pid}\] gone=unnoticed")
