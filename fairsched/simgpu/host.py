# SPDX-License-Identifier: Apache-2.0
"""A host with simulated GPUs: starts the engine, spawns tenants, and always cleans up after itself.

The engine ends when its standard input does or when this process does, empties its state directory
and kills every tenant spawned here, frozen or not. So nothing stays behind after SIGKILL either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fairsched.simgpu import layout
from fairsched.simgpu.build import Built, build
from fairsched.simgpu.reader import (
    ContextTruth,
    GpuTruth,
    NewResidencies,
    Residency,
    SimGpuError,
    SimReader,
)
from fairsched.simgpu.workload import Worker, Workload, create_log, enter_command

_IN_MEMORY = ("tmpfs", "ramfs")


@dataclasses.dataclass(frozen=True)
class GpuSpec:
    """What a simulated GPU is; the fields from ``slice_us`` to ``overlap`` are its nature."""

    name: str = "Simulated GPU"
    uuid: str | None = None
    """``GPU-`` and a UUID; made up if None."""
    vram_bytes: int = 16 << 30
    slice_us: float = 2097.0
    switch_us: float = 180.0
    slice_spread_ratio: float = 0.0
    """In order of creation contexts alternate between slices of (1 + this) and of (1 - this)."""
    slice_jitter_ratio: float = 0.0
    """Each slice is longer or shorter by up to this, at random, in every run the same."""
    is_runlist_ordered: bool = True
    """Contexts take turns in the order of their creation, as on a GPU that has just been started. Later a new one gets
    a place that another left: any order, here in every run the same."""
    run_to_completion: bool = False
    """A kernel is never interrupted; a graph may be, between its kernels."""
    overlap: int = 1
    """Contexts that run at once, m of them at 1/m of the speed."""
    copy_bytes_per_s: int = 12_000_000_000
    copy_latency_us: float = 10.0
    memset_bytes_per_s: int = 1_000_000_000_000
    sm_count: int = 132
    mig: Sequence[int] | None = None
    """Compute slices of each of its MIG instances, largest first; None: it is not in MIG mode, which can be switched on
    through NVML."""

    def argument(self, default_uuid: str) -> str:
        """For ``simengine --gpu``."""
        if "," in self.name or len(self.name) > 63:
            raise ValueError(f"a GPU's name has no comma and at most 63 characters: {self.name!r}")
        self._check_nature()
        values = {
            "name": self.name,
            "uuid": self.uuid or default_uuid,
            "vram_bytes": self.vram_bytes,
            "slice_ns": round(self.slice_us * 1000),
            "switch_ns": round(self.switch_us * 1000),
            "copy_bytes_per_s": self.copy_bytes_per_s,
            "copy_latency_ns": round(self.copy_latency_us * 1000),
            "memset_bytes_per_s": self.memset_bytes_per_s,
            "sm_count": self.sm_count,
            "slice_spread_ppm": round(self.slice_spread_ratio * 1e6),
            "slice_jitter_ppm": round(self.slice_jitter_ratio * 1e6),
            "is_runlist_ordered": int(self.is_runlist_ordered),
            "run_to_completion": int(self.run_to_completion),
            "overlap": self.overlap,
        }
        return ",".join(f"{key}={value}" for key, value in values.items())

    def _check_nature(self) -> None:
        if self.slice_us * 1000 < layout.MIN_SLICE_NS:
            raise ValueError(f"slice_us is at least {layout.MIN_SLICE_NS / 1000}, not {self.slice_us}")
        if self.switch_us < 0:
            raise ValueError(f"switch_us is not negative, but {self.switch_us} is")
        for name in ("slice_spread_ratio", "slice_jitter_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is 0 ... 1, not {getattr(self, name)}")
        if not 1 <= self.overlap <= layout.MAX_OVERLAP:
            raise ValueError(f"overlap is 1 ... {layout.MAX_OVERLAP}, not {self.overlap}")

    @property
    def mig_argument(self) -> list[str]:
        """For ``simengine``, behind ``--gpu``."""
        return [] if self.mig is None else ["--mig", "-".join(map(str, self.mig))]


def _filesystem_type(path: Path) -> str:
    """Of the mount ``path`` is on."""
    best, kind = "", ""
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, where, fstype, *_ = line.split()
            if os.path.commonpath([where, path]) == where and len(where) >= len(best):
                best, kind = where, fstype
    return kind


def default_state_root() -> Path:
    """In memory: on a disk, write-back would stall the pages the engine and its clients write."""
    if os.geteuid() == 0:
        for candidate in (Path("/run"), Path("/dev/shm")):
            if candidate.is_dir() and _filesystem_type(candidate) in _IN_MEMORY:
                return candidate / "fairsched-sim"
        return Path("/run/fairsched-sim")
    return Path(tempfile.gettempdir()) / f"fairsched-sim-{os.getuid()}"


def _make_instance(root: Path) -> Path:
    while True:
        root.mkdir(parents=True, exist_ok=True)
        # The last instance to end removes the root, perhaps just now.
        with contextlib.suppress(FileNotFoundError):
            return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))


class SimHost:
    """Simulated GPUs and the tenants on them, for as long as the ``with`` block lasts."""

    def __init__(
        self,
        gpus: Sequence[GpuSpec] = (GpuSpec(),),
        state_dir: Path | None = None,
        library_dir: Path | None = None,
    ) -> None:
        """``library_dir``: where a copy of the libraries lies, or is put. Probes are on files: those on the copy see
        no other host's tenants. Whoever names it removes it."""
        self.gpus = tuple(gpus)
        self._wanted_library_dir = library_dir
        self.workers: list[Worker] = []
        self._wanted_dir = state_dir
        self._built: Built | None = None
        self._engine: subprocess.Popen[bytes] | None = None
        self._reader: SimReader | None = None
        self._state_dir: Path | None = None
        self._spawned = 0

    def __enter__(self) -> SimHost:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def state_dir(self) -> Path:
        """FAIRSCHED_SIM_DIR of the tenants."""
        if self._state_dir is None:
            raise SimGpuError("the simulated host is not running")
        return self._state_dir

    @property
    def library_dir(self) -> Path:
        """Holds libcuda.so.1 and libnvidia-ml.so.1 and nothing else."""
        return self._wanted_library_dir or self._parts.library_dir

    @property
    def load_program(self) -> Path:
        """What tenants run."""
        return self._parts.load

    @property
    def engine_pid(self) -> int:
        if self._engine is None:
            raise SimGpuError("the simulated host is not running")
        return self._engine.pid

    @property
    def _parts(self) -> Built:
        if self._built is None:
            self._built = build()
        return self._built

    @property
    def reader(self) -> SimReader:
        if self._reader is None:
            raise SimGpuError("the simulated host is not running")
        return self._reader

    def start(self) -> None:
        """Like entering the ``with`` block; call :meth:`close` in the end."""
        engine = self._parts.engine
        if self._wanted_library_dir is not None and not self._wanted_library_dir.exists():
            shutil.copytree(self._parts.library_dir, self._wanted_library_dir)
        self._state_dir = self._make_state_dir()
        command = [str(engine), "--dir", str(self._state_dir)]
        if self._wanted_dir is None:
            command += ["--root", str(self._state_dir.parent)]
        for gpu in self.gpus:
            command += ["--gpu", gpu.argument(f"GPU-{uuid.uuid4()}"), *gpu.mig_argument]
        try:
            self._engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._engine.stdout is not None
            if self._engine.stdout.readline() != b"ready\n":
                raise SimGpuError(f"the engine did not start in {self._state_dir}")
            self._reader = SimReader(self._state_dir)
        except BaseException:
            self.close()
            raise

    def _make_state_dir(self) -> Path:
        if self._wanted_dir is not None:
            path = self._wanted_dir
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise SimGpuError(f"{path} is not empty; the simulated host would delete what is in it")
        else:
            path = _make_instance(default_state_root())
        path.chmod(0o755)
        (path / "dev").mkdir()
        (path / "steps").mkdir()
        return path

    def close(self) -> None:
        """End the tenants and the engine and remove the state directory. May be called twice."""
        for worker in self.workers:
            worker.kill()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._engine is not None:
            self._stop_engine(self._engine)
            self._engine = None
        if self._state_dir is not None:
            shutil.rmtree(self._state_dir, ignore_errors=True)
            with contextlib.suppress(OSError):
                if self._wanted_dir is None:
                    self._state_dir.parent.rmdir()  # when no other instance is there
            self._state_dir = None

    @staticmethod
    def _stop_engine(engine: subprocess.Popen[bytes]) -> None:
        assert engine.stdin is not None and engine.stdout is not None
        engine.stdin.close()
        engine.stdout.close()
        try:
            engine.wait(5.0)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()

    def env(self) -> dict[str, str]:
        """What a tenant needs in its environment, on top of everything else."""
        inherited = os.environ.get("LD_LIBRARY_PATH")
        path = f"{self.library_dir}:{inherited}" if inherited else str(self.library_dir)
        return {"LD_LIBRARY_PATH": path, "FAIRSCHED_SIM_DIR": str(self.state_dir)}

    def dcgm_env(self) -> dict[str, str]:
        """The same on a host that has DCGM: libdcgm.so.4 is found, too."""
        env = self.env()
        return {**env, "LD_LIBRARY_PATH": f"{self._parts.dcgm_dir}:{env['LD_LIBRARY_PATH']}"}

    def trace_env(self) -> dict[str, str]:
        """The same for a daemon that may read the trace of context switches, from the nodes in ``device_dir``."""
        inherited = os.environ.get("LD_PRELOAD")
        preload = f"{self._parts.trace_library}:{inherited}" if inherited else str(self._parts.trace_library)
        return {**self.env(), "LD_PRELOAD": preload}

    @property
    def device_dir(self) -> Path:
        """Stands for /dev: ``gpu.device_dir`` of a daemon's configuration."""
        return self.state_dir / "dev"

    def spawn(
        self,
        workload: Workload,
        cgroup_path: Path | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Worker:
        """Start a load; it is in the cgroup before its program runs.

        With ``wait`` it has its contexts on return. Do not wait for one that starts frozen.
        """
        self._spawned += 1
        name = name or f"{workload.kind}{self._spawned}"
        log_path = self.state_dir / "steps" / f"{self._spawned}-{name.replace('/', '_')}"
        create_log(log_path)
        argv = [str(self._parts.load), *workload.arguments(), "--log", str(log_path)]
        process = self.popen(argv, cgroup_path=cgroup_path, env=env)
        worker = Worker(name, process, log_path)
        self.workers.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    def spawn_group(
        self, workload: Workload, cgroup_path: Path | None = None, name: str | None = None
    ) -> list[Worker]:
        """``workload.processes`` processes, each with a seed of its own."""
        group = []
        for i in range(workload.processes):
            one = dataclasses.replace(workload, processes=1, seed=workload.seed + i)
            group.append(self.spawn(one, cgroup_path, f"{name or workload.kind}.{i}"))
        return group

    def popen(
        self,
        argv: Sequence[str],
        cgroup_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start any program as a tenant; ``argv[0]`` is a path. It dies with this host. ``stdout``: as Popen's."""
        # The kernel sends the parent-death signal when the *thread* that forked ends, so it is only
        # asked for on the main one. The engine's leash covers the rest.
        on_main = threading.current_thread() is threading.main_thread()
        command = enter_command(self._parts.load, list(argv), cgroup_path, on_main)
        environ = {**os.environ, **self.env(), **(env or {})}
        process = subprocess.Popen(command, env=environ, stdout=stdout)
        self.reader.request(layout.RPC_LEASH, process.pid)
        return process

    def truth(self, sync: bool = True) -> list[ContextTruth]:
        """Every context there ever was, with what it really got; see :class:`SimReader`."""
        return self.reader.truth(sync)

    def gpu_truth(self, gpu: int = 0, sync: bool = True) -> GpuTruth:
        return self.reader.gpu_truth(gpu, sync)

    def snapshot(self, gpu: int = 0, sync: bool = True) -> tuple[GpuTruth, list[ContextTruth]]:
        """A GPU and its contexts as of one and the same moment."""
        return self.reader.snapshot(gpu, sync)

    def residencies(self, gpu: int = 0) -> list[Residency]:
        return self.reader.residencies(gpu)

    def residencies_since(self, gpu: int, seen: int, sync: bool = True) -> NewResidencies:
        """The stays completed after the first ``seen`` ones, at the cost of the new ones only."""
        return self.reader.residencies_since(gpu, seen, sync)

    def uuids(self) -> list[str]:
        return self.reader.uuids()

    def mig_uuids(self, gpu: int = 0) -> list[str]:
        """UUIDs of the MIG instances of a GPU that are there now, in NVML's order."""
        return self.reader.mig_uuids(gpu)

    def lose(self, gpu: int = 0) -> None:
        """NVML says from now on that the driver has lost this GPU. Its tenants go on: theirs is another library."""
        (self.state_dir / f"lost{gpu}").touch()

    def find(self, gpu: int = 0) -> None:
        """It is there again."""
        (self.state_dir / f"lost{gpu}").unlink(missing_ok=True)

    def report_xid(self, xid: int, gpu: int = 0) -> None:
        """NVML tells whoever waits for events that the driver has reported this error."""
        with open(self.state_dir / "xids", "a") as file:
            file.write(f"{gpu} {xid}\n")

    def truth_of(self, worker: Worker) -> list[ContextTruth]:
        """The contexts of one worker, on all GPUs."""
        return [truth for truth in self.truth() if truth.pid == worker.pid]
