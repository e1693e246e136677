# SPDX-License-Identifier: Apache-2.0
"""More contexts than there are slots: counted, said, and nobody else's problem."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fairsched.bpf import abi
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, logged
from tests.support import let_run, wait_until

# Arguments: how many contexts, on how many GPUs. Destroys them all on the first line of input, ends on the second.
HOARDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
contexts = []
for number in range(int(sys.argv[1])):
    context = ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, number % int(sys.argv[2])) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    contexts.append(context)
print("ready", flush=True)
sys.stdin.readline()
for context in contexts:
    assert cuda.cuCtxDestroy_v2(context) == 0
print("destroyed", flush=True)
sys.stdin.readline()
"""
GPUS = 6
"""A simulated one has room for 256 contexts."""
PER_PROCESS = 16
"""Contexts of one process that are told apart (FS_MAX_PROC_CTXS)."""


class Hoarder:
    def __init__(self, site: Site, contexts: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", HOARDER, str(contexts), str(GPUS)],
            env=site.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def expect(self, line: bytes) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


@contextmanager
def hoarders(site: Site, processes: int, contexts: int) -> Iterator[list[Hoarder]]:
    group: list[Hoarder] = []
    try:
        for _ in range(processes):
            group.append(Hoarder(site, contexts))
        for hoarder in group:
            hoarder.expect(b"ready\n")
        yield group
    finally:
        for hoarder in group:
            hoarder.process.kill()
            hoarder.process.communicate()


def test_more_contexts_than_slots_are_counted_and_said(make_site: MakeSite) -> None:
    site = make_site(gpus=GPUS)
    site.configure({"chat": {}, "late": {}})
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    wait_until(lambda: site.gpu_time_s("chat") > 0.1, PATIENCE_S, "it is accounted")
    processes = abi.MAX_CTXS // PER_PROCESS + 1
    with site.maps() as maps, hoarders(site, processes, PER_PROCESS):
        wait_until(lambda: len(maps.contexts()) == abi.MAX_CTXS, PATIENCE_S, "every slot is taken")
        assert maps.counts()["ctx_full"] > 0
        wait_until(
            lambda: any("ctx_full" in warning for warning in site.status()["warnings"]),
            PATIENCE_S,
            "status says so",
        )
        late = site.spawn("late", DECODE)  # has no slot: unaccounted, but works
        before_s, truth_ns = site.gpu_time_s("chat"), site.truth_ns()["chat"]
        let_run(1.5)
        true_s = (site.truth_ns()["chat"] - truth_ns) / 1e9
        wait_until(lambda: late.step_count() > 0, PATIENCE_S, "it works")
        assert chat.is_running
        assert site.gpu_time_s("chat") - before_s > 0.5 * true_s, "the others' account goes on"
        late.stop()
    with site.maps() as maps:
        wait_until(lambda: maps.pids() == {chat.pid}, PATIENCE_S, "every slot was returned")
        again = site.spawn("late", DECODE)
        wait_until(lambda: again.pid in maps.pids(), PATIENCE_S, "there is room again")
    wait_until(lambda: site.gpu_time_s("late") > 0.1, PATIENCE_S, "and it is accounted")
    assert logged(site.log(), "tick failed|exception=") == []


def test_contexts_beyond_those_told_apart_cost_no_slot_for_ever(make_site: MakeSite) -> None:
    site = make_site(gpus=GPUS)
    site.configure({"chat": {}})
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    with site.maps() as maps:
        with hoarders(site, 1, abi.MAX_CTXS + 3 * PER_PROCESS) as (hoarder,):
            counts = maps.counts()
            assert counts["proc_full"] > 0
            assert counts["ctx_full"] == 0, "a context that is not told apart gives its slot back"
            hoarder.go_on()
            hoarder.expect(b"destroyed\n")
            wait_until(
                lambda: hoarder.process.pid not in maps.pids(), PATIENCE_S, "destroyed ones are forgotten"
            )
        wait_until(lambda: maps.pids() == {chat.pid}, PATIENCE_S, "every slot was returned")
