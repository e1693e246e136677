# SPDX-License-Identifier: Apache-2.0
"""Who ran when, where the GPU itself tells whose turn it was (pure).

Problem. A replay of turns (replay.py) is a model: where a program launches more slowly than the GPU works, or has
several steps in flight, or seven tenants share a GPU, it charged programs on an H100 between a quarter and twelve times
what they ran.

Approach. The driver's trace of context switches (gpu/trace.py) names who had the engine, and from when to when. So
nothing is concluded: a context is charged for the time it had the engine *and* had work. Work is what calls tell, as in
the replay; it matters because the engine stays with who was last when nobody else wants it. Who is given the engine
though somebody else waits has work, whatever calls told: that is charged, too, also to processes of which no call was
ever seen (strangers.py). And who is passed over twice by the same other context has none: turns go round. So the end of
a drain is seen instead of estimated.

Who waits for long without a turn, though somebody else had two or the engine was nobody's, waits for something else (a
copy, a semaphore, the host): it has no work for the engine until it is given it again. Else one launch behind an event
that never comes would have all others held for it.

When the trace is lost the replay goes on from where it stands.

Terms. stay: from when a process gets the engine to when it leaves it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence

from fairsched.accounting.replay import Replay, Runner
from fairsched.gpu.trace import Switch

STALLED_NS, _FREE_NS = 50_000_000, 40_000_000
"""Both are longer than a turn anywhere. The second: whoever wants an engine that is with nobody has it at once."""
GIVEN_NS = 3_000_000
"""The same of a drain, whose process makes no more work: a switch takes .2 ms."""
_MOST_CHANNELS = 4096


class Turns(Replay):
    """One GPU's compute engine; a replay until :meth:`feed` is told of a switch."""

    def __init__(self, slice_ns: int, switch_ns: int) -> None:
        super().__init__(slice_ns, switch_ns)
        self.is_traced = False
        self._by_pid: dict[int, list[Runner]] = {}
        self._strangers: dict[int, Runner] = {}
        self._switches: deque[Switch] = deque()
        self._resident: Runner | None = None
        self._stay_ns = 0
        """When it began."""
        self._is_given = False
        """It was given the engine while somebody else waited."""
        self._idle_from_ns: int | None = None
        self._passed_by: dict[Runner, set[int]] = {}
        """Of those that drain: whose channels have had a turn since theirs."""
        self._turn_ns: dict[int, int] = {}
        """By channel: when its last turn began."""
        self._twice_ns = 0
        """Since then some channel has had two."""
        self._free_ns = 0
        """Since when the engine is with nobody who has work, while it is known to be."""
        self._is_known = False
        """Whether anybody, and who, has the engine."""
        self._told_ns = 0
        self._stalled: dict[Runner, bool] = {}
        """Those that wait for something else, and whether they still have work, by their calls."""

    # ---- the trace ----

    def feed(self, switches: Iterable[Switch], told_ns: int) -> None:
        """What the trace told, in order; taken in as time advances. From the first one on it is followed.

        ``told_ns``: up to then that is all. Where a read comes late it lies a while back, and that nobody was given the
        engine since means nothing.
        """
        self._switches.extend(switches)
        self._told_ns = told_ns
        if not self.is_traced and self._switches:
            self._follow(self._switches[0].t_ns)

    def _follow(self, t_ns: int) -> None:
        self.advance(t_ns)
        self.is_traced, self._current, self._charged_to_ns = True, None, max(t_ns, self._charged_to_ns)
        self._idle_from_ns = None if self._runnable else t_ns
        self._passed_by = {
            one: set() for one in self._contexts.values() if one.is_runnable and one.left_ns is not None
        }
        self._expect(t_ns)

    def _expect(self, t_ns: int) -> None:
        """What turns there were before is not known."""
        self._turn_ns.clear()
        self._twice_ns, self._free_ns, self._is_known = 0, t_ns, False
        for one in self._contexts.values():
            one.opened_ns, one.waited_ns = t_ns, 0

    def lose(self, *, is_for_good: bool = False) -> None:
        """Part of the trace is missing: nobody is known to have the engine. ``is_for_good``: replay from here."""
        self._resident = None
        self._expect(self._charged_to_ns)
        if is_for_good and self.is_traced:
            for one in list(self._stalled):
                self._go_on(one, self._charged_to_ns)
            self._idle_ns = self.idle_ns(self._charged_to_ns)
            self.is_traced, self._last = False, None
            self._switches.clear()
            waiting = [one for one in self._contexts.values() if one.is_runnable]
            if waiting:
                self._start(min(waiting, key=lambda one: one.rank), self._charged_to_ns)

    # ---- what is observed ----

    def add(self, key: Hashable, rank: tuple[int, ...], pid: int = 0) -> None:
        if key not in self._contexts:
            super().add(key, rank, pid)
            own = self._contexts[key]
            own.pid = pid
            self._by_pid.setdefault(pid, []).append(own)
            stranger = self._strangers.pop(pid, None)
            if stranger is not None:  # it is known by now
                own.exec_ns, own.slice_end_ns = stranger.exec_ns, stranger.slice_end_ns
                if self._resident is stranger:
                    self._resident = own

    def remove(self, key: Hashable, t_ns: int) -> None:
        context = self._contexts.get(key)
        super().remove(key, t_ns)
        if context is not None:
            self._by_pid[context.pid].remove(context)
            if not self._by_pid[context.pid]:
                del self._by_pid[context.pid]
            self._passed_by.pop(context, None)
            self._stalled.pop(context, None)
            if self._resident is context:
                self._resident = None

    def open(self, key: Hashable, t_ns: int) -> None:
        if not self.is_traced:
            super().open(key, t_ns)
            return
        self.advance(t_ns)
        context = self._contexts[key]
        context.left_ns = None
        self._passed_by.pop(context, None)
        if context in self._stalled:
            self._stalled[context] = True
        elif not context.is_runnable:
            self._begin_work(context, t_ns)

    def close(self, key: Hashable, t_ns: int, *, is_anchor: bool = True) -> bool | None:
        if self._contexts[key] in self._stalled:
            self._stalled[self._contexts[key]] = False
        return super().close(key, t_ns, is_anchor=is_anchor)

    def close_before(self, key: Hashable, t_ns: int, late_ns: int) -> None:
        if not self.is_traced:
            super().close_before(key, t_ns, late_ns)
            return
        self.advance(t_ns)
        context = self._contexts[key]
        if context.is_runnable:
            if self._resident is context:
                context.exec_ns -= min(late_ns, max(0, t_ns - self._stay_ns), context.exec_ns)
            self._stop(context, t_ns)

    def drain(self, key: Hashable, t_ns: int, left_ns: int) -> None:
        super().drain(key, t_ns, left_ns)
        if self.is_traced and self._contexts[key].is_runnable:
            self._passed_by[self._contexts[key]] = set()

    def resume(self, key: Hashable, t_ns: int) -> None:
        super().resume(key, t_ns)
        self._passed_by.pop(self._contexts[key], None)

    def transfer(self, source: Hashable, target: Hashable, ns: int) -> None:
        if not self.is_traced:  # else nothing was charged wrongly
            super().transfer(source, target, ns)

    def settle(self, key: Hashable, ns: int) -> None:
        if not self.is_traced:
            super().settle(key, ns)

    # ---- what is computed ----

    def advance(self, t_ns: int) -> None:
        if not self.is_traced:
            super().advance(t_ns)
            return
        while self._switches and self._switches[0].t_ns <= t_ns:
            switch = self._switches.popleft()
            self._charge_stay(switch.t_ns)  # told of late it may lie in the past
            (self._begin_stay if switch.is_start else self._end_stay)(switch)
        if t_ns > self._charged_to_ns:
            self._charge_stay(t_ns)

    def idle_ns(self, t_ns: int) -> int:
        if not self.is_traced:
            return super().idle_ns(t_ns)
        return self._idle_ns + (0 if self._idle_from_ns is None else max(0, t_ns - self._idle_from_ns))

    def drain_end_ns(self) -> int | None:
        if not self.is_traced:
            return super().drain_end_ns()
        drains = self._passed_by
        if not drains or len(drains) < self._runnable or not self._is_known:
            return None
        if self._is_left():
            return self._free_ns + GIVEN_NS
        left_ns = sum([drain.left_ns or 0 for drain in drains])
        return self._charged_to_ns + left_ns if left_ns else self._stay_ns + _FREE_NS

    def take_strangers(self) -> Iterator[tuple[int, int, int]]:
        """Processes that had the engine and have no context here: (pid, what they were charged since the last
        call, when they last had it).

        Alone they are charged nothing: nobody knows whether they work.
        """
        for pid, one in self._strangers.items():
            is_there = one is self._resident and self._is_given
            used_ns, one.exec_ns = one.exec_ns, 0
            yield pid, used_ns, self._charged_to_ns if is_there else one.slice_end_ns

    def forget_stranger(self, pid: int) -> None:
        """It is gone."""
        one = self._strangers.pop(pid, None)
        if one is not None and one is self._resident:
            self._resident = None

    def look(self, t_ns: int) -> None:
        """Advance, and find those that wait for something else than a turn. To be called now and then."""
        self.advance(t_ns)
        if not self.is_traced:
            return
        resident, told_ns = self._resident, min(t_ns, self._told_ns)
        if self._is_left() and told_ns - self._free_ns >= GIVEN_NS:
            self._end_drains(t_ns)
        is_free = self._is_known and (resident is None or not resident.is_runnable)
        is_free &= told_ns - self._free_ns > _FREE_NS
        for one in list(self._contexts.values()):
            if not one.is_runnable or one is resident or self._waited_ns(one, told_ns) <= STALLED_NS:
                continue
            if is_free or self._twice_ns > max(one.opened_ns, one.slice_end_ns):
                if one.left_ns is not None:
                    self._end_drain(one, t_ns)
                else:
                    self._stop(one, t_ns)
                    self._stalled[one] = True
        if len(self._turn_ns) > _MOST_CHANNELS:  # contexts come and go
            self._turn_ns.clear()

    # ---- mechanism ----

    def _begin_work(self, context: Runner, t_ns: int) -> None:
        if self._idle_from_ns is not None:
            self._idle_ns += max(0, t_ns - self._idle_from_ns)
            self._idle_from_ns = None
        context.is_runnable, context.opened_ns = True, t_ns
        self._even_ns, self._even_to_ns = self.even_ns(t_ns), max(t_ns, self._even_to_ns)
        self._runnable += 1

    def _waited_ns(self, context: Runner, t_ns: int) -> int:
        """Of the time it has had work since its last turn."""
        return context.waited_ns + max(0, t_ns - max(context.opened_ns, context.slice_end_ns))

    def _go_on(self, context: Runner, t_ns: int) -> None:
        """It is given the engine: if it was stalled it is not any more."""
        context.waited_ns = 0
        if self._stalled.pop(context, False):
            self._begin_work(context, t_ns)

    def _begin_stay(self, switch: Switch) -> None:
        own: Sequence[Runner] = self._by_pid.get(switch.pid, ())
        for one in own if self._stalled else ():
            self._go_on(one, switch.t_ns)
        if not own and switch.pid:
            own = (self._strangers.setdefault(switch.pid, Runner(switch.pid, ())),)
        waiting = [one for one in own if one.is_runnable]
        # Of several contexts of one process, that which has waited longest.
        chosen = min(waiting or own, key=lambda one: one.slice_end_ns, default=None)
        self._resident, self._stay_ns = chosen, switch.t_ns
        self._is_given = self._runnable > len(waiting)
        self._free_ns, self._is_known = switch.t_ns, True
        if switch.pid:
            self._twice_ns = max(self._twice_ns, self._turn_ns.get(switch.channel, 0))
            self._turn_ns[switch.channel] = switch.t_ns
        if chosen is not None:
            chosen.waited_ns = 0
            self._passed_by.get(chosen, set()).clear()
        if not switch.pid:  # the driver's own contexts have one name together
            return
        for drain, seen in list(self._passed_by.items()):
            if drain is not chosen and switch.channel in seen:
                self._end_drain(drain, switch.t_ns)
            elif drain is not chosen:
                seen.add(switch.channel)

    def _end_stay(self, switch: Switch) -> None:
        if self._resident is not None:
            self._resident.slice_end_ns = switch.t_ns
        self._resident, self._free_ns, self._is_known = None, switch.t_ns, bool(switch.pid)

    def _charge_stay(self, t_ns: int) -> None:
        resident, ran_ns = self._resident, t_ns - self._charged_to_ns
        if resident is None and not self._is_known and self._runnable == 1 and ran_ns > 0:
            # After a hole: who is alone has it, and no switch will tell.
            resident = next(one for one in self._contexts.values() if one.is_runnable)
        self._charged_to_ns = t_ns
        if resident is None or not (resident.is_runnable or (self._is_given and self._runnable)):
            return
        # Below 0 where a switch is told of late: what was charged beyond it is taken back.
        resident.exec_ns += max(ran_ns, -resident.exec_ns)
        if resident.left_ns is not None:
            resident.left_ns = max(0, resident.left_ns - max(0, ran_ns))
            is_alone = self._runnable == 1 or t_ns - self._stay_ns > _FREE_NS
            if not resident.left_ns and is_alone:  # it would stay until somebody comes
                self._end_drain(resident, t_ns)

    def _is_left(self) -> bool:
        """Whether the engine is with nobody, or with one whose work has ended since it was given it."""
        if self._resident is None:
            return self._is_known
        return not self._resident.is_runnable and self._free_ns > self._stay_ns

    def _end_drains(self, t_ns: int) -> None:
        """None of them was given an engine that nobody else wanted: all are over, and who has it did nothing."""
        resident = self._resident
        if self._passed_by and resident is not None and self._is_given:
            resident.exec_ns -= min(resident.exec_ns, max(0, t_ns - max(self._free_ns, self._stay_ns)))
        for drain in list(self._passed_by):
            self._end_drain(drain, t_ns)

    def _end_drain(self, context: Runner, t_ns: int) -> None:
        self._passed_by.pop(context, None)
        if context.is_runnable:
            self._drained.append((context.key, t_ns))
            self._stop(context, t_ns)

    def _stop(self, context: Runner, t_ns: int, *, is_seen: bool = False) -> None:
        context.waited_ns = 0 if context is self._resident else self._waited_ns(context, t_ns)
        if context is self._resident:
            self._free_ns = t_ns
        super()._stop(context, t_ns, is_seen=is_seen)
        self._passed_by.pop(context, None)
        if self.is_traced and not self._runnable:
            self._idle_from_ns = t_ns

    def _judge(self, context: Runner, t_ns: int) -> bool | None:
        return None if self.is_traced else super()._judge(context, t_ns)
