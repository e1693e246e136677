# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's MPS server: a process of its name with a context on the GPU, and the socket of its clients.

    with MpsServer(host, directory, cgroup_path) as server:
        host.spawn(PRESETS["decode"], other_cgroup, env=server.client_env())

As on a real node NVML lists the server among the compute processes, and its clients apart. That clients share the GPU
at the same time is the GPU's nature here: ``GpuSpec(overlap=...)``.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from types import TracebackType

from fairsched.simgpu.host import SimHost
from fairsched.simgpu.workload import Worker, Workload, create_log

NAME = "nvidia-cuda-mps-server"
_IDLE_US = 3_600_000_000.0


class MpsServer:
    """A context manager; or :meth:`start` and, always, :meth:`close`. ``directory``: its pipes; it must exist."""

    def __init__(
        self, host: SimHost, directory: Path, cgroup_path: Path | None = None, name: str = NAME
    ) -> None:
        self._host, self._directory, self._cgroup_path, self._name = host, directory, cgroup_path, name
        self.worker: Worker | None = None

    def __enter__(self) -> MpsServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Listen, and be there for NVML."""
        program = self._directory / self._name
        shutil.copy2(self._host.load_program, program)
        log_path = self._host.state_dir / "steps" / self._name
        create_log(log_path)
        load = Workload("decode", kernels=1, kernel_us=1, gap_us=_IDLE_US)
        argv = [str(program), *load.arguments(), "--log", str(log_path)]
        listens = {"FAIRSCHED_SIM_MPS_LISTEN": str(self._directory / "control")}
        process = self._host.popen(argv, self._cgroup_path, listens)
        self.worker = Worker(self._name, process, log_path)
        self._host.workers.append(self.worker)
        self.worker.wait_ready()

    def client_env(self, percentage: int | None = None) -> dict[str, str]:
        """What makes a tenant a client of it. ``percentage``: of the active threads."""
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(self._directory)}
        return env if percentage is None else {**env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}

    def close(self) -> None:
        """End it; its clients do not notice."""
        if self.worker is not None:
            self.worker.kill()
        with contextlib.suppress(FileNotFoundError):
            (self._directory / "control").unlink()
