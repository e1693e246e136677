# SPDX-License-Identifier: Apache-2.0
"""The device gate under other kernels: what tests/node/gate demands of it, demanded here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from fairsched.bpf.ancestor import can_ask
from fairsched.bpf.gate import GateProgram
from fairsched.cgroup import devices as cgroup_devices
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef
from fairsched.driver.inventory import read_devices
from tests.node.cgroup.conftest import Node, node
from tests.node.conftest import mount
from tests.node.gate.conftest import attachments, nodes, opener_in, program, top
from tests.node.gate.opener import DENIED, Opener
from tests.node.gate.test_program import (
    _devices,
    strangers,
    test_a_cgroup_made_below_is_under_the_rule_from_its_first_moment,
    test_a_cgroup_that_is_gone_costs_nobody_anything,
    test_a_cgroup_that_somebody_keeps_for_himself_is_refused_with_a_remedy,
    test_a_node_may_be_made_and_not_opened,
    test_a_rule_changes_in_one_step,
    test_a_tenant_opens_its_gpus_and_what_belongs_to_them,
    test_a_tenant_without_gpus_opens_nothing_of_nvidia_and_one_with_all_everything,
    test_a_thousand_cgroups_each_with_its_own_rule,
    test_attaching_and_detaching_twice_is_once,
    test_devices_that_are_not_nvidias_are_left_alone,
    test_however_it_is_opened_it_is_denied,
    test_ours_is_found_again_by_asking_the_kernel_and_only_ours,
    test_programs_of_others_work_on_before_beside_and_after_ours,
    test_the_capabilities_of_the_unit_are_enough,
    test_the_innermost_rule_holds,
    test_what_a_container_runtime_clears_in_its_own_cgroup_is_not_ours,
    test_who_has_no_rule_and_who_is_elsewhere_opens_what_there_is,
)

__all__ = [
    "_devices",
    "mount",
    "node",
    "nodes",
    "opener_in",
    "program",
    "strangers",
    "test_a_cgroup_made_below_is_under_the_rule_from_its_first_moment",
    "test_a_cgroup_that_is_gone_costs_nobody_anything",
    "test_a_cgroup_that_somebody_keeps_for_himself_is_refused_with_a_remedy",
    "test_a_node_may_be_made_and_not_opened",
    "test_a_rule_changes_in_one_step",
    "test_a_tenant_opens_its_gpus_and_what_belongs_to_them",
    "test_a_tenant_without_gpus_opens_nothing_of_nvidia_and_one_with_all_everything",
    "test_a_thousand_cgroups_each_with_its_own_rule",
    "test_attaching_and_detaching_twice_is_once",
    "test_devices_that_are_not_nvidias_are_left_alone",
    "test_however_it_is_opened_it_is_denied",
    "test_ours_is_found_again_by_asking_the_kernel_and_only_ours",
    "test_programs_of_others_work_on_before_beside_and_after_ours",
    "test_the_capabilities_of_the_unit_are_enough",
    "test_the_innermost_rule_holds",
    "test_what_a_container_runtime_clears_in_its_own_cgroup_is_not_ours",
    "test_who_has_no_rule_and_who_is_elsewhere_opens_what_there_is",
    "top",
]

OpenerIn = Callable[[CgroupRef], Opener]
Record = Callable[[str, str, str], None]


def test_how_the_gate_finds_the_cgroup_is_on_record(record: Record) -> None:
    way = "asks for the ancestor's id" if can_ask() else "walks to it by BTF offsets"
    record("device gate", "works", way)


def test_real_devices_are_opened_by_whom_the_rule_names(
    driver: object, node: Node, top: CgroupRef, program: GateProgram, opener_in: OpenerIn
) -> None:
    ref = node.make("tenant")
    program.set_devices(read_devices().majors, {})
    opener = opener_in(ref)
    paths = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
    assert [opener.open(path) for path in paths] == ["ok"] * 3
    with open("/dev/nvidia0", "rb+", buffering=0) as kept:
        program.set_rule(ref.id, [1])
        assert [opener.open(path) for path in paths] == [DENIED, "ok", "ok"]
        tree.place(ref)
        try:
            os.fstat(kept.fileno())  # what is open stays open, and what is not cannot be had through it
            with pytest.raises(PermissionError):
                os.close(os.open(f"/proc/self/fd/{kept.fileno()}", os.O_RDWR))
        finally:
            with CgroupRef.open(node.mount, "/") as root:
                tree.place(root)
    program.set_rule(ref.id, [])
    assert [opener.open(path) for path in paths] == [DENIED] * 3


def test_a_container_keeps_its_runtimes_own_device_program(
    driver: object, node: Node, top: CgroupRef, program: GateProgram, run_container, record: Record
) -> None:
    """Ours above it, ours beside it, and after ours is gone: what runc was told holds all the same."""
    tenant = node.make("tenant")
    program.set_devices(read_devices().majors, {})
    cgroup = f"{tenant.path}/box"
    box = run_container("box", cgroup, allowed=[0, 2])
    its_own = attachments(node.mount, cgroup)
    assert len(its_own) == 1, "runc has attached a program of its own"

    def opens() -> list[int]:
        names = ("nvidia0", "nvidia1", "nvidia2", "nvidiactl")
        return [box.actor.do("can_open", f"/dev/{name}") for name in names]

    by_runc, by_both = [0, errno.EPERM, 0, 0], [0, errno.EPERM, errno.EPERM, 0]
    assert opens() == by_runc
    program.set_rule(tenant.id, [0, 1])
    assert opens() == by_both
    assert attachments(node.mount, cgroup) == its_own
    with CgroupRef.open(node.mount, cgroup) as ref:
        assert cgroup_devices.attach(ref, program.fd)
    assert attachments(node.mount, cgroup) == [*its_own, program.id]
    assert opens() == by_both
    box.update("--pids-limit", "50")
    assert opens() == by_both
    assert its_own[0] in attachments(node.mount, cgroup)
    cgroup_devices.detach_everywhere(node.mount, [program.fd])
    assert attachments(node.mount, cgroup) == its_own
    assert opens() == by_runc
    record("device gate and a container runtime", "works", "runc's own device program stays and holds")
