# SPDX-License-Identifier: Apache-2.0
"""Replays a tape of :mod:`benchmarks.record` without the GPU: ``python -m benchmarks.replay TAPE``.

Problem. On hardware the account was off by so much; does a change to it set that right?

Approach. An account of this checkout is given what the recorded one was given, at the same times. Unchanged code gives
the same rows, bit by bit, on the same version of Python. What changed code does differently is its answer to the same
hardware; only what it tells BPF (the ends of drains) has no effect, so where it tells that at other moments than the
recorded one the contexts' own intervals stay those of the recording. These are counted.

Terms. *recorded* is what the daemon had, *replayed* what the account of now makes of it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.record import given
from benchmarks.tape import Frame, Tables, TapeError, frames, unpack_edges
from benchmarks.tape_layout import Layouts
from benchmarks.tape_trace import ReplayedTraces
from fairsched.accounting.context import ProcessUse
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.errors import FairschedError
from fairsched.model import Confidence

AccountMaker = Callable[..., EbpfAccount]
_S = 1e9
_SETS = ("single_gpu_processes", "intruded")


@dataclass(frozen=True)
class Look:
    """One read of the account."""

    now_ns: int
    recorded: list[ProcessUse]
    replayed: list[ProcessUse]


class ReplayedProbe(Tables):
    """Gives the account of now what a tape has."""

    def __init__(self, layouts: Layouts) -> None:
        super().__init__()
        self._layouts = layouts
        self._steps: list[tuple[list[Any], bytes]] = []
        self.differences: Counter[str] = Counter()

    def begin(self, steps: list[list[Any]], blob: bytes) -> None:
        """A call is going to be made; ``steps``: what happened in it."""
        at = 0
        for step in steps:
            end = at + step[-1]
            self._steps.append((step, blob[at:end]))
            at = end
        self._look()

    def _look(self) -> None:
        """What was seen up to the next thing that was asked or told."""
        while self._steps and self._steps[0][0][0] == "look":
            self.apply(self._steps.pop(0)[1], self._layouts)

    def end(self) -> None:
        """It was made."""
        for step, blob in self._steps:
            if step[0] == "look":
                self.apply(blob, self._layouts)
            else:
                self.differences[f"{step[0]} of the recorded account only"] += 1
        self._steps.clear()

    def read_edges(self, _most: int | None = None) -> list[Edge]:
        """See :class:`GpuTimeProbe`."""
        if not self._steps or self._steps[0][0][0] != "edges":
            self.differences["edges read at another time"] += 1
            return []
        edges = unpack_edges(self._steps.pop(0)[1], self._layouts)
        self._look()
        return edges

    def end_drain(self, slot: int, generation: int, v_end_ns: int) -> bool:
        """See :class:`GpuTimeProbe`. As recorded where that was told in the same call, at whatever time."""
        for number, (step, _) in enumerate(self._steps):
            if step[:3] == ["end_drain", slot, generation]:
                if step[3] != v_end_ns:
                    self.differences["end_drain at another time"] += 1
                del self._steps[number]
                self._look()
                return bool(step[4])
        self.differences["end_drain of the replayed account only"] += 1
        return bool(self.context(slot).generation == generation)


class Playback:
    """An account of now, and what it is told. Iterate once over :meth:`looks`."""

    def __init__(self, tape: Path, make: AccountMaker = EbpfAccount) -> None:
        """``make``: takes the arguments of :class:`EbpfAccount`."""
        self._tape, self._make = tape, make
        self.probe: ReplayedProbe | None = None
        self.account: EbpfAccount | None = None
        self.tenants: dict[int, str | None] = {}
        """By cgroup, as far as the tape has come."""
        self.notes: list[dict[str, Any]] = []
        self.differences: Counter[str] = Counter()
        """What the account of now did or said otherwise."""
        self.header: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self._births: dict[int, int | None] = {}
        self._cgroups: dict[int, int | None] = {}

    def looks(self) -> Iterator[Look]:
        """Each read, as recorded and as replayed."""
        for frame in frames(self._tape):
            if "note" in frame.head:
                self.notes.append(frame.head)
            elif frame.head["call"] == "begin":
                self._begin(frame.head)
            else:
                look = self._call(frame)
                if look is not None:
                    yield look
        self._count_differences()

    def _count_differences(self) -> None:
        if self.probe is not None:
            self.differences += self.probe.differences
            self.probe.differences.clear()

    def _begin(self, head: dict[str, Any]) -> None:
        """Once for each time that the probes were loaded."""
        self.header = head
        self._count_differences()
        self.probe = ReplayedProbe(Layouts(head["layouts"]))
        self.account = self._make(
            cast(GpuTimeProbe, self.probe),
            gpus=head["gpus"],
            nature=tuple(head["nature"]),
            started_ns=self._births.get,
        )
        self.account.tenant_of = self.tenants.get
        self.account.cgroup_of = self._cgroups.get
        self._traces = ReplayedTraces(self.account.following)

    def _call(self, frame: Frame) -> Look | None:
        head, account, probe = frame.head, self.account, self.probe
        if account is None or probe is None:
            raise TapeError(f"{self._tape} has no beginning", remedy="none: record again")
        self.calls[head["call"]] += 1
        if "tenants" in head:
            self.tenants.update(dict(head["tenants"]))
            account.tenants_changed()
        self._births.update(dict(head.get("started", ())))
        self._cgroups.update(dict(head.get("cgroups", ())))
        self._traces.put(head.get("switches", ()), head["at"])
        _set_facts(account, head)
        probe.begin(head["steps"], frame.blob)
        error = result = None
        try:
            result = _CALLS[head["call"]](account, *head["args"])
        except Exception as raised:  # the account of now may fail where that of then did
            error = repr(raised)
        probe.end()
        if error != head.get("error"):
            self.differences[f"{head['call']} raised {error}, not {head.get('error')}"] += 1
        elif given(result) != head.get("gave"):
            self.differences[head["call"]] += 1
        if head["call"] != "read":
            return None
        recorded = [_row(self.header["row"], values) for values in head.get("gave") or ()]
        return Look(head["args"][0], recorded, result or [])


_CALLS: dict[str, Callable[..., Any]] = {
    "read": lambda account, now_ns: account.read(now_ns),
    "take_in": lambda account, most: account.take_in(most),
    "hold": lambda account, ids, now_ns, by_others: account.hold(ids, now_ns, by_others=by_others),
    "thaw": lambda account, ids, now_ns: account.thaw(ids, now_ns),
    "queued_since_hold_ns": lambda account, ids: account.queued_since_hold_ns(ids),
    "relearn": lambda account, gpu: account.relearn(gpu),
    "end": lambda account, key, now_ns: account.end(tuple(key), now_ns),
}


def _set_facts(account: EbpfAccount, head: Mapping[str, Any]) -> None:
    for name in ("gpus", "is_anybody_hidden"):
        if name in head:
            setattr(account, name, head[name])
    for name in _SETS:
        if name in head:
            setattr(account, name, set(head[name]))
    if "seen_running" in head:
        account.seen_running = {tuple(where): t_ns for where, t_ns in head["seen_running"]}


def _row(names: list[str], values: list[Any]) -> ProcessUse:
    fields = dict(zip(names, values, strict=True))
    return ProcessUse(**{**fields, "confidence": Confidence(fields["confidence"])})


# ---- sums ----


def charged_ns(
    tape: Path, make: AccountMaker = EbpfAccount, *, is_recorded: bool = False
) -> dict[int, list[tuple[int, int]]]:
    """By process: (moment of a read, what it was charged up to then) for each read that had a row of it.

    ``is_recorded``: what the daemon had, else what the account of now makes of it.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for look in Playback(tape, make).looks():
        sums: dict[int, int] = defaultdict(int)
        for row in look.recorded if is_recorded else look.replayed:
            sums[row.tgid] += row.used_ns
        for tgid, used_ns in sums.items():
            series = found.setdefault(tgid, [])
            series.append((look.now_ns, used_ns + (series[-1][1] if series else 0)))
    return found


@dataclass
class Total:
    """Of one process."""

    tenant: str | None = None
    recorded_ns: int = 0
    replayed_ns: int = 0
    launches: int = 0


def totals(playback: Playback) -> tuple[dict[int, Total], int, int]:
    """By process; and when the first and the last read were."""
    found: dict[int, Total] = defaultdict(Total)
    begin_ns = end_ns = 0
    for look in playback.looks():
        begin_ns, end_ns = begin_ns or look.now_ns, look.now_ns
        for row in look.recorded:
            total = found[row.tgid]
            total.recorded_ns += row.used_ns
            total.launches += row.launches
            total.tenant = playback.tenants.get(row.cgroup_id) or total.tenant
        for row in look.replayed:
            found[row.tgid].replayed_ns += row.used_ns
    return found, begin_ns, end_ns


def main(argv: list[str]) -> int:
    """Prints the totals; status 1 where the account of now says otherwise than the recorded one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__.splitlines()[0])
    parser.add_argument("tape", type=Path)
    try:
        playback = Playback(parser.parse_args(argv).tape)
        found, begin_ns, end_ns = totals(playback)
    except (FairschedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{'process':>9} {'tenant':<16} {'recorded s':>12} {'replayed s':>12} {'launches':>10}")
    for tgid, total in sorted(found.items()):
        seconds = f"{total.recorded_ns / _S:12.6f} {total.replayed_ns / _S:12.6f}"
        print(f"{tgid:>9} {total.tenant or '-':<16} {seconds} {total.launches:>10}")
    print(f"{(end_ns - begin_ns) / _S:.1f} s recorded")
    costs = [note["said"] for note in playback.notes if note["note"] == "cost"]
    if costs and costs[-1][0]:
        count, spent_ns, written = costs[-1]
        print(
            f"{count} frames of {spent_ns / count / 1000:.0f} us and {written / count:.0f} bytes on average"
        )
    for what, times in sorted(playback.differences.items()):
        print(f"differs: {what}, {times} times")
    return int(bool(playback.differences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
