# SPDX-License-Identifier: Apache-2.0
"""Runs loads on simulated GPUs that another process runs.

Problem. An operator who tries the service without a GPU has an engine that runs by itself, a daemon that sees it, and
tenants that come and go, each started by a command of its own.

Approach. ``python -m fairsched.simgpu engine`` prints two variables. A process that has them in its environment is a
tenant of that engine; a guest starts such processes, in the cgroup in which it runs itself. They end with the guest,
and with the engine.

Errors: SimGpuError where no engine answers; WorkerError from a load.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from fairsched.simgpu import layout
from fairsched.simgpu.build import build
from fairsched.simgpu.reader import ContextTruth, SimGpuError, SimReader
from fairsched.simgpu.workload import Worker, Workload, create_log, enter_command

STATE_DIR = "FAIRSCHED_SIM_DIR"
LIBRARY_PATH = "LD_LIBRARY_PATH"
_LIBCUDA = "libcuda.so.1"


class SimGuest:
    """A context manager; loads are ended and their logs removed at its end."""

    def __init__(self, state_dir: Path) -> None:
        self.workers: list[Worker] = []
        self._env = _environment(state_dir)
        self._undo = contextlib.ExitStack()
        try:
            self._reader = SimReader(state_dir)
        except OSError as error:
            raise SimGpuError(
                f"no engine answers in {state_dir}: {error.strerror}",
                remedy=f"start one (python -m fairsched.simgpu engine), or unset {STATE_DIR} to have one for this run",
            ) from error
        self._undo.callback(self._reader.close)
        steps = state_dir / "steps"
        # In memory, where it is allowed; only root may write beside the logs of the engine's owner.
        place = steps if os.access(steps, os.W_OK) else None
        self._logs = Path(self._undo.enter_context(tempfile.TemporaryDirectory(prefix="guest-", dir=place)))

    def __enter__(self) -> SimGuest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice."""
        for worker in self.workers:
            worker.kill()
        self._undo.close()

    @property
    def gpu_count(self) -> int:
        return len(self._reader.uuids())

    def spawn(self, workload: Workload) -> Worker:
        """Starts a load and waits until it has its contexts."""
        name = f"{workload.kind}{len(self.workers) + 1}"
        log_path = self._logs / name
        create_log(log_path)
        load = build().load
        argv = [str(load), *workload.arguments(), "--log", str(log_path)]
        process = subprocess.Popen(enter_command(load, argv, None, die_with_parent=True), env=self._env)
        worker = Worker(name, process, log_path)
        self.workers.append(worker)
        self._reader.request(layout.RPC_LEASH, process.pid)
        worker.wait_ready()
        return worker

    def truth(self) -> list[ContextTruth]:
        """Of all contexts of the engine, other processes' included."""
        return self._reader.truth()


def _environment(state_dir: Path) -> dict[str, str]:
    """Of the loads: ours, in which libcuda is that of the simulated GPU."""
    path = os.environ.get(LIBRARY_PATH, "")
    if not any((Path(part) / _LIBCUDA).exists() for part in path.split(":") if part):
        path = f"{build().library_dir}:{path}".rstrip(":")
    return {**os.environ, STATE_DIR: str(state_dir), LIBRARY_PATH: path}
