# SPDX-License-Identifier: Apache-2.0
"""One node in a guest: a simulated GPU, tenants that all want more of it than there is, and the daemon.

Problem. A boot decides what the daemon has to see and to hold with. Whether shares are kept there must be judged by
what the GPU executed, and whether everybody is let go by what the kernel says, not by anything the daemon believes.

Approach. Each tenant has a cgroup of its name wherever this boot has cgroups, as a container runtime makes them: in v2,
or in each hierarchy of v1, or in both. Its one process keeps the GPU's queue full. Parts of what all executed between
two moments are compared with the weights. What is frozen or stopped is asked of all cgroups and all processes of the
guest.

Terms. error: the largest difference of a tenant's part to its due, in points of the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairsched.simgpu import SimHost, Workload
from fairsched.simgpu.daemon_process import COMMAND, DaemonProcess
from fairsched.simgpu.workload import Worker
from tests.support import let_run, wait_until

BOOT = os.environ.get("FAIRSCHED_VM_BOOT", "v2")
CGROUPS = Path("/sys/fs/cgroup")
V1 = tuple(CGROUPS / name for name in ("freezer", "cpu,cpuacct", "memory", "devices", "pids", "systemd"))
V2 = {"hybrid": CGROUPS / "unified", "v1": None}.get(BOOT, CGROUPS)
"""Where cgroup v2 is mounted."""
HIERARCHIES = (*([V2] if V2 else []), *(V1 if BOOT in ("v1", "hybrid") else []))
PARENT = "gpu.slice"
WEIGHTS = {"gold": 3, "bronze": 1}
DUE = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
LOAD = Workload("trainer", kernels=1, kernel_us=20_000, depth=3)
"""Few calls for much work, as they are slow here; 60 ms of it queued."""
PATIENCE_S = 60.0
START_S = 300.0
"""The daemon may have to find out that its programs are refused, which takes a compilation."""


@dataclass(frozen=True)
class Stretch:
    """What the GPU executed for each tenant between two moments."""

    used_ns: Mapping[str, int]

    @property
    def parts(self) -> dict[str, float]:
        whole = max(1, sum(self.used_ns.values()))
        return {name: used / whole for name, used in self.used_ns.items()}

    @property
    def error_points(self) -> float:
        return 100 * max(abs(part - DUE[name]) for name, part in self.parts.items())

    def has_lock_out(self) -> bool:
        """Whether somebody got less than a quarter of its due."""
        return any(part < DUE[name] / 4 for name, part in self.parts.items())


class Node:
    """A context manager; entering it starts the GPU and the tenants, not the daemon."""

    def __init__(self, directory: Path) -> None:
        self._undo = contextlib.ExitStack()
        self._host = SimHost(library_dir=directory / "lib")
        self._directory = directory
        self._workers: dict[str, Worker] = {}
        self.daemon: DaemonProcess

    def __enter__(self) -> Node:
        with self._undo as undo:
            undo.callback(self._remove_cgroups)
            undo.enter_context(self._host)
            self.daemon = DaemonProcess(self._directory, self._host.env(), patience_s=PATIENCE_S)
            undo.callback(self.daemon.close, PATIENCE_S)
            for name in WEIGHTS:
                self._workers[name] = self._spawn(name)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _spawn(self, name: str) -> Worker:
        first, *others = (hierarchy / PARENT / name for hierarchy in HIERARCHIES)
        first.mkdir(parents=True)
        worker = self._host.spawn(LOAD, first, name, wait=False)
        for cgroup in others:
            cgroup.mkdir(parents=True)
            (cgroup / "cgroup.procs").write_text(str(worker.pid))
        worker.wait_ready(PATIENCE_S)
        return worker

    def _remove_cgroups(self) -> None:
        for hierarchy in HIERARCHIES:
            for path in sorted((hierarchy / PARENT).rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
            with contextlib.suppress(OSError):
                (hierarchy / PARENT).rmdir()

    def used_ns(self) -> dict[str, int]:
        by_pid: dict[int, int] = {}
        for context in self._host.truth():
            by_pid[context.pid] = by_pid.get(context.pid, 0) + context.exec_ns
        return {name: by_pid[worker.pid] for name, worker in self._workers.items()}

    def since(self, before: Mapping[str, int]) -> Stretch:
        return Stretch({name: used - before[name] for name, used in self.used_ns().items()})

    def run_for(self, seconds: float) -> Stretch:
        before = self.used_ns()
        let_run(seconds)
        return self.since(before)

    def pids(self) -> set[int]:
        """Of the tenants."""
        return {worker.pid for worker in self._workers.values()}

    # ---- the daemon ----

    def launch(self, **mechanisms: str) -> None:
        """Start it, with nothing chosen but what is named."""
        tenants = {name: {"cgroup": f"{PARENT}/{name}", "weight": weight} for name, weight in WEIGHTS.items()}
        self.daemon.configure({"mode": "enforce", "tenants": tenants, "mechanisms": mechanisms})
        self.daemon.launch()

    def start(self, **mechanisms: str) -> dict[str, Any]:
        """The same, and wait until it answers; returns its status."""
        self.launch(**mechanisms)
        self.daemon.wait_for(lambda: self.daemon.ping() == self.daemon.pid, START_S, "the daemon answers")
        return self.daemon.status()

    def doctor(self) -> dict[str, Any]:
        """What it says of this boot."""
        argv = [*COMMAND, "doctor", "--json", "--config", str(self.daemon.config_path)]
        done = subprocess.run(argv, env=self.daemon.env(), capture_output=True, text=True, timeout=START_S)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def kill_while_holding(self) -> None:
        """The daemon stands still first, so that it is known to have held somebody when it was killed."""

        def is_left() -> bool:
            os.kill(self.daemon.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(self.daemon.pid), PATIENCE_S, "the daemon stands still")
            if frozen_cgroups() or stopped_among(self.pids()):
                return True
            os.kill(self.daemon.pid, signal.SIGCONT)
            return False

        wait_until(is_left, PATIENCE_S, "the daemon stands still while it holds")
        self.daemon.kill()


def frozen_cgroups() -> list[str]:
    """Of all hierarchies: those that somebody asked to stop, or that have stopped."""
    found = []
    for top in HIERARCHIES:
        for name, good in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
            for file in top.rglob(name):
                with contextlib.suppress(OSError):
                    if file.read_text().strip() != good:
                        found.append(str(file.parent))
    return found


def is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "Tt"
    return False


def stopped_among(pids: set[int]) -> set[int]:
    return {pid for pid in pids if is_stopped(pid)}


def stopped_processes() -> set[int]:
    """Of the whole guest."""
    return stopped_among({int(name) for name in os.listdir("/proc") if name.isdecimal()})
