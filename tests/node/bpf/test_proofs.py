# SPDX-License-Identifier: Apache-2.0
"""What the edges say of the end of work in several streams: the account is made from them alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from tests.node.bpf.conftest import MS, PATIENCE_S, Program
from tests.support import wait_until

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


def test_what_a_deep_stream_proves_is_heard_beside_one_that_is_waited_for(
    program: Program, probe: GpuTimeProbe
) -> None:
    """Somebody waits for a little stream all the time, and asks late what the deep one has done."""
    deep, little = program.streams(2)
    events = []
    for _ in range(2):
        program.launch(deep)
        events.append(program.record(deep))
    program.hold(deep)
    program.launch(deep)
    proofs(probe, program)
    for proven, event in enumerate(events, start=1):
        program.launch(little)
        program.call("cuStreamSynchronize", little)
        assert proofs(probe, program) == [], "of the deep stream nothing more is known"
        program.call("cuEventSynchronize", event)
        assert [(one.kind, one.seq) for one in proofs(probe, program)] == [(abi.EdgeKind.PROGRESS, proven)]
    program.open()
    program.call("cuStreamSynchronize", deep)
    assert [(one.kind, one.seq) for one in proofs(probe, program)] == [
        (abi.EdgeKind.CLOSE, program.context.submitted)
    ]


def test_a_stream_with_more_to_do_is_proven_up_to_where_the_others_begin(
    program: Program, probe: GpuTimeProbe
) -> None:
    first, second = program.streams(2)
    program.launch(second)
    program.call("cuStreamSynchronize", second)
    program.hold(second)
    program.launch(first)
    before = program.context.submitted
    program.launch(second)
    program.launch(first)
    proofs(probe, program)
    program.call("cuStreamSynchronize", first)
    assert [(one.kind, one.seq) for one in proofs(probe, program)] == [(abi.EdgeKind.PROGRESS, before)]
    program.open()


def test_a_copy_under_way_hides_no_end_of_compute(program: Program, probe: GpuTimeProbe) -> None:
    """As where the next batch is fetched while this one is computed; here a stream waits for a value in memory."""
    compute, other = program.streams(2)
    program.hold(other)
    assert program.busy(abi.COPY) and not program.busy()
    program.launch(compute)
    proofs(probe, program)
    program.call("cuStreamSynchronize", compute)
    told = [(one.kind, one.seq) for one in proofs(probe, program)]
    assert told == [(abi.EdgeKind.CLOSE, program.context.submitted)]
    program.open()


def test_the_next_context_owes_no_proof_for_the_last(
    start: Callable[[], Program], probe: GpuTimeProbe
) -> None:
    before = start()
    for stream in before.streams(2):
        before.hold(stream)
        before.launch(stream)
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: not before.context.flags & abi.CtxFlag.LIVE, PATIENCE_S, "its context is gone")
    program = start()
    assert program.slot == before.slot
    first, second = program.streams(2)
    program.call("cuStreamSynchronize", first)
    for _ in range(10):
        program.launch(second)
    program.call("cuStreamSynchronize", second)
    assert [(one.kind, one.seq) for one in proofs(probe, program)] == [(abi.EdgeKind.CLOSE, 10)]


def test_a_stream_that_nobody_asks_about_holds_back_no_proofs(program: Program, probe: GpuTimeProbe) -> None:
    """Programs warm up in such streams; but where one falls idle beside it nobody knows how far the context is."""
    stray, stream = program.streams(2)
    program.hold(stray)
    program.launch(stray)
    program.launch(stream)
    event, seq = program.record(stream), program.context.submitted
    program.launch(stream)
    proofs(probe, program)
    program.call("cuEventSynchronize", event)
    assert [(one.kind, one.seq) for one in proofs(probe, program)] == [(abi.EdgeKind.PROGRESS, seq)]
    program.call("cuStreamSynchronize", stream)
    assert proofs(probe, program) == []
    program.open()


def test_streams_that_are_joined_are_proven_at_once(program: Program, probe: GpuTimeProbe) -> None:
    """Of a step of several streams no part is told by itself, whichever was asked about before."""
    main, beside = program.streams(2)
    for stream in (main, beside):
        program.launch(stream)
        program.call("cuStreamSynchronize", stream)
    for order in ((main, beside, main), (beside, main, main)):
        for stream in order:
            program.launch(stream)
        program.call("cuStreamWaitEvent", main, program.record(beside), 0)
        program.launch(main)
        proofs(probe, program)
        program.call("cuStreamSynchronize", main)
        told = [(one.kind, one.seq) for one in proofs(probe, program)]
        assert told == [(abi.EdgeKind.CLOSE, program.context.submitted)]


def test_the_end_of_a_copy_is_no_progress_of_compute(program: Program, probe: GpuTimeProbe) -> None:
    """Who fetches its result and waits for the next request has nothing to do: an edge that says that it goes on would
    have it charged until then."""
    compute, copies = program.streams(2)
    program.launch(compute)
    program.call("cuStreamSynchronize", compute)
    program.hold(copies)
    proofs(probe, program)
    program.open()
    program.call("cuCtxSynchronize")
    assert program.context.completed == program.context.submitted == 2
    assert proofs(probe, program) == []


def test_what_was_only_joined_is_told_as_well(program: Program, probe: GpuTimeProbe) -> None:
    """Of the stream that is waited for nothing is new."""
    main, beside, other = program.streams(3)
    for stream in (main, beside, other):
        program.launch(stream)
        program.call("cuStreamSynchronize", stream)
    program.launch(beside)
    program.call("cuStreamWaitEvent", main, program.record(beside), 0)
    before = program.context.submitted
    program.hold(other)
    program.launch(other)
    proofs(probe, program)
    program.call("cuStreamSynchronize", main)
    assert [(one.kind, one.seq) for one in proofs(probe, program)] == [(abi.EdgeKind.PROGRESS, before)]
    program.open()
