# SPDX-License-Identifier: Apache-2.0
"""Who had a GPU, and who waits for it, from its trace of context switches alone (pure).

Problem. Without eBPF no call is seen. The trace names who had the engine, from when to when, but not who has work: who
runs dry while nobody waits stays on the engine, and who waits is in no record.

Approach. Three things follow from turns being taken by all that have work, each for a slice at most.

* Up to one turn of a stay is what its process was given the engine for: *certain*. What is longer lasted because nobody
  else came; whether it worked all of it cannot be known: *uncertain*, and charged as a whole while somebody is held
  for its sake (doubt stays at home), else as far as the load of the GPU goes, where that is known.
* Who left the engine and wants it gets it back once the others have had their turn. So who has left is taken to wait,
  until a stay of somebody else outlasts a turn, or some channel comes a second time, or the engine is with nobody:
  then it had run dry when it left.
* Who was held while it waited, or had the engine, wants it until it is let go: a frozen one has no turns.

What cannot be known: when the last one on the engine has run dry. It wants it for as long as it stays.

A hole in the trace charges nobody until the next switch. If that does not come for longer than any turn nobody takes
turns, and who had the engine last is taken to have it.

Terms. stay: from when a process gets the engine to when it leaves it. turn: a slice and a switch. dry: without work.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fairsched.gpu.trace import Switch

LONGEST_TURN_NS = 50_000_000
"""Longer than a turn anywhere: slices are of 30 ms at most."""
FREE_NS = 1_000_000
"""An engine with nobody is given to whoever wants it within a switch, .2 ms."""
_IN_STAY = 90 / 155
"""Of a switch, the part that lies in the stay: one that takes 155 us leaves 30 us after the last kernel and comes 60 us
before the first (H100, docs/gpu-validation.md). It is charged to nobody, but never more than half of a stay is."""
_ROOM = 1.25
"""So much longer than a turn may one take: preemption waits for what cannot be interrupted."""
_LENGTHS, _ALIKE, _ALIKE_NS = 128, 6, 5_000
"""Of the last so many stays of a process that are longer than the turn that is believed, so many that are as long to
that: a timer of the hardware, which does not jitter (H100, H200). Programs that wake by the clock do, by tens of us."""
_MOST = 4096
"""Processes and channels, of which the oldest go."""


@dataclass(slots=True, eq=False)
class Process:
    """One of which the trace told."""

    pid: int
    certain_ns: int = 0
    uncertain_ns: int = 0
    """Of what has not been taken yet."""
    left_ns: int = 0
    """When it last left it."""
    seen_ns: int = 0
    """When it last had it."""
    passed_by: set[int] = field(default_factory=set)
    """Channels of others that had a turn since."""
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_LENGTHS))
    """Of its stays that were longer than a turn."""

    def is_alike(self, length_ns: int) -> bool:
        """Whether several of its stays were as long as this."""
        return sum(abs(one - length_ns) <= _ALIKE_NS for one in self.lengths) >= _ALIKE


class Stays:
    """The book of one GPU. Times are CLOCK_MONOTONIC."""

    def __init__(self, slice_ns: int, switch_ns: int) -> None:
        """What is assumed of the hardware. A slice that is longer is found out; a shorter one does no harm."""
        self._slice_ns, self._switch_ns = slice_ns, switch_ns
        self.processes: dict[int, Process] = {}
        self._waiting: set[Process] = set()
        self._resident: Process | None = None
        self._last: Process | None = None
        """Who had the engine last."""
        self._stay_ns = 0
        """When the stay began ..."""
        self._charged_ns = 0
        """... and up to when everything is charged."""
        self._is_known = False
        """Who has the engine, or that nobody has."""
        self._free_ns = 0
        """Since when nobody has, or nobody knows."""
        self._open_ns = 0
        """Of what this stay was charged, not taken yet: it may be of somebody else after all."""
        self._off_ns = 0
        """What of this stay is still to be left out, as the switch."""
        self.free_ns = 0
        """For how long nobody had it, not taken yet."""
        self.changes: list[tuple[int, int, bool]] = []
        """(time, process, whether it wants the engine), not taken yet. Of who ran dry it is told late."""
        self.counts: Counter[str] = Counter()

    @property
    def turn_ns(self) -> int:
        """One turn, as far as is known."""
        return self._slice_ns + self._switch_ns

    @property
    def has_begun(self) -> bool:
        """Whether somebody is known to have had the engine: until then nothing was said of those who are there."""
        return self._last is not None

    @property
    def resident(self) -> Process | None:
        """Who has the engine."""
        return self._resident

    def is_wanting(self, process: Process) -> bool:
        """Whether it has the engine or waits for it."""
        return process is self._resident or process in self._waiting

    def feed(self, switches: Iterable[Switch], told_ns: int) -> None:
        """What the trace told, in order; up to ``told_ns`` that is all."""
        for switch in switches:
            self._advance(switch.t_ns)
            if switch.is_hole:
                self.lose()
            elif switch.is_start:
                self._begin(switch)
            else:
                self._end(switch)
        self._advance(told_ns)

    def lose(self) -> None:
        """Part of the trace is missing: who has the engine is not known."""
        self.counts["holes"] += 1
        self._resident, self._is_known, self._free_ns = None, False, self._charged_ns
        self._open_ns = 0

    def expect(self, process: Process, t_ns: int) -> None:
        """It runs again and had work: it waits, unless something says otherwise."""
        if process is not self._resident:
            self._wait(process, t_ns)
        self.changes.append((t_ns, process.pid, True))

    def forget(self, pid: int) -> None:
        """It has ended."""
        gone = self.processes.pop(pid, None)
        if gone is None:
            return
        self._waiting.discard(gone)
        if gone is self._resident:
            self._resident, self._free_ns = None, self._charged_ns
        self._last = None if gone is self._last else self._last

    def oldest(self) -> Iterator[Process]:
        """Those that are too many."""
        many = len(self.processes) - _MOST
        if many > 0:
            yield from sorted(self.processes.values(), key=lambda one: one.seen_ns)[:many]

    # ---- mechanism ----

    def _advance(self, t_ns: int) -> None:
        """Charge the time until then, and see who does not wait."""
        if not self._is_known and self._last is not None and t_ns - self._free_ns > LONGEST_TURN_NS:
            self.counts["guessed"] += 1  # nobody takes turns
            self._resident, self._is_known = self._last, True
            self._stay_ns, self._charged_ns = self._free_ns, max(self._charged_ns, self._free_ns)
        one, from_ns = self._resident, self._charged_ns
        if t_ns <= from_ns:
            return
        self._charged_ns = t_ns
        if one is None:
            if self._is_known:
                self.free_ns += t_ns - from_ns
                if t_ns - self._free_ns > FREE_NS:
                    self._none_waits()
            return
        certain_ns = max(0, min(t_ns, self._stay_ns + self.turn_ns) - from_ns)
        off_ns = min(self._off_ns, certain_ns // 2)
        self._off_ns -= off_ns
        one.certain_ns += certain_ns - off_ns
        one.uncertain_ns += t_ns - from_ns - certain_ns
        self._open_ns += t_ns - from_ns - off_ns
        one.seen_ns = t_ns
        if t_ns - self._stay_ns > _ROOM * self.turn_ns:
            self._none_waits()

    def _begin(self, switch: Switch) -> None:
        if self._resident is not None:  # its end is missing
            self._leave(switch.t_ns)
        self._is_known, self._stay_ns = True, switch.t_ns
        self._charged_ns = max(self._charged_ns, switch.t_ns)
        self._open_ns, self._off_ns = 0, round(_IN_STAY * self._switch_ns)
        if not switch.pid:  # the driver's own
            self._resident, self._free_ns = None, switch.t_ns
            return
        one = self.processes.get(switch.pid)
        if one is None:
            one = self.processes[switch.pid] = Process(switch.pid)
        if one not in self._waiting:
            self.changes.append((switch.t_ns, one.pid, True))
        self._waiting.discard(one)
        one.seen_ns = switch.t_ns
        self._resident = self._last = one
        for other in list(self._waiting):
            if switch.channel in other.passed_by:
                self._is_dry(other)
            else:
                other.passed_by.add(switch.channel)

    def _end(self, switch: Switch) -> None:
        one = self._resident
        if one is not None and switch.pid == 0 and self._is_known:
            # It was a context that the driver cannot name, and its start had the name of who left before.
            taken_ns = min(one.certain_ns, self._open_ns)
            one.certain_ns -= taken_ns
            one.uncertain_ns = max(0, one.uncertain_ns - (self._open_ns - taken_ns))
            self.counts["unnamed"] += 1
        if one is not None:
            self._leave(switch.t_ns)
        # After the driver's own, or one that it cannot name, the next start tells.
        self._resident, self._is_known, self._free_ns = None, bool(switch.pid), switch.t_ns
        self._charged_ns = max(self._charged_ns, switch.t_ns)

    def _leave(self, t_ns: int) -> None:
        one = self._resident
        assert one is not None
        self._wait(one, t_ns)
        length_ns = t_ns - self._stay_ns
        if length_ns > _ROOM * self.turn_ns:
            one.lengths.append(length_ns)
            self._learn(one, length_ns)
        self._resident = None

    def _learn(self, one: Process, length_ns: int) -> None:
        """A slice is longer than was believed if two processes are stopped after as long: one that is stopped so may be
        stopped by the other, which comes by the clock."""
        is_slice = length_ns <= LONGEST_TURN_NS and one.is_alike(length_ns)
        if is_slice and any(
            other.is_alike(length_ns) for other in self.processes.values() if other is not one
        ):
            self._slice_ns = length_ns
            self.counts["slices"] += 1
            for process in self.processes.values():
                process.lengths.clear()

    def _wait(self, process: Process, t_ns: int) -> None:
        self._waiting.add(process)
        process.left_ns = t_ns
        process.passed_by.clear()

    def _none_waits(self) -> None:
        for other in list(self._waiting):
            self._is_dry(other)

    def _is_dry(self, process: Process) -> None:
        self._waiting.discard(process)
        self.changes.append((process.left_ns, process.pid, False))
