# SPDX-License-Identifier: Apache-2.0
"""``fairsched`` that records what its eBPF account is given: ``python -m benchmarks.record TAPE -- run --config FILE``.

Problem. A recording is of use only if a replay gives what the daemon had; but the account looks at memory that BPF
writes while it looks.

Approach. The daemon is started with nothing changed but the account: it sees the tables as they were just after edges
were read, or as a call began, in a copy that is written down. What it sees is older by less than a millisecond; all
else in the daemon looks at the real ones. Each call that may change the account is a frame; see
:mod:`benchmarks.tape` for the file and :mod:`benchmarks.replay` for what reads it. It is also noted what others told
BPF, and once a second what BPF itself has counted, what NVML said and what recording costs.
"""

from __future__ import annotations

import functools
import inspect
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from benchmarks.tape import Tables, Writer, pack_edges
from benchmarks.tape_layout import CLOCK, COUNT, CTX, GRAPHS, layouts
from benchmarks.tape_trace import RecordedFollowing
from fairsched.accounting.context import ProcessUse, ProcessUses
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.model import ContextKey, ContextWork

_SECOND_NS = 1_000_000_000
_TOLD = (
    "end_contexts",
    "end_drain",
    "forget_devices",
    "forget_processes",
    "request_drop",
    "request_library",
    "set_device",
    "set_uuids",
    "set_wake_on_idle",
)
"""What others than the account tell BPF."""
ROW = ProcessUse.__slots__
"""The values of a row, in their order on a tape."""


def row_values(row: ProcessUse) -> list[Any]:
    """A row as it stands on a tape."""
    values = [getattr(row, name) for name in ROW]
    return [getattr(value, "value", value) for value in values]


def given(result: Any) -> Any:
    """What a call returned, as it stands on a tape; what is given before a read is told again by the read."""
    if isinstance(result, dict):
        return None
    return [row_values(row) for row in result] if isinstance(result, list) else result


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return [[plain(key), plain(one)] for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


class Recorder:
    """Where frames go; and what recording took."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.frames = self.spent_ns = 0
        self.is_broken = False
        self._told: dict[tuple[str, int], Any] = {}
        self._noted_ns = 0

    def write(self, head: dict[str, Any], blob: bytes, begun_ns: int) -> None:
        """One frame; ``begun_ns``: of :func:`time.thread_time_ns`, since when nothing else was done."""
        if self.is_broken:
            return
        try:
            self.writer.write(head, blob)
        except OSError as error:  # a full disk ends the tape, and nothing else
            self.is_broken = True
            print(f"the tape ends: {error}", file=sys.stderr, flush=True)
        self.frames += 1
        self.spent_ns += time.thread_time_ns() - begun_ns

    def note(self, what: str, *said: Any) -> None:
        """What is no call of the account."""
        begun_ns = time.thread_time_ns()
        self.write({"note": what, "at": time.monotonic_ns(), "said": plain(said)}, b"", begun_ns)

    def tell(self, name: str, args: tuple[Any, ...]) -> None:
        """Somebody told BPF something; what is told again and again is noted when it changes."""
        said = plain(args)
        key = (name, said[0] if said and isinstance(said[0], int) else 0)
        if self._told.get(key) != said:
            if len(self._told) > abi.MAX_PROCS:
                self._told.clear()
            self._told[key] = said
            self.note(name, *said)

    def count(self, probe: GpuTimeProbe, now_ns: int) -> None:
        """Once a second: what BPF has counted."""
        if now_ns - self._noted_ns < _SECOND_NS:
            return
        self._noted_ns = now_ns
        uses = [[*_values(key), *_values(use)] for key, use in probe.uses()]
        delays = [[*_values(key)[:2], list(one.bucket), one.sum_ns] for key, one in probe.delays()]
        self.note("bpf", uses, delays, probe.counts())
        self.note("cost", self.frames, self.spent_ns, self.writer.written)


def _values(item: Any) -> list[int]:
    return [getattr(item, field[0]) for field in item._fields_]


class ShadowProbe(Tables):
    """The probe as the account sees it."""

    def __init__(self, probe: GpuTimeProbe) -> None:
        super().__init__()
        self.real = probe
        at: dict[int, Any] = {
            CTX: probe._ctxs.items,
            GRAPHS: probe._graphs.items,
            CLOCK: probe._clocks.items,
            COUNT: probe._counts.items,
        }
        self._sources = [at[table] for table in range(len(at))]
        self._steps: list[list[Any]] = []
        self._blobs: list[bytes] = []
        self.gpus = abi.MAX_SLOTS
        self.met: set[tuple[int, int]] = set()
        """(process, cgroup) of the edges of this call."""
        self.spent_ns = 0

    def look(self) -> None:
        """See everything as it is now."""
        begun_ns = time.thread_time_ns()
        changes = self.copy(self._sources, self.gpus)
        if changes:
            self._step(changes, "look")
        self.spent_ns += time.thread_time_ns() - begun_ns

    def _step(self, blob: bytes, *what: Any) -> None:
        self._steps.append([*what, len(blob)])
        self._blobs.append(blob)

    def take(self) -> tuple[list[list[Any]], bytes]:
        """The steps since the last time, and their blobs in a row."""
        steps, self._steps = self._steps, []
        blob = b"".join(self._blobs)
        self._blobs.clear()
        return steps, blob

    def read_edges(self, most: int | None = None) -> list[Edge]:
        """See :class:`GpuTimeProbe`."""
        edges = self.real.read_edges(most)
        begun_ns = time.thread_time_ns()
        self._step(pack_edges(edges), "edges")
        self.met.update([(edge.tgid, edge.cgroup_id) for edge in edges])
        self.spent_ns += time.thread_time_ns() - begun_ns
        self.look()
        return edges

    def end_drain(self, slot: int, generation: int, v_end_ns: int) -> bool:
        """See :class:`GpuTimeProbe`."""
        # What the account tells stands in its own frames, and is not noted again.
        answer = bool(inspect.unwrap(type(self.real).end_drain)(self.real, slot, generation, v_end_ns))
        self._step(b"", "end_drain", slot, generation, v_end_ns, answer)
        self.look()
        return answer


class RecordedAccount(EbpfAccount):
    """The account, each call of it written down."""

    recorder: Recorder

    def __init__(
        self,
        probe: GpuTimeProbe,
        *,
        gpus: int,
        nature: tuple[int, int],
        started_ns: Callable[[int], int | None] = lambda _pid: None,
    ) -> None:
        self._shadow, self._is_inside = ShadowProbe(probe), False
        self._tenants: dict[int, str | None] = {}
        self._births: dict[int, int | None] = {}
        self._answers: dict[str, list[Any]] = {}
        self._facts: dict[str, Any] = {}
        self._real_started_ns = started_ns
        begun_ns = time.thread_time_ns()
        head = {
            "call": "begin",
            "at": time.monotonic_ns(),
            "gpus": gpus,
            "nature": list(nature),
            "layouts": layouts(),
            "realtime_ns": time.time_ns(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "row": list(ROW),
        }
        self.recorder.write(head, b"", begun_ns)
        super().__init__(
            cast(GpuTimeProbe, self._shadow), gpus=gpus, nature=nature, started_ns=self._ask_started
        )
        self.following = self._followed = RecordedFollowing(self._engines)

    # ---- what it asks ----

    @property
    def tenant_of(self) -> Callable[[int], str | None]:
        return self._ask_tenant

    @tenant_of.setter
    def tenant_of(self, tenant_of: Callable[[int], str | None]) -> None:
        self._real_tenant_of = tenant_of

    def _ask_tenant(self, cgroup_id: int) -> str | None:
        name = self._real_tenant_of(cgroup_id)
        if name != self._tenants.get(cgroup_id, ""):
            self._tenants[cgroup_id] = name
            self._answers.setdefault("tenants", []).append([cgroup_id, name])
        return name

    @property
    def cgroup_of(self) -> Callable[[int], int | None]:
        return self._ask_cgroup

    @cgroup_of.setter
    def cgroup_of(self, cgroup_of: Callable[[int], int | None]) -> None:
        self._real_cgroup_of = cgroup_of

    def _ask_cgroup(self, pid: int) -> int | None:
        cgroup_id = self._real_cgroup_of(pid)
        self._answers.setdefault("cgroups", []).append([pid, cgroup_id])
        return cgroup_id

    def _ask_started(self, pid: int) -> int | None:
        born_ns = self._real_started_ns(pid)
        if pid not in self._births or self._births[pid] != born_ns:
            self._births[pid] = born_ns
            self._answers.setdefault("started", []).append([pid, born_ns])
        return born_ns

    def _changed_facts(self) -> dict[str, Any]:
        facts = {
            "gpus": self.gpus,
            "single_gpu_processes": frozenset(self.single_gpu_processes),
            "seen_running": self.seen_running,
            "is_anybody_hidden": self.is_anybody_hidden,
            "intruded": frozenset(self.intruded),
        }
        before, self._facts = self._facts, facts
        self._shadow.gpus = min(max(1, self.gpus), abi.MAX_SLOTS)
        return {name: plain(fact) for name, fact in facts.items() if fact != before.get(name)}

    # ---- calls ----

    def _record(self, name: str, args: list[Any], call: Callable[[], Any], *, looks: bool = True) -> Any:
        """``looks``: it sees what is there as it begins; else when it reads edges."""
        if self._is_inside:
            return call()
        begun_ns = time.thread_time_ns()
        head: dict[str, Any] = {"call": name, "at": time.monotonic_ns(), "args": args}
        head.update(self._changed_facts())
        prepared_ns = time.thread_time_ns() - begun_ns
        if looks:
            self._shadow.look()
        self._is_inside = True
        try:
            result = call()
            head["gave"] = given(result)
            return result
        except Exception as error:
            head["error"] = repr(error)
            raise
        finally:
            self._is_inside = False
            begun_ns = time.thread_time_ns() - prepared_ns - self._shadow.spent_ns
            self._shadow.spent_ns = 0
            self._ask_all()
            steps, blob = self._shadow.take()
            head.update(self._answers)
            self._answers.clear()
            if switches := self._followed.take():
                head["switches"] = switches
            self.recorder.write({**head, "steps": steps}, blob, begun_ns)

    def _ask_all(self) -> None:
        """Another account than this one may want to know of each whose it is and how old."""
        for tgid, cgroup_id in self._shadow.met:
            if cgroup_id not in self._tenants:
                self._ask_tenant(cgroup_id)
            if tgid not in self._births:
                self._ask_started(tgid)
        self._shadow.met.clear()

    def take_in(self, most: int | None = None) -> ProcessUses:
        begin = super().take_in
        return cast(ProcessUses, self._record("take_in", [most], lambda: begin(most), looks=False))

    def read(self, now_ns: int) -> list[ProcessUse]:
        begin = super().read
        rows = self._record("read", [now_ns], lambda: begin(now_ns), looks=False)
        self.recorder.count(self._shadow.real, now_ns)
        return cast("list[ProcessUse]", rows)

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        ids, begin = list(cgroup_ids), super().hold
        self._record("hold", [ids, now_ns, by_others], lambda: begin(ids, now_ns, by_others=by_others))

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        ids, begin = list(cgroup_ids), super().thaw
        self._record("thaw", [ids, now_ns], lambda: begin(ids, now_ns))

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        ids, begin = list(cgroup_ids), super().queued_since_hold_ns
        return cast(int, self._record("queued_since_hold_ns", [ids], lambda: begin(ids)))

    def relearn(self, gpu: int) -> None:
        begin = super().relearn
        self._record("relearn", [gpu], lambda: begin(gpu))

    def end(self, key: ContextKey, now_ns: int) -> None:
        begin = super().end
        self._record("end", [list(key), now_ns], lambda: begin(key, now_ns))

    # These change nothing, and see what is there now.

    def work(self) -> Iterator[ContextWork]:
        return iter(self._really(lambda: list(EbpfAccount.work(self))))

    def guessed_processes(self) -> set[int]:
        return cast("set[int]", self._really(super().guessed_processes))

    def _really(self, call: Callable[[], Any]) -> Any:
        self._probe = self._shadow.real
        try:
            return call()
        finally:
            self._probe = cast(GpuTimeProbe, self._shadow)


# ---- the daemon ----


def command(tape: Path) -> tuple[str, ...]:
    """For :attr:`DaemonProcess.command`."""
    return (sys.executable, "-m", "benchmarks.record", str(tape), "--")


def instrument(recorder: Recorder) -> None:
    """From now on a daemon of this process records."""
    from fairsched.observe import sensors

    RecordedAccount.recorder = recorder
    vars(sensors)["EbpfAccount"] = RecordedAccount
    for name in _TOLD:
        _note_calls(GpuTimeProbe, name, recorder)
    _note_loads(sensors.Sensors, recorder)


def _note_calls(owner: Any, name: str, recorder: Recorder) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.tell(name, (*args, *kwargs.values()))
        return original(self, *args, **kwargs)

    setattr(owner, name, noted)


def _note_loads(owner: Any, recorder: Recorder) -> None:
    original = owner.take_loads

    @functools.wraps(original)
    def noted(self: Any, slot: int) -> tuple[float, ...]:
        loads: tuple[float, ...] = original(self, slot)
        if loads:
            recorder.note("loads", slot, *loads)
        return loads

    owner.take_loads = noted


def main(argv: list[str]) -> None:
    """``TAPE -- ARGUMENTS``, the latter as those of ``fairsched``."""
    if len(argv) < 3 or argv[1] != "--":
        sys.exit("usage: python -m benchmarks.record TAPE -- run --config FILE")
    from fairsched.cli import main as fairsched

    pid, recorder = os.getpid(), Recorder(Writer(Path(argv[0])))
    instrument(recorder)
    sys.argv = ["fairsched", *argv[2:]]
    try:
        fairsched()
    finally:
        if os.getpid() == pid and not recorder.is_broken:
            recorder.writer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
