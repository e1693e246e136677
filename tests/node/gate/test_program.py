# SPDX-License-Identifier: Apache-2.0
"""device_gate.bpf.c: who gets which device, judged by opening it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.bpf import objects, syscall
from fairsched.bpf.abi import MAX_GATE_LEVELS
from fairsched.bpf.abi import Node as NodeKind
from fairsched.bpf.ancestor import load_allowing
from fairsched.bpf.gate import GateProgram, build_of_source, find_programs
from fairsched.bpf.instructions import instruction
from fairsched.cgroup import devices as cgroup_devices
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef
from fairsched.errors import KernelRefused
from tests.node.cgroup.conftest import Node
from tests.node.gate.conftest import OWNER, attachments
from tests.node.gate.opener import DENIED, NO_DRIVER, Nodes, Opener, Trier, can_open

OpenerIn = Callable[[CgroupRef], Opener]
UVM, CAPS, OTHER = 511, 510, 509
"""Majors nobody has here, said to be NVIDIA's."""


@pytest.fixture(autouse=True)
def _devices(program: GateProgram) -> None:
    kinds = {195: NodeKind.GPU, UVM: NodeKind.UVM, CAPS: NodeKind.CAPS, OTHER: NodeKind.OTHER}
    program.set_devices(kinds, {1: 0, 2: 1})


def test_a_tenant_opens_its_gpus_and_what_belongs_to_them(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [1, 247])
    opener = opener_in(ref)
    said = {minor: opener.open(nodes.char(195, minor)) for minor in (0, 1, 2, 246, 247, 248, 253, 254, 255)}
    allowed = {minor for minor, word in said.items() if word == NO_DRIVER}
    assert allowed == {1, 247, 254, 255}
    assert {word for minor, word in said.items() if minor not in allowed} == {DENIED}
    assert [opener.open(nodes.char(UVM, minor)) for minor in (0, 1, 2)] == [NO_DRIVER, NO_DRIVER, DENIED]
    assert [opener.open(nodes.char(CAPS, minor)) for minor in (0, 1, 2)] == [DENIED, DENIED, NO_DRIVER]
    assert opener.open(nodes.char(OTHER, 0)) == DENIED
    assert program.denied(ref.id) == 9
    assert program.head().blind == 0


def test_a_tenant_without_gpus_opens_nothing_of_nvidia_and_one_with_all_everything(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    none, everything = node.make("none"), node.make("all")
    program.set_rule(none.id, [])
    program.set_rule(everything.id, [], is_all=True)
    paths = [nodes.char(195, minor) for minor in (0, 254, 255)]
    paths += [nodes.char(major, 0) for major in (UVM, CAPS, OTHER)]
    opener = opener_in(none)
    assert {opener.open(path) for path in paths} == {DENIED}
    opener = opener_in(everything)
    assert {opener.open(path) for path in paths} == {NO_DRIVER}


def test_devices_that_are_not_nvidias_are_left_alone(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [])
    opener = opener_in(ref)
    assert opener.open("/dev/null") == "ok"
    assert opener.open("/dev/zero", os.O_RDONLY) == "ok"
    assert opener.open(nodes.char(508, 0)) == NO_DRIVER
    assert opener.open(nodes.block(195, 0)) == NO_DRIVER  # the block device of that number is another one


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, 3, os.O_RDWR | os.O_NONBLOCK])
def test_however_it_is_opened_it_is_denied(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn, flags: int
) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [1])
    assert opener_in(ref).open(nodes.char(195, 0), flags) == DENIED


def test_a_node_may_be_made_and_not_opened(
    node: Node, top: CgroupRef, program: GateProgram, tmp_path: Path, opener_in: OpenerIn
) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [])
    opener = opener_in(ref)
    assert opener.mknod(195, 7, tmp_path / "made") == "ok"
    assert opener.open(tmp_path / "made") == DENIED


def test_a_cgroup_made_below_is_under_the_rule_from_its_first_moment(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [1])
    opener, path = opener_in(ref), node.mount.absolute(ref.path)
    for depth in range(1, MAX_GATE_LEVELS + 8):
        path += f"/{depth}"
        assert opener.enter(path) == "ok"
        assert opener.open(nodes.char(195, 0)) == DENIED, depth
        assert opener.open(nodes.char(195, 1)) == NO_DRIVER, depth


def test_the_innermost_rule_holds(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    outer, inner, plain = node.make("a"), node.make("a/b/c"), node.make("a/d")
    program.set_rule(top.id, [])
    program.set_rule(outer.id, [0, 1])
    program.set_rule(inner.id, [1])
    asked = {name: opener_in(ref) for name, ref in (("outer", outer), ("inner", inner), ("plain", plain))}
    said = {name: [one.open(nodes.char(195, gpu)) for gpu in (0, 1, 2)] for name, one in asked.items()}
    assert said["outer"] == said["plain"] == [NO_DRIVER, NO_DRIVER, DENIED]
    assert said["inner"] == [DENIED, NO_DRIVER, DENIED]
    program.drop_rule(inner.id)
    assert asked["inner"].open(nodes.char(195, 0)) == NO_DRIVER
    program.drop_rule(outer.id)
    assert {one.open(nodes.char(195, 1)) for one in asked.values()} == {DENIED}


def test_who_has_no_rule_and_who_is_elsewhere_opens_what_there_is(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    program.set_rule(node.make("a").id, [])
    assert opener_in(node.make("b")).open(nodes.char(195, 0)) == NO_DRIVER
    assert can_open(nodes.char(195, 0)) == NO_DRIVER


def test_a_rule_changes_in_one_step(node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [1])
    trier = Trier(ref, nodes.char(195, 0))
    for step in range(2000):
        program.set_rule(ref.id, [1, 2 + step % 200])
    tried, let_through = trier.end()
    assert tried > 0
    assert let_through == 0


# ---- other people's programs ----


def _deny(major: int) -> int:
    """A device program of somebody else: everything but one major."""
    load_word, jump_unless_equal = 0x61, 0x55
    before = instruction(load_word, 2, 1, 4) + instruction(jump_unless_equal, 2, off=2, imm=major)
    return load_allowing(before + instruction(0xB7) + instruction(0x95))


@pytest.fixture
def strangers(top: CgroupRef) -> Iterator[list[int]]:
    fds: list[int] = []
    yield fds
    for fd in fds:
        cgroup_devices.detach(top, fd)
        os.close(fd)


def test_programs_of_others_work_on_before_beside_and_after_ours(
    node: Node,
    top: CgroupRef,
    program: GateProgram,
    nodes: Nodes,
    opener_in: OpenerIn,
    strangers: list[int],
) -> None:
    cgroup_devices.detach(top, program.fd)
    strangers.append(_deny(1))
    cgroup_devices.attach(top, strangers[0])
    assert cgroup_devices.attach(top, program.fd)
    strangers.append(_deny(508))
    cgroup_devices.attach(top, strangers[1])
    theirs = [objects.program_info(fd).id for fd in strangers]
    assert attachments(node.mount, node.top) == [theirs[0], program.id, theirs[1]]
    ref = node.make("a")
    program.set_rule(ref.id, [1])
    opener = opener_in(ref)
    wanted = [(nodes.char(195, 0), DENIED), (nodes.char(195, 1), NO_DRIVER), (nodes.char(508, 0), DENIED)]
    for path, word in [*wanted, ("/dev/null", DENIED), (nodes.char(507, 0), NO_DRIVER)]:
        assert opener.open(path) == word, path
    assert cgroup_devices.detach_everywhere(node.mount, [program.fd]) == [node.top]
    assert attachments(node.mount, node.top) == theirs
    assert opener.open(nodes.char(195, 0)) == NO_DRIVER
    assert opener.open("/dev/null") == DENIED


def test_what_a_container_runtime_clears_in_its_own_cgroup_is_not_ours(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    """runc detaches every program it finds on the container's cgroup when it updates more than one."""
    ref = node.make("container")
    program.set_rule(ref.id, [1])
    assert attachments(node.mount, ref.path) == []
    assert opener_in(ref).open(nodes.char(195, 0)) == DENIED


@contextlib.contextmanager
def kept(ref: CgroupRef) -> Iterator[int]:
    """Somebody keeps it for himself, with a program that allows everything; gives its id."""
    fd = load_allowing()
    try:
        syscall.call(objects.PROG_ATTACH, objects._AttachAttr(ref.fileno(), fd, objects.CGROUP_DEVICE, 0))
        yield objects.program_info(fd).id
    finally:
        syscall.call(objects.PROG_DETACH, objects._AttachAttr(ref.fileno(), fd, objects.CGROUP_DEVICE))
        os.close(fd)


def test_a_cgroup_that_somebody_keeps_for_himself_is_refused_with_a_remedy(
    node: Node, program: GateProgram
) -> None:
    ref = node.make("kept")
    with kept(ref) as theirs:
        with pytest.raises(KernelRefused, match="kept") as refused:
            cgroup_devices.attach(ref, program.fd)
        assert "BPF_F_ALLOW_MULTI" in refused.value.remedy
        assert attachments(node.mount, ref.path) == [theirs]


def test_what_somebody_keeps_for_himself_is_not_detached_in_the_place_of_ours(
    node: Node, program: GateProgram
) -> None:
    """The kernel takes away the only program there, whichever it is told to."""
    ref = node.make("kept")
    with kept(ref) as theirs:
        assert not cgroup_devices.detach(ref, program.fd)
        assert ref.path not in cgroup_devices.detach_everywhere(node.mount, [program.fd])
        assert attachments(node.mount, ref.path) == [theirs]


def test_ours_is_detached_below_what_somebody_keeps_for_himself(node: Node, program: GateProgram) -> None:
    above, below = node.make("above"), node.make("above/below")
    assert cgroup_devices.attach(below, program.fd)
    with kept(above):
        assert cgroup_devices.detach(below, program.fd)
        assert attachments(node.mount, below.path) == []


def test_attaching_and_detaching_twice_is_once(node: Node, top: CgroupRef, program: GateProgram) -> None:
    assert not cgroup_devices.attach(top, program.fd)
    assert attachments(node.mount, node.top) == [program.id]
    assert cgroup_devices.detach(top, program.fd)
    assert not cgroup_devices.detach(top, program.fd)


def test_ours_is_found_again_by_asking_the_kernel_and_only_ours(
    node: Node, top: CgroupRef, program: GateProgram
) -> None:
    ref = node.make("a")
    program.set_rule(ref.id, [3, 70])
    found = find_programs(OWNER)
    try:
        assert [one.id for one in found] == [program.id]
        assert found[0].rules() == {ref.id: (frozenset({3, 70}), False)}
        assert bytes(found[0].head().build) == bytes(program.head().build) == build_of_source()
        assert find_programs(OWNER + 1) == []
    finally:
        for one in found:
            one.close()


UNIT = Path(__file__).resolve().parents[3] / "packaging/systemd/fairsched.service"
_AS_THE_UNIT = """
import sys
from fairsched.bpf.gate import GateLoad, find_programs
from fairsched.cgroup import devices
from fairsched.cgroup.path import CgroupRef, find_mount
mount, top, owner = find_mount(), sys.argv[1], int(sys.argv[2])
load, new = GateLoad(), None
while new is None:
    new = load.poll(1.0)
new.sign(owner)
(old,) = (one for one in find_programs(owner) if one.id != new.id)
new.set_rule(1, [1])
with CgroupRef.open(mount, top) as ref:
    print(devices.attach(ref, old.fd), devices.replace(ref, new.fd, old.fd), devices.attach(ref, new.fd))
    print(devices.replace(ref, new.fd, old.fd), devices.detach(ref, old.fd), devices.detach(ref, new.fd))
"""


def test_the_capabilities_of_the_unit_are_enough(node: Node, top: CgroupRef, program: GateProgram) -> None:
    (line,) = [one for one in UNIT.read_text().splitlines() if one.startswith("CapabilityBoundingSet=")]
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in line.partition("=")[2].split())
    as_the_unit = ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all"]
    done = subprocess.run(
        [*as_the_unit, sys.executable, "-c", _AS_THE_UNIT, node.top, str(OWNER)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.split() == ["False", "True", "False", "False", "False", "True"], done.stderr
    cgroup_devices.attach(top, program.fd)


def test_a_thousand_cgroups_each_with_its_own_rule(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes, opener_in: OpenerIn
) -> None:
    ids = []
    for index in range(1000):
        with tree.create(node.mount, f"{node.top}/t{index}") as ref:
            program.set_rule(ref.id, [index % 248])
            ids.append(ref.id)
    assert program.rules().keys() == set(ids)
    for index in (0, 1, 247, 248, 500, 999):
        opener = opener_in(node.make(f"t{index}"))
        assert opener.open(nodes.char(195, index % 248)) == NO_DRIVER
        assert opener.open(nodes.char(195, (index + 1) % 248)) == DENIED
    assert attachments(node.mount, node.top) == [program.id]


def test_a_cgroup_that_is_gone_costs_nobody_anything(
    node: Node, top: CgroupRef, program: GateProgram
) -> None:
    ref = tree.create(node.mount, f"{node.top}/short")
    program.set_rule(ref.id, [1])
    tree.remove(node.mount, ref)
    ref.close()
    program.drop_rule(ref.id)
    program.drop_rule(ref.id)
    assert ref.id not in program.rules()
