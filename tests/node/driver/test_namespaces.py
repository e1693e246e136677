# SPDX-License-Identifier: Apache-2.0
"""Numbers of real processes in real PID namespaces, and who has a device of the driver open."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.driver.namespaces import Places, driver_users, is_initial, started
from tests.support import wait_until

NEST = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def nested() -> Iterator[list[int]]:
    """Pids of a chain of processes, each but the first in a namespace below that of the one before."""
    script = "sleep 600 & exec sleep 601"
    top = subprocess.Popen([*NEST, *NEST, "sh", "-c", script])
    try:
        wait_until(lambda: len(chain(top.pid)) == 4, 20, "two namespaces and a second process are there")
        yield chain(top.pid)
    finally:
        top.kill()
        top.wait()


def chain(pid: int) -> list[int]:
    """A process, its first child, that one's, and so on."""
    pids = [pid]
    try:
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
            pids.append(pid)
        comms = [Path(f"/proc/{one}/comm").read_text().strip() for one in pids]
    except OSError:
        return []
    return pids if comms == ["unshare", "unshare", "sleep", "sleep"] else []


def inode(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def test_a_process_is_known_in_every_namespace_that_sees_it(nested: list[int]) -> None:
    top, outer, inner, second = nested
    places = Places()
    assert places.of(top) == places.of(os.getpid()) == []
    assert places.of(outer) == [(inode(outer), 1)]
    assert inode(outer) != inode(inner) == inode(second)
    assert [namespace for namespace, _ in places.of(second)] == [inode(outer), inode(second)]
    assert places.of(inner)[1] == (inode(inner), 1)
    numbers = [line for line in Path(f"/proc/{second}/status").read_text().splitlines() if "NSpid" in line]
    assert [str(number) for _, number in places.of(second)] == numbers[0].split()[2:]


def test_a_process_that_is_gone_has_no_place_and_no_start(nested: list[int]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert Places().of(gone.pid) == []
    assert started(gone.pid) is None
    assert started(nested[1]) is not None
    assert is_initial()


def test_who_has_a_device_of_the_driver_open_is_found(tmp_path: Path) -> None:
    node, other = tmp_path / "nvidiactl", tmp_path / "null"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(195, 255))
    os.mknod(other, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    held = os.open(other, os.O_PATH)
    try:
        assert os.getpid() not in set(driver_users())
        held_too = os.open(node, os.O_PATH)  # without a driver it cannot be opened for more
        try:
            assert os.getpid() in set(driver_users())
        finally:
            os.close(held_too)
    finally:
        os.close(held)
