# SPDX-License-Identifier: Apache-2.0
"""What every harness needs: a simulated GPU, tenants in cgroups of their own, the real daemon beside them.

    with Rig() as rig, rig.daemon("enforce", loads) as daemon, rig.tenants(loads) as tenants:
        before = read_together(rig, daemon, tenants)
        ...

Nothing is shared with other daemons or harnesses on this machine: temporary directories, a cgroup prefix with
our pid, and a build of the simulated libraries of our own, because uprobes belong to an inode: on a shared
libcuda we would measure everybody's probes. All of it is gone after the ``with`` block, Ctrl-C included.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil
import yaml

from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount, find_mount
from fairsched.errors import ControlError, FairschedError, HostUnsupported
from fairsched.protocol.client import TIMEOUT_S, ControlClient
from fairsched.simgpu import GpuSpec, GpuTruth, SimHost, Worker, Workload, build
from fairsched.simgpu.workload import enter_command

PARENT = "/gpu.slice"
_START_S = 60.0
_STOP_S = 20.0
_REMOVE_S = 5.0
AnswerT = TypeVar("AnswerT")
_TICK_NS = 150_000_000
"""Longer than a tick: an account that stands still for so long is up to date."""


class BenchError(FairschedError):
    """The measurement could not be made."""


@dataclass(frozen=True)
class TenantLoad:
    """A tenant and what it does; ``workload.processes`` of them, in one cgroup."""

    name: str
    workload: Workload
    weight: float = 1.0
    tenant_class: str = "latency"


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Raises BenchError when it does not become true."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise BenchError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)


class Rig:
    """A context manager. Simulated GPUs, any number of tenants and daemons, one after the other."""

    def __init__(self, *specs: GpuSpec, build_dir: Path | None = None) -> None:
        """``build_dir``: where several rigs of one process share their build of the simulated libraries."""
        self.specs = specs or (GpuSpec(),)
        self._build_dir = build_dir
        self.prefix = f"bench-{os.getpid()}-"
        self._undo = contextlib.ExitStack()
        self._daemons = 0

    def __enter__(self) -> Rig:
        if os.geteuid() != 0:
            raise HostUnsupported(
                "the benchmarks need root (BPF, cgroup.freeze)", remedy="sudo make bench-core"
            )
        try:
            self._set_up()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _set_up(self) -> None:
        self.mount: Mount = find_mount()
        directory = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="fairsched-bench-"))
        self.directory = Path(directory)
        before = os.environ.get("FAIRSCHED_SIM_BUILD")
        os.environ["FAIRSCHED_SIM_BUILD"] = str(self._build_dir or self.directory / "simgpu")
        self._undo.callback(_restore_environ, "FAIRSCHED_SIM_BUILD", before)
        if not os.path.isdir(self.mount.absolute(PARENT)):
            tree.create(self.mount, PARENT).close()
            self._undo.callback(self._remove_parent)
        self.host = self._undo.enter_context(SimHost(self.specs))

    def _remove_parent(self) -> None:
        with contextlib.suppress(OSError):  # somebody else has moved in
            os.rmdir(self.mount.absolute(PARENT))

    @property
    def libcuda(self) -> Path:
        """The library the tenants load, and no other process of this machine."""
        return self.host.library_dir / "libcuda.so.1"

    def cgroup_path(self, tenant: str) -> str:
        """As in /proc/PID/cgroup."""
        return f"{PARENT}/{self.prefix}{tenant}"

    # ---- tenants ----

    @contextlib.contextmanager
    def tenants(self, loads: Sequence[TenantLoad], seed: int = 1) -> Iterator[dict[str, list[Worker]]]:
        """The loads, running; yields the workers by tenant. Killed, and their cgroups removed, afterwards."""
        with contextlib.ExitStack() as undo:
            workers: dict[str, list[Worker]] = {}
            for number, load in enumerate(loads):
                ref = tree.create(self.mount, self.cgroup_path(load.name))
                undo.callback(self.remove_cgroup, ref)
                group = workers[load.name] = []
                undo.callback(_kill_all, group)
                where = Path(self.mount.absolute(ref.path))
                for process in range(load.workload.processes):
                    one = replace(load.workload, processes=1, seed=seed + 100 * number + process)
                    group.append(self.host.spawn(one, where, f"{load.name}.{process}"))
            yield workers

    def remove_cgroup(self, ref: CgroupRef) -> None:
        """Wait for its last process to leave, and remove it; a warning when that fails."""
        with ref:
            end_s = time.monotonic() + _REMOVE_S
            while time.monotonic() < end_s:  # the last process leaves a moment after it was reaped
                try:
                    return tree.remove(self.mount, ref)
                except FairschedError:
                    time.sleep(0.01)
        print(f"warning: {ref.path} could not be removed", file=sys.stderr)

    # ---- the daemon ----

    @contextlib.contextmanager
    def daemon(self, mode: str, loads: Sequence[TenantLoad]) -> Iterator[RunningDaemon]:
        """The daemon in a process of its own, its probes attached; stopped afterwards."""
        tenants = {
            load.name: {
                "weight": load.weight,
                "class": load.tenant_class,
                "cgroup": self.cgroup_path(load.name).lstrip("/"),
            }
            for load in loads
        }
        with self.daemon_of({"mode": mode, "tenants": tenants}) as daemon:
            yield daemon

    @contextlib.contextmanager
    def daemon_of(self, document: dict[str, Any]) -> Iterator[RunningDaemon]:
        """The same, with a configuration that says all but where things are and what the GPUs' slices are."""
        self._daemons += 1
        directory = self.directory / f"daemon{self._daemons}"
        directory.mkdir()
        config = directory / "config.yaml"
        config.write_text(yaml.safe_dump(self._complete(document, directory)))
        daemon = RunningDaemon(config, directory, self.host.env())
        try:
            daemon.wait_ready()
            yield daemon
        finally:
            daemon.stop()
            shutil.rmtree(directory, ignore_errors=True)

    def _complete(self, document: dict[str, Any], directory: Path) -> dict[str, Any]:
        first = self.specs[0]
        gpu = {
            "source": "ebpf",
            "libcuda": [str(self.libcuda)],
            "timeslice_us": int(first.slice_us),
            "switch_us": int(first.switch_us),
        }
        return {
            **document,
            "run_dir": str(directory / "run"),
            "state_dir": str(directory / "state"),
            "gpu": {**gpu, **document.get("gpu", {})},
        }


class RunningDaemon:
    """``fairsched run`` as a subprocess, or ``argv`` that does the same."""

    def __init__(
        self,
        config: Path,
        directory: Path,
        env: dict[str, str],
        argv: Sequence[str] | None = None,
        patience_s: float = TIMEOUT_S,
    ) -> None:
        """``patience_s``: for an answer of its control socket."""
        self._inside = f"{directory}/"
        self._log = directory / "log"
        self._client = ControlClient(directory / "run/fairsched.sock", timeout_s=patience_s)
        if argv is None:
            argv = [str(Path(sys.executable).parent / "fairsched"), "run", "--config", str(config)]
        # It dies with us, should we be killed; in a session of its own Ctrl-C leaves its end to stop().
        command = enter_command(build().load, list(argv), None, True)
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Until it answers and the probes are on libcuda. Raises BenchError with the end of its log."""
        try:
            wait_until(self._is_ready, _START_S, "the daemon accounts with probes on libcuda")
        except BenchError as error:
            raise BenchError(f"{error}; its log ends:\n{self.log_tail()}") from error

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise BenchError(f"the daemon ended with {self._process.returncode}")
        try:
            status = self.status()
        except ControlError:
            return False
        if status["source"] != "ebpf":
            raise BenchError(f"no account: {status['source_reason']}")
        return not any("no libcuda" in warning for warning in status["warnings"])

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def log_lines(self, *words: str) -> list[str]:
        """Lines of the log with any of the words."""
        text = self._log.read_text(errors="replace")
        return [line for line in text.splitlines() if any(word in line for word in words)]

    def status(self) -> dict[str, Any]:
        """``fairsched status --json``, without the process. Raises ControlError."""
        answer: dict[str, Any] = self._client.request("status")
        return answer

    def processes(self) -> dict[str, psutil.Process]:
        """The daemon and its helpers, by role. Raises BenchError when one is not there any more."""
        roles = {"fairsched.bpf.attacher": "attacher", "fairsched.guardian.process": "guardian"}
        try:
            daemon = psutil.Process(self._process.pid)
            found = {"daemon": daemon}
            for child in daemon.children(recursive=True):
                words = child.cmdline()
                role = next((name for word, name in roles.items() if word in words), None)
                found[role or f"child{child.pid}"] = child
        except psutil.Error as error:
            raise BenchError(f"the daemon's processes cannot be read: {error}") from error
        return found

    def stop(self) -> None:
        """SIGTERM, and SIGKILL (said so) when that is not enough. Idempotent.

        The helpers are waited for: the guardian of a daemon that was killed is about to let everybody go.
        """
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            print(f"warning: the daemon did not end within {_STOP_S:g} s", file=sys.stderr)
            self._process.kill()
            self._process.wait()
        wait_until(lambda: not self._helpers(), _STOP_S, "the daemon's helpers have gone")

    def _helpers(self) -> list[psutil.Process]:
        """Also those that outlived it. The guardian's command names the journal."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(word.startswith(self._inside) for word in process.info["cmdline"] or ())
        ]


def cpu_s(process: psutil.Process) -> float:
    """User and system time so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def cpu_pressure_s() -> float | None:
    """How long, since boot, some task has waited for a CPU; None where the kernel does not tell.

    A process that waits for a CPU notices the end of its work late, and its account grows meanwhile: on a
    busy machine part of the error is the machine's.
    """
    try:
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return int(first.rpartition("total=")[2]) / 1e6


def cpu_stolen_s() -> float:
    """How long, since boot, the host of this virtual machine ran something else on its CPUs while they had work; of
    all CPUs together. 0 where the kernel does not tell. No pressure shows it: here nobody waits, time stands still."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


# ---- the truth and the account at one moment ----


@dataclass(frozen=True)
class Reading:
    """What the engine knows and what the daemon believes, as of about the same moment."""

    gpu: GpuTruth
    truth_ns: dict[str, int]
    """Execution time by tenant."""
    account_ns: dict[str, int]
    """The daemon's, without those it has not seen yet."""


def read_truth(rig: Rig, workers: dict[str, list[Worker]]) -> Reading:
    """The truth alone."""
    gpu, contexts = rig.host.snapshot()
    by_pid: dict[int, int] = {}
    for context in contexts:
        by_pid[context.pid] = by_pid.get(context.pid, 0) + context.exec_ns
    truth = {name: sum(by_pid.get(one.pid, 0) for one in group) for name, group in workers.items()}
    return Reading(gpu, truth, {})


def read_together(rig: Rig, daemon: RunningDaemon, workers: dict[str, list[Worker]]) -> Reading:
    """Both, right after the daemon has booked a tick.

    Its account is as old as its last tick, up to 100 ms: half a percent of 20 s that would not be its error.
    """
    account = after_a_tick(lambda: _account_ns(daemon))
    return replace(read_truth(rig, workers), account_ns=account)


def after_a_tick(read: Callable[[], AnswerT]) -> AnswerT:
    """What is read once it is another answer than now; the same one when nothing moves for longer than a tick.

    None is no answer, and not waited for.
    """
    before, end_ns = read(), time.monotonic_ns() + _TICK_NS
    answer = before
    while answer is not None and answer == before and time.monotonic_ns() < end_ns:
        time.sleep(0.002)
        answer = read()
    return answer


def _account_ns(daemon: RunningDaemon) -> dict[str, int]:
    tenants = daemon.status()["tenants"]
    return {t["name"]: round(t["gpu_time_s"] * 1e9) for t in tenants if t["gpu_time_s"] is not None}


def _kill_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()


def _restore_environ(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
