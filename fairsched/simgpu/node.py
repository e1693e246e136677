# SPDX-License-Identifier: Apache-2.0
"""Brings up one node: simulated GPUs, a libcuda of its own, tenants in cgroups, the real daemon; and takes it down.

    with SimNode("/gpu.slice/mine-") as node:
        daemon = node.make_daemon()
        daemon.configure({"tenants": {"chat": {"cgroup": node.cgroup_path("chat")}}})
        daemon.launch()
        node.make_cgroup("chat")
        node.spawn("chat", PRESETS["decode"])

Problem. The demo, the benchmarks and the tests need the same node, share the machine with each other, and must leave
nothing behind: no process, no cgroup, above all no frozen one.

Approach. A node owns the cgroups whose path begins with its ``base``. Probes are on files, so its tenants load a copy
of the simulated libraries that no other node's do. ``close`` ends the daemons first, because they thaw whom they hold,
then the GPUs with the tenants; what is left in the cgroups is thawed and killed, and the cgroups are removed. A node
that could not be started whole takes down what there is. A directory that the caller names is the caller's to remove.

Errors: NodeError; SimBuildError and SimGpuError from below; HostUnsupported without cgroup v2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.errors import FairschedError
from fairsched.protocol.client import TIMEOUT_S
from fairsched.simgpu.daemon_process import DaemonProcess, NodeError, wait_until
from fairsched.simgpu.host import GpuSpec, SimHost
from fairsched.simgpu.reader import ContextTruth
from fairsched.simgpu.workload import Worker, Workload

PARENT = "/gpu.slice"
"""Of all nodes' cgroups."""
_REMOVE_S = 5.0
_LAST_REMOVE_S = 15.0
_NAP_S = 0.01


class SimNode:
    """A context manager; or :meth:`open` and, always, :meth:`close`."""

    def __init__(
        self,
        base: str,
        gpus: Sequence[GpuSpec] = (GpuSpec(),),
        *,
        directory: Path | None = None,
        prefix: str = "fairsched-node-",
        state_dir: Path | None = None,
        library_dir: Path | None = None,
    ) -> None:
        """``base``: the cgroup of tenant X is ``base`` + X. ``directory``: for files; a temporary one with
        ``prefix`` if None. ``state_dir``: of the engine; one in memory if None. ``library_dir``: of the copy of the
        libraries; in ``directory`` if None."""
        self.base = base
        self.mount = find_mount()
        self.workers: dict[str, list[Worker]] = {}
        self.daemons: list[DaemonProcess] = []
        self._gpus, self._directory, self._prefix = gpus, directory, prefix
        self._state_dir, self._library_dir = state_dir, library_dir
        self._host: SimHost | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> SimNode:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Starts the GPUs. When that fails, nothing is left."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=self._prefix))
            self._undo.callback(shutil.rmtree, self._directory, ignore_errors=True)
        if not os.path.isdir(self.mount.absolute(PARENT)):
            tree.create(self.mount, PARENT).close()
            self._undo.callback(self._remove_parent)
        self._undo.callback(self._clear_cgroups)
        self._host = SimHost(self._gpus, self._state_dir, self._library_dir or self._directory / "lib")
        self._undo.callback(self._host.close)
        self._host.start()

    @property
    def directory(self) -> Path:
        """For files of the node and of whoever runs it."""
        if self._directory is None:
            raise NodeError("the node is not open")
        return self._directory

    @property
    def host(self) -> SimHost:
        """The simulated GPUs."""
        if self._host is None:
            raise NodeError("the node is not open")
        return self._host

    @property
    def libcuda(self) -> Path:
        """The library the tenants load, and no other process of this machine."""
        return self.host.library_dir / "libcuda.so.1"

    # ---- cgroups ----

    def cgroup_path(self, tenant: str) -> str:
        """As in /proc/PID/cgroup."""
        return f"{self.base}{tenant}"

    def cgroup(self, tenant: str) -> Path:
        """The directory."""
        return Path(self.mount.absolute(self.cgroup_path(tenant)))

    def make_cgroup(self, tenant: str) -> Path:
        """Makes the cgroup with its missing ancestors; returns the directory."""
        tree.create(self.mount, self.cgroup_path(tenant)).close()
        return self.cgroup(tenant)

    def remove_cgroup(self, ref: CgroupRef) -> None:
        """Waits for its last process to leave, and removes it; a warning when that fails."""
        with ref:
            end_s = time.monotonic() + _REMOVE_S
            while time.monotonic() < end_s:  # the last process leaves a moment after it was reaped
                try:
                    return tree.remove(self.mount, ref)
                except FairschedError:
                    time.sleep(_NAP_S)
        print(f"warning: {ref.path} could not be removed", file=sys.stderr)

    # ---- tenants ----

    def spawn(
        self,
        tenant: str,
        workload: Workload,
        cgroup: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Worker:
        """Starts one more process of a tenant; each has a seed of its own."""
        group = self.workers.setdefault(tenant, [])
        one = replace(workload, processes=1, seed=workload.seed + len(group))
        worker = self.host.spawn(one, cgroup or self.cgroup(tenant), f"{tenant}.{len(group)}", env)
        group.append(worker)
        return worker

    def spawn_group(self, tenant: str, workload: Workload) -> list[Worker]:
        """Starts ``workload.processes`` processes of a tenant."""
        return [self.spawn(tenant, workload) for _ in range(workload.processes)]

    def kill_group(self, tenant: str) -> None:
        """Kills a tenant's processes and forgets them."""
        for worker in self.workers.pop(tenant, []):
            worker.kill()

    def truth_ns(self) -> dict[str, int]:
        """What each tenant's processes really executed."""
        return executed_ns(self.host.truth(), self.workers)

    # ---- the daemon ----

    def make_daemon(
        self,
        directory: Path | None = None,
        *,
        cgroup: Path | None = None,
        patience_s: float = TIMEOUT_S,
    ) -> DaemonProcess:
        """A daemon that sees this node's GPUs; not launched. It is ended with the node at the latest."""
        daemon = DaemonProcess(
            directory or self.directory, self.host.env(), cgroup=cgroup, patience_s=patience_s
        )
        self.daemons.append(daemon)
        self._undo.callback(daemon.close)
        return daemon

    # ---- the end ----

    def close(self) -> None:
        """Takes everything down. May be called twice; an error in one step does not keep back the others."""
        self._undo.close()

    def _cgroups_left(self) -> list[Path]:
        """Those at the top of what is ours."""
        top = Path(self.mount.absolute(self.base))
        if self.base.endswith("/"):
            return [top] if top.exists() else []
        if not top.parent.exists():
            return []
        return [path for path in top.parent.iterdir() if path.is_dir() and path.name.startswith(top.name)]

    def _clear_cgroups(self) -> None:
        for top in self._cgroups_left():
            for directory, _, _ in os.walk(top):
                for file, value in (("cgroup.freeze", "0"), ("cgroup.kill", "1")):
                    with contextlib.suppress(OSError):
                        Path(directory, file).write_text(value)

        def is_clear() -> bool:
            for top in self._cgroups_left():
                for directory, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(directory)
            return not self._cgroups_left()

        wait_until(is_clear, _LAST_REMOVE_S, f"the cgroups {self.base}* are removed")

    def _remove_parent(self) -> None:
        with contextlib.suppress(OSError):  # somebody else has moved in
            os.rmdir(self.mount.absolute(PARENT))


def executed_ns(contexts: Iterable[ContextTruth], workers: Mapping[str, Sequence[Worker]]) -> dict[str, int]:
    """Execution time by tenant."""
    by_pid: dict[int, int] = {}
    for context in contexts:
        by_pid[context.pid] = by_pid.get(context.pid, 0) + context.exec_ns
    return {tenant: sum(by_pid.get(one.pid, 0) for one in group) for tenant, group in workers.items()}


__all__ = ["PARENT", "DaemonProcess", "NodeError", "SimNode", "executed_ns", "wait_until"]
