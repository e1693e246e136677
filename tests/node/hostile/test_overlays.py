# SPDX-License-Identifier: Apache-2.0
"""Containers of one image that has a libcuda of its own: as many files as containers, and one inode to the kernel."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.simgpu.workload import Worker
from tests.node.daemon.conftest import make_site as make_site
from tests.node.daemon.conftest import site as site
from tests.node.daemon.site import PATIENCE_S, Site, logged
from tests.node.hostile import files
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

UNMOUNTED_S = 2.0
"""Processes are listed once a second, and a runtime tries for some seconds."""


class Image:
    """A directory that is the lower one of all its containers."""

    def __init__(self, site: Site, directory: Path) -> None:
        self._site, self._directory = site, directory
        shutil.copytree(site.library_dir, directory / "lower")
        (directory / "empty").mkdir()
        self.mounted: list[Path] = []

    def mount(self, tenant: str) -> Path:
        """The root of a container of ``tenant``."""
        root = self._directory / tenant
        root.mkdir()
        options = f"ro,lowerdir={self._directory}/empty:{self._directory}/lower"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(root)], check=True)
        self.mounted.append(root)
        return root

    def start(self, tenant: str) -> Worker:
        """A container of ``tenant``."""
        root = self.mount(tenant)
        worker = files.spawn_with_own_libcuda(self._site, tenant, root)
        wait_until(
            lambda: logged(self._site.log(), rf"library=\S*{root}/\S* probes=[1-9]"),
            PATIENCE_S,
            "it has its probes",
        )
        return worker

    def unmount(self, tenant: str) -> str | None:
        """None: done; else what umount says."""
        root = self._directory / tenant
        done = subprocess.run(["umount", str(root)], capture_output=True, text=True)
        if done.returncode == 0:
            self.mounted.remove(root)
        return done.stderr or None

    def close(self) -> None:
        """Whoever still maps its files keeps them."""
        for root in self.mounted:
            subprocess.run(["umount", "--lazy", str(root)], check=True)


class PodmanImage(Image):
    """One that podman keeps: the overlays are those of its own storage."""

    def __init__(self, site: Site, directory: Path) -> None:
        super().__init__(site, directory)
        self._own = Path(tempfile.mkdtemp(prefix="podman-"))  # podman takes no more than 50 characters
        storage = ("--root", f"{self._own}/storage", "--runroot", f"{self._own}/run")
        self._podman = ["podman", *storage, "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"]
        shutil.make_archive(f"{directory}/image", "tar", directory / "lower")
        self._name = self._do("import", f"{directory}/image.tar")[-1]

    def mount(self, tenant: str) -> Path:
        self._do("create", "--name", tenant, self._name, "/program")
        root = Path(self._do("mount", tenant)[-1])
        self.mounted.append(root)
        return root

    def close(self) -> None:
        super().close()
        self._do("rm", "--all", "--force")
        subprocess.run(["umount", f"{self._own}/storage/overlay"], check=False, capture_output=True)
        shutil.rmtree(self._own)

    def _do(self, *arguments: str) -> list[str]:
        done = subprocess.run([*self._podman, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.split()


@pytest.fixture
def image(site: Site, tmp_path: Path) -> Iterator[Image]:
    with cleaned_up(site, Image(site, tmp_path)) as found:
        yield found


@pytest.fixture
def podman_image(site: Site, tmp_path: Path) -> Iterator[Image]:
    with cleaned_up(site, PodmanImage(site, tmp_path)) as found:
        yield found


@contextlib.contextmanager
def cleaned_up(site: Site, found: Image) -> Iterator[Image]:
    """And nothing is left of it."""
    yield found
    site.daemon.kill()
    for workers in site.workers.values():
        for worker in workers:
            worker.kill()
    found.close()


def counted(site: Site, worker: Worker, seconds: float = 1.5) -> float:
    """Launches that BPF counts for each kernel that really ran; copies count, too, one in some 20."""

    def now() -> tuple[int, int]:
        with site.maps() as maps:
            submitted = sum(one.submitted for one in maps.contexts() if one.tgid == worker.pid)
        return submitted, sum(one.kernels for one in site.host.truth() if one.pid == worker.pid)

    before = now()
    let_run(seconds)
    after = now()
    return (after[0] - before[0]) / (after[1] - before[1])


def _links(pid: int) -> int:
    """Links and perf events that a process holds."""
    kinds = ("anon_inode:bpf_link", "anon_inode:bpf-link", "anon_inode:[perf_event]")
    return sum(os.readlink(entry.path) in kinds for entry in os.scandir(f"/proc/{pid}/fd"))


def test_a_libcuda_with_code_in_its_first_page_is_known_again(tmp_path: Path) -> None:
    """A private mapping of that page has a page of its own, with the breakpoints in it."""
    for name in ("lower", "empty", "first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / files.LIBRARY).write_bytes(files.elf(2))
    with contextlib.closing(GpuTimeProbe()) as probe, contextlib.ExitStack() as undo:
        counts = []
        for name in ("first", "second"):
            options = f"ro,lowerdir={tmp_path}/empty:{tmp_path}/lower"
            subprocess.run(
                ["mount", "-t", "overlay", "-o", options, "overlay", str(tmp_path / name)], check=True
            )
            undo.callback(subprocess.run, ["umount", "--lazy", str(tmp_path / name)], check=True)
            assert probe.attach_library(str(tmp_path / name / files.LIBRARY)).probes == 1
            counts.append(_links(probe.attacher_pid))
        assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("containers", [2, 6])
def test_a_launch_counts_once_in_each_of_several_containers_of_one_image(
    site: Site, image: Image, containers: int
) -> None:
    expect_counted_once(site, image, containers)


@pytest.mark.skipif(shutil.which("podman") is None, reason="extra: no podman (apt-get install podman)")
@pytest.mark.parametrize("containers", [2, 6])
def test_a_launch_counts_once_in_each_of_several_containers_of_podman(
    site: Site, podman_image: Image, containers: int
) -> None:
    expect_counted_once(site, podman_image, containers)


def expect_counted_once(site: Site, image: Image, containers: int) -> None:
    tenants = [f"c{number}" for number in range(containers)]
    site.configure({name: {} for name in tenants})
    site.start()
    workers = [image.start(name) for name in tenants]
    for worker in (workers[0], workers[-1]):
        assert counted(site, worker) == pytest.approx(1, abs=0.3)
    assert logged(site.log(), "misbehaviour=|Traceback") == []


def test_the_libcuda_of_an_ended_container_is_let_go_and_the_others_keep_theirs(
    site: Site, image: Image
) -> None:
    site.configure({"ended": {}, "left": {}})
    site.start()
    ended, left = image.start("ended"), image.start("left")
    ended.kill()
    took = time_until(lambda: image.unmount("ended") is None, PATIENCE_S, "its root can be unmounted")
    files.expect_soon(took, UNMOUNTED_S)
    assert counted(site, left) == pytest.approx(1, abs=0.3)
    left.kill()
    took = time_until(lambda: image.unmount("left") is None, PATIENCE_S, "the last one's, too")
    files.expect_soon(took, UNMOUNTED_S)
    assert logged(site.log(), "Traceback|probes=lost") == []
