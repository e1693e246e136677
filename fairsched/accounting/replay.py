# SPDX-License-Identifier: Apache-2.0
"""Reconstructs who ran when from when each context was busy (pure).

Problem: the processor-sharing clock says a busy context receives 1/n of the GPU. Hardware does not share like a
fluid: it gives whole time slices in turn and loses some time at each switch. The last, partial slice of a burst
waits a full round, a 1 ms burst beside a trainer gets 1 of 3 ms and not half of 2, and with 2 ms slices and
0.1 ms switches everybody is charged 5 % for time nobody computed. In a discrete-event model of the hardware the
clock is wrong by 5 to 27 % for such mixes, after normalising still by up to 20 %.

Approach: replay the hardware. A runlist is a circle of contexts, whose order is learnt (circle.py); each with work
runs for at most one slice, then the next one in the circle does. When contexts became busy and idle again is observed
exactly (libcuda edges); the replay computes the slices between. Every completion somebody waited for is also a check,
an *anchor*: work can only have ended while its context was running, so the replay must have it on the GPU at that
moment. If it does, that is a *hit*; if not, a *miss*, and the replay is set right. In the same model it is within
0.2 %, and the share of hits says whether the model of the hardware (order, slice, switch cost) holds: above .9 when it
does, mostly below .6 when the slice length is wrong (not where every burst fits into one slice). Where it is wrong,
what was proven complete is charged what it costs all the same (costs.py).

Where in its slice the running context is (the *phase*) is known from when one began on an idle GPU, or when somebody's
work was seen to end and the next one had its turn. It is lost where a turn ended unseen: with a drain, which is an
estimate, or with an anchor that missed. Until it is known again anchors set the replay right, but judge nothing: on a
GPU whose contexts always have work and are held in turn, a right model is hit little more often than by chance.

Terms: a context is *runnable* while it has outstanding work; *left* is the work a held context still has queued
(nobody will tell us when it ends, so the replay ends it itself).

All times are integers, nanoseconds of CLOCK_MONOTONIC. Keys are any hashable; rank orders the circle.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fairsched.accounting.circle import Circle

DEFAULT_SLICE_NS = 2_000_000
DEFAULT_SWITCH_NS = 100_000


@dataclass(slots=True, eq=False)
class Runner:
    """A context, as its engine knows it."""

    key: Hashable
    rank: tuple[int, ...]
    serial: int = 0
    place: int = 0
    """In the circle, which gives it both."""
    exec_ns: int = 0
    is_runnable: bool = False
    left_ns: int | None = None
    slice_end_ns: int = 0
    """Of its last slice that was followed by another context's."""
    pid: int = 0
    opened_ns: int = 0
    """Where turns are traced: when its work began ..."""
    waited_ns: int = 0
    """... and how long it had some since its last turn, before that."""


_serial = attrgetter("serial")


class Replay:
    """One GPU's compute engine. Call in time order; an earlier time is taken as the latest one seen."""

    def __init__(self, slice_ns: int = DEFAULT_SLICE_NS, switch_ns: int = DEFAULT_SWITCH_NS) -> None:
        self.slice_ns = slice_ns
        self.switch_ns = switch_ns
        self.hits = 0
        self.misses = 0
        """Recent anchors that found their context running; only anchors with company count."""
        self._contexts: dict[Hashable, Runner] = {}
        self._circle: Circle[Runner] = Circle()
        self._seen: tuple[Runner, int] | None = None
        """The context of the last anchor, and when that was."""
        self._since_seen: set[Runner] = set()
        """Those that had work all the time since then."""
        self._runnable = 0
        self._even_ns, self._even_to_ns = 0.0, 0
        self._current: Runner | None = None
        self._last: Runner | None = None
        self._slice_begin_ns = 0
        self._charged_to_ns = 0
        self._idle_ns = 0
        self._drained: list[tuple[Any, int]] = []
        self._passed: list[tuple[Any, int]] = []
        self._doubted: set[Hashable] = set()
        self._is_phase_known = False

    # ---- what is observed ----

    def add(self, key: Hashable, rank: tuple[int, ...], pid: int = 0) -> None:
        """A context of a process exists; contexts of lower rank come earlier in the circle. Idempotent."""
        if key in self._contexts:
            return
        context = self._contexts[key] = Runner(key, rank)
        self._circle.add(context)

    def open(self, key: Hashable, t_ns: int) -> None:
        """The context has outstanding work from now on."""
        self.advance(t_ns)
        context = self._contexts[key]
        context.left_ns = None
        if context.is_runnable:
            return
        context.is_runnable = True
        self._even_ns, self._even_to_ns = self.even_ns(t_ns), max(t_ns, self._even_to_ns)
        self._runnable += 1
        if self._current is None:
            self._idle_ns = self.idle_ns(t_ns)
            self._start(context, max(t_ns, self._charged_to_ns))
            self._is_phase_known = True

    def close(self, key: Hashable, t_ns: int, *, is_anchor: bool = True) -> bool | None:
        """All work of the context is complete. An anchor: it completed at this very moment.

        Returns whether the replay had it on the GPU; None when that could not be judged.
        """
        self.advance(t_ns)
        context, is_hit = self._contexts[key], None
        if not context.is_runnable:
            return None
        if is_anchor and self._runnable > 1:
            is_hit = self._judge(context, t_ns)
        self._stop(context, t_ns, is_seen=is_anchor)
        return is_hit

    def close_before(self, key: Hashable, t_ns: int, late_ns: int) -> None:
        """All work of the context was complete ``late_ns`` before ``t_ns``, as is found out now.

        If that was within its last slice, the next context had its turn earlier than the replay thought.
        """
        self.advance(t_ns)
        context = self._contexts[key]
        if not context.is_runnable:
            return
        is_current = self._current is context
        begin_ns = self._slice_begin_ns if is_current else context.slice_end_ns - self.slice_ns
        end_ns = t_ns if is_current else context.slice_end_ns
        over_ns = min(end_ns - max(t_ns - late_ns, begin_ns), context.exec_ns)
        self._stop(context, t_ns)
        if over_ns <= 0:
            return
        context.exec_ns -= over_ns
        following = self._current
        if following is None:
            return
        if is_current:  # it begins only now, and is charged from where it really began
            self._charged_to_ns -= over_ns
        else:
            following.exec_ns += over_ns
        self._slice_begin_ns -= over_ns

    def progress(self, key: Hashable, t_ns: int, *, is_anchor: bool) -> bool | None:
        """Some of its work is complete and it goes on with the rest. Returns what ``close`` does."""
        self.advance(t_ns)
        context = self._contexts[key]
        if is_anchor and context.is_runnable and self._runnable > 1:
            return self._judge(context, t_ns)
        return None

    def remove(self, key: Hashable, t_ns: int) -> None:
        """The context is gone; whatever it had queued is gone with it. Its total is forgotten."""
        self.advance(t_ns)
        context = self._contexts.pop(key, None)
        if context is None:
            return
        if context.is_runnable:
            self._stop(context, t_ns)
        self._circle.remove(context)
        if self._seen is not None and self._seen[0] is context:
            self._seen = None
        if self._last is context:
            self._last = None
        self._doubted.discard(key)

    def doubt(self, key: Hashable, *, is_open: bool = True) -> None:
        """Whether the context still runs is not known: until it is, anchors correct the replay but do not judge it."""
        if is_open:
            self._doubted.add(key)
        else:
            self._doubted.discard(key)

    def drain(self, key: Hashable, t_ns: int, left_ns: int) -> None:
        """Nothing more will be submitted: the context stops by itself after ``left_ns`` of execution."""
        self.advance(t_ns)
        context = self._contexts[key]
        if context.is_runnable:
            context.left_ns = max(0, left_ns)

    def resume(self, key: Hashable, t_ns: int) -> None:
        """The context may submit again: observed edges end its work from now on."""
        self.advance(t_ns)
        self._contexts[key].left_ns = None

    def transfer(self, source: Hashable, target: Hashable, ns: int) -> None:
        """Execution time charged to ``source`` was ``target``'s (negative: the other way round)."""
        if source in self._contexts and target in self._contexts:
            self._contexts[source].exec_ns -= ns
            self._contexts[target].exec_ns += ns

    def settle(self, key: Hashable, ns: int) -> None:
        """It had so much more than was charged (negative: less), as is known now from what it did."""
        self._contexts[key].exec_ns += ns

    # ---- what is computed ----

    def advance(self, t_ns: int) -> None:
        """Compute up to ``t_ns``."""
        while self._current is not None:
            context = self._current
            end_ns = self._slice_begin_ns + self.slice_ns
            if context.left_ns is not None:
                end_ns = min(end_ns, max(self._charged_to_ns, self._slice_begin_ns) + context.left_ns)
            elif self._runnable == 1:  # alone: slices have no meaning until somebody joins
                self._charge(context, t_ns)
                self._slice_begin_ns = max(
                    self._slice_begin_ns, t_ns - (t_ns - self._slice_begin_ns) % self.slice_ns
                )
                return
            if end_ns > t_ns:
                self._charge(context, t_ns)
                return
            self._charge(context, end_ns)
            if context.left_ns == 0:
                self._drained.append((context.key, end_ns))
                self._stop(context, end_ns)
            else:
                self._pass_on(context, end_ns)

    def exec_ns(self, key: Hashable) -> int:
        """Execution time of the context up to the last advance."""
        return self._contexts[key].exec_ns

    def exec_by_key(self) -> dict[Any, int]:
        """Execution time of every context up to the last advance."""
        return {key: context.exec_ns for key, context in self._contexts.items()}

    def is_runnable(self, key: Hashable) -> bool:
        """Whether the context still has work, as far as the replay knows."""
        return self._contexts[key].is_runnable

    def state(self, key: Hashable) -> tuple[int, bool]:
        """Both at once."""
        context = self._contexts[key]
        return context.exec_ns, context.is_runnable

    def left_ns(self, key: Hashable) -> int | None:
        """What a draining context still has to run; None when it does not drain."""
        return self._contexts[key].left_ns

    def keys(self) -> list[Hashable]:
        """Contexts in the circle."""
        return list(self._contexts)

    @property
    def runnable(self) -> int:
        """Contexts with work."""
        return self._runnable

    def idle_ns(self, t_ns: int) -> int:
        """For how long nobody had work, since it first was anybody's, up to ``t_ns``."""
        is_idle = self._current is None and self._last is not None
        return self._idle_ns + max(0, t_ns - self._charged_to_ns) if is_idle else self._idle_ns

    def even_ns(self, t_ns: int) -> float:
        """GPU time that one more context would have had by ``t_ns`` if all with work had had the same.

        For one that has work itself, and so is counted twice, it is less than its part.
        """
        return self._even_ns + max(0, t_ns - self._even_to_ns) / (self._runnable + 1)

    def take_drained(self) -> list[tuple[Any, int]]:
        """Contexts whose drain ended since the last call, and when."""
        if not self._drained:
            return []
        drained, self._drained = self._drained, []
        return drained

    def take_passed(self) -> list[tuple[Any, int]]:
        """Contexts whose drain was over though it was taken to run, since the last call, and when that was seen."""
        if not self._passed:
            return []
        passed, self._passed = self._passed, []
        return passed

    def drain_end_ns(self) -> int | None:
        """When a drain that is alone ends; None where there is none."""
        if self._runnable != 1 or self._current is None or self._current.left_ns is None:
            return None
        return max(self._charged_to_ns, self._slice_begin_ns) + self._current.left_ns

    # ---- mechanism ----

    def _charge(self, context: Runner, t_ns: int) -> None:
        ran_ns = t_ns - self._charged_to_ns
        if ran_ns <= 0:
            return
        context.exec_ns += ran_ns
        if context.left_ns is not None:
            context.left_ns = max(0, context.left_ns - ran_ns)
        self._charged_to_ns = t_ns

    def _start(self, context: Runner, t_ns: int) -> None:
        cost_ns = 0 if self._last is None or self._last is context else self.switch_ns
        self._current = self._last = context
        self._slice_begin_ns = self._charged_to_ns = t_ns + cost_ns

    def _pass_on(self, context: Runner, t_ns: int) -> None:
        following = self._circle.next_after(context)
        context.slice_end_ns = t_ns
        if following is None:
            self._current = None
            self._charged_to_ns = t_ns
        else:
            self._last = context
            self._start(following, t_ns)

    def _stop(self, context: Runner, t_ns: int, *, is_seen: bool = False) -> None:
        """``is_seen``: whoever is next has its turn from now on, and not from some moment near it."""
        self._is_phase_known = is_seen
        context.is_runnable = False
        context.left_ns = None
        self._even_ns, self._even_to_ns = self.even_ns(t_ns), max(t_ns, self._even_to_ns)
        self._runnable -= 1
        self._since_seen.discard(context)
        if self._current is context:
            self._pass_on(context, t_ns)

    def _judge(self, context: Runner, t_ns: int) -> bool | None:
        """Compare a close with what the replay believed, and put the replay where the close says it was.

        Returns whether they agree; None while something is in doubt, or the phase is not known.
        """
        self._compare(context, t_ns)
        is_hit, is_judged = self._current is context, self._is_phase_known and not self._doubted
        if not is_hit:
            self._correct(context, t_ns)
            self._is_phase_known = False
        if not is_judged:
            return None
        if is_hit:
            self.hits += 1
        else:
            self.misses += 1
        return is_hit

    def _compare(self, context: Runner, t_ns: int) -> None:
        """With the anchor before: less than a turn ago nobody had a whole one in between."""
        seen, self._seen = self._seen, (context, t_ns)
        since, self._since_seen = self._since_seen, self._circle.working()
        if seen is None or seen[0] is context or t_ns - seen[1] >= self.slice_ns // 2 + self.switch_ns:
            return
        # In an order of their own: that of a set is another in each process, and what is told first counts.
        passed = sorted(since - {context, seen[0]}, key=_serial)
        sure = [one for one in passed if one.key not in self._doubted and one.left_ns is None]
        self._circle.tell(seen[0], context, sure)
        for one in passed:
            if one.left_ns is not None and self._circle.is_between(seen[0], one, context):
                self._passed.append((one.key, t_ns))

    def _correct(self, context: Runner, t_ns: int) -> None:
        believed = self._current
        if believed is not None:
            given_ns = max(0, t_ns - self._slice_begin_ns)
            is_ahead = self._circle.last_before(believed) is context and given_ns < self.slice_ns // 2
            # Ahead: the replay took the GPU from it a moment too early. Behind: its turn had already
            # come; how much of the slice it had is unknown, half is the best guess.
            moved_ns = given_ns if is_ahead else given_ns // 2
            moved_ns = min(moved_ns, believed.exec_ns)
            believed.exec_ns -= moved_ns
            context.exec_ns += moved_ns
        self._current = self._last = context
        self._slice_begin_ns = self._charged_to_ns = t_ns
