# SPDX-License-Identifier: Apache-2.0
"""What the end of a context says of its work, and which context it is that ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from tests.node.bpf.conftest import MS, PATIENCE_S, Program
from tests.support import wait_until

ROUNDS = 40
"""A process has places for 16 contexts (FS_MAX_PROC_CTXS)."""


def closes(probe: GpuTimeProbe, program: Program, slot: int) -> list[Edge]:
    """Intervals of compute of a slot that closed since the last call."""
    wanted = (abi.EdgeKind.CLOSE, abi.COMPUTE, slot, program.pid)
    return [one for one in probe.read_edges() if (one.kind, one.engine, one.slot, one.tgid) == wanted]


@pytest.mark.parametrize("is_primary", [False, True], ids=["cuCtxDestroy", "cuDevicePrimaryCtxReset"])
def test_whoever_ends_a_context_has_waited_for_all_its_work(
    program: Program, probe: GpuTimeProbe, is_primary: bool
) -> None:
    handle = program.told("retain" if is_primary else "context", 0)
    program.call("cuCtxSetCurrent", handle)
    slot, _ = program.find(handle)
    for _ in range(3):
        program.launch(0, 5 * MS)
    closes(probe, program, slot)
    if is_primary:
        program.call("cuDevicePrimaryCtxReset_v2", 0)
    else:
        program.call("cuCtxDestroy_v2", handle)
    (close,) = closes(probe, program, slot)
    assert close.seq == 3, "nobody asked, and all of it is over"
    assert close.arg > MS, "the call waited for it"
    assert program.find(program.handle), "the other one is there"


def test_the_end_of_a_process_proves_nothing(start: Callable[[], Program], probe: GpuTimeProbe) -> None:
    program = start()
    (stream,) = program.streams(1)
    program.hold(stream)
    program.launch(stream)
    closes(probe, program, program.slot)
    os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: not program.context.flags & abi.CtxFlag.LIVE, PATIENCE_S, "its context is gone")
    (close,) = closes(probe, program, program.slot)
    assert (close.seq, close.arg) == (0, 0)


def test_a_primary_context_that_is_another_now_takes_no_second_place(
    program: Program, probe: GpuTimeProbe
) -> None:
    """Released for the last time it ends, which no call tells: its place would be taken for good."""
    for _ in range(ROUNDS):
        handle = program.told("retain", 0)
        assert program.find(handle)[1].flags & abi.CtxFlag.PRIMARY
        program.call("cuDevicePrimaryCtxRelease_v2", 0)
    assert sum(one.tgid == program.pid for _, one in probe.contexts()) == 2
    assert program.find(program.handle), "the one that it made itself is there"
