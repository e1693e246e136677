# SPDX-License-Identifier: Apache-2.0
"""What a probe on the entry of a launch costs the caller: past the stub's first instruction, and on it.

A section of `make bench-core`; alone: ``python -m benchmarks.cost probe`` (root), which writes nothing.

The same program on the same export, at +10 and at +0, and no probe at all, in turn, so that whatever else the
machine does falls on all three. The program is the daemon's, on its usual path (context and stream known).
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cost.harness import calling, command, compiled, parser_of
from benchmarks.machine import ROOT
from benchmarks.rig import BenchError, Rig
from benchmarks.stats import added_cost_ratio, extremes
from fairsched.bpf import elf, perf, syscall

SYMBOL, PROGRAM = "cuGraphLaunch", "on_submit_graph"
EMPTY = "empty"
VARIANTS = ("none", "at_0", "at_10")
_RETURN_0 = bytes.fromhex("b7000000000000009500000000000000")
_ROUNDS, _BATCHES, _CALLS = 7, 20, 2000
_LOAD_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ProbeCost:
    """Nanoseconds per call, by variant; one number per batch."""

    program: str
    call_ns: dict[str, list[float]]

    @property
    def ratio(self) -> float:
        return added_cost_ratio(*(self.call_ns[name] for name in ("none", "at_10", "at_0")))

    def medians(self) -> dict[str, float]:
        return {name: extremes(values)[1] for name, values in self.call_ns.items()}

    def to_plain(self) -> dict[str, Any]:
        """For a document."""
        return {"program": self.program, "ratio": self.ratio, "call_ns": self.medians()}


def measure(rig: Rig, *, rounds: int) -> list[ProbeCost]:
    """With the daemon's program, and with one that returns at once: what the kernel alone costs."""
    path = str(rig.libcuda)
    export = next(one for one in elf.read_exports(path) if one.name == SYMBOL)
    if export.skip != elf.STUB_SKIP:
        raise BenchError(f"{SYMBOL} of the simulated libcuda does not begin with the stub")
    offsets = {"at_0": export.offset, "at_10": export.offset + export.skip}
    with caller(rig) as call, _real_program() as (program, is_multi), empty_program(is_multi) as empty:
        costs = []
        for name, fd in ((PROGRAM, program), (EMPTY, empty)):
            call_ns: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            for _ in range(rounds):
                for variant in VARIANTS:
                    with attached(fd, path, offsets.get(variant), is_multi):
                        call_ns[variant] += call()
            costs.append(ProbeCost(name, call_ns))
    return costs


@contextlib.contextmanager
def attached(program: int, path: str, offset: int | None, is_multi: bool) -> Iterator[None]:
    if offset is None:
        yield
        return
    if is_multi:
        fd = syscall.link_uprobes(program, path, [offset], is_return=False)
    else:
        fd = perf.attach_uprobe(program, path, offset, is_return=False)
    try:
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def caller(rig: Rig) -> Iterator[Callable[[], list[float]]]:
    """A process that calls; the function yielded has it call once more and returns its times."""
    program = compiled("probe_caller.c", rig.directory, "-ldl")
    with calling([str(program), str(rig.libcuda)], rig.host.env()) as process:

        def call() -> list[float]:
            return process.ask(_BATCHES, _CALLS)

        call()  # warm
        yield call


@contextlib.contextmanager
def _real_program() -> Iterator[tuple[int, bool]]:
    """The daemon's program as a descriptor, and whether it is for the kernel's link of many probes."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            argv = [sys.executable, "-m", "benchmarks.cost.probe_child", str(theirs.fileno()), PROGRAM]
            # A session of its own: not Ctrl-C but the end of the socket ends it.
            child = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), cwd=ROOT, start_new_session=True)
        try:
            ours.settimeout(_LOAD_TIMEOUT_S)
            kind, fds, _, _ = socket.recv_fds(ours, 64, 1)
            if not fds:
                raise BenchError("the BPF programs could not be loaded")
            try:
                yield fds[0], kind == b"multi"
            finally:
                os.close(fds[0])
        finally:
            ours.close()
            child.wait()


@contextlib.contextmanager
def empty_program(is_multi: bool) -> Iterator[int]:
    attach_type = syscall.TRACE_UPROBE_MULTI if is_multi else 0
    fd = syscall.load_program(syscall.PROG_TYPE_KPROBE, _RETURN_0, attach_type)
    try:
        yield fd
    finally:
        os.close(fd)


def render(result: dict[str, Any]) -> str:
    """A line per program."""
    lines = [
        f"{'ns per call':16}" + "".join(f"{variant:>10}" for variant in VARIANTS) + f"{'at_10/at_0':>12}"
    ]
    for row in result["programs"]:
        times = "".join(f"{row['call_ns'][variant]:10.0f}" for variant in VARIANTS)
        lines.append(f"{row['program']:16}{times}{row['ratio']:12.3f}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    options = parser_of("probe", __doc__, _ROUNDS).parse_args(argv)

    def run() -> dict[str, Any]:
        with Rig() as rig:
            costs = measure(rig, rounds=options.rounds or _ROUNDS)
        return {"programs": [one.to_plain() for one in costs]}

    return command(run, render, None)
