# SPDX-License-Identifier: Apache-2.0
"""One cell: tenants, a daemon with a stopwatch, its maps kept moving; from its start to its end."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rig import BenchError, Rig, RunningDaemon, TenantLoad, cpu_pressure_s, cpu_s, launched
from benchmarks.scale_daemon import Lap, read_laps
from benchmarks.scale_figures import Cell, summarise
from benchmarks.scale_maps import MOST_BUSY, Injector, Program
from benchmarks.scale_world import Step, World
from fairsched.cgroup import tree
from fairsched.simgpu import PRESETS, Workload, build
from fairsched.simgpu.workload import enter_command

_WEIGHTS = (1.0, 2.0, 4.0, 1.0)
_SLEEPER = ["/bin/sleep", "infinity"]
_LEAST_SLEEP_S = 0.0005
_STATUS_CALLS = 5


class ScaleDaemon(RunningDaemon):
    """``fairsched run`` with the stopwatch; :meth:`laps` after :meth:`stop`."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        super().__init__(directory, env, patience_s=30.0)
        self._times = directory / "times"

    def argv(self, *options: str) -> list[str]:
        del options
        return [sys.executable, "-m", "benchmarks.scale_daemon", str(self._times), str(self.config_path)]

    def laps(self) -> list[Lap]:
        """Raises BenchError when it left none."""
        try:
            return read_laps(self._times)
        except OSError as error:
            raise BenchError(f"the daemon left no times; its log ends:\n{self.log_tail()}") from error


@contextlib.contextmanager
def crowd(rig: Rig, tenants: int) -> Iterator[list[Program]]:
    """A cgroup per tenant and a process that sleeps in each. Killed and removed afterwards."""
    gpus = len(rig.specs)
    load = build().load
    with contextlib.ExitStack() as undo:
        programs = []
        for number in range(tenants):
            ref = tree.create(rig.mount, rig.cgroup_path(tenant_name(number)))
            undo.callback(rig.remove_cgroup, ref)
            where = Path(rig.mount.absolute(ref.path))
            process = subprocess.Popen(
                enter_command(load, _SLEEPER, where, True),
                env={"CUDA_VISIBLE_DEVICES": str(number % gpus)},
                stdin=subprocess.DEVNULL,
            )
            undo.callback(process.wait)
            undo.callback(process.kill)
            freeze_fd = os.open(where / "cgroup.freeze", os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, freeze_fd)
            programs.append(Program(process.pid, ref.id, number % gpus, freeze_fd))
        yield programs


def tenant_name(number: int) -> str:
    return f"t{number:04d}"


@contextlib.contextmanager
def daemon(
    rig: Rig, tenants: int, more: Mapping[str, Any] | None = None
) -> Iterator[tuple[ScaleDaemon, float]]:
    """It, and how long it took to be ready. Each tenant is named in the configuration, by the path of its cgroup;
    ``more`` is what the configuration has besides.

    Its directories are in memory, as /run is: each hold is journalled there.
    """
    with tempfile.TemporaryDirectory(prefix="daemon-", dir=rig.host.state_dir) as name:
        directory = Path(name)
        document = {
            "mode": "enforce",
            "tenants": {
                tenant_name(number): {
                    "weight": _WEIGHTS[number // len(rig.specs) % len(_WEIGHTS)],
                    "cgroup": rig.cgroup_path(tenant_name(number)).lstrip("/"),
                }
                for number in range(tenants)
            },
            **(more or {}),
        }
        running = ScaleDaemon(directory, rig.host.env())
        running.configure(rig.complete(document))
        start_s = time.monotonic()
        with launched(running):
            yield running, time.monotonic() - start_s


@dataclass
class _Window:
    """What is read at both ends of the measured time."""

    t_ns: int
    cpu: dict[str, float]
    pressure_s: float | None
    steps: int
    edges: int

    @staticmethod
    def open(processes: dict[str, psutil.Process], steps: int, edges: int) -> _Window:
        cpu = {role: cpu_s(process) for role, process in processes.items()}
        return _Window(time.monotonic_ns(), cpu, cpu_pressure_s(), steps, edges)


class Driver:
    """Keeps the daemon's maps moving."""

    def __init__(
        self, injector: Injector, programs: Sequence[Program], gpus: int, step: Step, seed: int
    ) -> None:
        self._injector = injector
        now_ns = time.monotonic_ns()
        for key in range(len(programs)):
            injector.create(key, time.monotonic_ns())
        self._world = World(
            len(programs), gpus, injector, start_ns=now_ns, most_busy=MOST_BUSY, step=step, seed=seed
        )
        self._next_count_ns = 0

    @property
    def steps(self) -> int:
        return self._world.steps

    @property
    def edges(self) -> int:
        return self._injector.edges

    def run(self, seconds: float) -> None:
        end_ns = time.monotonic_ns() + round(seconds * 1e9)
        while (now_ns := time.monotonic_ns()) < end_ns:
            self._world.advance(now_ns)
            if now_ns >= self._next_count_ns:
                self._next_count_ns = now_ns + 1_000_000_000
                self._injector.count_busy(now_ns)
            due_ns = min(self._world.next_ns() or end_ns, now_ns + 5_000_000)
            time.sleep(max(_LEAST_SLEEP_S, (due_ns - time.monotonic_ns()) / 1e9))


def _real(step: Step) -> Workload:
    """The same program as a process."""
    return replace(
        PRESETS["decode"], kernels=step.launches, kernel_us=step.launch_ns / 1e3, gap_us=step.think_ns / 1e3
    )


class _Sleeper:
    """In place of the driver, where real processes do the work."""

    steps = edges = 0

    def run(self, seconds: float) -> None:
        time.sleep(seconds)


def measure_cell(
    rig: Rig, tenants: int, *, seconds: float, settle_s: float, step: Step, seed: int, is_injected: bool
) -> Cell:
    """One daemon, from its start to its end."""
    with contextlib.ExitStack() as undo:
        if is_injected:
            programs = undo.enter_context(crowd(rig, tenants))
            running, start_s = undo.enter_context(daemon(rig, tenants))
            injector = undo.enter_context(Injector(running.pid, programs))
            driver: Driver | _Sleeper = Driver(injector, programs, len(rig.specs), step, seed)
        else:
            running, start_s = undo.enter_context(daemon(rig, tenants))
            loads = [TenantLoad(tenant_name(number), _real(step)) for number in range(tenants)]
            undo.enter_context(rig.tenants(loads, seed))
            driver = _Sleeper()
        driver.run(settle_s)
        processes = running.processes()
        before = _Window.open(processes, driver.steps, driver.edges)
        driver.run(seconds)
        after = _Window.open(processes, driver.steps, driver.edges)
        rss = {role: process.memory_info().rss for role, process in processes.items()}
        statuses = []
        for _ in range(_STATUS_CALLS):
            driver.run(0.05)
            statuses.append(running.status())
        running.stop()
        return _cell(rig, tenants, is_injected, running.laps(), before, after, statuses[-1], rss, start_s)


def _cell(
    rig: Rig,
    tenants: int,
    is_injected: bool,
    laps: Sequence[Lap],
    before: _Window,
    after: _Window,
    status: dict[str, Any],
    rss: dict[str, int],
    start_s: float,
) -> Cell:
    seconds = (after.t_ns - before.t_ns) / 1e9
    asked = [lap.wall_ns / 1e6 for lap in laps if lap.kind == "status" and lap.begin_ns >= after.t_ns]
    waited_s = None
    if before.pressure_s is not None and after.pressure_s is not None:
        waited_s = after.pressure_s - before.pressure_s
    return Cell(
        gpus=len(rig.specs),
        tenants=tenants,
        is_injected=is_injected,
        **summarise(laps, before.t_ns, after.t_ns),
        status_ms=statistics.median(asked),
        cpu_ratio={role: (after.cpu[role] - before.cpu[role]) / seconds for role in before.cpu},
        rss_bytes=rss,
        start_s=start_s,
        steps_per_s=(after.steps - before.steps) / seconds if is_injected else None,
        edges_per_s=(after.edges - before.edges) / seconds if is_injected else None,
        sure=sum(tenant["confidence"] == "high" for tenant in status["tenants"]),
        seen=sum(bool(tenant["gpus"]) for tenant in status["tenants"]),
        cpu_wait_ratio=None if waited_s is None else waited_s / seconds,
        warnings=tuple(status["warnings"]),
    )
