# SPDX-License-Identifier: Apache-2.0
"""Finds out how the GPU of this host takes turns, from what its programs report (pure).

Problem. The replay assumes a time slice and a cost of switching. Where the hardware has others, completions come when
the replay has somebody else on the GPU, and tenants are charged up to a third too much.

Approach. The right model is the one under which the same work costs the same. When too many anchors miss, what the
replay was told for a while is kept (*tape*) and played again to replays of other natures. Each is judged by how much
what it charges per launch scatters around each context's own median: a context that runs beside one neighbour now and
three later is charged alike only by a model that knows how they share. The best nature is adopted if it is clearly
better than the present one. A fluid (very short slices that cost nothing to switch) is among them: it is what remains
where contexts run side by side, or where turns are irregular.

Terms. nature: slice and switch cost. burst: launches between two proofs of completion, none of them under a hold.
scatter: mean absolute deviation of the logarithm of what a launch costs; .1 is 10 %.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairsched.accounting.replay import Replay

POOR_HIT_RATIO = 0.8
"""Below this the tape starts."""
_TAPE_CALLS = 1000
_LEAST_BURSTS = 24
_LEAST_OF_ONE = 5
_GOOD_HIT_RATIO = 0.7
_MORE_HITS = 0.1
"""Another nature must be hit so often, and so much more often than the present one."""
"""Of the present scatter, at most, for another nature to be adopted."""
_NEAR = 1.15
"""As little scatter as the least, for what chance can tell."""
_AGAIN_NS = 10_000_000_000
_TRIES_PER_STEP = 3
_SLICES_US = (500, 1000, 1500, 2000, 3000, 4000, 6000, 10_000)
_SWITCHES_US = (0, 50, 100, 200, 350, 500)
FLUID = (100_000, 0)
"""Slice and switch cost in ns."""

Call = tuple[str, tuple[Any, ...]]


def natures() -> list[tuple[int, int]]:
    """Every (slice, switch cost) that is tried, in ns."""
    grid = [(s * 1000, w * 1000) for s in _SLICES_US for w in _SWITCHES_US if w * 2 <= s]
    return [*grid, FLUID]


@dataclass
class Tape:
    """What a replay was told since it was started, and which bursts ended meanwhile."""

    start: list[Call]
    calls: list[Call] = field(default_factory=list)
    bursts: int = 0

    def note(self, name: str, *arguments: Any) -> None:
        """Replay calls by name, and ``begin`` and ``burst`` of a context."""
        self.calls.append((name, arguments))
        self.bursts += name == "burst"

    @property
    def is_full(self) -> bool:
        return len(self.calls) >= _TAPE_CALLS


@dataclass(frozen=True)
class Fit:
    """How well a nature explains a tape."""

    scatter: float
    hit_ratio: float
    """Of the anchors that had company."""


def fit(tape: Tape, slice_ns: int, switch_ns: int) -> Fit | None:
    """None when too little ended on the tape."""
    replay = Replay(slice_ns, switch_ns)
    for name, arguments in tape.start:
        getattr(replay, name)(*arguments)
    marks: dict[Hashable, int] = {}
    costs: dict[Hashable, list[float]] = {}
    for name, arguments in tape.calls:
        if name == "begin":
            marks[arguments[0]] = replay.exec_ns(arguments[0])
        elif name == "burst":
            key, launches, is_whole = arguments
            exec_ns = replay.exec_ns(key)
            spent_ns = exec_ns - marks.get(key, exec_ns)
            marks[key] = exec_ns
            if is_whole and spent_ns > 0:
                costs.setdefault(key, []).append(math.log(spent_ns / launches))
        elif name in ("close", "progress"):
            getattr(replay, name)(*arguments[:2], is_anchor=arguments[2])
        else:
            getattr(replay, name)(*arguments)
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
        self._search: Iterator[tuple[int, int]] | None = None
        self._tape: Tape | None = None
        self._found: dict[tuple[int, int], Fit] = {}
        self.tried = 0
        """In this search."""
        self.is_settled = False
        """A search has ended: no other nature explains this GPU better than the one it has now."""
        self.report = ""

    @property
    def is_searching(self) -> bool:
        """The present nature is in doubt."""
        return self._tape is not None

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
            self._search = iter(natures())
            self._try((replay.slice_ns, replay.switch_ns))
            return False
        for nature in itertools.islice(self._search, _TRIES_PER_STEP):
            self._try(nature)
            self.tried += 1
        return self.tried >= len(natures()) and self._conclude(now_ns)

    def _try(self, nature: tuple[int, int]) -> None:
        assert self._tape is not None
        found = fit(self._tape, *nature)
        if found is not None:
            self._found[nature] = found

    def _conclude(self, now_ns: int) -> bool:
        found, present = self._found, (self.replay.slice_ns, self.replay.switch_ns)
        self._tape, self._search, self._found = None, None, {}
        self._next_ns = now_ns + _AGAIN_NS
        self.tried = 0
        self.report = (
            " ".join(
                f"{s // 1000}/{w // 1000}:{v.scatter:.3f},{v.hit_ratio:.2f}"
                for (s, w), v in sorted(found.items(), key=lambda i: -i[1].hit_ratio)[:4]
            )
            + f" now {found.get(present)} hits {self.replay.hit_ratio:.2f}"
        )
        if present not in found:
            return False
        best, now = _best(found), found[present]
        self.is_settled = True
        fits = found[best].hit_ratio >= _GOOD_HIT_RATIO and found[best].hit_ratio > now.hit_ratio + _MORE_HITS
        if best == present or not (fits and found[best].scatter <= now.scatter):
            return False
        self.replay.set_nature(*best)
        return True


def _best(found: Mapping[tuple[int, int], Fit]) -> tuple[int, int]:
    """Of those that scatter about as little as the least, the one that is hit most often."""
    least = min(one.scatter for one in found.values())
    near = [nature for nature, one in found.items() if one.scatter <= _NEAR * least]
    return max(near, key=lambda nature: (found[nature].hit_ratio, -found[nature].scatter))
