# SPDX-License-Identifier: Apache-2.0
"""Names that come without end are forgotten, and those that are there are not."""

from __future__ import annotations

import ctypes
import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.act.device_gate import DeviceGate
from fairsched.act.terminate import Terminator
from fairsched.bpf import abi, syscall
from fairsched.daemon.departed import KEPT_NS, MOST, Departed
from fairsched.daemon.ledger import Ledger, StateFile, load_state
from fairsched.driver.vram_gate import CgroupLimit, VramGate
from fairsched.driver.watch import CallTotals, DriverWatch
from fairsched.model import MisbehaviourKind
from fairsched.policy import PolicyState
from tests.unit.act.test_holds import S, make_world, view

GPU = "GPU-a"


def ledger_of(*names: str, total_ns: int = 5) -> Ledger:
    ledger = Ledger()
    ledger.total_ns = {(name, GPU): total_ns for name in names}
    return ledger


def test_of_ten_thousand_that_are_gone_few_are_kept_a_day_later_none_and_the_living_are_exact(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    ledger = ledger_of(*(f"pods/{number}" for number in range(10_000)))
    living = {"chat": 12345678901234567, "team/train": 7, "idle": 0}
    ledger.total_ns |= {(name, GPU): ns for name, ns in living.items()}
    now_ns = time.monotonic_ns()
    file = StateFile(path, ledger)
    for begin_ns, kept in ((now_ns, MOST), (now_ns + KEPT_NS - 1, MOST), (now_ns + KEPT_NS, 0)):
        ledger.departed.refresh(living, (ledger,), begin_ns)
        file.save(PolicyState())
        file.close()
        again = Ledger()
        load_state(path, again)
        assert len(again.total_ns) == len(living) + kept
        assert {name: again.total_ns[name, GPU] for name in living} == living
    assert path.stat().st_size < 1000


def test_those_that_left_first_are_forgotten_first() -> None:
    departed, ledger = Departed(), ledger_of(*map(str, range(MOST)))
    departed.refresh((), (ledger,), 0)
    ledger.total_ns |= {("late", GPU): 1, ("later", GPU): 1}
    departed.refresh((), (ledger,), S)
    assert len(ledger.total_ns) == MOST
    assert {("late", GPU), ("later", GPU)} <= ledger.total_ns.keys()


@pytest.mark.parametrize("how", ["seen", "there"])
def test_who_comes_back_goes_on_from_its_total_and_has_its_day_again(how: str) -> None:
    ledger = ledger_of("team/chat")
    ledger.departed.refresh((), (ledger,), 0)
    if how == "seen":  # too briefly for a look
        ledger.departed.see(["team/chat"])
    else:
        ledger.departed.refresh(["team/chat"], (ledger,), KEPT_NS - 1)
    ledger.departed.refresh((), (ledger,), KEPT_NS)
    ledger.departed.refresh((), (ledger,), 2 * KEPT_NS - 1)
    assert ledger.total_ns == {("team/chat", GPU): 5}
    ledger.departed.refresh((), (ledger,), 2 * KEPT_NS)
    assert ledger.total_ns == {}


def test_who_is_above_one_that_is_there_is_there() -> None:
    ledger = ledger_of("team", "team/chat")
    for now_ns in (0, KEPT_NS, 2 * KEPT_NS):
        ledger.departed.refresh(["team/chat"], (ledger,), now_ns)
    assert len(ledger.total_ns) == 2


def test_a_restart_does_not_begin_the_day_anew(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    ledger = ledger_of("chat", "gone")
    now_ns = time.monotonic_ns()
    ledger.departed.refresh(["chat"], (ledger,), now_ns - KEPT_NS + 100 * S)
    file = StateFile(path, ledger)
    file.save(PolicyState())
    file.close()
    again = Ledger()
    load_state(path, again)
    again.departed.refresh(["chat"], (again,), now_ns)
    assert len(again.total_ns) == 2
    again.departed.refresh(["chat"], (again,), now_ns + 101 * S)
    assert again.total_ns == {("chat", GPU): 5}


def test_a_file_of_before_names_departed_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    file = StateFile(path, ledger_of("chat"))
    file.save(PolicyState())
    file.close()
    document = json.loads(path.read_text())
    del document["departed_s"]
    path.write_text(json.dumps(document))
    again = Ledger()
    load_state(path, again)
    assert again.total_ns == {("chat", GPU): 5}
    assert again.departed.since_ns == {}


def test_decisions_are_forgotten_with_the_tenant() -> None:
    world = make_world()
    world.tree.tenants["gone"] = view("gone", 9)
    for name in ("chat", "gone"):
        world.hold(name, 0)
        world.thaw(name, 7)
    world.applier.is_dry_run = True
    for name in ("chat", "gone", "wished"):
        world.hold(name, 8)
    assert world.applier.remembered_tenants() == {"chat", "gone", "wished"}
    world.applier.forget_tenants({"gone", "wished"})
    assert world.applier.remembered_tenants() == {"chat"}
    assert world.applier.real.held_ns == {"chat": 7}
    assert world.applier.real.held_count == {"chat": 1}
    assert world.applier.real.held_by_reason_ns.keys() == world.applier.real.done.keys() == {"chat"}


def test_those_that_were_ended_are_forgotten_with_the_tenant() -> None:
    terminator, kind = Terminator(lambda _pid: None), MisbehaviourKind.ENDLESS
    terminator.total = Counter({("chat", kind): 2, ("gone", kind): 3})
    assert terminator.remembered_tenants() == {"chat", "gone"}
    terminator.forget_tenants({"gone"})
    assert terminator.terminations("chat") == {kind.value: 2}
    terminator.total["gone", kind] += 1
    assert terminator.total == {("chat", kind): 2, ("gone", kind): 1}


def test_refused_opens_are_forgotten_with_the_tenant_and_those_of_nobody_are_not() -> None:
    gate = DeviceGate.__new__(DeviceGate)
    gate._denied, gate._say_again_ns = {"": 1, "chat": 2, "gone": 3}, {"": 1, "gone": 9}
    assert gate.remembered_tenants() == {"chat", "gone"}
    gate.forget_tenants({"gone"})
    assert (gate._denied, gate._say_again_ns) == ({"": 1, "chat": 2}, {"": 1})


def test_calls_to_the_driver_are_forgotten_with_the_tenant(tmp_path: Path) -> None:
    watch = DriverWatch("off", tmp_path, ())
    watch._final = {"chat": CallTotals(1), "gone": CallTotals(2)}
    told: list[set[str]] = []

    def forget(names: set[str]) -> None:
        told.append(names)
        raise OSError

    watch.gate = cast(Any, SimpleNamespace(numbered={"limited"}, forget_tenants=forget, close=lambda: None))
    assert watch.remembered_tenants() == {"chat", "gone", "limited"}
    watch.forget_tenants({"gone", "limited"})
    assert watch.calls() == {"chat": CallTotals(1)}
    assert (told, watch.errors) == ([{"gone", "limited"}], 1)


def test_what_the_kernel_refused_is_forgotten_and_no_number_is_given_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers: dict[int, int] = {}
    refused: dict[int, abi.Refusal] = {}

    def update(_fd: int, key: ctypes.c_uint64, value: abi.VramLimit) -> None:
        numbers[key.value] = value.tenant
        refused[value.tenant] = abi.Refusal(10 * key.value)

    monkeypatch.setattr(syscall, "update", update)
    monkeypatch.setattr(syscall, "delete", lambda fd, key: refused.pop(key.tenant) if fd == 6 else None)
    gate = VramGate(
        {"vram_by_cgroup": 5, "refused_by_key": 6, "limit_by_cgroup": 7},
        None,
        None,
        is_attached=True,
        forget_sum=lambda _cgroup_id: None,
    )
    read = [(abi.RefusalKey(number, 0), one) for number, one in refused.items()]
    gate._refused = cast(Any, SimpleNamespace(read=lambda: read))

    def limits(*names: str) -> list[CgroupLimit]:
        return [CgroupLimit(name, 1, (ord(name),)) for name in names]

    gate.set_limits(limits("a", "b"))
    read[:] = [(abi.RefusalKey(number, 0), one) for number, one in refused.items()]
    gate.set_limits(limits("b"))
    assert set(gate.numbered) == {"a", "b"}
    gate.forget_tenants({"a", "never"})
    assert len(refused) == 1
    gate.set_limits(limits("b", "c", "a"))
    assert len({numbers[ord(name)] for name in "abc"}) == 3
    read[:] = [(abi.RefusalKey(number, 0), one) for number, one in refused.items()]
    assert {key: one.count for key, one in gate.refused().items()} == {
        (name, 0): 10 * ord(name) for name in "abc"
    }
