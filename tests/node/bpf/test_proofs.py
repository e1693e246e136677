# SPDX-License-Identifier: Apache-2.0
"""What the edges say of the end of work in several streams: the account is made from them alone."""

from __future__ import annotations

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from tests.node.bpf.conftest import MS, Program

PROOFS = (abi.EdgeKind.CLOSE, abi.EdgeKind.PROGRESS)


def proofs(probe: GpuTimeProbe, program: Program) -> list[Edge]:
    """Of its compute, since the last call."""
    found = (one for one in probe.read_edges() if one.kind in PROOFS and one.engine == abi.COMPUTE)
    return [one for one in found if (one.slot, one.tgid) == (program.slot, program.pid)]


def test_who_waits_for_a_stream_that_joined_another_has_waited_for_both(
    program: Program, probe: GpuTimeProbe
) -> None:
    """The stream that was joined is over last, and no call asked for it."""
    first, second = program.streams(2)
    program.launch(first, 5 * MS)
    program.call("cuStreamWaitEvent", second, program.record(first), 0)
    program.launch(second, 5 * MS)
    proofs(probe, program)
    program.call("cuStreamSynchronize", second)
    (close,) = proofs(probe, program)
    assert (close.kind, close.seq) == (abi.EdgeKind.CLOSE, 2)
    assert close.arg > MS, "it waited for the end of all that there was"


def test_a_stream_with_nothing_to_do_proves_nothing_of_the_others(
    program: Program, probe: GpuTimeProbe
) -> None:
    busy, idle, unused = program.streams(3)
    program.launch(idle)
    program.call("cuStreamSynchronize", idle)
    program.hold(busy)
    program.launch(busy)
    program.launch(busy)
    proofs(probe, program)
    program.call("cuStreamSynchronize", idle)
    program.call("cuEventSynchronize", program.record(idle))
    program.call("cuEventSynchronize", program.record(unused))
    assert proofs(probe, program) == []
    assert program.context.completed == 1
    program.open()
    program.call("cuStreamSynchronize", busy)
    assert [one.seq for one in proofs(probe, program)] == [program.context.submitted]


def test_a_stream_whose_drain_was_taken_to_be_over_proves_it_beside_others(
    program: Program, probe: GpuTimeProbe
) -> None:
    first, second = program.streams(2)
    program.launch(first)
    event = program.record(first)
    probe.end_drain(program.slot, program.context.generation, 0)
    program.hold(second)
    program.launch(second)
    proofs(probe, program)
    program.call("cuEventSynchronize", event)
    assert [(one.kind, one.seq) for one in proofs(probe, program)] == [(abi.EdgeKind.PROGRESS, 1)]
    program.open()
