# SPDX-License-Identifier: Apache-2.0
"""Contexts whose launches are timed by NVML's samples, since nobody waits for the end of any (pure).

Problem. Who never asks whether its work is done, or asks only when it has long been, never tells when any of it ended.
Whether its pauses are work, and whether what it has in flight is a second of it or nothing, no call says: it is charged
every turn that it may have had, or what was queued when it was held is taken to be over at once.

Approach. The calls tell how much was launched, the samples of its process how much time that took in all. Where those
contradict the account, a launch takes what it takes on the average (policy/launches.py), each one launched is so much
more to do, and what is not done yet is what was not charged yet. The replay ends it when that is used up, as it ends a
drain; the next launch begins it anew. A proof says no more than that so much is not to be done any more.

That lasts until a call is seen to wait for the end of some work: what is measured between two such moments is better.

Terms. *anchored*: a call waited for the end of its work, and was told. *owed*: GPU time in ns of what it launched and
did not have yet, as far as the replay knows. That goes by what the replay runs, and not by what it charges: who is seen
to have had the GPU at a moment is charged what another was taken to have, and that one has not more to do for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fairsched.accounting.context import Context
from fairsched.accounting.launch_time import LaunchTime
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.model import QUEUE_LAUNCHES, SampledLaunch

UNANCHORED_NS = 1_000_000_000
"""It goes on so long after anybody waited for its work."""
_LEAST_PART, _MEMORY = 0.5, 1 / 8
"""Of the proofs of one that is anchored."""
_SAMPLES = 4
"""Bursts whose worth of knowledge that is."""


def is_unanchored(context: Context, called_ns: int) -> bool:
    """Whether nobody waits for the end of its work. ``called_ns``: its last call, which one that waits makes first."""
    return context.anchored_part < _LEAST_PART or called_ns - context.anchored_ns > UNANCHORED_NS


class Timed:
    """The timed contexts of one GPU. Changes its replay and what the account keeps of its contexts."""

    def __init__(self, replay: Turns, end_in_bpf: Callable[[int, int, int], bool]) -> None:
        """``end_in_bpf`` tells BPF that a context has nothing to do, so that the next launch is an edge."""
        self._replay = replay
        self._end_in_bpf = end_in_bpf

    def step(self, context: Context, live: abi.Ctx, sampled: SampledLaunch | None, now_ns: int) -> bool:
        """Whether it is timed. If so its work is what it is owed, from now on."""
        is_timed, is_unknown = context.is_timed, not context.launch.tau_ns and live.synced > 0
        is_wanted = sampled is not None and (is_timed or is_unknown or sampled.is_needed)
        if sampled is None or not is_wanted or not self._is_possible(context, live):
            self.forget(context, now_ns)
            return False
        if context.is_held:
            return is_timed
        before_ns, context.launch = context.launch.tau_ns, LaunchTime(sampled.ns, _SAMPLES, _SAMPLES)
        if live.submitted > context.launches:  # most of that came and went since the last look
            context.busy_ns = now_ns
        if not is_timed:  # who had more than it was charged has as much queued as there can be
            queued = 0 if sampled.is_less else _in_flight(context, live, int(live.submitted))
            context.timed_seq, before_ns = int(live.submitted) - queued, sampled.ns
            self._begin(context, now_ns)
            self._replay.close(context.key, now_ns, is_anchor=False)
        self._owe(context, live, int(live.submitted), now_ns, sampled.ns / before_ns)
        if not self._replay.is_runnable(context.key) and not context.is_ended_in_bpf:
            context.is_ended_in_bpf = True
            self._end_in_bpf(*context.key, 0)
        return True

    def _is_possible(self, context: Context, live: abi.Ctx) -> bool:
        return not self._replay.is_traced and is_unanchored(context, int(live.last_call_ns))

    def open(self, context: Context, live: abi.Ctx, seq: int, t_ns: int) -> None:
        """It had nothing to do, and launched number ``seq``."""
        self._begin(context, t_ns)
        self._owe(context, live, max(seq, int(live.submitted)), t_ns)

    def hear(self, context: Context, t_ns: int, *, is_anchor: bool) -> None:
        """Some of its work is proven done. Of one that was held meanwhile nobody knows whether it waited."""
        if is_anchor or context.is_tainted:
            context.anchored_ns = t_ns
        if not context.is_tainted:
            context.anchored_part += (is_anchor - context.anchored_part) * _MEMORY
        if not is_unanchored(context, t_ns):
            self.forget(context, t_ns)

    def prove(self, context: Context, live: abi.Ctx, seq: int, t_ns: int) -> None:
        """Launches up to ``seq`` are done; nobody waited for that."""
        context.asked_seq = max(context.asked_seq, seq)
        if context.is_timed:
            self._owe(context, live, max(seq, context.timed_seq or 0), t_ns)
        context.is_tainted = context.is_held

    def forget(self, context: Context, now_ns: int) -> None:
        """It is timed no more: what it does not wait for has no end that is known."""
        if context.timed_seq is not None:
            context.timed_seq, context.is_tainted = None, True
            if not context.is_held:
                self._replay.resume(context.key, now_ns)

    def _begin(self, context: Context, t_ns: int) -> None:
        self._replay.advance(t_ns)
        context.begun_ns, context.begun_exec_ns = t_ns, self._replay.exec_ns(context.key)

    def _owe(
        self, context: Context, live: abi.Ctx, submitted: int, now_ns: int, left_ratio: float = 1.0
    ) -> None:
        """What it has launched is added to what is left. What cannot be left, as it is proven done or there is no room
        for it in the queues, it has had, in the time in which it had something to do. ``left_ratio``: of what was left,
        by what launches take as is known now."""
        replay, tau_ns = self._replay, context.launch.tau_ns
        replay.advance(now_ns)
        left_ns = (replay.left_ns(context.key) or 0) * left_ratio
        left_ns += (submitted - (context.timed_seq or 0)) * tau_ns
        owed_ns = round(min(left_ns, _in_flight(context, live, submitted) * tau_ns))
        had_ns = replay.exec_ns(context.key) - context.begun_exec_ns
        room_ns = max(0, now_ns - context.begun_ns - had_ns)
        replay.settle(context.key, min(round(left_ns) - owed_ns, room_ns))
        context.timed_seq = submitted
        if owed_ns > 0:
            replay.open(context.key, now_ns)
            replay.drain(context.key, now_ns, owed_ns)
        elif replay.is_runnable(context.key):
            replay.close(context.key, now_ns, is_anchor=False)
        launches = math.ceil(owed_ns / tau_ns)
        context.seq = submitted - launches
        context.seq_exec_ns = replay.exec_ns(context.key) - round(launches * tau_ns - owed_ns)


def _in_flight(context: Context, live: abi.Ctx, submitted: int) -> int:
    """Of its launches, as many as are not proven done and fit in the queues of its streams."""
    streams = max(1, int(live.busy[abi.COMPUTE].streams).bit_count())
    undone = submitted - max(context.asked_seq, int(live.proven))
    return max(0, min(undone, QUEUE_LAUNCHES * streams))
