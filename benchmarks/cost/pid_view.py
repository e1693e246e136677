# SPDX-License-Identifier: Apache-2.0
"""What the pid view costs a call that it rewrites: ``python -m benchmarks.cost pid-view``, ``make bench-pid-view``.

Problem: kernels that have kprobes run here only under emulation, where nanoseconds mean nothing, and a kernel may
refuse the helper that writes to a process (bpf_probe_write_user).

Approach: the same programs on this machine's own kernel, on a function of a program in user space that writes answers
as the driver does, asked from a PID namespace of its own. The kernel itself says how long the programs ran per call
(BPF_ENABLE_STATS): that is theirs wherever they are put. Where it refuses the helper, they read the bytes that they
would write, which is as much work. What the pair of probes adds is measured too, with and without in turn, but is that
of uprobes, which trap: on the driver's function it is a kprobe pair.

Terms. list, info, samples: the three kinds of calls (docs/pid-view.md). other: a control that is none of them.

Examples (root):
  python -m benchmarks.cost pid-view              writes benchmarks/results/pid_view.json
  python -m benchmarks.cost pid-view --rounds 3   quick; writes nothing
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cost.harness import RESULTS, calling, command, compiled, parser_of
from benchmarks.rig import BenchError
from benchmarks.stats import extremes
from fairsched.bpf import abi, elf, perf, syscall
from fairsched.bpf.pid_view import PidViewPrograms
from fairsched.driver.pid_view import try_write_user

OUTPUT = RESULTS / "pid_view.json"
ENTRY = "nvidia_unlocked_ioctl"
PROGRAMS = ("on_rm_enter", "on_rm_return")
"""Who runs in a call; the second goes on in the one for its kind, which is counted to it."""
_ENABLE_STATS = 32
_FOREIGN, _OWN = 1_000_000, 2_000_000
"""Pids of the initial namespace that nobody has."""
_ROUNDS, _BATCHES, _CALLS = 10, 100, 50


class Case(NamedTuple):
    """Processes that the answer (info: the question) names: of the caller's namespace, and others."""

    kind: str
    own: int
    foreign: int

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.own} own of {self.own + self.foreign}"


CASES = (
    Case("list", 3, 5),
    Case("list", 100, 100),
    Case("info", 3, 0),
    Case("info", 100, 0),
    Case("samples", 3, 5),
    Case("other", 1, 0),
)


class OnProgram(PidViewPrograms):
    """The programs on a function in user space instead of the kernel's."""

    def put_on(self, program: Path) -> None:
        """From now on. Raises OSError."""
        self._path = program
        self._where = next(one.offset for one in elf.read_exports(str(program)) if one.name == ENTRY)
        self.attach(ENTRY, None)

    def _put(self, program: str, symbol: str, *, is_return: bool) -> None:
        fd = perf.attach_uprobe(self._programs[program], str(self._path), self._where, is_return=is_return)
        self._links.append(fd)

    def take_off(self) -> None:
        while self._links:
            os.close(self._links.pop())

    def times(self) -> tuple[int, int]:
        """(calls, nanoseconds) since the start, of everything that runs in a call."""
        run_ns, runs = 0, 0
        for name in PROGRAMS:
            text = Path(f"/proc/self/fdinfo/{self._programs[name]}").read_text()
            said = dict(line.split(":", 1) for line in text.splitlines())
            if "run_time_ns" not in said:
                raise BenchError("this kernel does not say how long a program ran (Linux 5.1)")
            run_ns += int(said["run_time_ns"])
            runs = int(said["run_cnt"]) if name == PROGRAMS[0] else runs
        return runs, run_ns


class _StatsAttr(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint32),)


@contextlib.contextmanager
def statistics() -> Iterator[None]:
    """The kernel counts how long programs run, until this ends."""
    fd = syscall.call(_ENABLE_STATS, _StatsAttr(0))
    try:
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def caller(program: Path) -> Iterator[tuple[Callable[[Case, list[int]], list[float]], int]]:
    """A process in a PID namespace of its own that asks, and the namespace's number."""
    with calling(["unshare", "--pid", "--fork", "--kill-child", str(program)]) as process:

        def call(case: Case, pids: list[int]) -> list[float]:
            return process.ask(case.kind, _BATCHES, _CALLS, len(pids), *pids)

        call(Case("other", 1, 0), [1])  # it has forked by now
        yield call, os.stat(f"/proc/{process.pid}/ns/pid_for_children").st_ino


def named(case: Case) -> list[int]:
    """What the driver says, or, with info, what the caller asks about: numbers in its own namespace."""
    if case.kind == "info":
        return [2 + number for number in range(case.own)]
    foreign = [_FOREIGN + number for number in range(case.foreign)]
    return [*foreign, *(_OWN + number for number in range(case.own))]


def measure(rounds: int, *, writes: bool) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds per call by case: without the programs, with them, and in them."""
    defines = {} if writes else {"FS_NO_WRITE": 1}
    found: dict[str, dict[str, list[float]]] = {
        case.name: {"without": [], "with": [], "inside": []} for case in CASES
    }
    with tempfile.TemporaryDirectory(prefix="fairsched-bench-", dir="/run") as directory, statistics():
        program = compiled("pid_view_caller.c", Path(directory), "-rdynamic")
        with caller(program) as (call, namespace), contextlib.closing(OnProgram(defines)) as programs:
            programs.set_translator(abi.ViewBy.US)
            for number in range(max(case.own for case in CASES)):
                programs.enter(_OWN + number, [(namespace, 2 + number)])
            for _ in range(rounds):
                for case in CASES:
                    times, pids = found[case.name], named(case)
                    times["without"] += call(case, pids)
                    programs.put_on(program)
                    runs, run_ns = programs.times()
                    times["with"] += call(case, pids)
                    more_runs, more_ns = programs.times()
                    programs.take_off()
                    times["inside"].append((more_ns - run_ns) / max(1, more_runs - runs))
            check(programs, rounds)
    return found


def check(programs: OnProgram, rounds: int) -> None:
    """Every call was rewritten, or nothing was measured."""
    counts, calls = programs.counts(), rounds * _BATCHES * _CALLS
    wanted = {"lists": 2 * calls, "infos": 2 * calls, "samples": calls}
    wanted["hidden"] = calls * (5 + 100 + 432 * 5 // 8)
    if {name: counts[name] for name in wanted} != wanted:
        raise BenchError(f"not every call was rewritten: {counts}, and not {wanted}")


def summarise(found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """(least, median, greatest) of each, in ns per call, and what uprobes and programs add where nothing else runs."""
    rows: dict[str, Any] = {}
    for name, states in found.items():
        spreads = {state: extremes(values) for state, values in states.items()}
        rows[name] = {
            **{f"{state}_ns": [round(value, 1) for value in values] for state, values in spreads.items()},
            "added_on_uprobes_ns": round(spreads["with"][0] - spreads["without"][0], 1),
        }
    return {"calls": rows}


def render(result: dict[str, Any]) -> str:
    """A line per case, in us."""
    lines = [
        "the programs write" if result["writes"] else "the kernel refuses to write: the same bytes are read",
        f"{'us per call':28}{'in the programs':>22}{'added on uprobes':>18}",
        f"{'':28}{'least':>11}{'median':>11}{'least':>18}",
    ]
    for name, row in result["calls"].items():
        least, median, _ = (value / 1e3 for value in row["inside_ns"])
        lines.append(f"{name:28}{least:11.2f}{median:11.2f}{row['added_on_uprobes_ns'] / 1e3:18.2f}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    options = parser_of("pid-view", __doc__, _ROUNDS).parse_args(argv)

    def measured() -> dict[str, Any]:
        writes = try_write_user() is None
        return {"writes": writes, **summarise(measure(options.rounds or _ROUNDS, writes=writes))}

    return command(measured, render, OUTPUT if options.rounds is None else None)
