# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario for a test that wants to look behind the stage meanwhile, and afterwards for what is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.fair import stage
from benchmarks.fair.recording import Recording
from benchmarks.fair.scenario import Play
from benchmarks.rig import Rig
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.simgpu.node import PARENT
from tests.support import wait_until

PATIENCE_S = 30.0


class SeenRig(Rig):
    """Says what is left of it. Cgroups are looked at when they are removed: whoever held them is gone by then."""

    def __enter__(self) -> SeenRig:
        super().__enter__()
        self.left_frozen: list[str] = []
        self.sim_dir = self.host.state_dir
        return self

    def remove_cgroup(self, ref: CgroupRef) -> None:
        if Path(self.mount.absolute(ref.path), "cgroup.freeze").read_text() != "0\n":
            self.left_frozen.append(ref.path)
        super().remove_cgroup(ref)

    def assert_nothing_left(self) -> None:
        """After its end."""
        assert self.left_frozen == []
        wait_until(lambda: not users_of(self.sim_dir), PATIENCE_S, "its processes are gone")
        assert cgroups(self.prefix) == []
        assert not self.sim_dir.exists()
        assert not self.directory.exists()


class Theatre:
    """Where plays are given; ``rig`` is the last one's."""

    def __init__(self, patch: pytest.MonkeyPatch, build_dir: Path) -> None:
        self._build_dir = build_dir
        self.rigs: list[SeenRig] = []
        patch.setattr(stage, "Rig", self._make_rig)

    def _make_rig(self, *specs: object, build_dir: Path | None = None) -> SeenRig:
        self.rigs.append(SeenRig(*specs, build_dir=build_dir))  # type: ignore[arg-type]
        return self.rigs[-1]

    @property
    def rig(self) -> SeenRig:
        return self.rigs[-1]

    def play(
        self,
        play: Play,
        policy: str,
        seconds: float,
        look: Callable[[SeenRig, float], None] = lambda _rig, _done: None,
    ) -> Recording:
        """``look`` is called every half second with the part that is done."""
        return stage.play(
            play,
            policy,
            1,
            seconds,
            build_dir=self._build_dir,
            on_progress=lambda done: look(self.rig, done),
        )


def users_of(sim_dir: Path) -> list[int]:
    """Processes that know of these simulated GPUs: engine, tenants, tricks, daemon, rivals and their helpers."""
    word, found = str(sim_dir).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            if word in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def cgroups(prefix: str) -> list[Path]:
    """Below gpu.slice."""
    return sorted(Path(find_mount().absolute(PARENT)).glob(f"{prefix}*"))


def pids_of(directory: str) -> list[int]:
    """In the cgroup and below it."""
    mount = find_mount()
    return tree.read_pids_recursive(mount, "/" + str(Path(directory).relative_to(mount.absolute("/"))))


def cgroup_of(pid: int) -> str | None:
    """As in /proc/PID/cgroup; None of one that is gone."""
    return tree.cgroup_path_of(pid, find_mount())


def child_with(*words: str) -> psutil.Process:
    """The one process below us with these words in its command."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if set(words) <= set(child.cmdline()):
                found.append(child)
    (one,) = found
    return one


def state_of(pid: int) -> str:
    """As in /proc/PID/stat; X for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return "X"


def held(directory: str) -> bool:
    """Frozen, or a process of it is stopped."""
    is_frozen = Path(directory, "cgroup.freeze").read_text() == "1\n"
    return is_frozen or any(state_of(pid) in "Tt" for pid in pids_of(directory))
