# SPDX-License-Identifier: Apache-2.0
"""What a call proves of streams and contexts, as the programs in the kernel have it: neither less nor more.

A client makes one call at a time, as it is told, and what the kernel holds is read between two of them. Streams that
have to stand still wait for an event that comes when the test says so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from fairsched.base.buckets import bucket_of
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.simgpu import SimHost
from tests.node.bpf.conftest import MS, PATIENCE_S, Program, charged_ns
from tests.support import let_run, wait_until
from tests.unit.simgpu.clients import NOT_READY

MAX_N = (1 << 64 - abi.CLOCK_SHIFT) - 1
"""As many busy contexts as a clock counts."""
SHARED = abi.MAX_STREAMS - 1
"""Index of the streams that are too many to be told apart."""


# ---- submits ----


@pytest.mark.parametrize("suffix", ["", "Ex", "Ex_ptsz"])
def test_a_launch_is_of_the_stream_it_names_and_charged(
    program: Program, probe: GpuTimeProbe, suffix: str
) -> None:
    first, second = program.streams(2)
    bits = program.launch(first, 2 * MS, suffix), program.launch(second, MS, suffix)
    assert bits[0].bit_count() == bits[1].bit_count() == 1
    program.call("cuStreamSynchronize", second)
    assert program.busy() == bits[0]
    program.call("cuStreamSynchronize", first)
    assert program.busy() == 0
    assert program.context.submitted == 2
    assert charged_ns(probe, program) >= 3 * MS


def test_one_more_than_a_clock_counts_is_not_charged_and_counted(
    program: Program, probe: GpuTimeProbe
) -> None:
    (stream,) = program.streams(1)

    def work() -> int:
        """What is charged by its end."""
        program.launch(stream)
        program.call("cuStreamSynchronize", stream)
        return charged_ns(probe, program)

    before_ns = work()
    clock = probe.clock(program.context.gpu)
    word, counted = clock.word[abi.COMPUTE], probe.count(abi.Count.CLOCK_RANGE)
    full = MAX_N << abi.CLOCK_SHIFT | word
    clock.word[abi.COMPUTE] = full
    try:
        assert work() == before_ns
        assert clock.word[abi.COMPUTE] == full, "what was not added is not taken back"
    finally:
        clock.word[abi.COMPUTE] = word
    assert probe.count(abi.Count.CLOCK_RANGE) == counted + 1
    assert work() >= before_ns + MS, "there is room again"


# ---- what the sync of a stream covers ----


def test_a_stream_that_is_waited_for_says_nothing_of_the_others(program: Program) -> None:
    first, second = program.streams(2)
    program.hold(second)
    bits = program.launch(first), program.launch(second)
    assert all(bit.bit_count() == 1 for bit in bits) and program.busy() == sum(bits)
    program.call("cuStreamSynchronize", first)
    assert program.busy() == bits[1]
    assert program.context.busy[abi.COMPUTE].bursts == 0, "the interval of the context goes on"
    program.open()
    program.call("cuStreamSynchronize", second)
    assert program.busy() == 0
    assert program.context.busy[abi.COMPUTE].bursts == 1


def test_a_context_that_is_waited_for_speaks_for_all_its_streams(program: Program) -> None:
    for stream in program.streams(3):
        program.launch(stream)
    program.call("cuCtxSynchronize")
    assert program.busy() == 0
    assert program.context.completed == program.context.submitted == 3


def test_work_that_came_after_the_event_is_not_proven_by_it(program: Program) -> None:
    (stream,) = program.streams(1)
    bit = program.launch(stream)
    event = program.record(stream)
    program.hold(stream)
    program.launch(stream)
    program.call("cuEventSynchronize", event)
    assert program.busy() == bit
    assert program.context.completed == 1


# ---- what it covers elsewhere ----


def test_what_a_stream_had_waited_for_is_complete_when_it_is(program: Program) -> None:
    first, second, third = program.streams(3)
    program.hold(third)
    program.launch(first)
    event = program.record(first)
    beside = program.launch(third)
    program.call("cuStreamWaitEvent", second, event, 0)
    program.launch(second)
    program.call("cuStreamSynchronize", second)
    assert program.busy() == beside


def test_an_event_speaks_for_what_its_stream_had_waited_for(program: Program) -> None:
    first, second = program.streams(2)
    program.launch(first)
    event = program.record(first)
    program.call("cuStreamWaitEvent", second, event, 0)
    program.launch(second)
    program.call("cuEventSynchronize", program.record(second))
    assert program.busy() == 0


def test_a_stream_that_was_waited_for_may_have_more_to_do_since(program: Program) -> None:
    first, second = program.streams(2)
    bit = program.launch(first)
    event = program.record(first)
    program.hold(first)
    program.launch(first)
    program.call("cuStreamWaitEvent", second, event, 0)
    program.launch(second)
    program.call("cuStreamSynchronize", second)
    assert program.busy() == bit


def test_what_a_stream_waits_for_later_is_not_proven_by_an_earlier_event(program: Program) -> None:
    first, second = program.streams(2)
    program.hold(first)
    bit = program.launch(first)
    late = program.record(first)
    program.launch(second)
    early = program.record(second)
    program.launch(second)
    program.call("cuStreamWaitEvent", second, late, 0)
    still = program.launch(second) or program.busy() & ~bit
    program.call("cuEventSynchronize", early)
    assert program.busy() == bit | still


def test_what_a_stream_waits_for_right_after_the_event_is_not_proven_by_it(program: Program) -> None:
    """Nothing is submitted between the two, so no number of a launch tells which came first."""
    first, second = program.streams(2)
    program.hold(first)
    bit = program.launch(first)
    running = program.record(first)
    program.launch(second)
    event = program.record(second)
    program.call("cuStreamWaitEvent", second, running, 0)
    program.call("cuEventSynchronize", event)
    assert program.busy() == bit


def test_what_a_stream_waited_for_right_before_the_event_is_proven_by_it(program: Program) -> None:
    first, second = program.streams(2)
    program.launch(first)
    event = program.record(first)
    program.launch(second)
    program.call("cuStreamWaitEvent", second, event, 0)
    program.call("cuEventSynchronize", program.record(second))
    assert program.busy() == 0


def test_an_event_that_was_never_recorded_is_counted(program: Program, probe: GpuTimeProbe) -> None:
    before = probe.count(abi.Count.EVENT_UNKNOWN)
    (stream,) = program.streams(1)
    program.call("cuStreamWaitEvent", stream, program.record(stream), 0)
    assert probe.count(abi.Count.EVENT_UNKNOWN) == before
    program.call("cuStreamWaitEvent", stream, program.told("event"), 0)
    assert probe.count(abi.Count.EVENT_UNKNOWN) == before + 1


# ---- queries ----


def test_what_is_not_ready_proves_nothing(program: Program) -> None:
    (stream,) = program.streams(1)
    program.hold(stream)
    bit = program.launch(stream)
    event = program.record(stream)
    for name, handle in (("cuStreamQuery", stream), ("cuEventQuery", event)):
        assert program.rc(name, handle) == NOT_READY
        assert program.busy() == bit
    assert (program.context.synced, program.context.completed) == (0, 0)
    program.open()
    wait_until(lambda: program.rc("cuStreamQuery", stream) == 0, PATIENCE_S, "it is done")
    assert program.busy() == 0
    assert program.context.completed == program.context.submitted


def waited(program: Program, pause_ms: int, more: int = 0) -> tuple[float, float]:
    """In ms: for how long a program that asks again and again waited, as the kernel has it, and at most."""
    (stream,) = program.streams(1)
    program.launch(stream, 30 * MS)
    name, handle = ("cuStreamQuery", stream) if more else ("cuEventQuery", program.record(stream))
    most_ns = program.told("ask_often", name, handle, pause_ms, (stream, more))
    assert program.busy() == 0
    return program.context.waited_ns / MS, most_ns / MS


def test_who_asks_again_and_again_waits(program: Program) -> None:
    def is_seen() -> bool:
        """One that is kept from asking for long, by others who want its processor, begins to wait anew."""
        waited_ms, most_ms = waited(program, pause_ms=0)
        assert waited_ms <= most_ms
        return waited_ms > 0.9 * most_ms > 18

    wait_until(is_seen, PATIENCE_S, "it waited since it asked first")


def test_who_asks_seldom_or_for_something_new_has_not_waited_so_long(program: Program) -> None:
    waited_ms, most_ms = waited(program, pause_ms=2)
    assert waited_ms < 0.5 * most_ms
    for _ in range(5):
        waited_ms, most_ms = waited(program, pause_ms=0, more=50)
        assert waited_ms <= most_ms, "for the last kernel, not for those before"


def test_an_event_that_is_ready_proves_what_was_before_it(program: Program) -> None:
    (stream,) = program.streams(1)
    program.launch(stream)
    event = program.record(stream)
    wait_until(lambda: program.rc("cuEventQuery", event) == 0, PATIENCE_S, "it is done")
    assert program.busy() == 0


# ---- the two default streams ----


def test_the_legacy_stream_speaks_for_those_that_wait_for_it_and_no_others(program: Program) -> None:
    (blocking,), (free,) = program.streams(1, 0), program.streams(1)
    program.hold(free)
    program.launch(blocking)
    beside = program.launch(free)
    program.launch(0)
    program.call("cuStreamSynchronize", 0)
    assert program.busy() == beside


def test_a_blocking_stream_does_not_speak_for_the_legacy_one(program: Program) -> None:
    (blocking,) = program.streams(1, 0)
    program.launch(blocking)
    program.hold(0)
    legacy = program.launch(0)
    program.call("cuStreamSynchronize", blocking)
    assert program.busy() == legacy


def test_the_stream_of_a_thread_is_its_own(program: Program) -> None:
    (blocking,) = program.streams(1, 0)
    event = program.hold(blocking)
    held = program.launch(blocking)
    program.call("cuCtxSetCurrent", program.handle, thread=1)
    program.call("cuStreamWaitEvent_ptsz", 0, event, 0, thread=1)
    held |= program.launch(0, suffix="_ptsz", thread=1)
    assert held.bit_count() == 2
    assert program.launch(0, suffix="_ptsz").bit_count() == 1
    program.call("cuStreamSynchronize_ptsz", 0)
    assert program.busy() == held, "neither the other thread's nor one that only the legacy stream waits for"
    program.open()
    program.call("cuStreamSynchronize", 0)
    assert program.busy() == 0, "the legacy one waits for both"


# ---- more streams than can be told apart ----


def test_streams_that_share_an_index_are_proven_by_the_context_alone(
    program: Program, probe: GpuTimeProbe
) -> None:
    shared_before = probe.count(abi.Count.STREAM_SHARED)
    streams = program.streams(abi.MAX_STREAMS + 4)
    assert probe.count(abi.Count.STREAM_SHARED) > shared_before
    last_own, one, another = streams[SHARED - 1], streams[SHARED], streams[SHARED + 1]
    assert program.launch(last_own) == 1 << (SHARED - 1)
    program.call("cuStreamSynchronize", last_own)
    assert program.busy() == 0
    program.hold(another)
    assert program.launch(one) == 1 << SHARED
    program.launch(another)
    program.call("cuStreamSynchronize", one)
    assert program.busy() == 1 << SHARED
    program.open()
    program.call("cuCtxSynchronize")
    assert program.busy() == 0


# ---- GPUs ----


def test_two_contexts_of_a_process_are_charged_on_the_gpu_of_each(
    program: Program, probe: GpuTimeProbe, host: SimHost
) -> None:
    names = [uuid.UUID(name.removeprefix("GPU-")) for name in host.uuids()]
    probe.set_uuids({name.bytes: 1 - device for device, name in enumerate(names)})
    assert [program.told("uuid", device) for device in (0, 1)] == [name.hex for name in names]
    contexts = [program.told("context", device) for device in (0, 1)]
    slots = [program.find(handle)[1] for handle in contexts]
    assert [one.gpu for one in slots] == [1, 0], "as the UUIDs say, not the ordinals"
    for device, handle in enumerate(contexts):
        program.call("cuCtxSetCurrent", handle)
        (stream,) = program.streams(1)
        program.hold(stream)
        program.told("launch", MS, stream)
        assert slots[device].busy[abi.COMPUTE].streams
        loads = [abi.clock_n(probe.clock(1 - one).word[abi.COMPUTE]) for one in (0, 1)]
        assert loads == [int(one == device) for one in (0, 1)]
        program.open()
        program.call("cuStreamSynchronize", stream)
    charged = {key.gpu: use.gpu_time_ns for key, use in probe.uses() if key.tgid == program.pid}
    assert charged == {one.gpu: one.busy[abi.COMPUTE].gpu_time_ns for one in slots}
    assert min(charged.values()) >= MS


def test_contexts_deeper_than_the_stack_are_counted(program: Program, probe: GpuTimeProbe) -> None:
    before = probe.count(abi.Count.STACK_DEEP)
    for _ in range(3):
        program.call("cuCtxPushCurrent_v2", program.handle)
    assert probe.count(abi.Count.STACK_DEEP) == before
    program.call("cuCtxPushCurrent_v2", program.handle)
    assert probe.count(abi.Count.STACK_DEEP) == before + 1


# ---- the end of a drain ----


def test_a_drain_ends_at_the_moment_it_is_given_and_only_that_of_the_context_meant(
    program: Program, probe: GpuTimeProbe
) -> None:
    (stream,) = program.streams(1)
    program.hold(stream)
    bit = program.launch(stream)
    copies, busy = program.busy(abi.COPY), program.context.busy[abi.COMPUTE]
    wait_until(lambda: time.monotonic_ns() - busy.open_ns > 20 * MS, PATIENCE_S, "it runs for a while")
    end_ns = (busy.v_open_ns + 7 * MS) & abi.CLOCK_MASK
    assert not probe.end_drain(program.slot, program.context.generation + 1, end_ns), "another context by now"
    assert program.busy() == bit
    assert probe.end_drain(program.slot, program.context.generation, end_ns)
    assert program.busy() == 0
    assert program.busy(abi.COPY) == copies
    assert probe.is_idle(program.context.gpu)
    assert charged_ns(probe, program) == busy.gpu_time_ns == 7 * MS
    program.open()
    program.call("cuStreamSynchronize", stream)
    assert charged_ns(probe, program) == 7 * MS, "what it returns for has been charged"
    assert busy.bursts == 1


def test_a_drain_that_ends_later_than_now_is_charged_up_to_now(program: Program, probe: GpuTimeProbe) -> None:
    (stream,) = program.streams(1)
    program.hold(stream)
    program.launch(stream)
    busy = program.context.busy[abi.COMPUTE]
    end_ns = (busy.v_open_ns + 3600 * 1000 * MS) & abi.CLOCK_MASK
    assert probe.end_drain(program.slot, program.context.generation, end_ns)
    assert busy.gpu_time_ns == busy.wall_ns < 60 * 1000 * MS


# ---- queue delays ----


def delays(probe: GpuTimeProbe, program: Program) -> tuple[list[int], int]:
    """Of its cgroup on its GPU: how many there are of each length, and their sum."""
    where = (program.context.cgroup_id, program.context.gpu)
    found = [value for key, value in probe.delays() if (key.cgroup_id, key.gpu) == where]
    return (list(found[0].bucket), int(found[0].sum_ns)) if found else ([0] * abi.DELAY_BUCKETS, 0)


def burst(program: Program, probe: GpuTimeProbe, ns: int) -> tuple[int, list[int], int]:
    """Of one that lasts: its length on the wall, how many delays of which length it added, and their sum."""
    (stream,) = program.streams(1)
    buckets, sum_ns = delays(probe, program)
    wall_ns = int(program.context.busy[abi.COMPUTE].wall_ns)
    program.hold(stream)
    program.launch(stream)
    let_run(ns / 1e9)
    program.open()
    program.call("cuStreamSynchronize", stream)
    buckets_after, sum_after_ns = delays(probe, program)
    added = [after - before for before, after in zip(buckets, buckets_after, strict=True)]
    return int(program.context.busy[abi.COMPUTE].wall_ns) - wall_ns, added, sum_after_ns - sum_ns


def test_who_is_alone_has_no_queue_delay(program: Program, probe: GpuTimeProbe) -> None:
    wall_ns, added, sum_ns = burst(program, probe, 10 * MS)
    assert wall_ns >= 10 * MS
    assert (added[0], sum(added), sum_ns) == (1, 1, 0)


def test_beside_another_half_the_time_is_queue_delay(
    start: Callable[[], Program], probe: GpuTimeProbe
) -> None:
    other, program = start(), start()
    (stream,) = other.streams(1)
    other.hold(stream)
    other.launch(stream)
    wall_ns, added, sum_ns = burst(program, probe, 30 * MS)
    assert abs(sum_ns - wall_ns / 2) < 10, "to the rounding of the clock"
    assert sum(added) == added[bucket_of(sum_ns)] == 1
    waited = {key.tgid: use.wait_ns for key, use in probe.uses()}
    assert waited[program.pid] == sum_ns


def test_a_burst_waits_once_for_each_turn_it_took(start: Callable[[], Program], probe: GpuTimeProbe) -> None:
    other, program = start(), start()
    (stream,) = other.streams(1)
    other.hold(stream)
    other.launch(stream)
    probe.limits.turn_ns = 4 * MS
    try:
        wall_ns, added, sum_ns = burst(program, probe, 30 * MS)
    finally:
        probe.limits.turn_ns = 0
    turns = -(-(wall_ns - sum_ns) // (4 * MS))
    assert turns >= 4
    assert sum(added) == added[bucket_of(sum_ns // turns)] == turns


def test_what_is_told_late_of_a_drain_is_no_queue_delay(program: Program, probe: GpuTimeProbe) -> None:
    """It was alone: it never waited, though its interval stayed open for long after its end."""
    (stream,) = program.streams(1)
    _, before_ns = delays(probe, program)
    program.hold(stream)
    program.launch(stream)
    busy = program.context.busy[abi.COMPUTE]
    wait_until(lambda: time.monotonic_ns() - busy.open_ns > 20 * MS, PATIENCE_S, "it runs for a while")
    end_ns = (busy.v_open_ns + 7 * MS) & abi.CLOCK_MASK
    assert probe.end_drain(program.slot, program.context.generation, end_ns)
    assert delays(probe, program)[1] - before_ns < 10, "to the rounding of the clock"
    program.open()
    program.call("cuStreamSynchronize", stream)
