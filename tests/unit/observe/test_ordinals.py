# SPDX-License-Identifier: Apache-2.0
"""What BPF is told of the ordinals of processes, where GPUs are whole, split, and split anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.base.process import ProcessId
from fairsched.bpf import abi
from fairsched.gpu.nvml import Gpu, Mig
from fairsched.observe import ordinals as module
from fairsched.observe.gpus import name_gpus, take_in
from fairsched.observe.ordinals import Ordinals

PID = os.getpid()
UNSEEN = abi.ORDINAL_UNSEEN
WHOLE = (Gpu("GPU-a", 0), Gpu("GPU-b", 1))


def part(number: int, *, is_gone: bool = False) -> Gpu:
    uuid = f"MIG-{number:08x}-0000-0000-0000-000000000000"
    return Gpu(uuid, 0, mig=Mig("GPU-a", number, 0), is_gone=is_gone)


class Probe:
    """Keeps what it is told, as the maps do: what is there is not overwritten."""

    def __init__(self) -> None:
        self.devices: dict[tuple[int, int], int] = {}
        self.uuids: dict[bytes, int] = {}
        self.is_all = True
        self.live: list[tuple[int, Any]] = []
        self.ended: list[tuple[int, int]] = []

    def set_device(self, pid: int, ordinal: int, slot: int) -> None:
        self.devices.setdefault((pid, ordinal), slot)

    def forget_devices(self, pids: set[int], ordinals: int) -> None:
        known = (*range(ordinals), UNSEEN)
        self.devices = {
            key: slot for key, slot in self.devices.items() if key[0] not in pids or key[1] not in known
        }

    def forget_processes(self, pids: set[int], ordinals: int) -> None:
        self.forget_devices(pids, ordinals)

    def set_uuids(self, named: dict[bytes, int], *, is_all: bool) -> None:
        self.uuids, self.is_all = named, is_all

    def contexts(self) -> Iterator[tuple[int, Any]]:
        return iter(self.live)

    def end_drain(self, at: int, generation: int, _v_end_ns: int) -> None:
        self.ended.append((at, generation))


class Account:
    def __init__(self) -> None:
        self.single_gpu_processes: set[int] = set()
        self.guessed: set[int] = set()
        self.gpus = 1
        self.ended: list[tuple[int, int]] = []

    def guessed_processes(self) -> set[int]:
        return self.guessed

    def end(self, key: tuple[int, int], _now_ns: int) -> None:
        self.ended.append(key)


class Told:
    """The book of ordinals of one process that was started with an environment."""

    def __init__(self, gpus: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        monkeypatch.setattr(module, "read_environ", lambda _pid, _names: environ)
        self.probe, self.account = Probe(), Account()
        self.book = Ordinals(*cast(Any, (self.probe, self.account, gpus)))
        self.ordinals = {0: 0}
        self.book.resolve(PID)

    @property
    def slots(self) -> dict[int, int]:
        return {ordinal: slot for (_pid, ordinal), slot in self.probe.devices.items()}

    def driver_says(self, *slots: int) -> None:
        self.probe.live = [
            (at, SimpleNamespace(tgid=PID, ordinal=ordinal, gpu=self.slots.get(ordinal, guess), generation=1))
            for at, (ordinal, guess) in enumerate(self.ordinals.items())
        ]
        self.book.check(lambda pids: {pid: set(slots) for pid in pids}, 7)


def test_of_whole_gpus_the_environment_tells_and_the_driver_of_guesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(WHOLE, monkeypatch, "1,0")
    assert told.slots == {0: 1, 1: 0}
    told.driver_says(1)
    told.driver_says(1)
    assert told.slots == {0: 1, 1: 0} and not told.account.single_gpu_processes
    told.account.guessed = {PID}
    told.driver_says(1)
    assert told.slots == {0: 1, 1: 0, UNSEEN: 1} and told.account.single_gpu_processes == {PID}


@pytest.mark.parametrize("visible", [None, "0", "0,1"])
def test_who_works_on_another_gpu_than_it_says_is_found_there(
    visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a variable that was changed before cuInit, in good faith (it is common) or not."""
    told = Told(WHOLE, monkeypatch, visible)
    told.driver_says(1)
    assert told.slots[0] == 0, "one look may be older than the context"
    told.driver_says(0)
    told.driver_says(1)
    assert told.slots[0] == 0
    assert told.probe.ended == []
    told.driver_says(1)
    assert told.slots[0] == 1
    assert told.probe.ended == told.account.ended == [(0, 1)], (
        "what is open is of the wrong clock, and may never end"
    )
    for slots in ((0, 1), (0, 1), (), ()):
        told.driver_says(*slots)
    assert told.slots[0] == 1, "on several GPUs it may be any of them"


def test_an_instance_that_was_not_known_is_told_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told((part(1),), monkeypatch, part(2).uuid)
    assert told.slots == {0: abi.NO_GPU}, "a guess would be the account of another instance"
    told.book.take_in((part(1), part(2)))
    assert told.slots == {0: 1, UNSEEN: 1} and told.account.single_gpu_processes == {PID}
    first = Told(WHOLE, monkeypatch, part(2).uuid)
    first.book.take_in((*WHOLE, part(2)))
    assert first.slots == {0: 2, UNSEEN: 2}, "the first instance of the node"


def test_who_has_ended_when_the_gpus_change_is_forgotten_as_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pid is somebody else's one day: what it was told of its ordinals is not true of that one."""
    told = Told((part(1), part(2)), monkeypatch, None)
    monkeypatch.setattr(ProcessId, "is_alive", lambda _self: False)
    told.book.take_in((part(1), part(2), part(3)))
    told.book.forget_the_gone()
    assert told.slots == {} and not told.account.single_gpu_processes
    assert not told.book._told


def test_nobody_hides_behind_an_instance_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is what it was started with; the driver says where it is, on an instance or a whole GPU."""
    for slot in (0, 1):
        told = Told((part(1), Gpu("GPU-b", 1)), monkeypatch, "MIG-none")
        assert told.slots == {0: abi.NO_GPU}
        told.driver_says(slot)
        assert told.slots == {0: slot}


def test_an_instance_that_went_is_no_ordinals_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told((part(1), part(2)), monkeypatch, None)
    assert told.slots == {0: 0, UNSEEN: 0}
    told.book.take_in((part(1, is_gone=True), part(2)))
    assert told.slots == {0: 1, UNSEEN: 1}
    told.book.take_in((part(1, is_gone=True), part(2, is_gone=True)))
    assert told.slots == {0: abi.NO_GPU} and not told.account.single_gpu_processes


def test_what_is_gone_has_no_open_work_and_uuids_are_told_anew() -> None:
    probe, account = Probe(), Account()
    probe.live = [(7, SimpleNamespace(gpu=0, generation=3)), (8, SimpleNamespace(gpu=1, generation=4))]
    nvml = SimpleNamespace(gpus=(part(1, is_gone=True), part(2), part(3)), has_mig=True)
    take_in((part(1), part(2)), *cast(Any, (nvml, probe, account)), 0)
    assert probe.ended == account.ended == [(7, 3)]
    assert list(probe.uuids.values()) == [0, 1, 2] and account.gpus == 3
    assert not probe.is_all, "another instance may come: who names one has not named a GPU of nobody"
    whole = SimpleNamespace(gpus=(Gpu("GPU-00000001-0000-0000-0000-000000000000"),), has_mig=False)
    name_gpus(*cast(Any, (probe, account, whole)))
    assert probe.is_all


class Crowd:
    """The book of ordinals of many processes, each of which sees both GPUs. A tenant has a hundred pids."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, entries: int, visible: str = "0,1") -> None:
        monkeypatch.setattr(module, "read_environ", lambda _pid, _names: {"CUDA_VISIBLE_DEVICES": visible})
        monkeypatch.setattr(module.ProcessId, "of", staticmethod(lambda pid: ProcessId(pid, 1)))
        monkeypatch.setattr(abi, "MAX_DEVS", entries)
        self.probe = Probe()
        account = cast(Any, Account())
        self.book = Ordinals(cast(Any, self.probe), account, WHOLE, lambda pid: pid // 100)
        self.book.rooms.share(3)

    @property
    def told(self) -> set[int]:
        return {pid for pid, _ordinal in self.probe.devices}

    @property
    def used(self) -> dict[int, int]:
        return {owner: self.book.rooms.budget(owner).used[abi.Table.ORDINALS] for owner in (1, 2)}


def test_who_fills_the_table_has_its_own_older_processes_forgotten_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(
        monkeypatch, entries=24
    )  # 4 are kept for each of three, 12 are shared, 6 of them at most for one
    crowd.book.resolve(200)
    for pid in range(100, 150):
        crowd.book.resolve(pid)
    crowd.book.resolve(201)
    assert crowd.told == {200, 201, *range(145, 150)}
    assert len(crowd.probe.devices) == sum(crowd.used.values()) == 14
    refused_ns = [crowd.book.rooms.budget(owner).refused_ns[abi.Table.ORDINALS] for owner in (1, 2)]
    assert refused_ns[0] > 0 == refused_ns[1], "and it is known who"


def test_a_process_that_was_forgotten_is_told_anew_when_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, entries=24)
    for pid in range(100, 150):
        crowd.book.resolve(pid)
    assert 100 not in crowd.told
    crowd.book.resolve(100)
    assert 100 in crowd.told
    assert crowd.used[1] == len(crowd.probe.devices) == 10


def test_what_is_gone_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, entries=24)
    crowd.book.resolve(100)
    crowd.book.resolve(200)
    crowd.book.forget({100, 7})
    assert (crowd.told, crowd.used) == ({200}, {1: 0, 2: 2})


def test_who_names_one_gpu_again_and_again_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is its own: entries beyond the GPUs there are were never deleted."""
    crowd = Crowd(monkeypatch, entries=24, visible=",".join(["0"] * 200))
    crowd.book.resolve(100)
    crowd.book.forget({100})
    assert crowd.probe.devices == {} and crowd.used[1] == 0
