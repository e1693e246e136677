# SPDX-License-Identifier: Apache-2.0
"""How much a thaw lets through, by how it is ended: an experiment for decision 0007.

Problem. A tenant that is thawed queues within a millisecond what the GPU needs half a second for. A grant is to be
enough for GRANT_MS; what is queued beyond it is overshoot. Who ends it in time: a loop that looks, or the kernel?

Approach. The greedy tenant of seed-4 (three processes, eight steps in flight each), alone on a simulated GPU, thawed
and held again with each candidate in turn, so that what else the machine does falls on all of them. Before each thaw
its queue is empty; afterwards the GPU empties it, and the engine tells exactly how much that was. All candidates see
launches through the same program (launch_gate.bpf.c), which with a budget also stops:

    pulse     Freezer.pulse at real-time priority, as the daemon does
    signal    the program sends SIGSTOP at the budget; the freezer takes over at leisure, then SIGCONT
    ordinary  Freezer.thaw, the same loop, Freezer.hold

Terms. leaked: a process that is still stopped after its SIGCONT. told: stops that the parent learnt of (CLD_STOPPED).

Example:
  python -m benchmarks.launch_gate --thaws 100 --json out.json
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.command import INTERRUPTED, say_error, stop_signals
from benchmarks.cost import probe as probe_cost
from benchmarks.machine import describe
from benchmarks.rig import BenchError, Rig, TenantLoad, wait_until
from fairsched.base.realtime import at_realtime_priority
from fairsched.bpf import compiler, elf, exports, perf, syscall
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef
from fairsched.cgroup.state import read_state
from fairsched.cgroup.tree import cgroup_id_of
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.simgpu import Worker, Workload

CANDIDATES = ("pulse", "signal", "ordinary")
GRANT_MS = 50.0
KERNEL_US = 480.0
GREEDY = Workload("step", kernels=40, kernel_us=KERNEL_US, jitter_ratio=0.1, depth=8, processes=3)
_LOOK_S = 20e-6
_LIMIT_NS = 100_000_000
"""The daemon gives up after 3 ms; here every thaw is to be measured."""
_DEADLINE_NS = 60_000_000_000
_STILL_S = 1.0
_CONTINUED_S = 0.05
_PATIENCE_S = 20.0
_NOBODY = 2**64 - 1


class _Gate(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cgroup_id", "budget", "launches", "stops", "refused")
    )


class Gate:
    """The program, its one map, and the probes on the launches of a libcuda. A context manager."""

    def __init__(self) -> None:
        """Raises HostUnsupported."""
        bcc = compiler.import_bcc()
        source = Path(__file__).with_suffix(".bpf.c")
        try:
            self._bpf = compiler.without_autoload(bcc)(text=source.read_text(), cflags=compiler.cflags())
            self.program = int(self._bpf.load_func("on_launch", bcc.BPF.KPROBE).fd)
        except Exception as error:  # bcc raises bare Exception
            raise HostUnsupported(f"{source.name} is refused: {str(error).strip()[-400:]}") from error
        self._map = int(self._bpf["gates"].map_fd)
        self._fds: list[int] = []
        self.arm(_NOBODY, 0)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_exc: object) -> None:
        for fd in self._fds:
            os.close(fd)
        self._bpf.cleanup()

    def attach(self, libcuda: Path) -> None:
        """To every export that submits."""
        by_name = {export.name: export for export in elf.read_exports(str(libcuda))}
        offsets = {
            by_name[one.symbol].offset + by_name[one.symbol].skip
            for one in exports.choose_probes(by_name)
            if one.entry is not None and one.entry.startswith("on_submit")
        }
        for offset in sorted(offsets):
            self._fds.append(perf.attach_uprobe(self.program, str(libcuda), offset, is_return=False))

    def arm(self, cgroup_id: int, budget: int) -> None:
        """Count anew. Nobody of the cgroup may launch meanwhile."""
        syscall.update(self._map, ctypes.c_uint32(0), _Gate(cgroup_id, budget, 0, 0, 0))

    def read(self) -> _Gate:
        found = _Gate()
        syscall.lookup(self._map, ctypes.c_uint32(0), found)
        return found


@dataclass(frozen=True)
class Thaw:
    """One of them."""

    queued_ms: float
    """GPU time, by the engine."""
    launches: int
    took_us: float
    """From the thaw until the next hold was written."""
    stops: int = 0
    told: int = 0
    leaked: int = 0


class Bench:
    """The tenant, held; each call of :meth:`thaw` lets it go once."""

    def __init__(
        self, rig: Rig, gate: Gate, ref: CgroupRef, workers: Sequence[Worker], freezer: Freezer
    ) -> None:
        self._rig, self._gate, self._ref, self._freezer = rig, gate, ref, freezer
        self.pids = [worker.pid for worker in workers]
        self._launched, self._before = 0, (-1, -1)
        self._budget = round(GRANT_MS * 1000 / KERNEL_US)

    def begin(self) -> None:
        """Hold it for the first time; nobody counted what it launched until now."""
        self._hold()
        self._settle()
        last, still_s = self._truth(), time.monotonic()
        while time.monotonic() - still_s < _STILL_S:
            now = self._truth()
            if now != last:
                last, still_s = now, time.monotonic()
            time.sleep(_LOOK_S)
        self._launched = last[1]

    def thaw(self, candidate: str) -> Thaw:
        before_ns = self._drain_ns()
        self._gate.arm(self._ref.id, self._budget if candidate == "signal" else 0)
        begun_ns = time.monotonic_ns()
        {"pulse": self._pulse, "signal": self._signal, "ordinary": self._ordinary}[candidate]()
        took_us = (time.monotonic_ns() - begun_ns) / 1e3
        self._settle()
        told = self._reap_stops() if candidate == "signal" else 0
        leaked = self._let_go_on() if candidate == "signal" else 0
        gate = self._gate.read()
        self._launched += gate.launches
        queued_ns = self._drain_ns() - before_ns
        if gate.refused:
            raise BenchError(f"the kernel refused to send {gate.refused} signals")
        return Thaw(queued_ns / 1e6, gate.launches, took_us, gate.stops, told, leaked)

    # ---- candidates ----

    def _pulse(self) -> None:
        with at_realtime_priority() as is_realtime:
            self._do_pulse()
        if not is_realtime:
            raise HostUnsupported("real-time priority is refused", remedy="run as root, outside a container")

    def _signal(self) -> None:
        self._do_pulse()

    def _do_pulse(self) -> None:
        kind = self._freezer.pulse([self._ref.id], self._deadline_ns(), "bench", self._used, _LIMIT_NS)
        if kind is not HoldKind.HELD:
            self._hold()

    def _ordinary(self) -> None:
        self._freezer.thaw(self._ref.id)
        end_ns = time.monotonic_ns() + _LIMIT_NS
        while self._used() < 1 and time.monotonic_ns() < end_ns:
            time.sleep(_LOOK_S)
        self._hold()

    def _used(self) -> float:
        return int(self._gate.read().launches) / self._budget

    def _hold(self) -> None:
        kind = self._freezer.hold(self._ref, "greedy", self._deadline_ns(), "bench").kind
        if kind is not HoldKind.HELD:
            raise BenchError(f"the tenant cannot be held: {kind.value}")

    @staticmethod
    def _deadline_ns() -> int:
        return time.monotonic_ns() + _DEADLINE_NS

    # ---- afterwards ----

    def _settle(self) -> None:
        def is_frozen() -> bool:
            self._freezer.settle()
            return read_state(self._ref).is_frozen

        wait_until(is_frozen, _PATIENCE_S, "the tenant is frozen")

    def _reap_stops(self) -> int:
        """What the parent of a tenant's processes is told. We are that."""
        told = 0
        for pid in self.pids:
            told += os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
        return told

    def _let_go_on(self) -> int:
        """SIGCONT to those that the gate stopped, held as they are; who is stopped after that leaked."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
        end_s = time.monotonic() + _CONTINUED_S
        while (leaked := sum(is_stopped(pid) for pid in self.pids)) and time.monotonic() < end_s:
            time.sleep(0.001)
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        return leaked

    def _drain_ns(self) -> int:
        """Wait until the GPU has done all that is queued; the execution time of the tenant so far."""

        def is_done() -> bool:
            exec_ns, kernels = self._truth()
            # Of each process one launch may be under way: seen by the probe, not yet queued.
            is_all = self._launched - kernels <= len(self.pids)
            is_still = is_all and (exec_ns, kernels) == self._before
            self._before = exec_ns, kernels
            return is_still

        wait_until(is_done, _PATIENCE_S, "the tenant's queue is empty")
        return self._before[0]

    def _truth(self) -> tuple[int, int]:
        contexts = self._rig.host.snapshot()[1]
        return sum(one.exec_ns for one in contexts), sum(one.kernels for one in contexts)


def is_stopped(pid: int) -> bool:
    """By a signal, whether or not it is frozen as well."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


@contextlib.contextmanager
def bench(rig: Rig, gate: Gate) -> Iterator[Bench]:
    """A tenant that is held; let go and gone afterwards."""
    with contextlib.ExitStack() as undo:
        workers: list[Worker] = undo.enter_context(rig.tenants([TenantLoad("greedy", GREEDY)]))["greedy"]
        gate.attach(rig.libcuda)
        ref = undo.enter_context(CgroupRef.open(rig.mount, rig.cgroup_path("greedy")))
        journal = undo.enter_context(tempfile.TemporaryDirectory(prefix="fairsched-bench-journal-"))
        made = Bench(rig, gate, ref, workers, undo.enter_context(Freezer(Journal(journal))))
        made.begin()
        yield made


def measure(rig: Rig, gate: Gate, thaws: int) -> dict[str, list[Thaw]]:
    """``thaws`` of each candidate, in turn."""
    found: dict[str, list[Thaw]] = {name: [] for name in CANDIDATES}
    with bench(rig, gate) as tenant:
        for _ in range(thaws):
            for name in CANDIDATES:
                found[name].append(tenant.thaw(name))
    return found


def cost_ns(rig: Rig, gate: Gate, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of a launch by variant, one number per batch: without a probe, with one that does nothing, with the
    gate's where it counts for another cgroup, and where it counts these."""
    mine = cgroup_id_of(os.getpid(), rig.mount)
    if mine is None:
        raise BenchError("this process is in no cgroup v2")
    export = next(one for one in elf.read_exports(str(rig.libcuda)) if one.name == probe_cost.SYMBOL)
    found: dict[str, list[float]] = {"none": [], "empty": [], "gate_other": [], "gate_counted": []}
    with probe_cost.caller(rig) as call, probe_cost.empty_program(False) as empty:
        for _ in range(rounds):
            for name, times in found.items():
                gate.arm(mine if name == "gate_counted" else _NOBODY, 0)
                offset = None if name == "none" else export.offset + export.skip
                program = empty if name == "empty" else gate.program
                with probe_cost.attached(program, str(rig.libcuda), offset, False):
                    times += call()
    return found


# ---- the command ----


def figures(thaws: Sequence[Thaw]) -> dict[str, float]:
    """Of one candidate."""
    over = sorted(thaw.queued_ms - GRANT_MS for thaw in thaws)
    return {
        "thaws": len(thaws),
        "overshoot_p50_ms": statistics.median(over),
        "overshoot_p95_ms": over[math.ceil(0.95 * len(over)) - 1],
        "overshoot_max_ms": over[-1],
        "overshoot_min_ms": over[0],
        "took_p50_us": statistics.median(thaw.took_us for thaw in thaws),
        "stops": sum(thaw.stops for thaw in thaws),
        "told": sum(thaw.told for thaw in thaws),
        "leaked": sum(thaw.leaked for thaw in thaws),
    }


def table(by_name: Mapping[str, Mapping[str, float]], costs: Mapping[str, float]) -> list[str]:
    lines = [
        f"{'':<10}{'p50':>8}{'p95':>8}{'max':>8}{'least':>8}{'took us':>9}{'stops':>7}{'told':>6}{'leaked':>8}"
    ]
    for name, one in by_name.items():
        over = (one[f"overshoot_{which}_ms"] for which in ("p50", "p95", "max", "min"))
        lines.append(
            f"{name:<10}"
            + "".join(f"{ms:8.1f}" for ms in over)
            + f"{one['took_p50_us']:9.0f}{one['stops']:7}{one['told']:6}{one['leaked']:8}"
        )
    lines.append(f"overshoot in ms of GPU time, of a grant of {GRANT_MS:g} ms")
    return [*lines, "a launch, ns: " + ", ".join(f"{name} {ns:.0f}" for name, ns in costs.items())]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.launch_gate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--thaws", type=int, default=100, help="of each candidate")
    parser.add_argument("--rounds", type=int, default=5, help="of the cost of a launch")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    if min(options.thaws, options.rounds) < 1:
        parser.error("at least one thaw and one round")
    try:
        with stop_signals(), Rig() as rig, Gate() as gate:
            costs = {name: statistics.median(ns) for name, ns in cost_ns(rig, gate, options.rounds).items()}
            thaws = measure(rig, gate, options.thaws)
    except FairschedError as error:
        return say_error(error)
    except KeyboardInterrupt:
        print("interrupted; everything is cleaned up", file=sys.stderr)
        return INTERRUPTED
    by_name = {name: figures(found) for name, found in thaws.items()}
    if options.json is not None:
        every = {name: [asdict(thaw) for thaw in found] for name, found in thaws.items()}
        document = {**describe(), "figures": by_name, "launch_ns": costs, "thaws": every}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(table(by_name, costs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
