# SPDX-License-Identifier: Apache-2.0
"""Who launches next to nothing and never asks is charged what NVML's samples say, and nobody is accused or held for it.

Until it asks it was taken to have work: a turn for each of its processes. Four that launch 5 us every 20 ms had a
neighbour charged a twentieth of what it had, named and ended; where they had asked once, it was held for nine of ten
seconds and the GPU was a fifth busy.
"""

from __future__ import annotations

import sys

import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import STEADY, Site, logged
from tests.support import let_run

pytestmark = [pytest.mark.alone, pytest.mark.rest]

NEVER = Workload("step", kernels=1, kernel_us=5, wait="none", gap_us=20_000)
BEGIN = """
import ctypes, time
from ctypes import byref, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = c_void_p(), c_void_p(), c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(byref(module), b"") == 0

def launch(stream=None):
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None) == 0
"""
ONCE = f"""
{BEGIN}
assert cuda.cuModuleGetFunction(byref(function), module, b"work_5us") == 0
launch()
assert cuda.cuCtxSynchronize() == 0
while True:
    launch()
    time.sleep(0.02)
"""
STREAMS = f"""
{BEGIN}
assert cuda.cuModuleGetFunction(byref(function), module, b"work_1000us") == 0
streams = [c_void_p() for _ in range(4)]
for stream in streams:
    assert cuda.cuStreamCreate(byref(stream), 1) == 0
while True:
    for number in range(3000):
        launch(streams[number % 4])
    assert cuda.cuCtxSynchronize() == 0
"""
"""Three seconds of work at once, and honest: each stream is a queue."""
SETTLED_S, WATCHED_S = 17.0, 8.0
"""It takes up to fifteen seconds until samples contradict an account."""
MOST_WRONG = 0.2
"""In a window that is as long as a hold of such a queue."""


def watch(site: Site) -> tuple[float, float]:
    """Busy part of the GPU, and what chat had of that."""
    let_run(SETTLED_S)
    before_ns, busy_ns = site.truth_ns()["chat"], site.host.gpu_truth().busy_ns
    let_run(WATCHED_S)
    had_ns, busy_ns = site.truth_ns()["chat"] - before_ns, site.host.gpu_truth().busy_ns - busy_ns
    assert logged(site.log(), "misbehaviour=|tick failed|Traceback") == []
    return busy_ns / WATCHED_S / 1e9, had_ns / busy_ns


@pytest.mark.parametrize("asks_once", [False, True])
def test_who_launches_next_to_nothing_and_never_asks_takes_nothing_from_anybody(
    site: Site, asks_once: bool
) -> None:
    site.configure({"chat": {"on_misbehaviour": "terminate"}, "hog": {"weight": 9}})
    site.start()
    site.attach()
    site.spawn("chat", STEADY)
    for _ in range(4):
        if asks_once:
            site.host.popen([sys.executable, "-S", "-c", ONCE], site.cgroup("hog"))
        else:
            site.spawn("hog", NEVER)
    busy, part = watch(site)
    assert busy > 0.8
    assert part > 0.95


def test_three_seconds_of_work_in_several_streams_are_not_endless(site: Site) -> None:
    site.configure({"chat": {}, "hog": {"on_misbehaviour": "terminate"}})
    site.start()
    site.attach()
    site.spawn("chat", STEADY)
    hog = site.host.popen([sys.executable, "-S", "-c", STREAMS], site.cgroup("hog"))
    _, part = watch(site)
    assert abs(part - 0.5) < MOST_WRONG
    assert hog.poll() is None
