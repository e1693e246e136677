# SPDX-License-Identifier: Apache-2.0
"""A process that cannot stop, and a crowd of them, in a tenant that is held: it is held all the same, and let go.

Who waits for a file system that never answers stands in D state, and so does whoever waits for it (vfork). The kernel
asks such a process to freeze and it never does, so of its cgroup it never says "frozen 1". Anybody can make one: a FUSE
of one's own is enough.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.daemon.site import GREEDY, PATIENCE_S, SHARES_S, STEADY, Site, is_asked, is_frozen, logged
from tests.node.hostile.shares import expect_shares
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

CROWD = 2000
SHARE_ERROR = 0.08
STUCK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, REC, PRIVATE = 0x20000, 0x4000, 0x40000
assert libc.unshare(NEW_MOUNTS) == 0
assert libc.mount(None, b"/", None, REC | PRIVATE, None) == 0
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
assert libc.mount(b"silent", sys.argv[1].encode(), b"fuse.silent", 0, options) == 0, ctypes.get_errno()
print("ready", flush=True)
os.posix_spawn(sys.argv[1] + "/program", ["program"], {})
"""
"""Nobody reads what the kernel asks. The child never begins its program, and the parent waits until it does."""
MANY = f"""
import os, signal
for _ in range({CROWD}):
    if not os.fork():
        signal.pause()
print("ready", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def odd(site: Site, source: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in greedy's cgroup; it and all its children are gone in the end."""
    cgroup = site.make_cgroup("greedy/odd")
    process = site.host.popen([sys.executable, "-c", source, *arguments], cgroup, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process
    finally:
        (cgroup / "cgroup.kill").write_text("1")
        process.wait(PATIENCE_S)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def play(site: Site) -> None:
    """Both want the GPU all the time, and greedy is due a quarter."""
    site.configure({"chat": {"weight": 3}, "greedy": {"weight": 1}})
    site.start()
    site.attach()


def judge(site: Site) -> None:
    for tenant, load in (("chat", STEADY), ("greedy", GREEDY)):
        site.spawn(tenant, load)
    wait_until(lambda: site.tenant("greedy")["holds"], PATIENCE_S, "greedy was held")
    let_run(3)
    expect_shares(site, {"chat": 0.75, "greedy": 0.25}, SHARES_S, SHARE_ERROR)
    assert logged(site.log(), "tick failed|misbehaviour=|level=error") == []


def end(site: Site) -> None:
    assert site.stop() == 0
    assert not is_asked(site.cgroup("greedy"))
    assert not is_frozen(site.cgroup("greedy"))


def test_who_waits_for_a_file_system_that_never_answers_keeps_nobody_from_being_held(
    site: Site, tmp_path: Path
) -> None:
    play(site)
    silent = tmp_path / "silent"
    silent.mkdir()
    with odd(site, STUCK, str(silent)) as stuck:
        wait_until(lambda: state_of(stuck.pid) == "D", PATIENCE_S, "it waits for its child")
        judge(site)
        wait_until(lambda: is_asked(site.cgroup("greedy")), PATIENCE_S, "it is held")
        assert state_of(stuck.pid) == "D" and not is_frozen(site.cgroup("greedy/odd"))
        end(site)


def test_a_crowd_of_processes_is_held_like_a_few(site: Site) -> None:
    play(site)
    with odd(site, MANY):
        judge(site)
        end(site)
