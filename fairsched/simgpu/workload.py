# SPDX-License-Identifier: Apache-2.0
"""What a simulated tenant does with its GPU, and the process that does it."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import time
from dataclasses import dataclass, fields
from pathlib import Path

from fairsched.errors import FairschedError

KINDS = ("decode", "prefill", "burst", "trainer", "graph", "longkernel", "poll", "nosync")
"""Those with a preset."""
STEP_KINDS = ("step", "static")
"""Those that every further field of a workload applies to."""
_CHOICES = {
    "kind": KINDS + STEP_KINDS,
    "jitter_kind": ("lognormal", "uniform"),
    "submit": ("launch", "graph"),
    "wait": ("sync", "query", "pinned", "none"),
    "arrival": ("closed", "poisson", "onoff"),
}
MAX_DEPTH = 256

_HEADER = struct.Struct("QQQQ")
_ENTRY = struct.Struct("QdQ")
LOG_MAGIC = 0x676F6C6D6973
LOG_CAPACITY = 1 << 16


class WorkerError(FairschedError):
    """A simulated tenant did not start or did not do its work."""


@dataclass(frozen=True)
class Workload:
    """A load. A *step* is ``kernels`` launches of ``kernel_us`` each: a token, a batch, an iteration.

    decode      launch a step, wait for it, pause ``gap_us``; again
    prefill     the same, but at random moments, ``gap_us`` apart on average (Poisson)
    burst       idle ``gap_us``, then ``depth`` steps back to back
    trainer     keep ``depth`` steps queued, waiting for the oldest
    graph       decode with one graph launch per step
    longkernel  decode with few, very long kernels
    poll        decode, but the end is seen in pinned memory and in no API call
    nosync      hostile: launch for ever, waiting for nothing but room in the queue
    step        the general one: ``submit``, ``wait`` and ``arrival`` say how, ``depth`` steps may be in flight
    static      step, but no call passes through an export of libcuda: no probe there can see it
    """

    kind: str = "decode"
    kernels: int = 20
    kernel_us: float = 250.0
    jitter_ratio: float = 0.0
    """Relative spread of the kernel times; the mean stays ``kernel_us``."""
    jitter_kind: str = "lognormal"
    gap_us: float = 0.0
    launch_gap_us: float = 0.0
    """Slept between two launches of a step, as a program does whose CPU is slower than its kernels. A graph is one
    launch."""
    depth: int = 4
    contexts: int = 1
    """Each with a thread of its own that runs the load."""
    streams: int = 1
    processes: int = 1
    """For :meth:`SimHost.spawn_group`."""
    device: int = 0
    seconds: float = 0.0
    """0: until it is stopped."""
    seed: int = 1
    threads: int = 0
    """Idle threads: they make freezing slower, as those of a real server do."""
    alloc_bytes: int = 0
    copy_bytes: int = 0
    """Copied to the device at the end of each step."""
    libcuda: str = "libcuda.so.1"
    submit: str = "launch"
    """step: a step is ``kernels`` launches, or one ``graph`` of as many."""
    wait: str = "sync"
    """step: how its end is noticed: ``sync`` (a blocking call), ``query`` (cuEventQuery every 50 us), ``pinned``
    (no call: the GPU writes a flag), ``none`` (never: only a full queue stops it)."""
    arrival: str = "closed"
    """step: ``closed`` (the next follows the last), ``poisson`` (at random moments that depend on the seed alone;
    late ones queue, and latency counts from the arrival), ``onoff`` (closed for ``on_us``, then nothing for
    ``off_us``, on a grid fixed in time)."""
    rate_per_s: float = 0.0
    """poisson: arrivals per context."""
    on_us: float = 0.0
    off_us: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in _CHOICES["kind"]:
            raise ValueError(f"no workload kind {self.kind!r}; there are {', '.join(_CHOICES['kind'])}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {' or '.join(choices)}, not {getattr(self, name)!r}")
        if self.kind in STEP_KINDS:
            self._check_step()

    def _check_step(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"depth is 1 to {MAX_DEPTH}, not {self.depth}")
        if self.arrival == "poisson" and self.rate_per_s <= 0:
            raise ValueError("poisson arrivals need rate_per_s")
        if self.arrival == "onoff" and (self.on_us < 1 or self.off_us < 1):
            raise ValueError("onoff arrivals need on_us and off_us")

    def arguments(self) -> list[str]:
        """Of the program simload."""
        names = {"jitter_ratio": "jitter"}
        arguments = []
        for field in fields(self):
            if field.name == "processes":
                continue
            option = names.get(field.name, field.name.replace("_", "-"))
            arguments += [f"--{option}", str(getattr(self, field.name))]
        return arguments


PRESETS = {
    "decode": Workload("decode", kernels=20, kernel_us=250, jitter_ratio=0.2, gap_us=500),
    "prefill": Workload("prefill", kernels=40, kernel_us=1000, jitter_ratio=0.3, gap_us=150_000),
    "burst": Workload("burst", kernels=20, kernel_us=400, jitter_ratio=0.2, gap_us=500_000, depth=10),
    "trainer": Workload("trainer", kernels=30, kernel_us=500, jitter_ratio=0.1, depth=4),
    "graph": Workload("graph", kernels=40, kernel_us=150, jitter_ratio=0.1, gap_us=300),
    "longkernel": Workload("longkernel", kernels=1, kernel_us=100_000, jitter_ratio=0.4, gap_us=1000),
    "poll": Workload("poll", kernels=20, kernel_us=250, jitter_ratio=0.2, gap_us=500),
    "nosync": Workload("nosync", kernels=50, kernel_us=200, jitter_ratio=0.2),
}


@dataclass(frozen=True)
class Step:
    """One finished step, as its program saw it."""

    end_ns: int
    tokens: float
    latency_ns: int


def create_log(path: Path) -> None:
    """The file simload appends to: a header and a sparse ring."""
    with open(path, "wb") as f:
        f.write(_HEADER.pack(LOG_MAGIC, LOG_CAPACITY, 0, 0))
        f.truncate(_HEADER.size + LOG_CAPACITY * _ENTRY.size)
    path.chmod(0o666)


class Worker:
    """One simulated tenant process. Its steps can be read while it runs and after its end."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.name = name
        self.process = process
        self.pid = process.pid
        with open(log_path, "rb") as f:
            self._log = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)

    def __repr__(self) -> str:
        return f"<Worker {self.name} pid {self.pid}>"

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """It has its contexts and has begun."""
        return bool(_HEADER.unpack_from(self._log)[3])

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.is_ready:
            if not self.is_running:
                raise WorkerError(f"{self.name} ended with {self.process.returncode} before it began")
            if time.monotonic() > deadline:
                raise WorkerError(f"{self.name} (pid {self.pid}) did not begin within {timeout_s} s")
            time.sleep(0.001)

    def step_count(self) -> int:
        """Steps finished so far, also those no longer in the log."""
        return int(_HEADER.unpack_from(self._log)[2])

    def steps(self, since: int = 0) -> list[Step]:
        """The finished steps from number ``since`` on, as far as the log still holds them."""
        count = self.step_count()
        first = max(since, count - LOG_CAPACITY, 0)
        return [
            Step(*_ENTRY.unpack_from(self._log, _HEADER.size + n % LOG_CAPACITY * _ENTRY.size))
            for n in range(first, count)
        ]

    def tokens(self, start_ns: int | None = None, end_ns: int | None = None) -> float:
        """Tokens in the window, those at its edges by the part of their latency inside it."""
        total = 0.0
        for step in self.steps():
            begun_ns = step.end_ns - step.latency_ns
            inside_ns = min(step.end_ns, end_ns or step.end_ns) - max(begun_ns, start_ns or begun_ns)
            if inside_ns > 0:
                total += step.tokens * inside_ns / step.latency_ns
        return total

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ask it to end and wait; kill it if it does not (a frozen one cannot)."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL, whatever state it is in; returns its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        return self.process.wait()


def enter_command(load: Path, argv: list[str], cgroup_path: Path | None, die_with_parent: bool) -> list[str]:
    """The command that joins the cgroup and only then becomes ``argv``."""
    command = [str(load), "--enter"]
    if cgroup_path is not None:
        command += ["--cgroup", os.fspath(cgroup_path)]
    if die_with_parent:
        command.append("--die-with-parent")
    return [*command, "--", *argv]
