# SPDX-License-Identifier: Apache-2.0
"""What each context has outstanding, and whether that is still so when nobody says anything.

Problem: a program that never asked for a completion and falls silent has finished, nearly always: it saw the end in
memory. Or its one kernel never ends, and it waits for that in a call which does not return. The account must take
the first for idle and the second for busy, and the calls tell nothing.

Approach: silence means that the work is over, unless the driver's own samples (``seen_running``) name the process on
that GPU well after its last call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from fairsched.accounting.context import RUN_ON_NS, Context
from fairsched.accounting.engine import Engine
from fairsched.accounting.timed import is_unanchored
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.model import ContextWork

UNSYNCED_IDLE_NS = 1_000_000_000
"""No call at all from a context that never asked for completion for this long: its work is taken as ended."""
SEEN_FOR_NS = 3_000_000_000
"""How long having been seen counts: samples are few where many share a GPU."""


def end_unless_seen(
    context: Context, live: abi.Ctx, replay: Turns, seen_running: Mapping[tuple[int, int], int], now_ns: int
) -> None:
    """A silent context: its work is over, unless its process was seen to run at a later moment."""
    seen_ns = seen_running.get((context.tgid, context.gpu), 0)
    if seen_ns - live.last_call_ns > RUN_ON_NS and now_ns - seen_ns < SEEN_FOR_NS:
        replay.open(context.key, now_ns)
    else:
        replay.close(context.key, now_ns, is_anchor=False)


def work_of(context: Context, live: abi.Ctx, replay: Turns) -> ContextWork:
    """What a live context has outstanding."""
    launch = context.launch
    charged_ns, is_charged = replay.state(context.key)
    mean_ns = launch.tau_ns * max(0, live.submitted - context.seq)
    return ContextWork(
        key=context.key,
        pid=context.tgid,
        cgroup_id=context.cgroup_id,
        gpu=context.gpu,
        submitted=live.submitted,
        completed=live.completed,
        is_outstanding=live.submitted > live.completed or live.busy[abi.COMPUTE].streams != 0,
        since_ns=context.seq_ns,
        charged_then_ns=context.seq_exec_ns,
        charged_ns=charged_ns,
        # The tail matters: kernels that vary by 40 % are at times three times as long as their mean.
        expected_ns=round(mean_ns * (2 + 8 * min(1.0, launch.spread))),
        is_charged=is_charged,
        last_call_ns=live.last_call_ns,
        streams=max(1, int(live.busy[abi.COMPUTE].streams).bit_count()),
        is_late=live.completed > 0
        and (not launch.observed or is_unanchored(context, int(live.last_call_ns))),
    )


def work_of_all(
    contexts: Iterable[Context], live_of: Callable[[int], abi.Ctx], engines: Mapping[int, Engine]
) -> Iterator[ContextWork]:
    """Of those that BPF has still. ``engines``: by GPU."""
    for context in contexts:
        live = live_of(context.key[0])
        if live.generation == context.key[1]:
            yield work_of(context, live, engines[context.gpu].replay)


def clock_ns(live: abi.Ctx, clock: abi.Clock, now_ns: int) -> int:
    """What the clock charged a context so far, its open interval included."""
    busy = live.busy[abi.COMPUTE]
    total = int(busy.gpu_time_ns)
    if busy.streams and busy.open_ns:
        total += abi.clock_since(abi.clock_v(clock.word[abi.COMPUTE], now_ns), busy.v_open_ns)
    return total


def queued_ns(
    contexts: Iterable[Context], live_of: Callable[[int], abi.Ctx], engines: Mapping[int, Engine]
) -> int:
    """GPU time these contexts have submitted since they were last held. ``engines``: by GPU."""
    total = 0.0
    for context in contexts:
        if context.drain_seq >= 0:
            live = live_of(context.key[0])
            if live.generation == context.key[1]:
                total += engines[context.gpu].queued_ns(context, live.submitted)
    return round(total)
