# SPDX-License-Identifier: Apache-2.0
"""Contexts that submit and never ask whether it is done: whether they ran, in the eyes of their neighbours (pure).

Problem. Such a context is taken to have work from its first launch on, so its account is an upper bound, and nobody is
held for a bound. Whoever submits without end can therefore keep one turn per context, whatever its weight.

Approach. Its neighbours have their turns with it in the replay. Had it not run, their work would have ended sooner than
the replay thinks, with another context on the GPU: their anchors would miss. So each anchor of another cgroup, of a
burst that lay in its company from beginning to end, is evidence: the likelihood ratio of "it took the turns it was
charged" to "it did not" is added up until it decides (Wald's sequential test). If its queue never ran empty besides, it
is *borne out*: what it was charged is no bound any more, but what others can be seen to have gone without. That lasts
until as much speaks against it as for it.

What a launch takes is measured between two moments at which as much of its work was queued: each return from a pause,
for a program pauses when its queue is full or when it saw the end of its work in memory. Where none is seen, seconds.
The pause in which it was held tells nothing: what it had queued is done.
What was launched beyond what was charged by then is the queue. One that polls memory has none left at these moments:
how long it pauses is a guess, so its account stays one.

Terms. silent: a context of this kind. odds: the logarithm of P(it ran) / P(it did not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.accounting.context import Context
from fairsched.accounting.launch_time import LaunchTime
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.model import NEVER_NS, QUEUE_LAUNCHES, ContextKey

UNSYNCED_NS = 1_000_000_000
"""Launches without a proof of completion for this long: not sure any more."""
SURE = 6.0
"""Odds at which it is decided."""
_HIT = math.log(0.95 / 0.6)
_MISS = math.log(0.05 / 0.4)
"""95 of 100 anchors hit if it ran, and as many as 60 in a replay that is wrong: below 82 the odds fall."""
_LEAST_SAMPLES = 5
"""Of its time per launch, before its queue can be told."""
_KEPT_RATIO = 0.98
"""Of the measurements so far, at each one."""
_LEAST_QUEUE_NS = 20_000_000
_LEAST_QUEUE_RATIO = 0.05
"""Of what it was charged since it fell silent: less may be an error of its time per launch."""
_WINDOW_NS = 2_000_000_000
_LEAST_LAUNCHES = 32


class _Mark(NamedTuple):
    t_ns: int
    is_pause: bool
    """It had just returned from a pause."""
    submitted: int
    exec_ns: int


@dataclass(slots=True)
class _Silent:
    cgroup_id: int
    synced: int
    """Proofs there had been when it fell silent."""
    since_ns: int
    """Bursts of others that began earlier were not in its company all the time."""
    launch: LaunchTime = field(default_factory=LaunchTime)
    mark: _Mark | None = None
    """When measuring began; None while it is held."""
    was_held: bool = False
    """Since its last pause: the next one is that hold in part, and its queue is no fuller than what that left of it."""
    is_queued: bool = False
    """It had work left whenever it could be told."""
    odds: float = 0.0
    is_borne_out: bool = False
    launches: float = 0.0
    spent_ns: float = 0.0

    def is_due(self, submitted: int, now_ns: int) -> bool:
        """Whether to measure it though it does not pause.

        The longer its launches take the further apart are its pauses; who launches all that a queue holds twice over
        without one has given them up.
        """
        mark = self.mark
        if mark is None:
            return True
        may_pause = mark.is_pause and submitted - mark.submitted <= 2 * QUEUE_LAUNCHES
        return not may_pause and now_ns - mark.t_ns >= _WINDOW_NS

    def learn(self, spent_ns: int, launches: int) -> None:
        """What one measurement has too much, the next one has too little: so their sum counts, not their mean."""
        self.launches = self.launches * _KEPT_RATIO + launches
        self.spent_ns = self.spent_ns * _KEPT_RATIO + spent_ns
        self.launch.learn(spent_ns, launches)
        self.launch.tau_ns = self.spent_ns / self.launches


class Silence:
    """The silent contexts of one GPU."""

    def __init__(self, replay: Turns) -> None:
        self._replay = replay
        self._silent: dict[ContextKey, _Silent] = {}

    def poll(self, context: Context, live: abi.Ctx, now_ns: int, *, is_sampled: bool = False) -> bool | None:
        """Whether what it was charged is borne out; None for one that is not silent.

        ``is_sampled``: NVML's samples say that its process had that.
        """
        one = self._silent.get(context.key)
        if one is not None and one.synced != live.synced:
            self.forget(context.key)
            one = None
        if one is None:
            # In the replay it has had work since its burst began. If not, the edge of a new burst is still to be read,
            # and what looks like a long silence is a pause.
            if not is_silent(context, live) or not self._replay.is_runnable(context.key):
                return None
            one = self._silent[context.key] = _Silent(context.cgroup_id, live.synced, now_ns)
        one.cgroup_id = context.cgroup_id
        if context.is_held or not self._replay.is_runnable(context.key):
            one.mark, one.since_ns = None, NEVER_NS
            one.was_held |= context.is_held
        elif one.since_ns == NEVER_NS:
            one.since_ns = now_ns
        elif one.is_due(live.submitted, now_ns):
            self.measure(context, live.submitted, now_ns, is_pause=False)
        if is_sampled and one.launch.samples:  # more there may not be: who is held is not measured
            one.odds, one.is_borne_out = SURE, True
        return one.is_borne_out

    def measure(self, context: Context, submitted: int, now_ns: int, *, is_pause: bool = True) -> None:
        """As much of its work is queued now as was the last time at a moment of this kind.

        What was launched and charged in between is settled, so that an error of the time per launch does not add up.
        """
        one = self._silent.get(context.key)
        if one is None or context.is_held:
            return
        if is_pause and one.was_held:
            one.was_held = False
            return
        mark, exec_ns = one.mark, self._replay.exec_ns(context.key)
        if mark is not None and mark.is_pause is is_pause:
            launches, spent_ns = submitted - mark.submitted, exec_ns - mark.exec_ns
            if launches < (1 if is_pause else _LEAST_LAUNCHES) or spent_ns <= 0:
                return
            one.learn(spent_ns, launches)
            context.seq += launches
            context.seq_exec_ns += spent_ns
            context.metered_ns = exec_ns
            charged_ns = exec_ns - context.seq_exec_ns
            queued_ns = (submitted - context.seq) * one.launch.tau_ns - charged_ns
            is_enough = queued_ns > max(_LEAST_QUEUE_NS, _LEAST_QUEUE_RATIO * charged_ns)
            one.is_queued = is_enough and one.launch.samples >= _LEAST_SAMPLES
        one.mark = _Mark(now_ns, is_pause, submitted, exec_ns)

    def hear(self, witness: Context, is_hit: bool | None) -> None:
        """A burst of ``witness`` ended as the replay thought, or not; None: that could not be told."""
        if is_hit is None:
            return
        for key, one in self._silent.items():
            was_there = one.since_ns <= witness.seq_ns and self._replay.is_runnable(key)
            # Nobody is a witness for itself, or against: it could see to it that its anchors miss.
            if was_there and one.cgroup_id != witness.cgroup_id:
                one.odds = min(max(one.odds + (_HIT if is_hit else _MISS), -SURE), SURE)
                is_known = one.is_queued or one.is_borne_out
                one.is_borne_out = is_known and one.odds >= (0.0 if one.is_borne_out else SURE)

    def launch_of(self, context: Context) -> LaunchTime | None:
        """What a launch takes of a context that is borne out; None: that is known from proofs, or not at all."""
        one = self._silent.get(context.key)
        return one.launch if one is not None and one.is_borne_out else None

    def guess_of(self, context: Context) -> LaunchTime | None:
        """The same of one that is not, but of which it can be told how much it has queued."""
        one = self._silent.get(context.key)
        return one.launch if one is not None and one.is_queued else None

    def forget(self, key: ContextKey) -> None:
        """It is gone, or has proved something."""
        self._silent.pop(key, None)


def is_silent(context: Context, live: abi.Ctx) -> bool:
    """Its launches go on, and nothing proved any of them complete."""
    if context.is_held or live.submitted <= context.seq:
        return False
    # A burst counts from its beginning: before that everything was complete, however long ago that was proven.
    since_ns = max(context.proven_ns, context.seq_ns)
    return bool(live.last_call_ns - since_ns > UNSYNCED_NS)
