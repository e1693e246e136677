# SPDX-License-Identifier: Apache-2.0
"""Cgroups, processes and libraries that come, go and move while the daemon looks."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.simgpu.build import build
from tests.node.daemon.site import DECODE, GREEDY, PATIENCE_S, STEADY, Site, is_asked, is_running, logged
from tests.node.promptness import Stopwatch
from tests.support import let_run, wait_until

TENANTS = {"chat": {"weight": 4}, "greedy": {"weight": 1, "class": "batch"}}
SHORT = 2000
"""More than there are slots, so that one that is not returned is missed."""
SHORT_S = 60.0
"""So many in this time are what a node must survive; slower is another test."""
INIT_ONLY = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
# The daemon on a host whose linker knows of no libcuda, whatever this one's does.
NO_DRIVER = """
from fairsched.bpf import libcuda
libcuda.linker_cache = lambda: []
from fairsched.cli import main
main()
"""
# A context with 300 ms of work queued, which then does what its argument says.
MID_WORK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.simgpu.clients import Cuda
cuda = Cuda()
for _ in range(300):
    cuda.launch(1_000_000)
if sys.argv[2] == "fork":
    if os.fork() == 0:
        os._exit(0)
    os.wait()
print("ready", flush=True)
if sys.argv[2] == "exec":
    os.execv("/bin/sleep", ["sleep", "600"])
if sys.argv[2] != "exit":
    sys.stdin.read()
"""


def test_tenant_is_removed_and_made_again_while_it_is_held(site: Site) -> None:
    """Another cgroup under the same name is the same tenant: accounted and held again, by its new id."""
    site.configure(TENANTS)
    site.start()
    site.spawn("chat", STEADY)
    cgroup = site.cgroup("greedy")
    for _ in range(3):
        site.spawn("greedy", GREEDY)
        before = site.gpu_time_s("greedy")
        wait_until(lambda: site.gpu_time_s("greedy") > before + 0.05, PATIENCE_S, "accounted")  # noqa: B023
        site.wait_held("greedy")
        (cgroup / "cgroup.kill").write_text("1")
        wait_until(lambda: "populated 0" in (cgroup / "cgroup.events").read_text(), PATIENCE_S, "it is empty")
        cgroup.rmdir()
        site.make_cgroup("greedy")
    assert logged(site.log(), "tick failed|exception=") == []
    site.spawn("greedy", GREEDY)
    site.wait_held("greedy")
    let_run(1)
    share = site.shares(list(TENANTS))["greedy"]
    assert abs(share - 0.2) < 0.08, share
    assert site.stop() == 0
    assert not is_asked(cgroup)


def test_process_that_moves_is_charged_where_it_is(site: Site) -> None:
    """Compared once, when it has ended and the account is complete.

    It always has 40 ms queued, so both sides are wall clock and no wait for a processor blurs them. What is queued
    or was not looked at yet when it moves (40 ms, a tick of 100 ms) may be either tenant's.
    """
    site.configure({"first": {}, "new": {}, "old": {}})
    site.start()
    site.attach()
    worker = site.spawn("old", replace(STEADY, seconds=4))

    def truth_s() -> float:
        return sum(context.exec_ns for context in site.host.truth_of(worker)) / 1e9

    wait_until(lambda: truth_s() > 1, PATIENCE_S, "it works")
    before_s = truth_s()
    (site.cgroup("new") / "cgroup.procs").write_text(str(worker.pid))
    after_s = truth_s()
    assert worker.process.wait(PATIENCE_S) == 0
    total_s = truth_s()
    assert total_s - after_s > 1, "the scenario needs it to work long after it moved"
    wait_until(
        lambda: not any(gpu["has_demand"] for gpu in site.tenant("new")["gpus"]),
        PATIENCE_S,
        "its end was seen",
    )
    old_s, new_s = site.gpu_time_s("old"), site.gpu_time_s("new")
    said = (before_s, after_s, total_s, old_s, new_s)
    assert before_s - 0.15 < old_s < after_s + 0.15, said
    assert total_s - after_s - 0.15 < new_s < total_s - before_s + 0.15, said
    assert abs(old_s + new_s - total_s) < 0.02 * total_s + 0.01, said


@pytest.mark.timeout(600)
def test_thousands_of_short_processes_leave_nothing_behind(site: Site) -> None:
    site.configure({"chat": {"weight": 1}, "short": {"weight": 1}})
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    one = replace(DECODE, kernels=2, kernel_us=100, gap_us=0, seconds=0.002)
    load = [str(build().load), *one.arguments()]
    watch = Stopwatch()
    script = 'n=$1; shift; while [ "$n" -gt 0 ]; do "$@" || exit; n=$((n - 1)); done'
    storms = [
        site.host.popen(
            ["/bin/sh", "-c", script, "sh", str(SHORT // 2), *load],
            site.cgroup("short"),
            env={"LD_LIBRARY_PATH": str(site.library_dir)},
        )
        for _ in range(2)
    ]
    inits = [subprocess.run([sys.executable, "-c", INIT_ONLY], env=site.env(), check=True) for _ in range(10)]
    assert len(inits) == 10
    for storm in storms:
        assert storm.wait(240) == 0
    took = watch.read()
    assert took.own_s < SHORT_S, took
    mine = {chat.pid}
    with site.maps() as maps:
        wait_until(lambda: maps.pids() == mine, PATIENCE_S, "every slot was returned")
        wait_until(lambda: set(maps.use_pids()) <= mine, PATIENCE_S, "gpu_time_by_key has only who lives")
        wait_until(lambda: set(maps.device_pids()) <= mine, PATIENCE_S, "gpu_by_dev has only who lives")
        counts = maps.counts()
        for what in ("ctx_full", "use_full", "proc_full", "handle_full", "edge_dropped", "clock_range"):
            assert counts[what] == 0, (what, counts[what])
    others = {worker.pid for worker in site.workers["chat"]}
    short = [context for context in site.host.truth() if context.pid not in others]
    assert len(short) == SHORT // 2 * 2
    assert logged(site.log(), "tick failed|exception=") == []
    ratio = site.gpu_time_s("short") / (sum(context.exec_ns for context in short) / 1e9)
    # Each has 200 us of work, and for as long as it waits for a processor before it sees the end, that counts, too.
    assert 0.5 < ratio < 5, ratio


def test_fork_exec_exit_and_sigkill_in_mid_work_are_cleaned_up(site: Site) -> None:
    site.configure({"chat": {}})
    site.start()
    site.attach()
    with site.maps() as maps:
        for how in ("exit", "exec", "fork", "kill"):
            root = str(Path(__file__).resolve().parents[3])
            client = subprocess.Popen(
                [sys.executable, "-c", MID_WORK, root, how],
                env=site.env(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                (site.cgroup("chat") / "cgroup.procs").write_text(str(client.pid))
                assert client.stdout is not None
                assert client.stdout.readline() == b"ready\n"
                if how == "fork":
                    wait_until(lambda: maps.pids() == {client.pid}, PATIENCE_S, "the child took nothing")  # noqa: B023
                if how in ("fork", "kill"):
                    wait_until(lambda: client.pid in maps.pids(), PATIENCE_S, "it is seen")  # noqa: B023
                    assert maps.busy_contexts() == 1
                    client.send_signal(signal.SIGKILL)
                wait_until(lambda: maps.pids() == set(), PATIENCE_S, f"{how}: no context is left")
                wait_until(lambda: maps.busy_contexts() == 0, PATIENCE_S, f"{how}: n is 0 again")
                if how == "exec":
                    assert is_running(client.pid)
                else:
                    client.wait(PATIENCE_S)
            finally:
                client.kill()
                client.communicate()
    assert logged(site.log(), "tick failed|exception=") == []


def test_libcuda_that_appears_and_a_copy_of_it_are_both_accounted(site: Site) -> None:
    """The daemon starts before there is any; the copy is another inode, as in a compat image."""
    site.configure({"chat": {}, "copy": {}})
    site.command = [sys.executable, "-c", NO_DRIVER]
    site.start()
    assert any("no libcuda" in warning for warning in site.status()["warnings"])
    first = site.spawn("chat", STEADY)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "the first one is accounted")
    assert not any("no libcuda" in warning for warning in site.status()["warnings"])

    directory = Path(tempfile.mkdtemp(prefix="fairsched-test-copy."))
    try:
        path = shutil.copy(site.library_dir / "libcuda.so.1", directory / "libcuda.so.535.1")
        second = site.spawn("copy", replace(STEADY, libcuda=str(path)))
        wait_until(lambda: site.gpu_time_s("copy") > 0.1, PATIENCE_S, "the copy is accounted")
        assert len(logged(site.log(), "library=.* probes=[1-9]")) == 2

        def truth_s(pid: int) -> float:
            return sum(context.exec_ns for context in site.host.truth() if context.pid == pid) / 1e9

        workers = {"chat": first, "copy": second}
        before = {
            tenant: (site.gpu_time_s(tenant), truth_s(worker.pid)) for tenant, worker in workers.items()
        }
        let_run(5)
        for tenant, worker in workers.items():
            accounted = site.gpu_time_s(tenant) - before[tenant][0]
            true = truth_s(worker.pid) - before[tenant][1]
            # 2.4 s each: 5 % are switches, which the account calls use, and 4 % a tick of 100 ms at one end.
            assert abs(accounted / true - 1) < 0.15, (tenant, accounted, true)
    finally:
        shutil.rmtree(directory)
