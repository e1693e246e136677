# SPDX-License-Identifier: Apache-2.0
"""The host with a GPU: PyTorch tenants in cgroups below gpu.slice, and the daemon on the driver's own libcuda."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.facts import Facts
from benchmarks.gpu.hosts import Crew, Host, Load, Member
from benchmarks.gpu.stays import Stays
from benchmarks.rig import BenchError, RunningDaemon, launched, on_source
from fairsched.base.package import with_package
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, find_mount
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.simgpu import Worker, WorkerError, build
from fairsched.simgpu.node import PARENT
from fairsched.simgpu.workload import create_log, enter_command

_READY_S = 300.0
"""A large model is made, run, profiled and recorded before its tenant begins."""
_REMOVE_TRIES = 500
_DRAIN_SLACK_NS = 1_000_000
"""GPU and host clock are compared to about this."""


class Real(Host):
    """Also tries the tenants' program on a CPU (``device="cpu"``), for the tests of this file."""

    is_simulated = False

    def __init__(self, facts: Facts, python: str = sys.executable, device: str = "cuda") -> None:
        self._facts, self._python, self._device = facts, python, device
        self.prefix = f"bench-{os.getpid()}-"
        self._undo = contextlib.ExitStack()
        self._started = 0
        self._stays: Stays | None = None

    def __enter__(self) -> Real:
        if os.geteuid() != 0:
            raise HostUnsupported(
                "the GPU checks need root (BPF, cgroup.freeze)", remedy="sudo python -m benchmarks.gpu"
            )
        try:
            self.mount = find_mount()
            made = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="fairsched-gpu-"))
            self._directory = Path(made)
            self._directory.chmod(0o755)
            if not os.path.isdir(self.mount.absolute(PARENT)):
                tree.create(self.mount, PARENT).close()
                self._undo.callback(self._remove_parent)
            self._stays = Stays.of(self._facts.gpu.uuid)
            if self._stays is not None:
                self._undo.callback(self._stays.close)
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _remove_parent(self) -> None:
        with contextlib.suppress(OSError):  # somebody else has moved in
            os.rmdir(self.mount.absolute(PARENT))

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def libcuda(self) -> Path:
        return self._facts.libcuda

    @property
    def gpu_uuid(self) -> str:
        return self._facts.gpu.uuid

    def env(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.gpu_uuid}

    def exec_ns(self, members: Sequence[Member]) -> int | None:
        """By the GPU's own trace."""
        return None if self._stays is None else self._stays.ns(member.worker.pid for member in members)

    # ---- tenants ----

    @contextlib.contextmanager
    def tenants(self, loads: Sequence[Load]) -> Iterator[Crew]:
        """Begun together, made one after the other: each measures itself first, and the others wait meanwhile."""
        with contextlib.ExitStack() as undo:
            crew: Crew = {}
            for load in loads:
                ref = tree.create(self.mount, f"{PARENT}/{self.prefix}{load.name}")
                undo.callback(self._remove, ref)
                crew[load.name] = []
                for number in range(load.processes):
                    member = self._start(load, number, Path(self.mount.absolute(ref.path)), undo)
                    crew[load.name].append(member)
            for member in (one for members in crew.values() for one in members):
                _begin(member)
            yield crew

    def _start(self, load: Load, number: int, cgroup: Path, undo: contextlib.ExitStack) -> Member:
        self._started += 1
        name = f"{load.name}.{number}"
        stem = self._directory / f"{self._started}-{name}"
        log, gpu_log, report = (stem.with_suffix(suffix) for suffix in (".log", ".gpu", ".json"))
        create_log(log)
        create_log(gpu_log)
        argv = [shutil.which(self._python) or self._python, "-m", "benchmarks.gpu.tenant"]
        argv += ["--kind", load.kind, "--log", str(log), "--gpu-log", str(gpu_log), "--report", str(report)]
        argv += ["--queue-ms", str(load.queue_ms), "--threads", str(load.threads), "--device", self._device]
        argv += ["--seed", str(self._started)]
        argv += ["--count"] if load.is_counted else []
        if self._device == "cpu":
            argv += ["--width", "64", "--layers", "1"]
        errors = stem.with_suffix(".err")
        with open(errors, "wb") as stderr:
            process = subprocess.Popen(
                enter_command(build().load, [*argv, "--wait"], cgroup, True),
                env=with_package({**os.environ, **self.env()}),
                stdin=subprocess.PIPE,
                stderr=stderr,
            )
        worker = Worker(name, process, log)
        undo.callback(_end, worker)
        try:
            worker.wait_ready(_READY_S)
        except WorkerError as error:
            last = errors.read_text(errors="replace").strip().splitlines()[-3:]
            raise BenchError(f"{error}: {' | '.join(last) or 'it said nothing'}") from error
        said = json.loads(report.read_text())
        return Member(worker, said["launches"], said["launches_from"], Worker(name, process, gpu_log))

    def _remove(self, ref: CgroupRef) -> None:
        with ref:
            for _ in range(_REMOVE_TRIES):  # the last process leaves a moment after it was reaped
                try:
                    return tree.remove(self.mount, ref)
                except FairschedError:
                    time.sleep(0.01)
        print(f"warning: {ref.path} could not be removed", file=sys.stderr)

    def drain_end_ns(self, member: Member, from_ns: int, to_ns: int) -> int | None:
        """By the tenant's own events, which the GPU reached while their process stood still."""
        if member.gpu_log is None:
            return None
        before_ns = to_ns + _DRAIN_SLACK_NS
        ends = [step.end_ns for step in member.gpu_log.steps() if from_ns < step.end_ns <= before_ns]
        return min(max(ends), to_ns) if ends else None

    # ---- the daemon ----

    @contextlib.contextmanager
    def daemon(self, mode: str, loads: Sequence[Load]) -> Iterator[RunningDaemon]:
        self._started += 1
        directory = self._directory / f"daemon{self._started}"
        directory.mkdir()
        daemon = RunningDaemon(directory, source=self.source)
        daemon.configure(self._document(mode, loads))
        with launched(daemon):
            yield daemon

    def _document(self, mode: str, loads: Sequence[Load]) -> dict[str, object]:
        if not loads:
            raise BenchError("a daemon without tenants")
        named = on_source(self.source)
        return {
            "mode": mode,
            "mechanisms": named["mechanisms"],
            "gpu": {**named["gpu"], "libcuda": [str(self.libcuda)]},
            "tenants": {
                load.name: {
                    "weight": load.weight,
                    "class": load.tenant_class,
                    "cgroup": f"{PARENT}/{self.prefix}{load.name}".lstrip("/"),
                }
                for load in loads
            },
        }


def _begin(member: Member) -> None:
    stdin = member.worker.process.stdin
    if stdin is None:
        raise BenchError(f"{member.worker.name} cannot be told to begin")
    try:
        stdin.write(b"begin\n")
        stdin.flush()
    except BrokenPipeError as error:
        raise BenchError(f"{member.worker.name} has ended before it began") from error


def _end(worker: Worker) -> None:
    worker.kill()
    if worker.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()
