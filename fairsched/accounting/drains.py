# SPDX-License-Identifier: Apache-2.0
"""What held contexts still execute: estimated at the freeze, then settled by what is seen of the others.

Problem: a held context says nothing. What it had queued goes on running, and when that ends nobody reports. A tenant
of single long kernels that vary by 40 % is held in the middle of one: any estimate is off by tens of milliseconds, and
what it is charged wrongly is charged to, or withheld from, its neighbours.

Approach: the neighbours are the witnesses. One whose time per launch is known takes longer for a burst when somebody
else shares the GPU. Had a drain the replay takes to be over run all through a burst of ``spent`` with m contexts
running, spent / (m + 1) of that was really the drain's; had it been over, nothing. The same, the other way round, for
a drain the replay takes to be running. The likelihood ratio of the two is added up over bursts until it decides
(Wald's sequential test): beside one other context a single burst of a steady decoder is enough. Then the replay is put
right, and what was charged wrongly since the doubt began is moved. Bursts in which a hold begins or a drain is taken
to end tell how much was charged wrongly there (:func:`launch_time.settle`), and are moved at once.

A drain is *open* from the freeze until such a decision, or until its owner is let go and says so itself. One that
says nothing for PROMPT_NS after that is still waiting: its work ran all the time. While a drain is open, anchors on
its GPU are no test of the replay: what they contradict is the estimate.

Terms: *witness* is a running context whose burst just ended; *odds* are the logarithm of P(runs) / P(over); *pending*
is the time by which witnesses were charged wrongly if the replay is wrong about the drain, while that is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairsched.accounting.context import RUN_ON_NS, Context
from fairsched.accounting.launch_time import LINDY, Drain, LaunchTime, settle
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.model import ContextKey

PROMPT_NS = 15_000_000
"""A thawed process says within this time that its work is done, if it is."""
SURE = 4.0
"""Odds at which it is decided: one verdict in fifty is wrong."""
_PASSED = 3.0
"""Odds that a drain is over whose turn others had: one such fact in twenty may be wrong (circle.py)."""
_KNOWN_SAMPLES = 2
"""Bursts after which a context can be a witness."""
_PHASE = 0.25
"""Standard deviation of what the replay charges for a burst, in slices."""
_SPARE_RATIO, _UNKNOWN_RATIO = 0.5, 2.0
"""Of the time a drain should have lasted: so much later it is taken to be over by who needs to be sure, and as much as
the second one more, shared among the bursts that were observed ..."""
_SPARE_DOUBTS = 1.5
"""... and at least so many times the doubt about it."""
_SPARE_NS, _NEW_NS = 2_000_000, 250_000_000
"""At least so much of an even share; the second one where it is of a graph of which nothing is known."""
_LONGEST_BURST_NS = 1_000_000_000
"""No burst that overlapped a drain ends later than this after it."""


def evidence(
    witness: LaunchTime,
    expected_ns: int,
    spent_ns: int,
    wall_ns: int,
    is_believed_running: bool,
    slice_ns: int,
) -> tuple[float, float]:
    """Log-likelihood ratio of "the drain runs" to "it is over", from a burst that lasted ``wall_ns``.

    ``spent_ns`` is what the replay charged the witness. Also the time in ns by which the two differ.
    """
    surplus_ns = spent_ns - expected_ns
    rivals = max(1.0, wall_ns / max(1, spent_ns))  # contexts among which the replay divided the time
    variance = _noise_ns(witness, expected_ns) ** 2 + (_PHASE * slice_ns) ** 2
    if is_believed_running:
        missing = spent_ns / max(1.0, rivals - 1.0)
        return (2 * surplus_ns + missing) * missing / (2 * variance), missing
    missing = spent_ns / (rivals + 1.0)
    return (2 * surplus_ns - missing) * missing / (2 * variance), missing


def _noise_ns(witness: LaunchTime, expected_ns: int) -> float:
    """Standard deviation of what a burst of the witness takes."""
    return expected_ns * max(witness.spread, witness.uncertainty)


class Drains:
    """The drains of one GPU. Changes its replay and what the account keeps of its contexts."""

    def __init__(
        self,
        replay: Turns,
        remaining: Callable[[Context, int, int], tuple[int, int]],
        end_in_bpf: Callable[[int, int, int], bool],
    ) -> None:
        """``remaining``: GPU time left of so many launches of a context that have run for so long, and the doubt.
        ``end_in_bpf`` tells BPF that a drain is over."""
        self._replay = replay
        self._remaining_of = remaining
        self._end_in_bpf = end_in_bpf
        self._recent: dict[ContextKey, Context] = {}
        """Contexts held now or so lately that a burst may still overlap their drain."""

    # ---- hold and thaw ----

    def begin(self, context: Context, now_ns: int) -> None:
        """It is held from now on; what it has queued is estimated by the calls of :meth:`estimate` that follow."""
        context.is_held = context.is_tainted = True
        context.is_drain_known = False
        context.held_even_ns, context.held_seq = self._replay.even_ns(now_ns), context.seq
        context.drain_seq, context.thawed_ns = -1, None

    def estimate(self, context: Context, live: abi.Ctx, now_ns: int) -> None:
        """Once per hold, and again if a launch slipped in before the freeze took effect.

        A context that runs without an end while held would be charged for ever: the lock-out.
        """
        replay = self._replay
        is_running = replay.is_runnable(context.key)
        if context.drain_seq == live.submitted and not (is_running and replay.left_ns(context.key) is None):
            return
        context.drain_seq = live.submitted
        if not is_running and not context.is_open and context.seq >= context.drain_seq:
            # Nothing is queued, of which witnesses could tell; a tenant may have a thousand such contexts.
            context.drain_ns = context.drain_doubt_ns = 0
            return
        self._recent[context.key] = context
        context.drain_ns, context.drain_doubt_ns = self._remaining(context) if is_running else (0, 0)
        self._believe(context, SURE, now_ns)
        if context.drain_doubt_ns:
            context.is_open = True
            replay.doubt(context.key)
        else:
            self._close(context, now_ns)
        replay.drain(context.key, now_ns, context.drain_ns)

    def thaw(self, context: Context, now_ns: int) -> None:
        """It runs again. What is still open it will say itself."""
        context.is_held = False
        context.proven_ns = now_ns
        context.thawed_ns = now_ns if context.seq < context.drain_seq else None
        if context.held_with_demand:
            context.busy_ns = now_ns
        if not context.is_timed:
            self._replay.resume(context.key, now_ns)

    def forget(self, context: Context) -> None:
        """The context is gone."""
        self._recent.pop(context.key, None)

    # ---- what is seen afterwards ----

    def answer(self, context: Context, t_ns: int) -> None:
        """The context itself proved something complete, or submits anew: its drain is over."""
        if context.is_held:
            return
        context.thawed_ns = None
        if context.is_open:
            if self._replay.is_runnable(context.key) != (context.drain_odds > 0):
                self._take_pending(context)
            self._close(context, t_ns)

    def step(self, context: Context, live: abi.Ctx, now_ns: int) -> None:
        """A thawed process that does not go on is waiting for work that we took to be done: it ran all the time."""
        thawed_ns = context.thawed_ns
        if thawed_ns is None or now_ns - thawed_ns < PROMPT_NS:
            return
        context.thawed_ns = None
        is_waiting = context.held_with_demand and live.last_call_ns <= thawed_ns
        if is_waiting and not self._replay.is_runnable(context.key):
            context.is_drain_known = True
            self._take_pending(context)
            # If the GPU stood idle for the replay, all that time was this context's.
            self._replay.open(context.key, context.believed_ns)
            self._believe(context, SURE, now_ns)

    def seen(self, seen_ns: Mapping[int, int], now_ns: int) -> int | None:
        """Samples named processes, last at these moments. Who is held, and all of whose drains were taken to be over
        long before: they are not. Returns since when the first of them was taken to be; None: there is none."""
        running = {one.tgid for one in self._recent.values() if self._replay.is_runnable(one.key)}
        since_ns = None
        # Of several of a process it is, as likely as not, the one that had most to do.
        for context in sorted(self._recent.values(), key=lambda one: one.seq - one.drain_seq):
            over_ns = max(context.believed_ns, context.closed_ns)
            is_seen = seen_ns.get(context.tgid, 0) - over_ns > RUN_ON_NS
            is_over = context.is_held and context.seq < context.drain_seq and context.tgid not in running
            if is_seen and is_over:
                context.is_open, context.cached = True, None
                self._reopen(context, now_ns, most_ns=now_ns - over_ns)
                running.add(context.tgid)
                since_ns = over_ns if since_ns is None else min(since_ns, over_ns)
        return since_ns

    def drained(self, context: Context, now_ns: int) -> None:
        """The replay came to the end of the estimate: now it may be over or not. A trace saw that it is."""
        self._end(context)
        if context.is_timed and not context.is_held:
            return  # it was no drain
        self._believe(context, 0.0, now_ns)
        if self._replay.is_traced:
            context.is_drain_known = True
            self._close(context, now_ns)

    def passed(self, context: Context, now_ns: int) -> None:
        """Its turn would have come, and others had theirs: it is over, if nobody was woken late."""
        if context.is_open and self._replay.is_runnable(context.key):
            context.drain_odds = max(-SURE, context.drain_odds - _PASSED)
            if context.drain_odds == -SURE:
                self._finish(context, is_running=True, now_ns=now_ns)

    def witnessed(
        self, witness: Context, known: LaunchTime, spent_ns: int, launches: int, now_ns: int
    ) -> tuple[int, bool]:
        """A burst of ``witness`` ended, for which it was charged ``spent_ns``. ``known``: of the time of such.

        Returns how much of that was moved to drains (ns, may be negative), and whether the burst says something
        about the witness itself.
        """
        if not self._recent or known.samples < _KNOWN_SAMPLES:
            return 0, True
        expected_ns = max(1, round(known.tau_ns * launches))
        rest_ns, wall_ns = spent_ns - expected_ns, now_ns - witness.seq_ns
        steady, changing = self._overlapping(witness, rest_ns, now_ns)
        moved_ns, gain = self._settle(witness, known, changing, spent_ns, launches, wall_ns)
        rest_ns -= moved_ns
        told: dict[tuple[int, bool], tuple[float, float]] = {}
        # What one drain explains, the next one need not.
        for other in sorted(steady, key=lambda other: other.drain_odds, reverse=rest_ns > 0):
            is_running = self._replay.is_runnable(other.key)
            if (rest_ns, is_running) not in told:  # as a rule the same for all of them
                told[rest_ns, is_running] = evidence(
                    known,
                    expected_ns,
                    max(1, expected_ns + rest_ns),
                    wall_ns,
                    is_running,
                    self._replay.slice_ns,
                )
            rest_ns = self._weigh(witness, other, told[rest_ns, is_running], is_running, rest_ns, now_ns)
        return moved_ns, gain < 0.5 and not steady

    def may_run(self, context: Context, now_ns: int) -> bool:
        """Whether a context may have work on the GPU: for who needs to be sure that it has not."""
        if self._replay.is_runnable(context.key):
            return True
        if not context.launch.samples:  # nobody knows how long what it had queued takes
            return context.is_held and context.seq < context.drain_seq
        if not context.drain_doubt_ns or not (context.is_held or context.is_open):
            return False
        ratio = _SPARE_RATIO + _UNKNOWN_RATIO / (1 + context.launch.observed)
        least_ns = _NEW_NS if context.is_drain_new else _SPARE_NS
        spare_ns = max(least_ns, ratio * context.drain_ns, _SPARE_DOUBTS * context.drain_doubt_ns)
        return self._replay.even_ns(now_ns) - context.held_even_ns < context.drain_ns + spare_ns

    def open_in_bpf(self, live_of: Callable[[int], abi.Ctx]) -> int:
        """How many held contexts have an interval open there."""
        held = (one.key for one in self._recent.values() if one.is_held)
        return sum(_is_open(live_of(slot), generation) for slot, generation in held)

    # ---- mechanism ----

    def _overlapping(
        self, witness: Context, surplus_ns: int, now_ns: int
    ) -> tuple[list[Context], list[Context]]:
        """The drains that were open during the witness's burst: all through it in one belief, and the others."""
        steady: list[Context] = []
        changing: list[Context] = []
        for key, other in list(self._recent.items()):
            if other is witness:
                continue
            if not other.is_open and (other.is_held or other.thawed_ns is not None):
                other.pending[witness.key] = other.pending.get(witness.key, 0) + surplus_ns
            if not other.is_open and other.closed_ns < witness.seq_ns:
                if not other.is_held and now_ns - other.closed_ns > _LONGEST_BURST_NS:
                    del self._recent[key]
            elif other.drain_doubt_ns > 0:
                is_steady = other.is_open and other.is_held and other.believed_ns <= witness.seq_ns
                (steady if is_steady else changing).append(other)
        return steady, changing

    def _settle(
        self,
        witness: Context,
        known: LaunchTime,
        changing: list[Context],
        spent_ns: int,
        launches: int,
        wall_ns: int,
    ) -> tuple[int, float]:
        """Move what a burst says about drains that began or ended in it; the sum in ns, and the gain."""
        expected_ns = known.tau_ns * launches
        most_ns = round(spent_ns / (max(1.0, wall_ns / spent_ns) + 1.0))
        if not changing or 2 * _noise_ns(known, round(expected_ns)) > most_ns:
            return 0, 0.0
        drains = [Drain(o.drain_ns, min(o.drain_doubt_ns, most_ns), o.launch) for o in changing]
        parts, gain = settle(known, spent_ns, launches, drains, self._replay.slice_ns)
        moved_ns = 0
        for other, drain, wanted_ns in zip(changing, drains, parts, strict=True):
            part_ns = min(max(wanted_ns, -most_ns), most_ns)
            self._replay.transfer(witness.key, other.key, part_ns)
            drain.blame(part_ns, gain / len(changing))
            moved_ns += part_ns
        return moved_ns, gain

    def _weigh(
        self,
        witness: Context,
        other: Context,
        evidence: tuple[float, float],
        is_running: bool,
        rest_ns: int,
        now_ns: int,
    ) -> int:
        """Add a burst's evidence to the odds of one drain; returns the surplus it leaves to explain."""
        told, missing_ns = evidence
        other.drain_odds = max(-SURE, min(SURE, other.drain_odds + told))
        if other.drain_odds == (SURE if is_running else -SURE):
            self._forget_pending(other)
        else:
            other.pending[witness.key] = other.pending.get(witness.key, 0) + rest_ns
        if abs(other.drain_odds) < SURE:
            return rest_ns
        if other.drain_odds > 0:
            if is_running:
                return rest_ns
            self._reopen(other, now_ns)
            return rest_ns - round(missing_ns)
        self._finish(other, is_running, now_ns)
        return rest_ns + round(missing_ns) if is_running else rest_ns

    def _reopen(self, context: Context, now_ns: int, *, most_ns: int | None = None) -> None:
        """It runs, though it was taken to be over. ``most_ns``: what is left, at most."""
        context.is_drain_known = True
        self._take_pending(context)
        left_ns, doubt_ns = self._remaining(context)
        # Beyond all that was expected, what is left is best guessed from how far it has gone.
        left_ns = max(left_ns, round(LINDY * self._spent_ns(context)))
        left_ns = left_ns if most_ns is None else min(left_ns, most_ns)
        context.drain_doubt_ns = max(doubt_ns, left_ns)
        self._replay.open(context.key, now_ns)
        self._replay.drain(context.key, now_ns, left_ns)
        self._believe(context, SURE, now_ns)

    def _finish(self, context: Context, is_running: bool, now_ns: int) -> None:
        """It is over, whether or not it was taken to be running."""
        if is_running:  # otherwise the estimate is not contradicted, but neither was it measured
            context.is_drain_known = True
            self._take_pending(context)
            self._replay.close(context.key, now_ns, is_anchor=False)
            self._end(context)
        self._close(context, now_ns)

    def _remaining(self, context: Context) -> tuple[int, int]:
        return self._remaining_of(context, context.drain_seq - context.seq, self._spent_ns(context))

    def _spent_ns(self, context: Context) -> int:
        return self._replay.exec_ns(context.key) - context.seq_exec_ns

    def _believe(self, context: Context, odds: float, now_ns: int) -> None:
        """The replay takes the drain to be running, or over, from now on."""
        context.believed_ns = now_ns
        context.drain_odds = odds
        self._forget_pending(context)

    def _forget_pending(self, context: Context) -> None:
        context.pending.clear()
        context.exec_before = self._replay.exec_by_key()

    def _take_pending(self, context: Context) -> None:
        """The replay was wrong about the drain since ``exec_before``: move what the witnesses measured.

        Those that cannot tell were charged wrongly in the same proportion.
        """
        now, before = self._replay.exec_by_key(), context.exec_before
        spent_ns = sum(now[key] - before.get(key, now[key]) for key in context.pending if key in now)
        ratio = sum(context.pending.values()) / spent_ns if spent_ns > 0 else 0.0
        ratio = min(max(ratio, -1.0), 0.5)
        for key, exec_ns in now.items():
            if key != context.key:
                guess_ns = round(ratio * (exec_ns - before.get(key, exec_ns)))
                self._replay.transfer(key, context.key, context.pending.get(key, guess_ns))
        self._forget_pending(context)
        for other in self._recent.values():
            if other is not context and other.is_open and other.pending:
                # The same bursts spoke for both, and have been explained.
                other.drain_odds = SURE if self._replay.is_runnable(other.key) else 0.0
                self._forget_pending(other)

    def _close(self, context: Context, now_ns: int) -> None:
        context.is_open = False
        context.closed_ns = now_ns
        self._replay.doubt(context.key, is_open=False)

    def _end(self, context: Context) -> None:
        context.is_ended_in_bpf = True
        slot, generation = context.key
        self._end_in_bpf(slot, generation, 0)


def _is_open(live: abi.Ctx, generation: int) -> bool:
    return bool(live.generation == generation and live.busy[abi.COMPUTE].streams)
