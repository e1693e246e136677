# SPDX-License-Identifier: Apache-2.0
"""Finds out how the GPU of this host takes turns, from what its programs report (pure).

Problem. The replay assumes a time slice and a cost of switching. Where the hardware has others, completions come when
the replay has somebody else on the GPU, and tenants are charged up to a third too much.

Approach. When too many anchors miss, what the replay is told from then on is kept for a while (*tape*) and played again
to replays of other natures. Each is judged twice: by how often its anchors hit, and by how much what it charges per
launch scatters around each context's own median, because a context that runs beside one neighbour now and three later
is charged alike only by a model that knows how they share. Of those that are hit often and scatter about as little as
the least of them, the one that is hit most often is the best. It is adopted if it is hit clearly more often than the
present nature and scatters little more. Either judge alone errs: see docs/decisions/0008-turns.md. A fluid (very short
slices that cost nothing to switch) is among the natures: contexts may run side by side.

Terms. nature: slice and switch cost. burst: launches between two proofs of completion, counted where no hold was in
between. scatter: mean absolute deviation of the logarithm of what a launch costs; .1 is 10 %.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.accounting.replay import Replay

POOR_HIT_RATIO = 0.8
"""Below this the tape starts."""
_TAPE_CALLS = 1000
_TAPE_NS = 5_000_000_000
"""The tape ends after so many calls, or so long."""
_LEAST_BURSTS = 24
"""In all; with fewer on the tape nothing is decided."""
_LEAST_OF_ONE = 5
"""A context with fewer has no median worth the name."""
_GOOD_HIT_RATIO = 0.7
"""Another nature must be hit so often to be adopted ..."""
_MORE_HITS = 0.1
"""... and so much more often than the present one."""
_NEAR = 1.15
"""Times the least scatter: as little, for what chance can tell."""
_AGAIN_NS = 10_000_000_000
"""From the end of a search to the next tape."""
_TRIES_PER_STEP = 3
_SLICES_US = (500, 1000, 1500, 2000, 3000, 4000, 6000, 10_000)
_SWITCHES_US = (0, 50, 100, 200, 350, 500)
_REPORTED = 4
_MARKS = ("begin", "burst")
_JUDGING = ("close", "progress")
_FLUID = (100_000, 0)

Call = tuple[str, tuple[Any, ...]]
Nature = tuple[int, int]
"""(slice, switch cost) in ns."""


def natures() -> list[Nature]:
    """Every one that is tried."""
    grid = [(s * 1000, w * 1000) for s in _SLICES_US for w in _SWITCHES_US if w * 4 <= s]
    return [*grid, _FLUID]


@dataclass
class Tape:
    """What a replay was told since it was started, and which bursts began and ended meanwhile."""

    start: list[Call]
    """What makes another replay know the contexts there were; not where in its slice the running one was."""
    calls: list[Call] = field(default_factory=list)

    def note(self, name: str, *arguments: Any) -> None:
        """A call of the replay, ``begin`` (key) or ``burst`` (key, launches, whether no hold was in between)."""
        self.calls.append((name, arguments))

    @property
    def is_full(self) -> bool:
        return len(self.calls) >= _TAPE_CALLS or self._span_ns() >= _TAPE_NS

    def _span_ns(self) -> int:
        """From the first call that has a time to the last one; what a replay of short slices costs."""
        times = (int(arguments[1]) for name, arguments in self.calls if name in _JUDGING)
        first = next(times, 0)
        last = next((int(a[1]) for name, a in reversed(self.calls) if name in _JUDGING), first)
        return last - first


@dataclass(frozen=True)
class Fit:
    """How well a nature explains a tape."""

    scatter: float
    hit_ratio: float
    """Of the anchors that had company."""

    def __str__(self) -> str:
        return f"hit={self.hit_ratio:.2f} scatter={self.scatter:.3f}"


@dataclass(frozen=True)
class Search:
    """What a search found."""

    present: Nature
    """The one in force when it ended."""
    present_fit: Fit | None
    """None: the tape said too little about it, and nothing was decided."""
    best: tuple[tuple[Nature, Fit], ...]
    """The few that are hit most often, most often first."""
    adopted: Nature | None

    def __str__(self) -> str:
        best = " ".join(f"{_name(nature)}({one})" for nature, one in self.best)
        adopted = "none" if self.adopted is None else _name(self.adopted)
        return f"now={_name(self.present)}({self.present_fit}) adopted={adopted} best={best or None}"


def _name(nature: Nature) -> str:
    return f"{nature[0] // 1000}/{nature[1] // 1000}us"


def play(tape: Tape, replay: Replay, hear: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Tell a new replay what the other one was told; ``hear`` is called for ``begin`` and ``burst``."""
    for name, arguments in itertools.chain(tape.start, tape.calls):
        if name in _MARKS:
            hear(name, arguments)
        elif name in _JUDGING:
            getattr(replay, name)(*arguments[:2], is_anchor=arguments[2])
        else:
            getattr(replay, name)(*arguments)


def fit(tape: Tape, slice_ns: int, switch_ns: int) -> Fit | None:
    """None when too little ended on the tape."""
    replay = Replay(slice_ns, switch_ns)
    marks: dict[Hashable, int] = {}
    costs: dict[Hashable, list[float]] = {}

    def hear(name: str, arguments: tuple[Any, ...]) -> None:
        key = arguments[0]
        exec_ns = replay.exec_ns(key)
        if name == "burst":
            _, launches, is_whole = arguments
            spent_ns = exec_ns - marks.get(key, exec_ns)
            if is_whole and spent_ns > 0:
                costs.setdefault(key, []).append(math.log(spent_ns / launches))
        marks[key] = exec_ns

    play(tape, replay, hear)
    known = [values for values in costs.values() if len(values) >= _LEAST_OF_ONE]
    count = sum(map(len, known))
    if count < _LEAST_BURSTS:
        return None
    off = sum(abs(value - statistics.median(values)) for values in known for value in values)
    return Fit(off / count, replay.hits / max(1, replay.hits + replay.misses))


class Tuner:
    """Watches one replay; :meth:`step` now and then costs some milliseconds while it searches."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._next_ns = 0
        self._tape: Tape | None = None
        self._search: Iterator[Nature] | None = None
        self._left = 0
        """Natures that the search has still to try."""
        self._found: dict[Nature, Fit] = {}
        self.is_settled = False
        """A search has had enough to decide by: whatever nature is in force since, none tried explained more."""
        self.last: Search | None = None

    def step(self, now_ns: int) -> bool:
        """Start, go on or finish; True when another nature was adopted just now."""
        replay = self.replay
        if self._tape is None:
            if replay.hit_ratio < POOR_HIT_RATIO and now_ns >= self._next_ns:
                self._tape = replay.tape = Tape(replay.as_calls(now_ns))
            return False
        if not self._tape.is_full:
            return False
        replay.tape = None
        if self._search is None:
            others = natures()
            self._search, self._left = iter(others), len(others)
            self._try(self._present)
            return False
        for nature in itertools.islice(self._search, _TRIES_PER_STEP):
            self._try(nature)
            self._left -= 1
        return self._left == 0 and self._conclude(now_ns)

    @property
    def _present(self) -> Nature:
        return self.replay.slice_ns, self.replay.switch_ns

    def _try(self, nature: Nature) -> None:
        assert self._tape is not None
        found = fit(self._tape, *nature)
        if found is not None:
            self._found[nature] = found

    def _conclude(self, now_ns: int) -> bool:
        found, present = self._found, self._present
        self._tape, self._search, self._found = None, None, {}
        self._next_ns = now_ns + _AGAIN_NS
        adopted = _better(found, present)
        most = sorted(found.items(), key=lambda item: -item[1].hit_ratio)[:_REPORTED]
        self.last = Search(present, found.get(present), tuple(most), adopted)
        self.is_settled |= present in found
        if adopted is None:
            return False
        self.replay.set_nature(*adopted)
        return True


def _better(found: Mapping[Nature, Fit], present: Nature) -> Nature | None:
    """The one to adopt instead of the present one; None: it stays."""
    if present not in found:
        return None
    now = found[present]
    hit = {nature: one for nature, one in found.items() if one.hit_ratio >= _GOOD_HIT_RATIO}
    best = _best(hit) if hit else present
    is_hit = found[best].hit_ratio > now.hit_ratio + _MORE_HITS
    return best if is_hit and found[best].scatter <= _NEAR * now.scatter else None


def _best(found: Mapping[Nature, Fit]) -> Nature:
    """Of those that scatter about as little as the least, the one that is hit most often."""
    least = min(one.scatter for one in found.values())
    near = [nature for nature, one in found.items() if one.scatter <= _NEAR * least]
    return max(near, key=lambda nature: (found[nature].hit_ratio, -found[nature].scatter))
