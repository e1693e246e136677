# SPDX-License-Identifier: Apache-2.0
"""Looks at everything while it runs: the engine's truth, the tenants' steps, the daemon's account and cost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psutil

from fairsched.demo.result import AccountSample, DaemonFigures, Recording, Sample
from fairsched.demo.stage import Stage
from fairsched.protocol.status import StatusReport
from fairsched.simgpu import Step

_RATE_WINDOW_NS = 2_000_000_000


class Recorder:
    """Samples of one run. All times are CLOCK_MONOTONIC, as the engine's and the step logs' are."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._tenant_of = {worker.pid: name for name, group in stage.workers.items() for worker in group}
        self._samples: list[Sample] = []
        self._accounts: list[AccountSample] = []
        self._steps: dict[str, list[Step]] = {name: [] for name in stage.workers}
        self._read = dict.fromkeys(self._tenant_of, 0)

    def sample(self) -> Sample:
        """Take one; costs a fraction of a millisecond."""
        gpu, contexts = self._stage.host.snapshot()
        exec_ns = dict.fromkeys(self._stage.workers, 0)
        for context in contexts:
            exec_ns[self._tenant_of[context.pid]] += context.exec_ns
        sample = Sample(gpu.as_of_ns, exec_ns, gpu.busy_ns, gpu.switch_ns)
        self._samples.append(sample)
        for name, group in self._stage.workers.items():
            for worker in group:
                fresh = worker.steps(self._read[worker.pid])
                self._read[worker.pid] += len(fresh)
                self._steps[name] += fresh
        return sample

    def take_account(self) -> StatusReport:
        """Ask the daemon, and note its account beside the truth."""
        report = self._stage.status()
        truth = self.sample()
        account_ns = {
            tenant.name: tenant.gpu_time_s * 1e9 for tenant in report.tenants if tenant.gpu_time_s is not None
        }
        self._accounts.append(AccountSample(truth.t_ns, account_ns, truth.exec_ns))
        return report

    def busy_ratio(self) -> float | None:
        """Part of the last second in which the GPU was not idle."""
        recent = self._samples[-11:]
        wall_ns = recent[-1].t_ns - recent[0].t_ns if recent else 0
        if not wall_ns:
            return None
        worked = [sample.busy_ns + sample.switch_ns for sample in (recent[0], recent[-1])]
        return (worked[1] - worked[0]) / wall_ns

    def steps_per_s(self, name: str) -> float:
        """Over the last two seconds."""
        begin_ns = time.monotonic_ns() - _RATE_WINDOW_NS
        count = 0.0
        for step in reversed(self._steps[name]):
            # Logs of several processes are read one after the other: not quite in order of time.
            if step.end_ns < begin_ns - _RATE_WINDOW_NS:
                break
            count += step.tokens * (step.end_ns >= begin_ns)
        return count * 1e9 / _RATE_WINDOW_NS

    def recording(self) -> Recording:
        return Recording(self._samples, self._steps, self._accounts)


class DaemonMeter:
    """CPU time of the daemon and its helpers, between two moments."""

    def __init__(self, pid: int) -> None:
        self._daemon = psutil.Process(pid)
        self._start_s = time.monotonic()
        self._start_cpu_s = self._cpu_s()

    def read(self) -> DaemonFigures:
        """Since this meter was made."""
        cpu_s, wall_s = self._cpu_s() - self._start_cpu_s, time.monotonic() - self._start_s
        helpers = sum(process.memory_info().rss for process in self._processes() if process != self._daemon)
        return DaemonFigures(cpu_s / wall_s, self._daemon.memory_info().rss, helpers)

    def _processes(self) -> Iterator[psutil.Process]:
        yield self._daemon
        yield from self._daemon.children(recursive=True)

    def _cpu_s(self) -> float:
        total = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total
