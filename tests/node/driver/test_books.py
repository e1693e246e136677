# SPDX-License-Identifier: Apache-2.0
"""What the ioctls of simulated tenants say equals what their engine knows."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from fairsched.bpf.abi import DriverCount
from fairsched.simgpu import Workload
from tests.node.driver.conftest import Actor, Site
from tests.support import wait_until
from tests.vm import rm

MakeCgroup = Callable[[str], Path]
MIB = 1 << 20
SYS_EXIT = 60
"""Of x86-64: ends the calling thread, and no other."""


def agree(site: Site) -> None:
    wait_until(lambda: site.seen() == site.truth(), 20, "the books say what the engine says")


def test_contexts_and_vram_of_real_loads_equal_the_engines(site: Site, cgroup: MakeCgroup) -> None:
    one, two = cgroup("one"), cgroup("two")
    loads = [
        site.host.spawn(Workload("decode", contexts=2, alloc_bytes=3 * MIB), one),
        site.host.spawn(Workload("trainer", device=1, alloc_bytes=MIB), one),
        site.host.spawn(Workload("graph", contexts=3, alloc_bytes=5000), two),
    ]
    truth = site.truth()
    assert {pid for pid, _ in truth} == {load.pid for load in loads}
    assert {key: contexts for key, (contexts, _) in truth.items()} == {
        (loads[0].pid, 0): 2,
        (loads[1].pid, 1): 1,
        (loads[2].pid, 0): 3,
    }
    assert site.seen() == truth
    where = {use.tgid: use.cgroup_id for use in site.look().uses}
    assert where == {
        loads[0].pid: one.stat().st_ino,
        loads[1].pid: one.stat().st_ino,
        loads[2].pid: two.stat().st_ino,
    }
    loads[0].kill()
    agree(site)
    assert loads[2].stop() == 0
    agree(site)
    loads[1].kill()
    agree(site)
    assert site.seen() == {}


def test_an_allocation_that_fails_counts_as_failed_and_as_nothing_else(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor()
    actor.do("cuda.open()")
    actor.do(f"cuda.alloc({100 * MIB})")
    before = calls_of(site, actor.pid)
    assert "cuMemAlloc" in actor.do(f"cuda.fails({2000 * MIB})")
    after = calls_of(site, actor.pid)
    assert after.failed == before.failed + 1
    assert after.ioctls == before.ioctls + 1
    assert after.time_ns > before.time_ns
    assert site.seen() == {(actor.pid, 0): (1, 100 * MIB)} == site.truth()


def calls_of(site: Site, pid: int):
    (calls,) = [calls for calls in site.look().calls if calls.tgid == pid]
    return calls


def test_a_context_that_is_closed_takes_its_memory_along(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor()
    actor.do("cuda.open(0)")
    actor.do(f"cuda.alloc({MIB})")
    actor.do("cuda.open(1)")
    actor.do(f"cuda.alloc({2 * MIB})")
    assert site.seen() == {(actor.pid, 0): (1, MIB), (actor.pid, 1): (1, 2 * MIB)}
    actor.do("cuda.close()")
    assert site.seen() == {(actor.pid, 0): (1, MIB)} == site.truth()


def test_a_killed_process_holds_nothing_and_is_handed_out_once_more(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor()
    actor.do("cuda.open(1)")
    actor.do(f"cuda.alloc({MIB})")
    assert site.seen() == {(actor.pid, 1): (1, MIB)}
    actor.end()
    look = site.look()
    assert look.uses == ()
    (last,) = [calls for calls in look.calls if calls.tgid == actor.pid]
    assert last.is_final and last.ioctls > 8
    assert [calls for calls in site.look().calls if calls.tgid == actor.pid] == []


def test_another_program_in_the_same_process_has_nothing_of_the_former(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor()
    actor.do("cuda.open(0)")
    assert site.seen() == {(actor.pid, 0): (1, 0)}
    assert actor.process.stdin is not None
    actor.process.stdin.write("os.execv('/bin/sleep', ['sleep', '60'])\n")
    actor.process.stdin.flush()
    # The name changes a moment before the kernel says that a program was executed.
    wait_until(lambda: Path(f"/proc/{actor.pid}/comm").read_text() == "sleep\n", 10, "it is another program")
    wait_until(lambda: site.seen() == {}, 10, "it holds nothing")


def test_the_last_close_of_a_file_ends_what_was_made_through_it(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor()
    actor.do("cuda.open(0)")
    actor.do(f"cuda.alloc({MIB})")
    node = next(
        fd
        for fd in os.listdir(f"/proc/{actor.pid}/fd")
        if os.readlink(f"/proc/{actor.pid}/fd/{fd}").endswith("/nvidiactl")
    )
    actor.do(f"!copy = os.dup({node})")
    actor.do(f"os.close({node})")
    assert site.seen() == {(actor.pid, 0): (1, MIB)}, "a copy of the descriptor keeps the file open"
    actor.do("os.close(copy)")
    assert site.seen() == {}


def test_many_threads_of_one_context_leave_the_right_sum(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    actor = start_actor()
    actor.do("cuda.open(0)")
    actor.do("cuda.churn(16, 300)")
    assert site.seen() == site.truth()
    vram_bytes = sum(512 * (number + 300) for number in range(16))
    assert site.seen() == {(actor.pid, 0): (1, vram_bytes)}


def test_a_process_goes_on_without_its_first_thread(site: Site, start_actor: Callable[..., Actor]) -> None:
    actor = start_actor()
    actor.do("cuda.open(0)")
    actor.do(f"cuda.alloc({MIB})")
    actor.do("threading.Thread(target=threading.Event().wait).start()")
    assert actor.process.stdin is not None
    actor.process.stdin.write(f"ctypes.CDLL(None).syscall({SYS_EXIT}, 0)\n")
    actor.process.stdin.flush()
    first = Path(f"/proc/{actor.pid}/task/{actor.pid}/stat")
    wait_until(lambda: first.read_text().rpartition(") ")[2][0] == "Z", 10, "its first thread has ended")
    assert site.seen() == {(actor.pid, 0): (1, MIB)}
    actor.end()
    assert site.seen() == {}


def test_an_answer_that_was_forged_changes_nothing_of_anybody_else(
    site: Site, start_actor: Callable[..., Actor]
) -> None:
    """The driver refuses what is asked of another's client; here nobody does, as if the status were rewritten."""
    actor = start_actor()
    actor.do("cuda.open(0)")
    actor.do(f"cuda.alloc({MIB})")
    held = {(actor.pid, 0): (1, MIB)}
    assert site.seen() == held
    (victim,) = [client for client in site.probe.clients() if client.tgid == actor.pid]
    before, memory = site.probe.count(DriverCount.FOREIGN), ctypes.create_string_buffer(128)
    file = os.open(site.host.state_dir / "dev" / "nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    try:
        for number, argument in (
            (rm.FREE, rm.Nvos00(victim.handle, victim.handle, victim.handle)),
            (
                rm.ALLOC,
                rm.Nvos21(victim.handle, victim.handle, 0x77, rm.MEMORY, ctypes.addressof(memory), 128),
            ),
            (rm.ALLOC, rm.Nvos21(victim.handle, victim.handle, victim.handle, rm.ROOT_CLIENT)),
        ):
            request = rm.command(number, ctypes.sizeof(argument))
            rm.libc.ioctl(file, ctypes.c_ulong(request), ctypes.byref(argument))
            assert site.seen() == held, number
    finally:
        os.close(file)
    assert site.probe.count(DriverCount.FOREIGN) == before + 3
    assert site.seen() == held, "and the forger's end is its own"
    actor.do(f"cuda.alloc({MIB})")
    assert site.seen() == {(actor.pid, 0): (1, 2 * MIB)}


def test_nothing_was_counted_that_should_not_happen(site: Site) -> None:
    """After everything above; handles of killed contexts are given out anew by the engine, and one forged answers."""
    assert set(site.unexpected()) <= {"replaced", "foreign"}
    assert site.probe.count(DriverCount.OBJECTS_MADE) > 16 * 300
