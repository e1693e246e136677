# SPDX-License-Identifier: Apache-2.0
"""Putting rules in force, step by step, in this process: what a daemon on a machine where much happens would hide."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml

from fairsched.act.device_gate import DeviceGate
from fairsched.bpf.gate import GateProgram, find_programs, owner_of
from fairsched.cgroup import devices as cgroup_devices
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef
from fairsched.config.settings import Settings
from fairsched.driver.gate import GateRules, Rule
from fairsched.driver.in_force import GateInForce
from fairsched.driver.inventory import Devices
from fairsched.observe.tree import Tree
from tests.node.cgroup.conftest import Node
from tests.node.gate.conftest import attachments, load_program
from tests.node.gate.opener import Nodes, Trier
from tests.support import let_run


def again(program: GateProgram) -> GateProgram:
    """The same program under descriptors of its own."""
    return GateProgram({name: os.dup(fd) for name, fd in program._fds.items()})


def test_a_successor_leaves_no_moment_between(
    node: Node, top: CgroupRef, program: GateProgram, nodes: Nodes
) -> None:
    ref = node.make("a")
    rules = GateRules({ref.id: Rule(ref.id, ref.path, "a", frozenset({1}))}, {top.id: top.path})
    other = load_program()
    try:
        first = GateInForce(node.mount, again(program), [])
        first.put(rules, Devices())
        first.close()
        trier = Trier(ref, nodes.char(195, 0))
        for _ in range(60):
            for new, old in ((other, program), (program, other)):
                in_force = GateInForce(node.mount, again(new), [again(old)])
                assert in_force.put(rules, Devices()) == []
                assert attachments(node.mount, node.top) == [new.id]
                in_force.close()
        tried, let_through = trier.end()
        assert (tried > 1000, let_through) == (True, 0)
    finally:
        cgroup_devices.detach(top, other.fd)
        other.close()


class StillTree:
    """A tree in which nothing happens."""

    def __init__(self, node: Node) -> None:
        self.paths = {one.id: one.path for one in tree.walk(node.mount)}
        self.changes = 1


@pytest.fixture
def gate(node: Node, tmp_path: Path) -> Iterator[DeviceGate]:
    ref = node.make("a")
    tenants = {"a": {"cgroup": ref.path.strip("/"), "gpus": [1]}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"mode": "enforce", "run_dir": str(tmp_path), "tenants": tenants}))
    still = cast(Tree, StillTree(node))
    gate = DeviceGate(node.mount, still, Settings(path), is_dry_run=False)
    try:
        yield gate
    finally:
        gate.close()
        found = find_programs(owner_of(tmp_path))
        cgroup_devices.detach_everywhere(node.mount, [one.fd for one in found])
        for one in found:
            one.close()


def test_what_somebody_detaches_is_back_though_nothing_else_happens(node: Node, gate: DeviceGate) -> None:
    (program_id,) = attachments(node.mount, node.top)
    gate.refresh()
    assert gate._in_force is not None
    with CgroupRef.open(node.mount, node.top) as top:
        assert cgroup_devices.detach(top, gate._in_force.program.fd)
    let_run(1.1)
    gate.refresh()
    assert attachments(node.mount, node.top) == [program_id]


def test_a_look_at_nothing_new_asks_the_kernel_for_nothing(
    gate: DeviceGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.refresh()
    gate.refresh()
    assert gate._in_force is not None
    calls: list[object] = []
    monkeypatch.setattr(gate._in_force, "put", lambda *args: calls.append(args) or [])
    gate._next_verify_ns += 10**12
    for _ in range(5):
        gate.refresh()
    assert calls == []
