# SPDX-License-Identifier: Apache-2.0
"""The device gate on a real kernel: real opens by real processes in real cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.bpf import objects
from fairsched.bpf.ancestor import load_allowing
from fairsched.bpf.gate import GateLoad, GateProgram
from fairsched.cgroup import devices as cgroup_devices
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.errors import HostUnsupported
from tests.node.cgroup.conftest import Node, node
from tests.node.daemon.conftest import make_site, site
from tests.node.gate.opener import Nodes, Opener
from tests.support import wait_until

__all__ = ["make_site", "node", "site"]

OWNER = os.getpid() << 16 | 0x7E57
"""Of the gates of this process: another one's tests may run beside these, and the kernel is asked for all."""


@pytest.fixture(scope="session", autouse=True)
def _can_gate() -> None:
    try:
        os.close(load_allowing())
    except OSError as error:
        pytest.skip(f"host: no device programs in this kernel ({error.strerror})")


def load_program(owner: int = OWNER) -> GateProgram:
    load, found = GateLoad(), []
    wait_until(lambda: found.append(load.poll(0.05)) or found[-1] is not None, 150, "the gate is compiled")
    program = found[-1]
    assert program is not None
    program.sign(owner)
    return program


@pytest.fixture(scope="module")
def program() -> Iterator[GateProgram]:
    """Loaded, and attached nowhere."""
    try:
        program = load_program()
    except HostUnsupported as error:
        pytest.skip(f"{error}; {error.remedy} (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)")
    yield program
    program.close()


@pytest.fixture
def top(node: Node, program: GateProgram) -> Iterator[CgroupRef]:
    """The top cgroup of the test, with the program on it and no rules."""
    with CgroupRef.open(node.mount, node.top) as ref:
        for cgroup_id in program.rules():
            program.drop_rule(cgroup_id)
        cgroup_devices.attach(ref, program.fd)
        yield ref
        cgroup_devices.detach(ref, program.fd)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


@pytest.fixture
def opener_in() -> Iterator[Callable[[CgroupRef], Opener]]:
    with contextlib.ExitStack() as stack:

        def make(ref: CgroupRef) -> Opener:
            opener = Opener(ref)
            stack.callback(opener.end)
            return opener

        yield make


def attachments(mount: Mount, path: str) -> list[int]:
    """Ids of the device programs on a cgroup."""
    with CgroupRef.open(mount, path) as ref:
        return objects.attached(ref.fileno())
