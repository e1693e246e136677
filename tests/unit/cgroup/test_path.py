# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fairsched.cgroup.path import CgroupRef, Mount, find_mount, find_v1_mount, find_v1_roots
from fairsched.errors import CgroupGone, HostUnsupported, KernelRefused
from tests.support import FakeTree

V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"


def v2(where: str, root: str = "/") -> str:
    return f"41 31 0:38 {root} {where} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(ROOT + v2("/sys/fs/cgroup"), Mount("/sys/fs/cgroup"), id="unified"),
        pytest.param(
            V1 + v2("/sys/fs/cgroup/unified"), Mount("/sys/fs/cgroup/unified", is_hybrid=True), id="hybrid"
        ),
        pytest.param(v2("/mnt/with\\040blank"), Mount("/mnt/with blank"), id="elsewhere"),
        # The kernel escapes blank, tab and newline: what else ends a word or a line for Python is part of the name.
        pytest.param(v2("/mnt/a\rb"), Mount("/mnt/a\rb"), id="carriage-return"),
        pytest.param(v2("/mnt/a\x1fb", "/\x85"), Mount("/mnt/a\x1fb", "/\x85"), id="separators"),
        pytest.param(
            v2("/pod", "/kubepods/a") + v2("/sys/fs/cgroup"), Mount("/sys/fs/cgroup"), id="whole-tree-wins"
        ),
        pytest.param(v2("/pod", "/kubepods/a"), Mount("/pod", "/kubepods/a"), id="only-a-bind-mount"),
    ],
)
def test_cgroup2_is_found_wherever_it_is_mounted(tmp_path: Path, lines: str, expected: Mount) -> None:
    (tmp_path / "mountinfo").write_text(lines, newline="")
    assert find_mount(str(tmp_path / "mountinfo")) == expected


def test_each_v1_hierarchy_is_found_once_and_where_all_of_it_is_seen(tmp_path: Path) -> None:
    bound = V1.replace("0:29 / /sys/fs/cgroup/cpu", "0:29 /docker/a /pod")
    again = V1.replace("/sys/fs/cgroup/cpu", "/mnt/cpu")
    (tmp_path / "mountinfo").write_text(bound + V1 + FREEZER_LINE + v2("/sys/fs/cgroup/unified"))
    found = find_v1_roots(str(tmp_path / "mountinfo"))
    assert [(one.path, one.v1) for one in found] == [
        ("/sys/fs/cgroup/cpu", "cpu"), ("/sys/fs/cgroup/freezer", "freezer")
    ]  # fmt: skip
    (tmp_path / "mountinfo").write_text(again + V1)
    assert len(find_v1_roots(str(tmp_path / "mountinfo"))) == 1
    (tmp_path / "mountinfo").write_text(v2("/sys/fs/cgroup"))
    assert find_v1_roots(str(tmp_path / "mountinfo")) == []


SYSTEMD_LINE = "33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
FREEZER_LINE = "34 31 0:31 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"


@pytest.mark.parametrize(
    ("lines", "init", "expected"),
    [
        (SYSTEMD_LINE + V1, "", "name=systemd"),
        # cgroup2 mounted by hand, and nobody in it
        (SYSTEMD_LINE + v2("/mnt"), "1:name=systemd:/init.scope\n0::/\n", "name=systemd"),
        (SYSTEMD_LINE + v2("/mnt"), "1:name=systemd:/init.scope\n0::/init.scope\n", ""),
        (SYSTEMD_LINE + v2("/mnt"), "1:name=systemd:/\n0::/\n", ""),
        (v2("/mnt"), "0::/\n", ""),
    ],
)
def test_where_cgroup2_is_not_in_use_systemds_hierarchy_tells_processes_apart(
    tmp_path: Path, lines: str, init: str, expected: str
) -> None:
    (tmp_path / "mountinfo").write_text(lines)
    (tmp_path / "init").write_text(init)
    assert find_mount(str(tmp_path / "mountinfo"), str(tmp_path / "init")).v1 == expected


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (FREEZER_LINE, "/sys/fs/cgroup/freezer"),
        (SYSTEMD_LINE, None),
        # to make groups there would be to share out processors, too
        (FREEZER_LINE.replace("rw,freezer", "rw,cpu,freezer"), None),
        (
            FREEZER_LINE.replace("0:31 / ", "0:31 /docker/a ").replace("freezer rw -", "pod rw -")
            + FREEZER_LINE,
            "/sys/fs/cgroup/freezer",
        ),
    ],
)
def test_the_freezer_of_v1_is_found_where_it_stands_alone(
    tmp_path: Path, lines: str, path: str | None
) -> None:
    (tmp_path / "mountinfo").write_text(lines)
    mount = find_v1_mount("freezer", str(tmp_path / "mountinfo"))
    assert (None if mount is None else mount.path) == path


def test_host_without_cgroup2_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(ROOT + V1 + "not a mount line\n")
    with pytest.raises(HostUnsupported) as caught:
        find_mount(str(tmp_path / "mountinfo"))
    assert "mount -t cgroup2" in caught.value.remedy


def test_path_outside_of_a_bind_mount_is_none() -> None:
    mount = Mount("/pod", "/kubepods/a")
    assert mount.relative("/kubepods/a/ctr") == "/ctr"
    assert mount.relative("/kubepods/a") == "/"
    assert mount.relative("/kubepods/ab") is None
    assert Mount("/sys/fs/cgroup").relative("/../other") is None


def test_reference_is_not_redirected_when_its_path_is_taken_by_another(fake: FakeTree) -> None:
    with fake.make("gpu.slice/a") as first:
        os.rename(fake.root / "gpu.slice/a", fake.root / "gpu.slice/b")
        with fake.make("gpu.slice/a", frozen=True) as second:
            assert second.id != first.id
            assert second.read("cgroup.freeze").strip() == "1"
            assert first.read("cgroup.freeze").strip() == "0"
            first.write("cgroup.procs", "7")
            assert second.read("cgroup.procs") == ""


def test_removed_cgroup_is_gone_and_stays_gone(fake: FakeTree) -> None:
    with fake.make("gpu.slice/a") as ref:
        assert ref.is_alive()
        shutil.rmtree(fake.root / "gpu.slice/a")
        assert not ref.is_alive()
        with pytest.raises(CgroupGone):
            ref.read("cgroup.freeze")
        fake.make("gpu.slice/a").close()
        with pytest.raises(CgroupGone):
            ref.write("cgroup.freeze", "1")
    with pytest.raises(CgroupGone):
        CgroupRef.open(fake.mount, "/gpu.slice/never")


def test_missing_kernel_file_is_a_refusal_not_a_vanished_cgroup(fake: FakeTree) -> None:
    with fake.make("a") as ref, pytest.raises(KernelRefused, match=r"/a/cgroup\.kill"):
        ref.write("cgroup.kill", "1")


def test_opening_a_plain_file_as_a_cgroup_is_refused(fake: FakeTree) -> None:
    with pytest.raises(KernelRefused):
        CgroupRef.open(fake.mount, "/cgroup.procs")


def test_path_cannot_climb_out_of_the_mount(fake: FakeTree) -> None:
    with pytest.raises(ValueError, match=r"\.\."):
        CgroupRef.open(fake.mount, "/gpu.slice/../../etc")


def test_references_leak_no_descriptor(fake: FakeTree) -> None:
    fake.make("a").close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        ref = CgroupRef.open(fake.mount, "/a")
        ref.read("cgroup.procs")
        ref.close()
        ref.close()
        CgroupRef.open(fake.mount, "/a")  # dropped without a close
    assert len(os.listdir("/proc/self/fd")) == before
