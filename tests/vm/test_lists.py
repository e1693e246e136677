# SPDX-License-Identifier: Apache-2.0
"""What the test driver answers to nvidia-smi, in the versions of the real one that differ."""

from __future__ import annotations

import pytest

from tests.vm import rm
from tests.vm.rm import Rm

MIB = 1 << 20


def busy(one, megabytes: int) -> None:
    """A context and memory on GPU 0."""
    client = one.do("client")
    device = one.do("device", client, 0)
    one.do("subdevice", client, device)
    one.do("compute", client, one.do("channel", client, one.do("tsg", client, device)))
    one.do("memory", client, device, megabytes * MIB)


def asker(one) -> tuple[int, int]:
    """A client and a subdevice without a context: what nvidia-smi has."""
    client = one.do("client")
    return client, one.do("subdevice", client, one.do("device", client, 0))


def people(start_actor):
    """One process of the host, and two in a namespace; all busy. The first of the two also asks."""
    host, inside = start_actor(), start_actor(pidns=True)
    inside.do("client")
    sibling = inside.fork()
    for one, megabytes in ((host, 1), (inside, 2), (sibling, 3)):
        one.do("open")
        busy(one, megabytes)
    return host, inside, sibling


def test_without_translation_everybody_sees_initial_pids(driver, start_actor) -> None:
    host, inside, sibling = people(start_actor)
    initial = {host.pid: 1 * MIB, inside.pid: 2 * MIB, sibling.pid: 3 * MIB}
    for one in (Rm(), inside):
        client, subdevice = asker(one)
        pids = one.do("get_pids", client, subdevice, rm.COMPUTE)
        assert sorted(pids) == sorted(initial)
        assert one.do("get_pid_info", client, subdevice, pids) == initial
        samples = one.do("util_samples", client, subdevice)
        assert sorted(sample[1] for sample in samples) == sorted(initial)
        assert {sample[3] for sample in samples} == {rm.NO_PID}


@pytest.mark.parametrize("translate", ["list", "info", "all"])
def test_a_translating_driver_shows_a_namespace_its_own_pids(driver, start_actor, translate) -> None:
    driver.set("translate", translate)
    host, inside, sibling = people(start_actor)
    client, subdevice = asker(inside)
    pids = inside.do("get_pids", client, subdevice, rm.COMPUTE)
    assert sorted(pids) == [inside.nspid, sibling.nspid] == [1, 2]
    sizes = inside.do("get_pid_info", client, subdevice, pids)
    assert sizes == ({1: 2 * MIB, 2: 3 * MIB} if translate != "list" else {1: 0, 2: 0})
    shown = {sample[1] for sample in inside.do("util_samples", client, subdevice)}
    wanted = {1, 2, rm.NO_PID} if translate == "all" else {host.pid, inside.pid, sibling.pid}
    assert shown == wanted
    own = Rm()
    client, subdevice = asker(own)
    assert sorted(own.get_pids(client, subdevice, rm.COMPUTE)) == sorted([host.pid, inside.pid, sibling.pid])
    own.close()


def test_the_list_of_a_class_has_only_who_has_such_an_object(driver, start_actor) -> None:
    host, idle = start_actor(), start_actor()
    busy(host, 1)
    asker(idle)
    one = Rm()
    client, subdevice = asker(one)
    everybody = one.get_pids(client, subdevice)
    assert {host.pid, idle.pid} < set(everybody)
    assert one.get_pids(client, subdevice, rm.COMPUTE) == [host.pid]
    assert one.get_pids(client, subdevice, 0x900E) == []
    one.close()


@pytest.mark.parametrize(("variant", "abi"), [("595", 595), ("595", 550), ("535", 535)])
def test_samples_have_the_size_of_their_version(load_driver, variant, abi) -> None:
    driver = load_driver(variant, abi=abi)
    assert 16 + 72 * driver.abi.sample_bytes == {595: 55888, 550: 50704, 535: 34000}[abi]
    one = Rm(driver.abi)
    client, subdevice = asker(one)
    assert one.util_samples(client, subdevice) == []
    with pytest.raises(rm.RmError):
        one.control(client, subdevice, rm.UTIL_SAMPLES, bytes(16))
    one.close()
