# SPDX-License-Identifier: Apache-2.0
"""Brings the scene to life: a janitor, and a node with the real daemon and the tenants.

The daemon needs some seconds to compile its BPF programs; the tenants start meanwhile. How everything ends is the
janitor's business; leaving the ``with`` block in good order only makes it quick.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fairsched.base.package import with_package
from fairsched.base.process import ProcessId
from fairsched.cgroup.path import Mount, find_mount
from fairsched.demo import janitor
from fairsched.demo.scene import TENANTS, configuration
from fairsched.errors import ControlError, FairschedError, HostUnsupported
from fairsched.model import Confidence
from fairsched.protocol.status import StatusReport, status_from_plain
from fairsched.simgpu import SimBuildError, SimHost, Worker
from fairsched.simgpu.build import cache_root
from fairsched.simgpu.host import default_state_root
from fairsched.simgpu.node import SimNode

_PROBED = re.compile(r"library=.* probes=[1-9]")
_READY_S = 30.0
_STOP_S = 2.0
_ANSWER_S = 2.0


class DemoError(FairschedError):
    """Something on stage ended that should not have."""


class Stage:
    """Everything the demo runs. Use as a context manager."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        try:
            self._set()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything. Whoever loses patience now and presses Ctrl-C again is not heard."""
        with _signals_ignored():
            self._undo.close()

    def _set(self) -> None:
        mount = find_mount()
        roots = (default_state_root().parent, cache_root())
        janitor.sweep_stale(mount, roots)
        name = janitor.name_of(ProcessId.me())
        self._undo.callback(_start_janitor(mount, name, roots))
        # A choice of GPUs made for real ones would hide the simulated one.
        for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            os.environ.pop(variable, None)
        work = roots[0] / name
        work.mkdir()
        # The libraries are not in the work directory: /run is often mounted noexec.
        self._node = SimNode(
            f"{janitor.SLICE}/{name}/", directory=work, state_dir=work / "gpu", library_dir=roots[1] / name
        )
        self._undo.callback(self._node.close)
        try:
            self._node.open()
        except SimBuildError as error:
            remedy = "install a C compiler and its headers: apt install gcc libc6-dev linux-libc-dev"
            raise HostUnsupported(str(error), remedy=remedy) from error
        for tenant in TENANTS:
            self._node.make_cgroup(tenant.name)
        self._start_daemon()
        # The account tells how contexts take turns from the order in which they came: it must see them come.
        self._wait(lambda: _PROBED.search(self._daemon.log()) is not None)
        for tenant in TENANTS:
            self._node.spawn_group(tenant.name, tenant.workload)

    # ---- the GPUs and the tenants ----

    @property
    def host(self) -> SimHost:
        """The simulated GPUs."""
        return self._node.host

    @property
    def workers(self) -> dict[str, list[Worker]]:
        """By tenant."""
        return self._node.workers

    # ---- the daemon ----

    @property
    def daemon_pid(self) -> int:
        return self._daemon.pid

    def _start_daemon(self) -> None:
        self._daemon = self._node.make_daemon(cgroup=self._node.make_cgroup("daemon"), patience_s=_ANSWER_S)
        # While it compiles, Python hears no signal. If it held anybody, its guardian thaws.
        self._undo.callback(self._daemon.stop, _STOP_S)
        self._configure("observe")
        self._daemon.launch()

    def _configure(self, mode: str) -> None:
        cgroups = {tenant.name: self._node.cgroup_path(tenant.name) for tenant in TENANTS}
        self._daemon.configure(configuration(cgroups, mode, str(self._node.libcuda)))

    def ask(self, request: str, **args: Any) -> Any:
        """A request on the daemon's control socket. Raises ControlError."""
        return self._daemon.ask(request, **args)

    def status(self) -> StatusReport:
        """What the daemon says now. Raises ControlError."""
        return status_from_plain(self._daemon.status())

    def enforce(self) -> None:
        """From now on tenants are held: the way an operator does it, by configuration and reload."""
        self._configure("enforce")
        self._daemon.ask("reload")

    def wait_ready(self) -> None:
        """Return when the daemon accounts for every tenant."""
        self._wait(self._is_ready)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        end = time.monotonic() + _READY_S
        while not is_true():
            self.check()
            if time.monotonic() > end:
                message, remedy = read_error(self._daemon.log())
                said = f"the daemon was not ready in {_READY_S:.0f} s; it said: {message}"
                raise DemoError(said, remedy=remedy)
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        if not all(worker.is_ready for group in self.workers.values() for worker in group):
            return False
        try:
            tenants = self.status().tenants
        except ControlError:
            return False
        return sum(tenant.confidence is Confidence.HIGH for tenant in tenants) == len(TENANTS)

    def check(self) -> None:
        """Raise when the daemon or a tenant has ended. Exit status 3 of the daemon: the host cannot."""
        status = self._daemon.status_of_end
        if status is not None:
            kind = HostUnsupported if status == HostUnsupported.exit_status else DemoError
            message, remedy = read_error(self._daemon.log())
            raise kind(message or f"the daemon ended with status {status}", remedy=remedy)
        for group in self.workers.values():
            for worker in group:
                if not worker.is_running:
                    raise DemoError(f"{worker.name} ended with status {worker.process.returncode}")


def check_host() -> None:
    """What can be known before anything is started. The daemon finds out the rest."""
    if os.geteuid() != 0:
        raise HostUnsupported("fairsched demo needs root (BPF, cgroup.freeze)", remedy="sudo fairsched demo")
    if os.uname().machine != "x86_64":
        raise HostUnsupported(
            f"the simulated GPU does not run on {os.uname().machine}", remedy="use an x86-64 host or VM"
        )


def has_real_gpu() -> bool:
    return any(Path(place).is_dir() for place in ("/proc/driver/nvidia/gpus", "/sys/module/nvidia"))


def read_error(log: str) -> tuple[str, str]:
    """The last ``error:`` of a log and the remedy that follows it; empty when there is none."""
    lines = log.splitlines()
    message = remedy = ""
    for line in lines:
        if line.startswith("error: "):
            message, remedy = line.removeprefix("error: "), ""
        elif line.strip().startswith("remedy: "):
            remedy = line.strip().removeprefix("remedy: ")
    return (message, remedy) if message else (lines[-1] if lines else "", "")


def _start_janitor(mount: Mount, name: str, roots: Iterable[Path]) -> Callable[[], None]:
    """Returns what to call in the end."""
    command = [sys.executable, "-S", "-s", "-m", "fairsched.demo.janitor", name, *map(str, roots)]
    if not os.path.isdir(mount.absolute(janitor.SLICE)):
        command.append("--remove-slice")
    process = subprocess.Popen(
        command,
        env=with_package(os.environ),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def finish() -> None:
        assert process.stdin is not None
        process.stdin.close()
        if process.wait() != 0:
            print(f"fairsched demo: {name} could not be removed whole", file=sys.stderr)

    return finish


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
