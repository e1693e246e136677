# SPDX-License-Identifier: Apache-2.0
"""Finds out how the GPU of this host takes turns, from what its programs report (pure).

Problem. The replay assumes a time slice and a cost of switching. Where the hardware has others, completions come when
the replay has somebody else on the GPU, and tenants are charged up to a third too much.

Approach. When too many anchors miss, what the replay is told from then on is kept for a while (*tape*) and played again
to replays of other natures. Each is judged twice: by how often its anchors hit, and by how much what it charges per
launch scatters around each context's own median, because a context that runs beside one neighbour now and three later
is charged alike only by a model that knows how they share. Of those that scatter about as little as the least of all,
the one that is hit most often is the best. It is adopted if it is hit often and clearly more often than the present
nature, and scatters little more; or if it scatters far less, and is hit often and as often. One that nearly all anchors
hit needs not scatter least. Either judge alone errs: see docs/decisions/0008-turns.md. A fluid (very short slices
that cost nothing to switch) is only measured: where contexts run side by side it scatters least, so that nothing else
is adopted; but everybody is on it all the time, so its anchors are hit by chance.

What a held context still executes is an estimate, and it was made with the present nature. While one is open (*doubt*),
anchors judge nobody, and bursts beside it count only where there are too few others.

Terms. nature: slice and switch cost. burst: launches between two proofs of completion, counted where no hold was in
between. scatter: mean absolute deviation of the logarithm of what a launch costs; .1 is 10 %.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairsched.accounting.orders import Order, other_order
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
GOOD_HIT_RATIO = 0.7
"""Another nature must be hit so often to be adopted ..."""
_FAIR_HIT_RATIO = 0.6
_FAR = 0.75
"""... or so often, where it scatters at most this times as much: both judges speak for it ..."""
_MORE_HITS = 0.1
"""... and so much more often than the present one, or what chance explains where anchors are few ..."""
_TIGHTER = 0.9
_BY_CHANCE = 2.5
"""... which is so many times as much unless it scatters at most this times as much: of forty, one is lucky."""
_CERTAIN_HIT_RATIO = 0.85
"""Another order that is hit so often is the right one, and a nature needs not scatter least."""
_HARDLY_LESS = 0.05
_LEAST_ANCHORS = 20
_NEAR = 1.15
"""Times the least scatter: as little, for what chance can tell."""
_AGAIN_NS = 10_000_000_000
"""From the end of a search to the next tape."""
_LATELY_NS = 20_000_000_000
"""Longer than it takes to find somebody whom no edge tells of."""
_TRIES_PER_STEP = 3
_SLICES_US = (500, 1000, 1500, 2000, 3000, 4000, 6000, 10_000)
_SWITCHES_US = (0, 50, 100, 200, 350, 500)
_REPORTED = 4
_MARKS = ("begin", "burst")
_JUDGING = ("close", "progress")
_DOUBT = "doubt"
_END = object()

Call = tuple[str, tuple[Any, ...]]


class SliceTiming(NamedTuple):
    """How long a context runs before the next one does, and what the change costs: a nature of a GPU."""

    slice_ns: int
    switch_ns: int


_FLUID = SliceTiming(100_000, 0)


def natures() -> list[SliceTiming]:
    """Every one that is tried."""
    grid = [SliceTiming(s * 1000, w * 1000) for s in _SLICES_US for w in _SWITCHES_US if w * 4 <= s]
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

    def working(self) -> list[Hashable]:
        """Contexts that had work, in the order in which they stand."""
        had_work = {arguments[0] for name, arguments in (*self.start, *self.calls) if name == "open"}
        return [arguments[0] for name, arguments in self.start if name == "add" and arguments[0] in had_work]

    def reordered(self, order: Sequence[Hashable]) -> Tape:
        """The same, told to a replay in which these stand in this order."""
        ranks: dict[Hashable, tuple[int, ...]] = dict(
            arguments for name, arguments in self.start if name == "add"
        )
        others = dict(zip(order, sorted(ranks[key] for key in order), strict=True))
        start: list[Call] = []
        for name, arguments in self.start:
            is_other = name == "add" and arguments[0] in others
            start.append((name, (arguments[0], others[arguments[0]]) if is_other else arguments))
        return Tape(start, self.calls)

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
    anchors: int
    """How many that were."""

    def __str__(self) -> str:
        return f"hit={self.hit_ratio:.2f} of={self.anchors} scatter={self.scatter:.3f}"


@dataclass(frozen=True)
class Search:
    """What a search found."""

    present: SliceTiming
    """The one in force when it ended."""
    present_fit: Fit | None
    """None: the tape said too little about it, and nothing was decided."""
    best: tuple[tuple[SliceTiming, Fit], ...]
    """The few that are hit most often, most often first."""
    adopted: SliceTiming | None
    order: tuple[Order, Fit] | None = None
    """The one that the tape suggested, if it was another."""
    is_order_adopted: bool = False

    def __str__(self) -> str:
        best = " ".join(f"{_name(nature)}({one})" for nature, one in self.best)
        adopted = "none" if self.adopted is None else _name(self.adopted)
        if self.order is not None:
            adopted += f" {'adopted' if self.is_order_adopted else 'tried'}_order=({self.order[1]})"
        return f"now={_name(self.present)}({self.present_fit}) adopted={adopted} best={best or None}"


def _name(nature: SliceTiming) -> str:
    return f"{nature.slice_ns // 1000}/{nature.switch_ns // 1000}us"


def play(tape: Tape, replay: Replay, hear: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Tell a new replay what the other one was told; ``hear`` is called for ``begin``, ``burst`` and doubts."""
    for name, arguments in itertools.chain(tape.start, tape.calls):
        if name in _MARKS:
            hear(name, arguments)
        elif name in _JUDGING:
            getattr(replay, name)(*arguments[:2], is_anchor=arguments[2])
        elif name == _DOUBT:
            replay.doubt(arguments[0], is_open=arguments[1])
            hear(name, arguments)
        else:
            getattr(replay, name)(*arguments)


Costs = dict[Hashable, list[float]]
"""Logarithms of what a launch was charged, by context."""


class _Listener:
    """What each burst on a tape was charged."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._marks: dict[Hashable, tuple[int, int]] = {}
        self._doubts = 0
        self.costs: Costs = {}
        self.sure: Costs = {}
        """Those beside which no drain was in doubt."""

    def hear(self, name: str, arguments: tuple[Any, ...]) -> None:
        replay, key = self._replay, arguments[0]
        if name == _DOUBT:
            self._doubts += 1
            return
        exec_ns = replay.exec_ns(key)
        if name == "burst":
            _, launches, is_whole = arguments
            begin_ns, doubts = self._marks.get(key, (exec_ns, 0))
            if is_whole and exec_ns > begin_ns:
                cost = math.log((exec_ns - begin_ns) / launches)
                self.costs.setdefault(key, []).append(cost)
                if doubts == self._doubts and not replay.is_doubted:
                    self.sure.setdefault(key, []).append(cost)
        self._marks[key] = (exec_ns, self._doubts)


def fit(tape: Tape, slice_ns: int, switch_ns: int) -> Fit | None:
    """None when too little ended on the tape."""
    replay = Replay(slice_ns, switch_ns)
    listener = _Listener(replay)
    play(tape, replay, listener.hear)
    scatter = _scatter(listener.sure)
    if scatter is None:
        scatter = _scatter(listener.costs)
    if scatter is None:
        return None
    anchors = replay.hits + replay.misses
    return Fit(scatter, replay.hits / max(1, anchors), anchors)


def _scatter(costs: Costs) -> float | None:
    known = [values for values in costs.values() if len(values) >= _LEAST_OF_ONE]
    count = sum(map(len, known))
    if count < _LEAST_BURSTS:
        return None
    return sum(abs(value - statistics.median(values)) for values in known for value in values) / count


class Tuner:
    """Watches one replay; :meth:`step` now and then costs some milliseconds while it searches."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._next_ns = 0
        self._tape: Tape | None = None
        self._search: Iterator[None] | None = None
        self._found: dict[SliceTiming, Fit] = {}
        self._order: tuple[Order, Fit] | None = None
        self._before: tuple[int, SliceTiming] | None = None
        """When another nature was last adopted, and which one had been in force."""
        self.is_settled = False
        """A search has had enough to decide by: whatever nature is in force since, none tried explained more."""
        self.is_disputed = False
        """In the last search one was hit often, and clearly more often than the present one, yet none was adopted."""
        self.last: Search | None = None

    def restart(self, now_ns: int) -> bool:
        """The replay did not know of everybody: what is on the tape says nothing, nor what was found lately.

        True: the nature in force before is in force again.
        """
        self.replay.tape = self._tape = self._search = None
        self._found, self._order, self._next_ns = {}, None, now_ns
        before, self._before = self._before, None
        if before is None or now_ns - before[0] > _LATELY_NS:
            return False
        self.replay.set_nature(*before[1])
        return True

    def step(self, now_ns: int) -> bool:
        """Start, go on or finish; True when another nature or order was adopted just now."""
        replay = self.replay
        if self._tape is None:
            if replay.hit_ratio < POOR_HIT_RATIO and now_ns >= self._next_ns:
                self._tape = replay.tape = Tape(replay.as_calls(now_ns))
            return False
        if not self._tape.is_full:
            return False
        replay.tape = None
        if self._search is None:
            self._search = self._tries()
            next(self._search)
            return False
        for _ in range(_TRIES_PER_STEP):
            if next(self._search, _END) is _END:
                return self._conclude(now_ns)
        return False

    def _tries(self) -> Iterator[None]:
        """One after the other: the present nature, in another order too, and others unless that explains all."""
        assert self._tape is not None
        tape = self._tape
        self._try(self._present)
        yield
        order = other_order(tape.working(), (*tape.start, *tape.calls), self.replay.slice_ns)
        found = fit(tape.reordered(order), *self._present) if order is not None else None
        if order is not None and found is not None:
            self._order = (order, found)
            yield
            if found.hit_ratio >= _CERTAIN_HIT_RATIO and self._is_better_order():
                return
        for nature in natures():
            self._try(nature)
            yield

    def _is_better_order(self) -> bool:
        return self._order is not None and _is_better(self._order[1], self._found.get(self._present))

    @property
    def _present(self) -> SliceTiming:
        return SliceTiming(self.replay.slice_ns, self.replay.switch_ns)

    def _try(self, nature: SliceTiming) -> None:
        assert self._tape is not None
        found = fit(self._tape, *nature)
        if found is not None:
            self._found[nature] = found

    def _conclude(self, now_ns: int) -> bool:
        found, present = self._found, self._present
        suggested, order = self._order, self._order if self._is_better_order() else None
        self._tape, self._search, self._found, self._order = None, None, {}, None
        self._next_ns = now_ns + _AGAIN_NS
        adopted = _better(found, present)
        if order is not None and adopted is not None:
            is_order = order[1].hit_ratio >= found[adopted].hit_ratio
            order, adopted = (order, None) if is_order else (None, adopted)
        most = sorted(found.items(), key=lambda item: -item[1].hit_ratio)[:_REPORTED]
        self.last = Search(present, found.get(present), tuple(most), adopted, suggested, order is not None)
        self.is_settled |= present in found
        # On a busy machine one of so many natures is always hit more than the others, but not often.
        good = [one for one in found.values() if one.hit_ratio >= GOOD_HIT_RATIO]
        self.is_disputed = (
            adopted is None
            and order is None
            and any(_is_hit_more(one, found.get(present), _BY_CHANCE) for one in good)
        )
        if order is not None:
            self.replay.set_order(order[0])
        elif adopted is not None:
            self._before = (now_ns, present)
            self.replay.set_nature(*adopted)
        return order is not None or adopted is not None


def _better(found: Mapping[SliceTiming, Fit], present: SliceTiming) -> SliceTiming | None:
    """The one to adopt instead of the present one; None: it stays."""
    now, best = found.get(present), _best(found)
    if now is None:
        return None
    if best not in (None, present) and (_is_better(found[best], now) or _is_tighter(found[best], now)):
        return best
    return _most_hit(
        {nature: one for nature, one in found.items() if nature != _FLUID and _is_certain(one, now)}
    )


def _most_hit(found: Mapping[SliceTiming, Fit]) -> SliceTiming | None:
    return max(found, key=lambda nature: (found[nature].hit_ratio, -found[nature].scatter), default=None)


def _is_certain(one: Fit, now: Fit) -> bool:
    """Nearly all its anchors hit, which chance does not explain, and it scatters little more."""
    is_hit = one.hit_ratio >= _CERTAIN_HIT_RATIO and _is_hit_more(one, now, _BY_CHANCE)
    return is_hit and _is_better(one, now)


def _is_tighter(one: Fit, now: Fit) -> bool:
    """Scatters far less, and is hit often and hardly less often: as where only switching costs another time."""
    is_hit = one.hit_ratio >= max(GOOD_HIT_RATIO, now.hit_ratio - _HARDLY_LESS)
    return is_hit and one.anchors >= _LEAST_ANCHORS and one.scatter <= _FAR * now.scatter


def _is_better(one: Fit, now: Fit | None) -> bool:
    """Hit often, clearly more often, and scatters little more: the rule for natures and orders alike."""
    if now is None or one.scatter > _NEAR * now.scatter:
        return False
    sigmas = 1.0 if one.scatter <= _TIGHTER * now.scatter else _BY_CHANCE
    return _is_hit_often(one, now) and _is_hit_more(one, now, sigmas)


def _is_hit_often(one: Fit, now: Fit | None) -> bool:
    """Where slices are short no model is hit much more often: calls return when the next slice has begun."""
    is_far = now is not None and one.scatter <= _FAR * now.scatter
    return one.hit_ratio >= (_FAIR_HIT_RATIO if is_far else GOOD_HIT_RATIO)


def _is_hit_more(one: Fit, now: Fit | None, sigmas: float) -> bool:
    """Clearly: more often than chance explains, in standard deviations of the difference of the two."""
    chance = sigmas * math.sqrt(0.5 / max(1, one.anchors))
    return now is not None and one.hit_ratio > now.hit_ratio + max(_MORE_HITS, chance)


def _best(found: Mapping[SliceTiming, Fit]) -> SliceTiming | None:
    """Of those that scatter about as little as the least of all, the one that is hit most often; never the fluid."""
    least = min((one.scatter for one in found.values()), default=0.0)
    return _most_hit(
        {nature: one for nature, one in found.items() if one.scatter <= _NEAR * least and nature != _FLUID}
    )
