# SPDX-License-Identifier: Apache-2.0
"""A process that forks all the time, each child with a libcuda of its own that nobody has seen before, and gone again
when it has been looked at; and one that keeps the control socket busy without a right to it.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile import files
from tests.node.hostile.shares import expect_shares
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

DUE = {"chat": 0.8, "late": 0.2}
SHARE_ERROR = 0.08
"""The first seconds measure tenants: with nobody beside them it was .04 in six seconds."""
CPU_RATIO = 0.1
MORE_RATIO = 0.02
"""Of a core, over what the same daemon needed for the same two tenants before anybody was hostile: that alone is .06 to
.12 of a core, by what the machine's other guests leave of one."""
WATCHED_S = 5.0
FOUND_S = 2.0
ANSWERED_S = 0.02
NOBODY = 65534

# Arguments: a directory, a file that is a libcuda. Fifty children a second, each of which lives for more than one look.
_CHURN = """
import mmap, os, shutil, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(10**9):
    there = os.path.join(sys.argv[1], str(number))
    os.mkdir(there)
    path = os.path.join(there, "libcuda.so.1")
    shutil.copy(sys.argv[2], path)
    if os.fork() == 0:
        with open(path, "rb") as file:
            held = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        time.sleep(1.3)
        held.close()
        os.unlink(path)
        os.rmdir(there)
        os._exit(0)
    time.sleep(0.02)
"""
# Arguments: the socket's directory. As nobody, whatever it is answered, for as long as it lives.
_KNOCK = f"""
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
print(flush=True)
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        try:
            one.connect("fairsched.sock")
            one.send(b'{{"command": "release"}}' * 100)
        except OSError:
            pass
"""


@contextlib.contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def begin(site: Site) -> float:
    """Return what the daemon needs with nobody hostile beside two tenants and a caller: seconds in WATCHED_S."""
    tenants = {"chat": {"weight": 4}, "late": {"weight": 1}, "hog": {}, "good": {}}
    site.configure(tenants, tenant_defaults={"on_misbehaviour": "terminate"})
    site.start()
    site.attach()
    for name in DUE:
        site.spawn(name, STEADY)
    return _watch(site)[0]


def _watch(site: Site) -> tuple[float, list[float]]:
    """Ask for WATCHED_S; return the daemon's CPU time and how long each answer took, in seconds."""
    daemon = psutil.Process(site.pid)
    before_s, waits_s = cpu_s(daemon), list[float]()
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        begun_s = time.monotonic()
        assert site.ping() == site.pid
        waits_s.append(time.monotonic() - begun_s)
        let_run(0.02)
    return cpu_s(daemon) - before_s, waits_s


def expect_unharmed(site: Site, alone_s: float) -> None:
    """Shares, answers, and what the daemon needs for itself."""
    needed_s, waits_s = _watch(site)
    assert needed_s < max(WATCHED_S * CPU_RATIO, alone_s + WATCHED_S * MORE_RATIO), f"{alone_s=}"
    assert statistics.median(waits_s) < ANSWERED_S, statistics.quantiles(waits_s, n=20)
    expect_shares(site, DUE, WATCHED_S, SHARE_ERROR)
    assert logged(site.log(), "misbehaviour=|terminate=|Traceback|probes=lost|tick failed") == []


def test_children_with_ever_new_libraries_keep_nobody_from_its_probes(site: Site, tmp_path: Path) -> None:
    alone_s = begin(site)
    (tmp_path / "small").write_bytes(files.elf(2))
    (tmp_path / "churn").mkdir()
    argv = [sys.executable, "-S", "-c", _CHURN, str(tmp_path / "churn"), str(tmp_path / "small")]
    with running(site.host.popen(argv, site.cgroup("hog"))):
        wait_until(
            lambda: len(logged(site.log(), "library=.*/churn/.* probes=1 ")) > 5, PATIENCE_S, "some are seen"
        )
        helpers = [psutil.Process(pid) for pid in site.helpers().values()]
        before_s, begun_s = sum(map(cpu_s, helpers)), time.monotonic()
        expect_unharmed(site, alone_s)
        assert sum(map(cpu_s, helpers)) - before_s < 2 * CPU_RATIO * (time.monotonic() - begun_s)
        files.spawn_with_own_libcuda(site, "good", tmp_path / "good")
        took = time_until(
            lambda: logged(site.log(), rf"library=.*{tmp_path.name}/good/.* probes=[1-9]"),
            PATIENCE_S,
            "the honest one has its probes",
        )
        files.expect_soon(took, FOUND_S)
        assert len(list((tmp_path / "churn").iterdir())) > 10
    assert logged(site.log(), "misbehaviour=|terminate=|Traceback|probes=lost") == []


def test_who_knocks_without_end_and_may_not_come_in_costs_nobody_anything(site: Site) -> None:
    alone_s = begin(site)
    site.run_dir.chmod(0o755)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            argv = [sys.executable, "-S", "-c", _KNOCK, str(site.run_dir)]
            process = stack.enter_context(
                running(site.host.popen(argv, site.cgroup("hog"), stdout=subprocess.PIPE))
            )
            assert process.stdout is not None and process.stdout.readline() == b"\n"
        expect_unharmed(site, alone_s)
