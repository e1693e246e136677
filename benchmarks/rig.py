# SPDX-License-Identifier: Apache-2.0
"""What every harness needs: a simulated node for the measurement alone, and account and truth of one moment.

    with Rig() as rig, rig.daemon("enforce", loads) as daemon, rig.tenants(loads) as tenants:
        before = read_together(rig, daemon, tenants)
        ...

Nothing is shared with other daemons or harnesses on this machine: temporary directories, a cgroup prefix with
our pid, and a copy of the simulated libraries of our own, because uprobes belong to an inode: on a shared
libcuda we would measure everybody's probes. All of it is gone after the ``with`` block, Ctrl-C included.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks import record
from fairsched.cgroup import tree
from fairsched.errors import ControlError, HostUnsupported
from fairsched.protocol.client import TIMEOUT_S
from fairsched.simgpu import GpuSpec, GpuTruth, Worker, Workload
from fairsched.simgpu import node as sim_node
from fairsched.simgpu.daemon_process import DaemonProcess, NodeError, role_of
from fairsched.simgpu.node import PARENT, SimNode, executed_ns

TAPES = "FAIRSCHED_BENCH_TAPES"
"""In the environment: a directory where each daemon of a benchmark leaves a tape of what its account was given."""
_START_S = 60.0
_STOP_S = 20.0
AnswerT = TypeVar("AnswerT")
_TICK_NS = 150_000_000
"""Longer than a tick: an account that stands still for so long is up to date."""


class BenchError(NodeError):
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
    try:
        sim_node.wait_until(condition, deadline_s, what)
    except BenchError:
        raise
    except NodeError as error:
        raise BenchError(str(error)) from error


class Rig(SimNode):
    """A context manager. Simulated GPUs, any number of tenants and daemons, one after the other."""

    def __init__(self, *specs: GpuSpec, build_dir: Path | None = None) -> None:
        """``build_dir``: where several rigs of one process share their copy of the simulated libraries."""
        self.specs = specs or (GpuSpec(),)
        self.prefix = f"bench-{os.getpid()}-"
        super().__init__(
            f"{PARENT}/{self.prefix}",
            self.specs,
            prefix="fairsched-bench-",
            library_dir=None if build_dir is None else build_dir / "lib",
        )
        self._daemons = 0

    def __enter__(self) -> Rig:
        if os.geteuid() != 0:
            raise HostUnsupported(
                "the benchmarks need root (BPF, cgroup.freeze)", remedy="sudo make bench-core"
            )
        self.open()
        return self

    # ---- tenants ----

    @contextlib.contextmanager
    def tenants(self, loads: Sequence[TenantLoad], seed: int = 1) -> Iterator[dict[str, list[Worker]]]:
        """The loads, running; yields the workers by tenant. Killed, and their cgroups removed, afterwards."""
        with contextlib.ExitStack() as undo:
            workers: dict[str, list[Worker]] = {}
            for number, load in enumerate(loads):
                undo.callback(self.remove_cgroup, tree.create(self.mount, self.cgroup_path(load.name)))
                undo.callback(self.kill_group, load.name)
                workers[load.name] = self.spawn_group(
                    load.name, replace(load.workload, seed=seed + 100 * number)
                )
            yield workers

    # ---- the daemon ----

    @contextlib.contextmanager
    def daemon(self, mode: str, loads: Sequence[TenantLoad], source: str = "ebpf") -> Iterator[RunningDaemon]:
        """The daemon in a process of its own, its probes attached; stopped afterwards."""
        tenants = {
            load.name: {
                "weight": load.weight,
                "class": load.tenant_class,
                "cgroup": self.cgroup_path(load.name).lstrip("/"),
            }
            for load in loads
        }
        with self.daemon_of({"mode": mode, "tenants": tenants, **on_source(source)}) as daemon:
            yield daemon

    @contextlib.contextmanager
    def daemon_of(self, document: Mapping[str, Any]) -> Iterator[RunningDaemon]:
        """The same, with a configuration that says all but where things are and what the GPUs' slices are."""
        self._daemons += 1
        directory = self.directory / f"daemon{self._daemons}"
        directory.mkdir()
        try:
            complete = self.complete(document)
            env = self.host.trace_env() if _is_traced(document) else self.host.env()
            if complete["gpu"]["source"] == "dcgm":
                env = self.host.dcgm_env()
            daemon = RunningDaemon(directory, env, source=complete["gpu"]["source"])
            daemon.configure(complete)
            with launched(daemon):
                yield daemon
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def complete(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with what an operator would know of these GPUs."""
        first = self.specs[0]
        gpu = {
            "source": "ebpf",
            "libcuda": [str(self.libcuda)],
            "timeslice_us": int(first.slice_us),
            "switch_us": int(first.switch_us),
        }
        if _is_traced(document):
            gpu["device_dir"] = str(self.host.device_dir)
        return {**document, "gpu": {**gpu, **document.get("gpu", {})}}


SOURCES = ("ebpf", "trace", "nvml")
SETTLE_SAMPLED_S = 25.0
"""Until what chance makes of samples can be told from a wrong share."""


def on_source(source: str) -> dict[str, Any]:
    """The part of a configuration that names the account. By the trace alone the daemon does not start without it; on
    samples none is read."""
    trace = {"trace": {"trace": "required", "driver": "off"}, "nvml": {"trace": "off"}}.get(source, {})
    return {"gpu": {"source": source}, "mechanisms": trace}


def _is_traced(document: Mapping[str, Any]) -> bool:
    """Whether a daemon so configured is to have the GPU's trace of context switches: the driver's stand-in is preloaded
    into it. Without that the nodes are plain files."""
    return bool(document.get("mechanisms", {}).get("trace") == "required")


class RunningDaemon(DaemonProcess):
    """``fairsched run`` as a subprocess, and what a measurement asks of it."""

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str] | None = None,
        *,
        patience_s: float = TIMEOUT_S,
        source: str = "ebpf",
    ) -> None:
        self._source = source
        super().__init__(directory, env, patience_s=patience_s)
        if TAPES in os.environ:
            name = f"{time.strftime('%H%M%S')}-{directory.name}.tape"
            self.command = record.command(Path(os.environ[TAPES], name))

    def wait_ready(self) -> None:
        """Until it answers, from the source that was asked for, with probes on libcuda.

        Raises BenchError with the end of its log.
        """
        try:
            self.wait_for(self._is_ready, _START_S, "the daemon accounts with probes on libcuda")
        except NodeError as error:
            raise BenchError(str(error)) from error

    def _is_ready(self) -> bool:
        try:
            status = self.status()
        except ControlError:
            return False
        # Samples are scaled from the first load that DCGM tells.
        if status["source"] not in (self._source, "nvml" if self._source == "dcgm" else self._source):
            raise BenchError(f"no account: {status['source_reason']}")
        return self._source != "ebpf" or not any("no libcuda" in warning for warning in status["warnings"])

    def log_lines(self, *words: str) -> list[str]:
        """Lines of the log with any of the words."""
        return [line for line in self.log().splitlines() if any(word in line for word in words)]

    def processes(self) -> dict[str, psutil.Process]:
        """The daemon and its helpers, by role. Raises BenchError when one is not there any more."""
        try:
            daemon = psutil.Process(self.pid)
            found = {"daemon": daemon}
            for child in daemon.children(recursive=True):
                found[role_of(child.cmdline()) or f"child{child.pid}"] = child
        except psutil.Error as error:
            raise BenchError(f"the daemon's processes cannot be read: {error}") from error
        return found

    def end(self) -> None:
        """Ends it, with a warning when it had to be killed. Idempotent.

        The helpers are waited for: the guardian of a daemon that was killed is about to let everybody go.
        """
        was_running = self.is_running
        if self.stop(_STOP_S) < 0 and was_running:
            print(f"warning: the daemon did not end within {_STOP_S:g} s", file=sys.stderr)
        wait_until(lambda: not self.helpers_left(), _STOP_S, "the daemon's helpers have gone")


DaemonT = TypeVar("DaemonT", bound=RunningDaemon)


@contextlib.contextmanager
def launched(daemon: DaemonT) -> Iterator[DaemonT]:
    """The daemon, which was configured, ready; ended afterwards."""
    daemon.launch()
    try:
        daemon.wait_ready()
        yield daemon
    finally:
        daemon.end()


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


def read_truth(rig: Rig, workers: Mapping[str, Sequence[Worker]]) -> Reading:
    """The truth alone."""
    gpu, contexts = rig.host.snapshot()
    return Reading(gpu, executed_ns(contexts, workers), {})


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
