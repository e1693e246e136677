# SPDX-License-Identifier: Apache-2.0
"""The simulated workloads on a real GPU, with kernels that write down when they ran: a truth there, too.

Problem. No interface of a GPU tells whose time it was. Whatever stands in for it (work done, NVML's samples) shares
assumptions with what is to be checked.

Approach. The same programs as on the simulated GPU (fairsched/simgpu/simload_*.c), with a module whose one kernel reads
the GPU's clock without end, runs until it has run for as long as it was told, and notes each stretch without a break
(timed.ptx). A program saves its notes when it ends. All contexts read one clock; where that is in the host's clock is
told by kernels of no length, each launched and waited for between two looks at the host's clock.

Terms. note: a stretch in which a kernel ran. turn: notes of a context with nobody else's between them. switch: from
the end of a turn to the beginning of the next, of another context. mark: a kernel of no length.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import statistics
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu.real import Real
from benchmarks.record import command
from benchmarks.rig import BenchError, RunningDaemon, TenantLoad, launched, on_source
from benchmarks.stats import Window
from fairsched.cgroup import tree
from fairsched.simgpu import Worker, Workload, build
from fairsched.simgpu.node import PARENT
from fairsched.simgpu.workload import create_log, enter_command

IMAGE = Path(__file__).with_name("timed.ptx")
TURN_GAP_NS = 50_000
"""Within a turn: between two kernels of a queue there are some microseconds."""
_MAGIC = 0x676F6C757067
_HEADER = struct.Struct("=QQQQ")
_PAIR = struct.Struct("=QQ")
_MARKS = 32
_STOP_S = 30.0


@dataclass(frozen=True)
class Notes:
    """Of one context; times of notes are the GPU's."""

    marks: list[tuple[int, int, int]]
    """(host's clock before, after, GPU's clock)"""
    stretches: list[tuple[int, int]]
    """(from, to), in order, without the marks."""
    is_whole: bool
    """False: there were more than the ring holds."""


def read_notes(path: Path) -> Notes:
    """Raises BenchError when that is not a whole file of notes."""
    try:
        data = path.read_bytes()
        magic, capacity, marks, _ = _HEADER.unpack_from(data)
    except (OSError, struct.error) as error:
        raise BenchError(f"{path}: no notes of a GPU: {error}") from error
    begin = _HEADER.size + _MARKS * _PAIR.size
    if magic != _MAGIC or len(data) != begin + capacity * _PAIR.size:
        raise BenchError(f"{path}: no notes of a GPU")
    host = [_PAIR.unpack_from(data, _HEADER.size + number * _PAIR.size) for number in range(marks)]
    noted = [(start, end) for start, end in _PAIR.iter_unpack(data[begin:]) if start]
    marked = [(before, after, at) for (before, after), (at, _) in zip(host, noted, strict=False)]
    return Notes(marked, sorted(noted[marks:]), len(noted) < capacity)


def offset_ns(all_notes: Iterable[Notes]) -> tuple[int, int]:
    """(host's clock - GPU's clock, how far off that may be): each mark bounds it from both sides."""
    bounds = [(before - at, after - at) for notes in all_notes for before, after, at in notes.marks]
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    return (low + high) // 2, abs(high - low) // 2


def ran_ns(stretches: Sequence[tuple[int, int]], window: Window) -> int:
    """How long of a window somebody ran (pure). Stretches are in order and in the window's clock; where two overlap
    (streams of one context) the time counts once."""
    start_ns, end_ns = window
    total, last = 0, start_ns
    for begin, end in stretches:
        begin, end = max(begin, last), min(end, end_ns)
        if end > begin:
            total, last = total + end - begin, end
    return total


@dataclass(frozen=True)
class Turn:
    """A context's, in the GPU's clock."""

    who: int
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def turns(stretches: Mapping[int, Sequence[tuple[int, int]]]) -> list[Turn]:
    """Whose turn it was, by context, in order (pure)."""
    found: list[Turn] = []
    for start, end, who in sorted((start, end, who) for who, own in stretches.items() for start, end in own):
        if found and found[-1].who == who and start - found[-1].end_ns < TURN_GAP_NS:
            found[-1] = Turn(who, found[-1].start_ns, max(end, found[-1].end_ns))
        else:
            found.append(Turn(who, start, end))
    return found


def switches_ns(found: Sequence[Turn], most_ns: int = 1_000_000) -> list[int]:
    """Between two turns of two contexts that follow each other at once (pure)."""
    return [
        next_one.start_ns - one.end_ns
        for one, next_one in itertools.pairwise(found)
        if one.who != next_one.who and next_one.start_ns - one.end_ns < most_ns
    ]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """How many, mean, and what is told of a distribution (pure)."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    at = {
        f"p{part}": ordered[min(len(ordered) - 1, len(ordered) * part // 100)] for part in (1, 10, 50, 90, 99)
    }
    return {
        "count": len(values),
        "mean": statistics.fmean(values),
        **at,
        "min": ordered[0],
        "max": ordered[-1],
    }


@dataclass
class Timed:
    """A process of a tenant and where its notes will be."""

    worker: Worker
    notes_path: Path
    contexts: int

    def notes(self) -> list[Notes]:
        """After its end."""
        return [read_notes(Path(f"{self.notes_path}.{index}")) for index in range(self.contexts)]


class TimedGpu(Real):
    """The host with a GPU; tenants are the simulated workloads. No PyTorch is needed."""

    def __enter__(self) -> TimedGpu:
        super().__enter__()
        return self

    @contextlib.contextmanager
    def daemon_beside(
        self, mode: str, loads: Sequence[TenantLoad], gpu: Mapping[str, int], tape: Path | None = None
    ) -> Iterator[RunningDaemon]:
        """The daemon for these tenants. ``gpu``: more of that section. ``tape``: where to record."""
        self._started += 1
        directory = self.directory / f"daemon{self._started}"
        directory.mkdir()
        daemon = RunningDaemon(directory, source=self.source)
        if tape is not None:
            daemon.command = command(tape)
        tenants = {
            load.name: {
                "weight": load.weight,
                "class": load.tenant_class,
                "cgroup": f"{PARENT}/{self.prefix}{load.name}".lstrip("/"),
            }
            for load in loads
        }
        named = on_source(self.source)
        section = {**named["gpu"], "libcuda": [str(self.libcuda)], **gpu}
        document = {"mode": mode, "gpu": section, "mechanisms": named["mechanisms"], "tenants": tenants}
        daemon.configure(document)
        with launched(daemon):
            yield daemon

    @contextlib.contextmanager
    def timed(
        self, loads: Sequence[TenantLoad], options: Sequence[str] = ()
    ) -> Iterator[dict[str, list[Timed]]]:
        """The loads, running; ended, so that their notes are there, when the block is left.

        ``options``: further ones of simload, for all.
        """
        with contextlib.ExitStack() as undo:
            crew: dict[str, list[Timed]] = {}
            undo.callback(_stop, crew)
            for load in loads:
                ref = tree.create(self.mount, f"{PARENT}/{self.prefix}{load.name}")
                undo.callback(self._remove, ref)
                cgroup = Path(self.mount.absolute(ref.path))
                own = crew.setdefault(load.name, [])
                for number in range(load.workload.processes):
                    one = replace(load.workload, processes=1, seed=load.workload.seed + number)
                    own.append(self._spawn(f"{load.name}.{number}", one, cgroup, options))
            for member in (member for own in crew.values() for member in own):
                member.worker.wait_ready()
            yield crew
            _stop(crew)

    def _spawn(self, name: str, workload: Workload, cgroup: Path, options: Sequence[str]) -> Timed:
        self._started += 1
        stem = self.directory / f"{self._started}-{name}"
        log, notes = stem.with_suffix(".log"), stem.with_suffix(".notes")
        create_log(log)
        load = build().load
        argv = [str(load), *workload.arguments(), "--log", str(log)]
        argv += ["--libcuda", str(self.libcuda), "--image", str(IMAGE), "--gpu-log", str(notes), *options]
        process = subprocess.Popen(enter_command(load, argv, cgroup, True), env={**os.environ, **self.env()})
        return Timed(Worker(name, process, log), notes, workload.contexts)


def _stop(crew: Mapping[str, Sequence[Timed]]) -> None:
    workers = [one.worker for own in crew.values() for one in own]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.process.terminate()
    for worker in workers:
        worker.stop(_STOP_S)


class Truth:
    """What everybody ran, from the notes of all, in the host's clock."""

    def __init__(self, crew: Mapping[str, Sequence[Timed]]) -> None:
        notes = {name: [each for one in own for each in one.notes()] for name, own in crew.items()}
        self.offset_ns, self.offset_error_ns = offset_ns(each for own in notes.values() for each in own)
        self.is_whole = all(each.is_whole for own in notes.values() for each in own)
        self.stretches = {
            name: [
                [(start + self.offset_ns, end + self.offset_ns) for start, end in each.stretches]
                for each in own
            ]
            for name, own in notes.items()
        }
        """By tenant and context."""

    def ran_ns(self, window: Window) -> dict[str, int]:
        """By tenant, all its contexts."""
        return {name: sum(ran_ns(each, window) for each in own) for name, own in self.stretches.items()}

    def busy_ns(self, window: Window) -> int:
        """Of the GPU, by anybody."""
        merged = sorted(stretch for own in self.stretches.values() for each in own for stretch in each)
        return ran_ns(merged, window)

    def turns(self, window: Window) -> list[Turn]:
        """Of all contexts, numbered, that lie in the window."""
        contexts = [each for own in self.stretches.values() for each in own]
        inside = {}
        for number, each in enumerate(contexts):
            first = bisect.bisect_left(each, (window[0], 0))
            last = bisect.bisect_left(each, (window[1], 0))
            inside[number] = each[first:last]
        return turns(inside)
