# SPDX-License-Identifier: Apache-2.0
"""Which files a tenant may serve itself: by what is mounted, and by whom. With a real FUSE: tests/node/daemon."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.bpf import served

PID = 7
LINE = "{number} 35 {device} / /run/a\rb\udcff rw,relatime shared:1 - {kind} none rw,lowerdir=/a\n"


@pytest.fixture
def fd() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


class Mounts:
    """What the process and the host have mounted."""

    def __init__(self, root: Path, fd: int) -> None:
        self.root = root
        self.number = served._mount_of(fd)
        for pid in (1, PID):
            (root / str(pid)).mkdir()
            self.write(pid, 1, "8:1", "ext4")

    def write(self, pid: int, number: int | str, device: str, kind: str) -> None:
        with (self.root / str(pid) / "mountinfo").open("a", errors="surrogateescape") as file:
            file.write(LINE.format(number=number, device=device, kind=kind))


@pytest.fixture
def mounts(tmp_path: Path, fd: int) -> Mounts:
    return Mounts(tmp_path, fd)


def refuse(mounts: Mounts, fd: int) -> None:
    served.refuse("/lib", fd, PID, str(mounts.root))


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "virtiofs", "9p", "nfs4", "fusectl"])
@pytest.mark.parametrize("pid", [1, PID])
def test_what_no_tenant_can_serve_is_fine_in_either_namespace(
    mounts: Mounts, fd: int, kind: str, pid: int
) -> None:
    mounts.write(pid, mounts.number, "0:50", kind)
    refuse(mounts, fd)


@pytest.mark.parametrize("kind", ["fuse", "fuse.sshfs", "fuseblk"])
@pytest.mark.parametrize("pid", [1, PID])
def test_a_fuse_is_refused_also_when_the_host_has_mounted_it(
    mounts: Mounts, fd: int, kind: str, pid: int
) -> None:
    """Its server may be the tenant's all the same: a side car of its pod."""
    mounts.write(pid, mounts.number, "0:50", kind)
    with pytest.raises(served.Served, match=r"/lib: is on a FUSE") as caught:
        refuse(mounts, fd)
    assert "gpu.libcuda" in caught.value.remedy


def test_an_overlay_is_refused_unless_the_host_has_mounted_it(mounts: Mounts, fd: int) -> None:
    mounts.write(PID, mounts.number, "0:50", "overlay")
    mounts.write(1, 99, "0:51", "overlay")
    with pytest.raises(served.Served, match="the host has not mounted"):
        refuse(mounts, fd)
    mounts.write(1, 98, "0:50", "overlay")
    refuse(mounts, fd)


def test_a_mount_that_nobody_has_is_refused(mounts: Mounts, fd: int) -> None:
    """A FUSE can be taken out of every namespace and serve on."""
    with pytest.raises(served.Served, match="does not have"):
        refuse(mounts, fd)


def test_a_process_that_is_gone_is_said_to_be(mounts: Mounts, fd: int) -> None:
    (mounts.root / str(PID) / "mountinfo").unlink()
    with pytest.raises(FileNotFoundError):
        refuse(mounts, fd)


def test_a_real_file_here_is_fine(fd: int) -> None:
    served.refuse("/lib", fd, os.getpid())


@pytest.mark.parametrize("path", ["/proc/self/stat", "/dev/null", "/"])
def test_a_file_is_what_stat_says_it_is(path: str) -> None:
    fd = os.open(path, os.O_PATH)
    try:
        status, found = os.stat(path), served.identity(fd)
    finally:
        os.close(fd)
    assert (found.device, found.mode) == (status.st_dev, status.st_mode)
    assert found.inode == status.st_ino or stat.S_ISREG(found.mode), "/proc makes them up"


def test_a_file_that_is_not_open_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        served.identity(-1)
