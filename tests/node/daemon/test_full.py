# SPDX-License-Identifier: Apache-2.0
"""More contexts than anybody may have: counted, and nobody else's problem."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fairsched.bpf import abi, budgets
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, logged
from tests.support import wait_until

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


def test_who_is_in_no_tenant_cannot_take_the_tenants_room(make_site: MakeSite) -> None:
    site = make_site(gpus=GPUS)
    site.configure({"chat": {}, "late": {}})
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    part = budgets.divide(3)[abi.Table.CONTEXTS]
    with site.maps() as maps, hoarders(site, part.ceiling // PER_PROCESS + 2, PER_PROCESS):
        wait_until(
            lambda: len(maps.contexts()) == part.ceiling + 1,
            PATIENCE_S,
            "they have as much as one tenant may",
        )
        assert maps.counts()["over_budget"] > 0
        late = site.spawn("late", DECODE)
        wait_until(lambda: late.pid in maps.pids(), PATIENCE_S, "there is room for a tenant")
        wait_until(lambda: site.gpu_time_s("late") > 0.1, PATIENCE_S, "and it is accounted")
        late.stop()
    with site.maps() as maps:
        wait_until(lambda: maps.pids() == {chat.pid}, PATIENCE_S, "all room was returned")
    assert logged(site.log(), "tick failed|exception=|budget=exceeded") == []


def test_contexts_beyond_those_told_apart_cost_no_slot_for_ever(make_site: MakeSite) -> None:
    site = make_site(gpus=GPUS)
    site.configure({"chat": {}})
    site.start()
    site.attach()
    chat = site.spawn("chat", DECODE)
    with site.maps() as maps:
        with hoarders(site, 1, abi.MAX_CTXS // 2) as (hoarder,):
            counts = maps.counts()
            assert counts["over_budget"] > 0
            assert counts["ctx_full"] == 0, "a context that is not told apart gives its slot back"
            hoarder.go_on()
            hoarder.expect(b"destroyed\n")
            wait_until(
                lambda: hoarder.process.pid not in maps.pids(), PATIENCE_S, "destroyed ones are forgotten"
            )
        wait_until(lambda: maps.pids() == {chat.pid}, PATIENCE_S, "every slot was returned")
