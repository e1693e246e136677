# SPDX-License-Identifier: Apache-2.0
"""Our books of the driver's objects against the driver's own, by both hooks at once."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import signal
import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairsched.bpf import perf, syscall, tracefs
from fairsched.bpf.abi import DriverCount
from fairsched.driver import devices, hooks
from fairsched.driver.probe import start
from tests.support import wait_until
from tests.vm import rm
from tests.vm.reach import garbage_calls, reach
from tests.vm.rm import Rm
from tests.vm.walk import Walk
from tests.vm.watching import HOOKS, Watch

STEPS = reach(10_000, 1500)
LOOK_EVERY = 100
GARBAGE = garbage_calls(20_000, 4000)
MIB = 1 << 20
COMPANY, TURNS = 6, 400
FORMS = [("595", 595, "nvos64"), ("595", 595, "nvos21"), ("535", 535, "nvos64"), ("535", 525, "nvos64")]


def make_context(one, client: int, gpu: int = 0) -> tuple[int, int]:
    """A device and a compute object below a channel group of it."""
    device = one.do("device", client, gpu)
    group = one.do("tsg", client, device)
    return device, one.do("compute", client, one.do("channel", client, group))


class Reopening:
    """An Rm that a walk may close and open."""

    def __init__(self, one: Rm) -> None:
        self.one = one

    def do(self, name: str, *args: object, **named: object) -> object:
        if name == "open":
            self.one = Rm(self.one.abi, self.one.xfer, self.one.form)
            return None
        return self.one.do(name, *args, **named)


@pytest.mark.parametrize("variant", ["595", "535"])
def test_our_books_equal_the_drivers_over_a_random_walk(watch, start_actor, cgroups, variant, record) -> None:
    driver, seen = watch(variant, vram_mib=1024)
    actor = start_actor(cgroups.make("walker"), pidns=True, abi=driver.abi)
    doers = [Rm(driver.abi), Rm(driver.abi, form="nvos21"), Rm(driver.abi, xfer=True)]
    walkers = [*map(Reopening, doers), actor]
    walk = Walk(3 if variant == "595" else 4, walkers, driver.gpus, 1024 * MIB)
    for step in range(1, STEPS + 1):
        line = walk.step()
        if step % LOOK_EVERY == 0:
            seen.agree(driver, line)
    assert seen.count("kprobe", DriverCount.OBJECTS_MADE) > STEPS // 10
    for one in walkers:
        one.do("close")
    seen.agree(driver, "after the last close")
    assert seen.seen("kprobe") == {}
    seen.check_counts()
    for hook in HOOKS:
        record(f"driver calls by {hook}, driver {variant}", "works", f"{STEPS:,} random calls, books equal")


@pytest.mark.parametrize(("variant", "abi", "form"), FORMS)
def test_every_form_of_call_is_understood(watch, variant, abi, form) -> None:
    driver, seen = watch(variant, abi=abi)
    for xfer in (False, True):
        one = Rm(driver.abi, xfer=xfer, form=form)
        client = one.client()
        device, compute = make_context(one, client, 1)
        for route in ("alloc", "heap", "escape"):
            one.memory(client, device, 3 * MIB + 1, route=route)
            one.sysmem(client, device, MIB, route="alloc")
            seen.agree(driver, f"{form} {xfer} {route}")
        assert sum(vram for _, vram in seen.seen("kprobe").values()) == 2 * (3 * MIB + 4096) + 3 * MIB + 1
        memory = one.memory(client, device, MIB, route="heap")
        one.heap_free(client, device, memory)
        one.free(client, compute)
        seen.agree(driver, "compute freed")
        one.free(client, device)
        seen.agree(driver, "device freed")
        assert seen.seen("lsm") == {}
        one.close()
    seen.check_counts()


def test_a_process_that_ends_without_a_free_holds_nothing(watch, start_actor, cgroups) -> None:
    driver, seen = watch()
    group = cgroups.make("one")
    actor = start_actor(group, pidns=True)
    client = actor.do("client")
    device, _ = make_context(actor, client)
    actor.do("memory", client, device, 5 * MIB)
    assert seen.seen("kprobe") == {(cgroups.id_of(group), pid_of(driver), 0): (1, 5 * MIB)}
    seen.agree(driver)
    actor.kill()
    wait_until(lambda: driver.books().clients == {}, 20, "the driver has let go")
    seen.agree(driver, "killed")
    assert seen.seen("kprobe") == seen.seen("lsm") == {}
    seen.check_counts()


def pid_of(driver: rm.Driver) -> int:
    ((pid, _),) = driver.books().clients.values()
    return pid


def test_what_a_child_keeps_open_stays_with_who_made_it(watch, start_actor, cgroups) -> None:
    driver, seen = watch()
    actor = start_actor(cgroups.make("one"))
    client = actor.do("client")
    make_context(actor, client)
    child_of_it = actor.fork()
    actor.kill()
    wait_until(lambda: not Path(f"/proc/{actor.pid}").exists(), 20, "it is gone")
    seen.agree(driver, "the parent is gone")
    assert len(seen.seen("kprobe")) == 1
    child_of_it.kill()
    wait_until(lambda: driver.books().clients == {}, 20, "the driver has let go")
    seen.agree(driver, "both are gone")
    assert seen.seen("lsm") == {}


def test_more_clients_on_one_file_than_are_listed_end_with_it(watch) -> None:
    driver, seen = watch()
    one = Rm(driver.abi)
    for _ in range(40):
        client = one.client()
        device = one.device(client, 0)
        one.memory(client, device, MIB)
    seen.agree(driver)
    assert seen.seen("kprobe") == seen.seen("lsm") != {}
    assert seen.count("kprobe", DriverCount.FILE_FULL) == 24
    one.close()
    seen.agree(driver, "closed")
    assert seen.seen("kprobe") == seen.seen("lsm") == {}


def test_many_threads_inside_the_driver_lose_no_call(watch) -> None:
    """A probe on returns has room for so many at a time; what does not fit is lost without a word."""
    driver, seen = watch()
    one = Rm(driver.abi)
    client = one.client()
    device, _ = make_context(one, client)
    threads, turns = 48, 40
    barrier = threading.Barrier(threads)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(turns):
            handle = one.memory(client, device, (number + 1) * 4096)
            if turn < turns - 1:
                one.free(client, handle)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    seen.agree(driver)
    own = driver.books().calls
    total = sum(calls.ok + calls.refused + calls.errno for calls in own.values())
    assert {hook: seen.calls(hook, os.getpid()).ioctls for hook in HOOKS} == dict.fromkeys(HOOKS, total)
    seen.check_counts()
    one.close()


@pytest.mark.parametrize("hook", ["lsm", "tracepoint"])
def test_calls_that_preempt_each_other_are_all_seen(load_driver, probes, hook, record) -> None:
    """Some kernels leave a program out on a processor while somebody is preempted in it."""
    driver = load_driver()
    seen = Watch({hook: probes["lsm"]}, driver.gpus)
    done, tell = os.pipe()
    pids = [fork_worker(tell) for _ in range(COMPANY)]
    os.close(tell)
    try:
        for _ in pids:
            assert os.read(done, 1) == b"x", "a worker has failed"
        total = sum(calls.ok + calls.refused + calls.errno for calls in driver.books().calls.values())
        assert sum(seen.calls(hook, pid).ioctls for pid in pids) == total
        seen.agree(driver)
        seen.check_counts()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(done)
        left = seen.seen(hook)
        seen.close()
    assert left == {}
    record(f"driver calls by {hook}, preempted", "works", f"{COMPANY} processes on one processor, none lost")


def fork_worker(tell: int) -> int:
    """Calls as fast as it can, on the processor that all share; stays until it has been counted."""
    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setaffinity(0, {0})
            one = Rm()
            client = one.client()
            device = one.device(client, 0)
            for _ in range(TURNS):
                one.free(client, one.memory(client, device, MIB))
            one.memory(client, device, MIB)
            os.write(tell, b"x")
            signal.pause()
        finally:
            os._exit(1)
    return pid


class Garbage:
    """Random calls; a part of them nearly right."""

    NUMBERS = (
        rm.ALLOC_MEMORY,
        0x28,
        rm.FREE,
        rm.CONTROL,
        rm.ALLOC,
        rm.DUP_OBJECT,
        rm.VID_HEAP,
        0x4E,
        rm.XFER,
    )
    KERNELS_OWN = (
        *(0x2, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460, 0x40049409, 0x4020940D, 0xC0189436, 0xC020660B),
        *(0xC0045877, 0xC0045878),
    )
    """FIGETBSZ, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE, FICLONE, FICLONERANGE, FIDEDUPERANGE, FS_IOC_FIEMAP,
    FIFREEZE, FITHAW: no driver sees them, and two of three hooks do."""
    SIZES = (0, 4, 16, 20, 28, 32, 40, 48, 56, 184, 4095, 16383)
    CLASSES = (0, 1, 0x41, 0x80, 0x2080, 0xA06C, 0xC56F, 0xC6C0, 0x40, 0x3F, 0x3E, 0x5, 0x79, 0x70, 0xFFC0)

    def __init__(self, seed: int, driver: rm.Driver) -> None:
        self.random = random.Random(seed)
        self.one = Rm(driver.abi)
        self.gpu = os.open("/dev/nvidia0", os.O_RDWR)
        client = self.one.client()
        device, compute = make_context(self.one, client)
        memory = self.one.memory(client, device, MIB)
        self.handles = [client, client, device, compute, memory, 0]
        self.buffer = ctypes.create_string_buffer(1 << 15)
        self.params = ctypes.create_string_buffer(1 << 12)
        self.errors: Counter[int] = Counter()

    def words(self) -> list[int]:
        """Half of them handles, and many of the rest classes."""
        known = self.random.choices(self.handles, k=24) + self.random.choices(self.CLASSES, k=14)
        others = (2, 3, 5, 0x101, 0xFFFFFFFF, self.random.getrandbits(32))
        return self.random.choices(known + self.random.choices(others, k=10), k=48)

    def address(self) -> int:
        good = ctypes.addressof(self.buffer) + self.random.randrange(64)
        bad = (0, 1, 0x1000, (1 << 47) - 8, (1 << 64) - 4096, self.random.getrandbits(64))
        return good if self.random.random() < 0.85 else self.random.choice(bad)

    def fill(self) -> None:
        words = self.words()
        if self.random.random() < 0.7:
            words[4], words[5] = (
                ctypes.addressof(self.params) & 0xFFFFFFFF,
                ctypes.addressof(self.params) >> 32,
            )
        ctypes.memmove(self.buffer, struct.pack("<48I", *words), 192)
        size = self.random.choice((0, 1, 4096, 1 << 20, 1 << 40, self.random.getrandbits(64)))
        ctypes.memmove(self.params, size.to_bytes(8, "little") * 64, 512)
        if self.random.random() < 0.5:
            ctypes.memmove(self.params, bytes(64), 64)

    def step(self) -> None:
        self.fill()
        number = (
            self.random.choice(self.NUMBERS) if self.random.random() < 0.9 else self.random.randrange(256)
        )
        size = self.random.choice(self.SIZES)
        if self.random.random() < 0.7:
            right = {rm.FREE: 16, rm.ALLOC: self.random.choice((32, 40, 48)), rm.VID_HEAP: 184, rm.XFER: 16}
            size = {**right, rm.ALLOC_MEMORY: 56, rm.CONTROL: 32, rm.DUP_OBJECT: 28}.get(number, size)
        if number == rm.XFER:
            inner = self.random.choice(self.NUMBERS)
            outer = rm.XferCmd(inner, self.random.choice(self.SIZES), self.address())
            ctypes.memmove(ctypes.addressof(self.buffer) + 4096, ctypes.addressof(outer), 16)
            target = ctypes.addressof(self.buffer) + 4096
        else:
            target = self.address()
        kind = self.random.choice((ord("F"), ord("F"), 0, 255))
        fd = self.gpu if self.random.random() < 0.1 else self.one.fd
        command = self.random.choice((0, 3)) << 30 | size << 16 | kind << 8 | number
        if self.random.random() < 0.02:
            command = self.random.choice(self.KERNELS_OWN)
        self.errors[self.one.ioctl_raw(fd, command, target)] += 1
        made = int.from_bytes(self.buffer[8:12], "little")
        if number == rm.ALLOC and made not in self.handles:
            self.handles.append(made)
            del self.handles[1:-40]

    def close(self) -> None:
        os.close(self.gpu)
        self.one.close()


def calls_agree(driver: rm.Driver, seen: Watch) -> None:
    calls = driver.books().calls.values()
    total = sum(one.ok + one.refused + one.errno for one in calls)
    failed = sum(one.refused + one.errno for one in calls)
    for hook in HOOKS:
        ours = seen.calls(hook, os.getpid())
        assert (ours.ioctls, ours.failed) == (total, failed), hook


def test_what_the_kernel_answers_by_itself_is_no_call_to_the_driver(watch) -> None:
    driver, seen = watch()
    one = Rm(driver.abi)
    one.client()
    answer = ctypes.create_string_buffer(4096)
    for request in Garbage.KERNELS_OWN:
        one.ioctl_raw(one.fd, request, ctypes.addressof(answer))
        calls_agree(driver, seen)
    one.close()


@pytest.mark.timeout(600 + GARBAGE / 100)
def test_garbage_makes_no_wrong_number_and_no_call_uncounted(watch, record) -> None:
    driver, seen = watch(vram_mib=1024)
    with contextlib.ExitStack() as undo:
        garbage = Garbage(11, driver)
        undo.callback(lambda: garbage.close())
        for step in range(1, GARBAGE + 1):
            garbage.step()
            if step % max(2000, GARBAGE // 50) == 0:
                seen.agree(driver, f"after {step} calls")
                if not driver.books().clients:
                    garbage.close()
                    garbage = Garbage(step, driver)
        calls_agree(driver, seen)
        seen.check_counts()
    seen.agree(driver, "closed")
    assert seen.seen("kprobe") == seen.seen("lsm") == {}
    record("driver calls: garbage", "works", f"{GARBAGE:,} random calls, books equal")


def test_an_answer_that_cannot_be_written_is_counted_as_not_known(watch) -> None:
    """The driver has done it all the same: the one way to hold memory that no status tells of."""
    driver, seen = watch()
    one = Rm(driver.abi)
    client = one.client()
    device = one.device(client, 0)
    page = mmap.mmap(-1, mmap.PAGESIZE)
    call = rm.Nvos00(client, 0, device)
    page[:16] = bytes(call)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert rm.libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ) == 0
    assert one.ioctl_raw(one.fd, rm.command(rm.FREE, 16), address) == 14
    assert {hook: seen.count(hook, DriverCount.BLIND) for hook in HOOKS} == dict.fromkeys(HOOKS, 1)


def test_the_best_hook_is_chosen_and_leaves_nothing_behind(load_driver) -> None:
    driver = load_driver()
    stale = "return_4194303_nvidia_unlocked_ioctl"
    events = os.open("/sys/kernel/tracing/kprobe_events", os.O_WRONLY | os.O_APPEND)
    os.write(events, f"r8:fairsched/{stale} nvidia_unlocked_ioctl\n".encode())
    os.close(events)
    probe = start(hooks.read_facts())
    try:
        assert probe.hook == "kprobe" and probe.refused == {}
        own = f"fairsched/return_{os.getpid()}_nvidia_unlocked_ioctl "
        defined = Path("/sys/kernel/tracing/kprobe_events").read_text()
        assert own in defined and stale not in defined
        assert f"r{tracefs.MAX_ACTIVE}:" in defined
    finally:
        probe.close()
    assert driver.variant == "595"


def test_a_program_that_the_kernel_left_out_is_counted(facts, probes) -> None:
    """As while somebody is preempted in bpf(2), which is where this one is put."""
    probe = probes["kprobe"]
    probe.hook = "kprobe"
    before = probe.counts().get("skipped")
    program = probe._loaded.programs("kprobe")["on_open"]
    link = perf.attach_kprobe(program, "htab_map_delete_elem", is_return=False)
    try:
        with contextlib.suppress(FileNotFoundError):
            syscall.delete(dict(probe.map_fds())["maker_by_tgid"], ctypes.c_uint32(1 << 31))
    finally:
        os.close(link)
    says = facts.series not in ("5.10", "6.1")
    assert (before is None) == (facts.series == "5.10")
    assert (probe.counts().get("skipped") or 0) - (before or 0) == int(says)


@pytest.mark.parametrize("parameters", [{"reversed": 1}, {"id_info": 0}])
def test_an_instance_of_the_driver_is_the_right_gpu(watch, parameters) -> None:
    """Asked of the driver, which may count its GPUs in another order; or assumed, where it does not answer."""
    driver, seen = watch(**parameters)
    node = Path("/dev/nvidiactl")
    if "reversed" in parameters:
        assert devices.ask_instances(node) == {3: 0, 2: 1, 1: 2, 0: 3}
    else:
        with pytest.raises(OSError, match=hex(rm.NOT_SUPPORTED)):
            devices.ask_instances(node)
    found = devices.find_instances({card.uuid: card.minor for card in devices.read_cards() if card.uuid})
    assert found.is_assumed == ("id_info" in parameters)
    assert driver.books().clients == {}, "our client is gone again"
    for probe in seen.probes.values():
        probe.set_instances(found.slot_of)
    one = Rm(driver.abi)
    client = one.client()
    for instance in range(driver.gpus):
        one.memory(client, one.device(client, instance), (instance + 1) * MIB)
    seen.agree(driver)
    assert len(seen.seen("lsm")) == driver.gpus
    one.close()
