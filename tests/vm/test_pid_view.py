# SPDX-License-Identifier: Apache-2.0
"""pid_view on the functions of a module in this kernel, through real system calls from real PID namespaces.

Each byte of an answer is looked at in test_pid_view_calls.py; here the whole of it has to be right, as a program in a
container sees it.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairsched.driver.pid_view import PidView, PidViewKeeper, gather
from fairsched.driver.pid_view_choice import choose
from tests.support import wait_until
from tests.vm.rm import ABI_535, ABI_550, ABI_595, NO_PID, Abi, Driver

MIB = 1 << 20
GPU = 0
VIEW_CAPABILITIES = frozenset({"CAP_SYS_ADMIN"})
BY_DRIVER = {"none": 0, "list": 1, "info": 2, "all": 3}
"""Of list, info and samples, how many the driver translates."""


@dataclass
class User:
    """A process with a context and memory on the GPU."""

    actor: object
    client: int
    subdevice: int
    vram_bytes: int

    def ask(self, name: str, *args: object) -> object:
        return self.actor.do(name, self.client, self.subdevice, *args)

    def pids(self) -> list[int]:
        return self.ask("get_pids")

    def memory(self, pids: list[int]) -> dict[int, int]:
        return self.ask("get_pid_info", pids)

    def samples(self) -> set[int]:
        return {pid for sample in self.ask("util_samples") for pid in sample} - {NO_PID}


def use_gpu(actor: object, vram_bytes: int) -> User:
    actor.do("open")
    client = actor.do("client")
    device = actor.do("device", client, GPU)
    subdevice = actor.do("subdevice", client, device)
    actor.do("memory", client, device, vram_bytes)
    group = actor.do("tsg", client, device)
    actor.do("compute", client, actor.do("channel", client, group))
    return User(actor, client, subdevice, vram_bytes)


@dataclass
class Scene:
    own: list[User]
    foreign: list[User]

    @property
    def mine(self) -> dict[int, int]:
        """What a process of the namespace should see: memory by its own pids."""
        return {user.actor.nspid: user.vram_bytes for user in self.own}

    @property
    def everybody(self) -> dict[int, int]:
        return {user.actor.pid: user.vram_bytes for user in [*self.own, *self.foreign]}


@pytest.fixture
def make_scene(start_actor: Callable[..., object]) -> Callable[..., Scene]:
    """Three processes in a namespace, five elsewhere: two in the initial one, three in another."""

    def make(driver_abi: Abi = ABI_595, **rm: object) -> Scene:
        first, other = (start_actor(pidns=True, abi=driver_abi, **rm) for _ in range(2))
        host = [start_actor(abi=driver_abi, **rm) for _ in range(2)]
        return set_up(first, other, host)

    return make


def set_up(first: object, other: object, host: list[object]) -> Scene:
    """Two more in the namespace of each of the two; the order is such that nobody's come together."""
    own = [first, first.fork(), first.fork()]
    foreign = [other, other.fork(), other.fork(), *host]
    order = [foreign[0], own[0], foreign[3], own[1], foreign[1], own[2], foreign[4], foreign[2]]
    users = {actor.pid: use_gpu(actor, (i + 1) * MIB) for i, actor in enumerate(order)}
    return Scene([users[one.pid] for one in own], [users[one.pid] for one in foreign])


@pytest.fixture
def start_view() -> Iterator[Callable[[], PidView]]:
    views: list[PidView] = []

    def start() -> PidView:
        facts = gather(VIEW_CAPABILITIES, "none", try_bpf=True)
        assert choose(facts, "auto").is_on, choose(facts, "auto")
        views.append(PidView(facts))
        return views[-1]

    yield start
    for view in views:
        view.close()


def counts(view: PidView) -> dict[str, int]:
    return dict(view.status()["counts"])


def assert_nothing_went_wrong(view: PidView) -> None:
    fine = {"lists", "infos", "samples", "hidden"}
    assert {name: n for name, n in counts(view).items() if n and name not in fine} == {}


@pytest.mark.parametrize(
    ("variant", "driver_abi", "xfer"),
    [("595", ABI_595, False), ("595", ABI_595, True), ("595", ABI_550, False), ("535", ABI_535, False)],
)
def test_a_namespace_sees_its_own_three_and_none_of_the_five_others(
    load_driver, make_scene, start_view, record, variant: str, driver_abi: Abi, xfer: bool
) -> None:
    load_driver(variant, abi=driver_abi.driver, translate="none")
    view = start_view()
    scene = make_scene(driver_abi, xfer=xfer)
    for user in scene.own:
        assert sorted(user.pids()) == sorted(scene.mine)
        assert user.memory(list(scene.mine)) == scene.mine
        assert user.samples() == set(scene.mine)
    for user in scene.foreign[3:]:  # the host's
        assert sorted(user.pids()) == sorted(scene.everybody)
        assert user.memory(list(scene.everybody)) == scene.everybody
        assert user.samples() == set(scene.everybody)
    stranger = scene.foreign[0].actor.pid
    assert scene.own[0].memory([stranger, 1]) == {stranger: 0, 1: scene.mine[1]}
    assert view.status()["by"] == {"list": "us", "info": "us", "samples": "us"}
    assert_nothing_went_wrong(view)
    if driver_abi is ABI_595 and not xfer:
        record("pid view", "works", "three own, five foreign processes, nested namespaces")


def test_a_container_of_a_real_runtime_sees_its_own_three(
    load_driver, cgroups, start_actor, start_view, run_container, record
) -> None:
    load_driver(translate="none")
    view = start_view()
    box, other = (run_container(name, f"/{cgroups.top.name}/{name}").actor for name in ("box", "other"))
    assert box.nspid == other.nspid == 1
    scene = set_up(box, other, [start_actor() for _ in range(2)])
    for user in scene.own:
        assert sorted(user.pids()) == sorted(scene.mine)
        assert user.memory(list(scene.mine)) == scene.mine
        assert user.samples() == set(scene.mine)
    assert sorted(scene.foreign[0].pids()) == sorted(user.actor.nspid for user in scene.foreign[:3])
    assert sorted(scene.foreign[3].pids()) == sorted(scene.everybody)
    assert_nothing_went_wrong(view)
    record("pid view in a container", "works", "runc: three own, five foreign processes")


@pytest.mark.parametrize("translates", ["list", "info", "all"])
def test_a_driver_that_translates_is_left_alone_in_what_it_translates(
    load_driver, make_scene, start_view, translates: str
) -> None:
    load_driver(translate=translates)
    view = start_view()
    scene = make_scene()
    asker = scene.own[0]
    by_driver = BY_DRIVER[translates]
    for attempt in range(3):
        assert sorted(asker.pids()) == sorted(scene.mine)
        answer = asker.memory(list(scene.mine))
        assert set(answer) == set(scene.mine)
        if attempt or by_driver >= 2:  # the first question shows that the next is ours
            assert answer == scene.mine
        assert asker.samples() >= set(scene.mine)
    by = view.status()["by"]
    assert list(by.values()) == ["driver"] * by_driver + ["us"] * (3 - by_driver)
    assert_nothing_went_wrong(view)


def test_processes_older_than_the_programs_are_known(load_driver, make_scene, start_view) -> None:
    load_driver(translate="none")
    scene = make_scene()
    view = start_view()
    assert sorted(scene.own[1].pids()) == sorted(scene.mine)
    assert view.missed == 0


def test_a_namespace_above_sees_those_below_by_its_own_numbers(
    load_driver, make_scene, start_view, start_actor
) -> None:
    """The host's is above all; here the middle one of three."""
    load_driver(translate="none")
    view = start_view()
    scene = make_scene()
    below = start_nested(scene.own[0].actor)
    inner = use_gpu(below, 77 * MIB)
    numbers = ns_numbers(below.pid)
    assert len(numbers) == 3
    assert sorted(scene.own[0].pids()) == sorted([*scene.mine, numbers[1]])
    assert scene.own[0].memory([numbers[1]]) == {numbers[1]: 77 * MIB}
    assert inner.pids() == [numbers[2]] == [1]
    assert inner.memory([1, 2]) == {1: 77 * MIB, 2: 0}
    assert_nothing_went_wrong(view)


def ns_numbers(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(one for one in status.splitlines() if one.startswith("NSpid:"))
    return [int(number) for number in line.split()[1:]]


def start_nested(parent: object) -> object:
    """A process in a new PID namespace below that of ``parent``."""
    parent.unshare_children()
    return parent.fork()


def test_the_end_of_a_process_ends_its_line(load_driver, make_scene, start_view) -> None:
    load_driver(translate="none")
    start_view()
    scene = make_scene()
    gone = scene.own.pop()
    gone.actor.kill()
    wait_until(lambda: sorted(scene.own[0].pids()) == sorted(scene.mine), 30, "it is not listed any more")


@pytest.fixture
def keeper(load_driver) -> Iterator[PidViewKeeper]:
    keeper = PidViewKeeper("auto", VIEW_CAPABILITIES, "none", look_s=0.1)
    yield keeper
    keeper.close()
    assert not keeper.status()["is_on"]


def wait_until_on(keeper: PidViewKeeper) -> None:
    wait_until(lambda: "no NVIDIA driver" not in keeper.status()["reason"], 30, "it found the driver")
    wait_until(lambda: keeper.status()["is_on"], 500, f"it took it on: {keeper.status()}")


def test_the_keeper_waits_for_a_driver_and_finds_another(make_scene, keeper) -> None:
    for _ in range(2):
        wait_until(lambda: "no NVIDIA driver" in keeper.status()["reason"], 30, "it waits")
        driver = Driver(translate="none")
        try:
            wait_until_on(keeper)
            scene = make_scene()
            assert sorted(scene.own[0].pids()) == sorted(scene.mine)
            for user in [*scene.own, *scene.foreign]:
                user.actor.kill()
        finally:
            driver.unload()


def test_the_keeper_lets_go_of_a_driver_that_translates_everything(load_driver, make_scene, keeper) -> None:
    load_driver(translate="all")
    wait_until_on(keeper)
    asker = make_scene().own[0]
    asker.pids()
    asker.memory([1])
    asker.samples()
    wait_until(lambda: "by itself" in keeper.status()["reason"], 30, "it let go")


def test_what_it_costs_those_who_are_not_concerned(load_driver, start_view) -> None:
    """Only against gross mistakes: a ratio under emulation, beside other work, is no figure to write down."""
    load_driver(translate="none")
    without = least_ns_per_ioctl()
    start_view()
    assert least_ns_per_ioctl() < 20 * without


def least_ns_per_ioctl(calls: int = 2000, tries: int = 5) -> float:
    """Of the shortest call there is, an unknown number, from the initial namespace."""
    best = float("inf")
    with open("/dev/nvidiactl", "rb+", buffering=0) as device:
        for _ in range(tries):
            start = time.perf_counter_ns()
            for _ in range(calls):
                with contextlib.suppress(OSError):
                    fcntl.ioctl(device, 0xC004_46FF, bytes(4))
            best = min(best, (time.perf_counter_ns() - start) / calls)
    return best
