# SPDX-License-Identifier: Apache-2.0
"""The VRAM limit against the emulated driver: what is refused, what never is, and what the sums then are."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.driver import devices, hooks, probe
from fairsched.driver.vram_gate import CgroupLimit, VramGate
from tests.vm import rm
from tests.vm.reach import reach
from tests.vm.rm import Rm

MIB = 1 << 20
PAGE = 4096
ROUTES = ("alloc", "heap", "escape")
STEPS = reach(800, 300)
WORKERS = 6
CALLS = 400
"""Of each worker."""


@pytest.fixture
def gate(request: pytest.FixtureRequest, facts, load_driver, record) -> Iterator[VramGate]:
    """The limit next to the hook of the parameter, kprobe where there is none; the driver is loaded."""
    if "bpf" not in facts.lsm:
        record("VRAM limit in the kernel", "missing", "bpf is not among the security modules")
        pytest.skip("bpf is not among the security modules")
    load_driver()
    one = probe.start(hooks.read_facts(), hooks=[getattr(request, "param", "kprobe")])
    one.set_majors(devices.read_majors())
    one.set_instances({gpu: gpu for gpu in range(4)})
    limit = one.vram_gate()
    yield limit
    limit.close()
    one.close()


next_to_either_hook = pytest.mark.parametrize("gate", ["kprobe", "lsm"], indirect=True)


def books() -> rm.Books:
    return rm.parse_books(rm.Driver.BOOKS.read_text())


def is_refused(call: Callable[[], Any]) -> bool:
    """Whether the limit refused it, which the driver itself never does by errno."""
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOMEM
        return True
    return False


def limit_of(name: str, size: int, *groups: Path, above: str | None = None) -> CgroupLimit:
    return CgroupLimit(name, size, tuple(path.stat().st_ino for path in groups), above)


def opened(actor: Any, gpu: int = 0) -> tuple[int, int]:
    client = actor.do("client")
    return client, actor.do("device", client, gpu)


@next_to_either_hook
def test_what_fits_is_allocated_and_what_does_not_is_refused(gate, cgroups, start_actor) -> None:
    """By every route, and every form of the calls."""
    here, elsewhere = cgroups.make("a"), cgroups.make("b")
    gate.set_limits([limit_of("a", 10 * MIB, here)])
    for form in ({}, {"xfer": True}, {"form": "nvos21"}):
        actor, other = start_actor(here, **form), start_actor(elsewhere, **form)
        refused = sum(one.count for one in gate.refused().values())
        _by_every_route(actor, other, here)
        [(key, one)] = gate.refused().items()
        assert key == ("a", 0)
        assert (one.count - refused, one.held_bytes, one.pid) == (6, 10 * MIB, actor.pid)
        actor.do("close")


def _by_every_route(actor: Any, other: Any, here: Path) -> None:
    client, device = opened(actor)
    stranger, his = opened(other)
    for route in ROUTES:
        first = actor.do("memory", client, device, 6 * MIB, route=route)
        assert is_refused(lambda r=route: actor.do("memory", client, device, 4 * MIB + PAGE, route=r))
        second = actor.do("memory", client, device, 4 * MIB, route=route)
        assert is_refused(lambda r=route: actor.do("memory", client, device, 1, route=r))
        assert books().vram(cgroup=here.stat().st_ino, gpu=0) == 10 * MIB
        # neither host memory, nor another GPU, nor another tenant
        actor.do("free", client, actor.do("sysmem", client, device, 99 * MIB))
        spare = actor.do("device", client, 1)
        actor.do("memory", client, spare, 10 * MIB, route=route)
        actor.do("free", client, spare)
        other.do("memory", stranger, his, 64 * MIB, route=route)
        actor.do("free", client, first)
        actor.do("heap_free", client, device, second)
    assert actor.do("memory", client, device, 10 * MIB)


def test_what_the_driver_refuses_is_not_refused_here(gate, cgroups, start_actor) -> None:
    """More than a GPU can have: its own answer is the better one."""
    here = cgroups.make("a")
    gate.set_limits([limit_of("a", 1 << 40, here)])
    actor = start_actor(here)
    client, device = opened(actor)
    for size in (1 << 39, 1 << 63, (1 << 64) - 1):
        with pytest.raises(rm.RmError):
            actor.do("memory", client, device, size)
    assert gate.refused() == {}


def test_children_are_counted_and_parents_limited(gate, cgroups, start_actor) -> None:
    """Cgroups made after the limit too; a client that its process has left behind counts where it was made."""
    team = cgroups.make("team")
    chat = cgroups.make("team/chat")
    gate.set_limits([limit_of("team", 16 * MIB, team), limit_of("team/chat", 8 * MIB, chat, above="team")])
    deep = cgroups.make("team/chat/x/y")
    rest = cgroups.make("team/train")
    one, two, three = start_actor(deep), start_actor(chat), start_actor(rest)
    clients = {actor: opened(actor) for actor in (one, two, three)}
    one.do("memory", *clients[one], 5 * MIB)
    assert is_refused(lambda: two.do("memory", *clients[two], 4 * MIB))
    two.do("memory", *clients[two], 3 * MIB)
    assert is_refused(lambda: three.do("memory", *clients[three], 9 * MIB))
    mine = three.do("memory", *clients[three], 8 * MIB)
    assert is_refused(lambda: two.do("memory", *clients[two], PAGE))
    assert {key: one.count for key, one in gate.refused().items()} == {("team/chat", 0): 2, ("team", 0): 1}
    # chat is full, whatever team has
    three.do("free", clients[three][0], mine)
    assert is_refused(lambda: two.do("memory", *clients[two], PAGE))
    one.kill()
    two.do("memory", *clients[two], 5 * MIB)


def test_cgroups_of_one_tenant_count_together(gate, cgroups, start_actor) -> None:
    groups = [cgroups.make(f"pod{n}") for n in range(5)]
    gate.set_limits([limit_of("pods", 10 * MIB, *groups)])
    actors = [start_actor(group) for group in groups]
    clients = [opened(actor) for actor in actors]
    for actor, client in zip(actors, clients, strict=True):
        actor.do("memory", *client, 2 * MIB)
    for actor, client in zip(actors, clients, strict=True):
        assert is_refused(lambda a=actor, c=client: a.do("memory", *c, PAGE))
    actors[0].do("close")
    actors[4].do("memory", *clients[4], 2 * MIB)
    assert is_refused(lambda: actors[4].do("memory", *clients[4], PAGE))


def test_limits_change_and_go(gate, cgroups, start_actor) -> None:
    """A lower limit takes nothing away; without one nothing is refused, nor after the daemon's end."""
    here = cgroups.make("a")
    actor = start_actor(here)
    client, device = opened(actor)
    actor.do("memory", client, device, 8 * MIB)
    gate.set_limits([limit_of("a", 4 * MIB, here)])
    assert is_refused(lambda: actor.do("memory", client, device, PAGE))
    gate.set_limits([limit_of("a", 12 * MIB, here)])
    actor.do("memory", client, device, 4 * MIB)
    assert is_refused(lambda: actor.do("memory", client, device, PAGE))
    gate.set_limits([])
    actor.do("memory", client, device, 4 * MIB)
    gate.set_limits([limit_of("a", 4 * MIB, here)])
    assert is_refused(lambda: actor.do("memory", client, device, PAGE))


def test_the_limit_ends_with_the_process_that_holds_it(facts, load_driver, cgroups, start_actor) -> None:
    if "bpf" not in facts.lsm:
        pytest.skip("bpf is not among the security modules")
    load_driver()
    here = cgroups.make("a")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        one = probe.start(hooks.read_facts())
        one.set_majors(devices.read_majors())
        one.set_instances({0: 0})
        one.vram_gate().set_limits([limit_of("a", MIB, here)])
        os.write(write, b"x")
        signal.pause()
    assert os.read(read, 1) == b"x"
    actor = start_actor(here)
    client, device = opened(actor)
    assert is_refused(lambda: actor.do("memory", client, device, 2 * MIB))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    actor.do("memory", client, device, 2 * MIB)


@next_to_either_hook
def test_every_refusal_of_a_random_walk_is_justified(gate, cgroups, start_actor) -> None:
    """One call at a time: the driver's books before each say what must come of it."""
    draw = random.Random(5)
    top = cgroups.make("t")
    groups = [top, cgroups.make("t/a"), cgroups.make("t/a/b"), cgroups.make("t/c")]
    limit = 64 * MIB
    gate.set_limits([limit_of("t", limit, top)])
    tops = {group.stat().st_ino for group in groups}
    actors = [start_actor(group, xfer=bool(n % 2)) for n, group in enumerate(groups)]
    owned: list[dict[int, int]] = [{} for _ in actors]
    clients = [opened(actor) for actor in actors]
    refused = 0
    for step in range(STEPS):
        who = draw.randrange(len(actors))
        actor, (client, device), own = actors[who], clients[who], owned[who]
        held = sum(books().vram(cgroup=one, gpu=0) for one in tops)
        assert held <= limit + len(actors) * PAGE
        kind = draw.random()
        if kind < 0.02:
            actor.do("close")
            owned[who], clients[who] = {}, opened(actor)
        elif kind < 0.30 and own:
            handle = draw.choice(list(own))
            actor.do("free", client, handle)
            del own[handle]
        else:
            size = draw.randrange(1, 6 * MIB)
            try:
                own[actor.do("memory", client, device, size, route=draw.choice(ROUTES))] = size
            except OSError as error:
                assert error.errno == errno.ENOMEM
                assert held + size > limit, f"step {step}: {size} with {held} of {limit}"
                refused += 1
            else:
                assert held + size <= limit, f"step {step}: {size} let through with {held} of {limit}"
    assert refused > STEPS / 10
    assert sum(one.count for one in gate.refused().values()) == refused


@next_to_either_hook
def test_refusals_of_calls_that_overlap_are_justified(gate, cgroups, record, request) -> None:
    """Six processes at once. An allocation counts from its entry to the end of its free: the most it can have been
    charged for. A refusal must be justified by that; and nobody's sum passes the limit by more than what was in flight.
    """
    top = cgroups.make("t")
    limit, largest = 48 * MIB, 3 * MIB
    gate.set_limits([limit_of("t", limit, top)])
    lines = []
    pipes = [os.pipe() for _ in range(WORKERS)]
    children = []
    for number, (_, write) in enumerate(pipes):
        group = cgroups.make(f"t/{number}")
        pid = os.fork()
        if pid == 0:
            _work(number, group, write, largest)
        children.append(pid)
        os.close(write)
    highest = 0
    for read, _ in pipes:
        with os.fdopen(read) as stream:
            text = ""
            while chunk := stream.read(65536):
                text += chunk
                now = books()
                highest = max(highest, sum(use.vram for use in now.uses if use.gpu == 0))
        lines += [json.loads(line) for line in text.splitlines()]
    for pid in children:
        os.waitpid(pid, 0)
    assert highest <= limit + WORKERS * largest
    changes = []
    for kind, size, begin_ns, _, until_ns in lines:
        if kind == "had":
            changes += [(begin_ns, size), (until_ns, -size)]
    refusals = [(begin, end, size) for kind, size, begin, end, _ in lines if kind == "refused"]
    assert len(refusals) > WORKERS * CALLS / 20
    changes.sort()
    for begin_ns, end_ns, size in refusals:
        most = held = 0
        for t_ns, bytes_ in changes:
            if t_ns > end_ns:
                break
            if t_ns > begin_ns:
                most = max(most, held)
            held += bytes_
            if t_ns > begin_ns:
                most = max(most, held)
        assert max(most, held) + size > limit
    record(
        "VRAM limit in the kernel",
        "works",
        f"next to both hooks; {len(refusals)} refusals of {WORKERS * CALLS} overlapping calls, none unjustified",
    )


def _work(number: int, group: Path, write: int, largest: int) -> None:
    """A worker: random allocations and frees as fast as it can; then what it did, with times, and its end."""
    try:
        (group / "cgroup.procs").write_text("0")
        draw, own, said = random.Random(number), {}, []
        driver = Rm()
        client = driver.client()
        device = driver.device(client, 0)
        for _ in range(CALLS):
            if own and draw.random() < 0.45:
                handle = draw.choice(list(own))
                size, begin_ns, end_ns = own.pop(handle)
                driver.free(client, handle)
                said.append(("had", size, begin_ns, end_ns, time.monotonic_ns()))
                continue
            size = draw.randrange(1, largest)
            begin_ns = time.monotonic_ns()
            try:
                handle = driver.memory(client, device, size, route=draw.choice(ROUTES[:2]))
            except OSError:
                said.append(("refused", size, begin_ns, time.monotonic_ns(), 0))
            else:
                whole = (size + PAGE - 1) // PAGE * PAGE
                own[handle] = (whole, begin_ns, time.monotonic_ns())
        driver.close()
        end_ns = time.monotonic_ns()
        said += [("had", size, begin_ns, done_ns, end_ns) for size, begin_ns, done_ns in own.values()]
        with os.fdopen(write, "w") as stream:
            stream.writelines(json.dumps(one) + "\n" for one in said)
        os._exit(0)
    finally:
        os._exit(1)


def test_what_cannot_be_read_or_is_not_known_is_let_through(gate, cgroups, start_actor) -> None:
    """Bad pointers and unknown parents get the driver's own answer."""
    here = cgroups.make("a")
    gate.set_limits([limit_of("a", MIB, here)])
    actor = start_actor(here)
    client, _ = opened(actor)
    for parent in (0, client, 0xDEAD):
        with pytest.raises(rm.RmError):
            actor.do("memory", client, parent, 2 * MIB)
    for nr, size in (
        (rm.ALLOC, 48),
        (rm.ALLOC, 32),
        (rm.VID_HEAP, 184),
        (rm.ALLOC_MEMORY, 56),
        (rm.XFER, 16),
    ):
        for address in (0, 8, 1 << 46, ctypes.c_uint64(-PAGE).value):
            code = actor.do("ioctl_raw", None, rm.command(nr, size), address)
            assert code not in (0, errno.ENOMEM)
    assert gate.refused() == {}
