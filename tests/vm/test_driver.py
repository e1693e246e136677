# SPDX-License-Identifier: Apache-2.0
"""The test driver itself: its books against a model, its rules, and that nothing a program passes it breaks it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
from pathlib import Path

import pytest

from tests.vm import rm
from tests.vm.reach import garbage_calls, reach
from tests.vm.rm import Rm, RmError
from tests.vm.walk import Walk, differences

STEPS = reach(10_000, 1500)
GARBAGE = garbage_calls(20_000, 4000)
LOOK_EVERY = 100
MIB = 1 << 20
FORMS = [("595", 595, "nvos64"), ("595", 595, "nvos21"), ("535", 535, "nvos64"), ("535", 525, "nvos64")]


def refused(status: int):
    """``with refused(rm.NO_MEMORY): ...``"""
    return pytest.raises(RmError, match=f"^status {status:#x}$")


def context(one, client: int, gpu: int = 0) -> tuple[int, int, int]:
    """A device, a channel group on it and a compute object in that: (device, group, compute)."""
    device = one.do("device", client, gpu)
    group = one.do("tsg", client, device)
    return device, group, one.do("compute", client, one.do("channel", client, group))


@pytest.mark.parametrize("seed", [1, 2])
def test_books_equal_the_model_over_a_random_walk(load_driver, start_actor, cgroups, seed, record) -> None:
    driver = load_driver("595" if seed == 1 else "535", vram_mib=1024)
    actor = start_actor(cgroups.make("walker"), pidns=True, abi=driver.abi)
    doers = [Rm(driver.abi), Rm(driver.abi, form="nvos21"), Rm(driver.abi, xfer=True)]

    class Reopening:
        def __init__(self, one: Rm) -> None:
            self.one = one

        def do(self, name, *args, **named):
            if name == "open":
                self.one = Rm(self.one.abi, self.one.xfer, self.one.form)
                return None
            return self.one.do(name, *args, **named)

    walkers = [*map(Reopening, doers), actor]
    walk = Walk(seed, walkers, driver.gpus, 1024 * MIB)
    most = 0
    for step in range(1, STEPS + 1):
        line = walk.step()
        if step % LOOK_EVERY == 0:
            books = driver.books()
            assert differences(walk.model, books) == [], line
            most = max(most, len(books.uses))
    calls = driver.books().calls
    assert most >= 8 and all(calls[nr].ok and calls[nr].refused for nr in (0x27, 0x29, 0x2B, 0x34, 0x4A)), (
        calls
    )
    for one in walkers:
        one.do("close")
    assert driver.books().clients == {} and set(driver.books().held.values()) == {0}
    record(f"test driver {driver.variant}: books against model", "works", f"{STEPS:,} calls")


@pytest.mark.parametrize(("variant", "abi", "form"), FORMS)
def test_every_form_of_alloc_makes_the_same_objects(load_driver, variant, abi, form) -> None:
    driver = load_driver(variant, abi=abi)
    for xfer in (False, True):
        one = Rm(driver.abi, xfer=xfer, form=form)
        client = one.client()
        device, _, _ = context(one, client, 1)
        one.memory(client, device, 3 * MIB + 1)
        one.memory(client, device, MIB, route="heap")
        one.memory(client, device, MIB - 1, route="escape")
        one.sysmem(client, device, MIB)
        one.sysmem(client, device, MIB, route="heap")
        (use,) = driver.books().uses
        assert use == (client, os.getpid(), use.cgroup, 1, 1, 3 * MIB + 4096 + MIB + MIB - 1)
        one.close()
    assert driver.books().uses == []


def test_functions_carry_the_names_of_their_version(load_driver) -> None:
    def names() -> set[str]:
        lines = Path("/proc/kallsyms").read_text().splitlines()
        return {line.split()[2] for line in lines if line.endswith("[nvidia]")}

    load_driver("595")
    here = names()
    new = {"nvidia_unlocked_ioctl", "nvidia_open", "nvidia_close", "os_find_ns_pid", "uvm_open_entry"}
    old = {"nvidia_frontend_unlocked_ioctl", "nvidia_frontend_open", "nvidia_frontend_close"}
    assert new <= here and not old & here
    assert "195 nvidiactl" in Path("/proc/devices").read_text()
    load_driver("535")
    here = names()
    assert old <= here and "nvidia_unlocked_ioctl" not in here
    assert "195 nvidia-frontend" in Path("/proc/devices").read_text()


def test_contexts_and_memory_end_with_what_they_hang_below(driver) -> None:
    one = Rm()
    client = one.client()
    device, group, compute = context(one, client)
    second = one.compute(client, one.channel(client, group))
    assert driver.books().contexts() == 1
    one.free(client, compute)
    assert driver.books().contexts() == 1
    one.free(client, second)
    assert driver.books().contexts() == 0
    one.compute(client, one.channel(client, device))
    one.memory(client, device, MIB)
    assert (driver.books().contexts(), driver.books().vram()) == (1, MIB)
    one.free(client, device)
    assert (driver.books().uses, driver.books().held[0]) == ([], 0)
    one.close()


def test_a_killed_process_leaves_nothing_and_frees_nothing(driver, start_actor) -> None:
    actor = start_actor()
    client = actor.do("client")
    device, _, _ = context(actor, client, 2)
    actor.do("memory", client, device, 5 * MIB)
    child = actor.fork()
    assert driver.books().vram(pid=actor.pid, gpu=2) == 5 * MIB
    actor.kill()
    assert driver.books().vram(pid=actor.pid) == 5 * MIB, "the child holds the file"
    child.kill()
    assert driver.books().clients == {}
    assert 0x29 not in driver.books().calls


def test_a_client_is_used_through_its_own_file_alone(driver, cgroups, start_actor) -> None:
    one, other = Rm(), Rm()
    client = one.client()
    with refused(rm.INVALID_CLIENT):
        other.device(client, 0)
    with refused(rm.INVALID_CLIENT):
        other.free(client, client)
    with refused(rm.DUPLICATE_NAME):
        other.client(client)
    cgroup = cgroups.make("deep/er")
    actor = start_actor(cgroup, pidns=True)
    theirs = actor.do("client")
    assert driver.books().clients[theirs] == (actor.pid, cgroups.id_of(cgroup))
    assert actor.nspid == 1 != actor.pid
    one.close()
    other.close()


def test_duplicates_are_charged_to_nobody_and_keep_the_memory(driver) -> None:
    one, other = Rm(), Rm()
    first, second = one.client(), other.client()
    source_device, device = one.device(first, 0), other.device(second, 0)
    memory = one.memory(first, source_device, 2 * MIB)
    other.dup(second, device, first, memory)
    assert (driver.books().vram(client=second), driver.books().held[0]) == (0, 2 * MIB)
    one.free(first, memory)
    assert (driver.books().vram(), driver.books().held[0]) == (0, 2 * MIB)
    other.close()
    assert driver.books().held[0] == 0
    one.close()


def test_a_full_gpu_refuses_and_loses_nothing(load_driver) -> None:
    driver = load_driver(vram_mib=64, gpus=2)
    one = Rm()
    client = one.client()
    devices = [one.device(client, gpu) for gpu in (0, 1)]
    one.memory(client, devices[0], 60 * MIB)
    for route in ("alloc", "heap", "escape"):
        with refused(rm.NO_MEMORY):
            one.memory(client, devices[0], 5 * MIB, route=route)
    one.memory(client, devices[1], 64 * MIB)
    with refused(rm.INVALID_DEVICE):
        one.device(client, 2)
    assert [driver.books().vram(gpu=gpu) for gpu in (0, 1)] == [60 * MIB, 64 * MIB]
    one.close()


def test_calls_on_the_wrong_file_are_errors(driver) -> None:
    one = Rm()
    client = one.client()
    fd = one._gpu_fd(0)
    for nr, call in ((rm.FREE, rm.Nvos00(client, 0, client)), (rm.ALLOC, rm.Nvos64(client, client, 0, 0x80))):
        with pytest.raises(OSError) as error:
            one.ioctl(nr, call, fd)
        assert error.value.errno == errno.EINVAL
    with pytest.raises(OSError):
        one.ioctl(rm.ALLOC_MEMORY, rm.Nvos02(client, 0, 0, 0x40))
    assert one.alloc(client, client, 0x79)
    with pytest.raises(OSError):
        os.open("/dev/nvidia9", os.O_RDWR)
    one.close()


def test_the_driver_names_itself_and_its_gpus(load_driver) -> None:
    driver = load_driver(gpus=2, version="595.45.04")
    one = Rm()
    cards = (ctypes.c_uint8 * (72 * 32))()
    one.ioctl(rm.CARD_INFO, cards)
    raw = bytes(cards)
    assert [raw[72 * i] for i in range(3)] == [1, 1, 0]
    assert int.from_bytes(raw[72 + 56 : 72 + 60], "little") == 1
    assert "595.45.04" in Path("/proc/driver/nvidia/version").read_text()
    text = Path("/proc/driver/nvidia/gpus/0000:02:00.0/information").read_text()
    assert "Device Minor: \t 1\n" in text and "GPU UUID: \t GPU-" in text
    fd = os.open("/dev/nvidia-uvm", os.O_RDWR)
    assert one.ioctl_raw(fd, 0x30000001, 0) == 0
    os.close(fd)
    one.close()
    assert driver.gpus == 2


def garbage(seed: int, count: int) -> None:
    """Random numbers, sizes and pointers, on every node; what exists meanwhile must not be hurt."""
    draw = random.Random(seed)
    fds = [os.open(f"/dev/{name}", os.O_RDWR) for name in ("nvidiactl", "nvidia0", "nvidia-uvm")]
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    page_at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    known = (0x27, 0x29, 0x2A, 0x2B, 0x34, 0x4A, 200, 201, 210, 211, 214)
    words = [one.to_bytes(4, "little") for one in (0, 1, 0xFFFFFFFF, 0x2080018D, 0x40)]
    words += [page_at.to_bytes(8, "little")[:4], page_at.to_bytes(8, "little")[4:]]
    sizes = (0, 4, 8, 16, 28, 32, 40, 48, 56, 72, 184, 16383)
    for _ in range(count):
        nr = draw.choice(known) if draw.random() < 0.8 else draw.randrange(256)
        size = draw.choice(sizes) if draw.random() < 0.9 else draw.randrange(1 << 14)
        page[:256] = b"".join(draw.choices(words, k=64))
        end = page_at + 2 * mmap.PAGESIZE - draw.randrange(1, 64)
        address = draw.choice((page_at, page_at, page_at, 0, 1, end, 1 << 63, 0xFFFFFFFFFFFFF000))
        rm.libc.ioctl(draw.choice(fds), ctypes.c_ulong(rm.command(nr, size)), ctypes.c_void_p(address))
    for fd in fds:
        os.close(fd)


@pytest.mark.timeout(600 + GARBAGE / 100)
def test_garbage_hurts_nothing(driver) -> None:
    one = Rm()
    client = one.client()
    device, _, _ = context(one, client)
    one.memory(client, device, MIB)
    before = driver.books()
    garbage(7, GARBAGE)
    after = driver.books()
    assert (after.uses, after.held) == (before.uses, before.held)
    assert sum(calls.errno for calls in after.calls.values()) > GARBAGE // 20
    one.close()
