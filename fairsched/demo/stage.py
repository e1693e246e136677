# SPDX-License-Identifier: Apache-2.0
"""Brings the scene to life: janitor, cgroups, simulated GPU, the real daemon as a process, the tenants.

The daemon needs some seconds to compile its BPF programs; the tenants start meanwhile. How everything ends is the
janitor's business; leaving the ``with`` block in good order only makes it quick.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fairsched.base.package import PACKAGE_ROOT
from fairsched.base.process import ProcessId
from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount, find_mount
from fairsched.demo import janitor
from fairsched.demo.scene import TENANTS, config_text
from fairsched.errors import ControlError, FairschedError, HostUnsupported
from fairsched.model import Confidence
from fairsched.protocol.client import ControlClient
from fairsched.protocol.status import StatusReport, status_from_plain
from fairsched.simgpu import SimBuildError, SimHost, Worker
from fairsched.simgpu.build import cache_root
from fairsched.simgpu.host import default_state_root

_PR_SET_PDEATHSIG = 1
_READY_S = 30.0
_STOP_S = 2.0


class DemoError(FairschedError):
    """Something on stage ended that should not have."""


class Stage:
    """Everything the demo runs. Use as a context manager."""

    def __init__(self) -> None:
        self.workers: dict[str, list[Worker]] = {}
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
        self._mount = find_mount()
        roots = (default_state_root().parent, cache_root())
        janitor.sweep_stale(self._mount, roots)
        name = janitor.name_of(ProcessId.me())
        self._undo.callback(_start_janitor(self._mount, name, roots))
        # A choice of GPUs made for real ones would hide the simulated one.
        for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            os.environ.pop(variable, None)
        self._work = roots[0] / name
        self._work.mkdir()
        base = f"{janitor.SLICE}/{name}"
        self._cgroups = {one: f"{base}/{one}" for one in (*(tenant.name for tenant in TENANTS), "daemon")}
        for path in self._cgroups.values():
            tree.create(self._mount, path).close()
        self.host = SimHost(state_dir=self._work / "gpu")
        self._undo.callback(self.host.close)
        try:
            self.host.start()
        except SimBuildError as error:
            remedy = "install a C compiler and its headers: apt install gcc libc6-dev linux-libc-dev"
            raise HostUnsupported(str(error), remedy=remedy) from error
        self._environ = self.host.env() | {"LD_LIBRARY_PATH": self._own_libraries(roots[1] / name)}
        self._start_daemon()
        self._start_tenants()

    def _own_libraries(self, place: Path) -> str:
        """A copy of libcuda of its own. Probes are on the file, so the daemon would also see what others run on it.

        Not in the work directory: /run is often mounted noexec.
        """
        shutil.copytree(self.host.library_dir, place)
        return str(place)

    # ---- the daemon ----

    @property
    def log(self) -> Path:
        """What the daemon says."""
        return self._work / "daemon.log"

    @property
    def daemon_pid(self) -> int:
        return self._daemon.pid

    def _write_config(self, mode: str) -> Path:
        path = self._work / "config.yaml"
        scratch = path.with_suffix(".new")
        scratch.write_text(config_text(self._work, self._cgroups, mode))
        scratch.replace(path)
        return path

    def _start_daemon(self) -> None:
        config = self._write_config("observe")
        code = "import fairsched.cli; fairsched.cli.main()"
        environ = {**os.environ, **self._environ, "PYTHONPATH": PACKAGE_ROOT}
        environ.pop("NOTIFY_SOCKET", None)  # a service manager of ours is none of the daemon's
        procs = f"{self._mount.absolute(self._cgroups['daemon'])}/cgroup.procs"
        with open(self.log, "wb") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-c", code, "run", "--config", str(config)],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the daemon in good order
                preexec_fn=_leash(procs),
            )
        self._undo.callback(self._stop_daemon)
        self._client = ControlClient(self._work / "run/fairsched.sock", timeout_s=2.0)

    def _stop_daemon(self) -> None:
        self._daemon.terminate()
        try:
            self._daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            # It is compiling, and Python hears no signal meanwhile. If it held anybody, its guardian thaws.
            self._daemon.kill()
            self._daemon.wait()

    def ask(self, request: str, **args: Any) -> Any:
        """A request on the daemon's control socket. Raises ControlError."""
        return self._client.request(request, **args)

    def status(self) -> StatusReport:
        """What the daemon says now. Raises ControlError."""
        return status_from_plain(self._client.request("status"))

    def enforce(self) -> None:
        """From now on tenants are held: the way an operator does it, by configuration and reload."""
        self._write_config("enforce")
        self._client.request("reload")

    def wait_ready(self) -> None:
        """Return when the daemon accounts for every tenant."""
        end = time.monotonic() + _READY_S
        while not self._is_ready():
            self.check()
            if time.monotonic() > end:
                message, remedy = read_error(self.log)
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
        status = self._daemon.poll()
        if status is not None:
            kind = HostUnsupported if status == HostUnsupported.exit_status else DemoError
            message, remedy = read_error(self.log)
            raise kind(message or f"the daemon ended with status {status}", remedy=remedy)
        for group in self.workers.values():
            for worker in group:
                if not worker.is_running:
                    raise DemoError(f"{worker.name} ended with status {worker.process.returncode}")

    # ---- the tenants ----

    def _start_tenants(self) -> None:
        for tenant in TENANTS:
            cgroup = Path(self._mount.absolute(self._cgroups[tenant.name]))
            self.workers[tenant.name] = [
                self.host.spawn(
                    dataclasses.replace(tenant.workload, processes=1, seed=seed),
                    cgroup,
                    f"{tenant.name}.{seed}",
                    env=self._environ,
                )
                for seed in range(1, tenant.workload.processes + 1)
            ]


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


def read_error(log: Path) -> tuple[str, str]:
    """The last ``error:`` of a log and the remedy that follows it; empty when there is none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    message = remedy = ""
    for line in lines:
        if line.startswith("error: "):
            message, remedy = line.removeprefix("error: "), ""
        elif line.strip().startswith("remedy: "):
            remedy = line.strip().removeprefix("remedy: ")
    return (message, remedy) if message else (lines[-1] if lines else "", "")


def _leash(procs: str) -> Callable[[], None]:
    """To be run in the child: into its cgroup, and SIGTERM when the demo dies, however it dies."""
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)
        with open(procs, "w") as file:
            file.write("0")

    return enter


def _start_janitor(mount: Mount, name: str, roots: Iterable[Path]) -> Callable[[], None]:
    """Returns what to call in the end."""
    command = [sys.executable, "-S", "-s", "-m", "fairsched.demo.janitor", name, *map(str, roots)]
    if not os.path.isdir(mount.absolute(janitor.SLICE)):
        command.append("--remove-slice")
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": PACKAGE_ROOT},
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
