# SPDX-License-Identifier: Apache-2.0
"""Contexts that end before anybody has asked whether their work is done: their tenant is held like any other.

What launches of a tenant take is learnt from calls that prove them done. While nothing is known of that nobody can tell
what a hold would leave queued, so nobody is held: it was one context after another, and each was new.
"""

from __future__ import annotations

import sys

import pytest

from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.node.hostile.shares import LONGER_S
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]

_WORK = """
import ctypes, os, signal
from ctypes import byref, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")

def work():
    context, module, function = c_void_p(), c_void_p(), c_void_p()
    assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
    assert cuda.cuModuleLoadData(byref(module), b"") == 0
    assert cuda.cuModuleGetFunction(byref(function), module, b"work_500us") == 0
    for _ in range(20):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    return context
"""
DESTROYED = f"""
{_WORK}
cuda.cuInit(0)
while True:
    assert cuda.cuCtxDestroy_v2(work()) == 0
"""
KILLED = f"""
{_WORK}
while True:
    if not os.fork():
        cuda.cuInit(0)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        signal.pause()
    os.wait()
"""
"""Each lives for as long as its work takes when it has a GPU to itself, and a little longer."""
PROCESSES = 4
SETTLED_S, WATCHED_S = 5.0, 6.0
LEAST = 0.67
"""Of due .75, for chat; it had .22 and .32. Beside killed ones it has .75 to .82 since their parent is held on for what
they took (accounting/contexts.py, ``want_on``), and had .41 to .75 while it was let go when they had died."""


@pytest.mark.parametrize("program", [DESTROYED, KILLED], ids=["destroyed", "killed"])
def test_who_ends_its_contexts_unasked_is_held(site: Site, program: str) -> None:
    site.configure({"chat": {"weight": 3}, "hog": {"weight": 1}})
    site.start()
    site.attach()
    chat = site.spawn("chat", STEADY)
    for _ in range(PROCESSES):
        site.host.popen([sys.executable, "-S", "-c", program], site.cgroup("hog"))
    wait_until(lambda: site.gpu_time_s("hog") > 0.1, PATIENCE_S, "all is accounted")
    let_run(SETTLED_S + LONGER_S / 2)
    before_ns, busy_ns = site.truth_ns()["chat"], site.host.gpu_truth().busy_ns
    let_run(WATCHED_S + LONGER_S / 2)
    share = (site.truth_ns()["chat"] - before_ns) / (site.host.gpu_truth().busy_ns - busy_ns)
    print(f"chat has {share:.3f}; hog: {site.tenant('hog')['holds']}; {site.status()['warnings']}")
    assert share > LEAST
    assert chat.is_running
    assert logged(site.log(), "misbehaviour=.*tenant=chat|tick failed|Traceback") == []
