# SPDX-License-Identifier: Apache-2.0
"""Applies the edges of the eBPF programs to the contexts and to the replay of each GPU.

Problem: an edge says that a context came or went, has work, or has proven some of it complete. Time is divided by what
is true between two edges, so each is applied at its own moment and in their order, also where edges were lost before.

Approach: :meth:`Edges.apply` runs the replay up to the edge, puts the context where its process is now, and then does
what the kind of the edge says. What a context had used before it moves or goes is booked in the row of where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairsched.accounting import edge_kinds as kinds
from fairsched.accounting.context import Context, Events, ProcessUses, rank_of, row_of
from fairsched.accounting.contexts import Contexts
from fairsched.accounting.engine import Engine
from fairsched.accounting.launch_time import LaunchMemory
from fairsched.accounting.pauses import Pauses
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.model import ContextKey


class Edges:
    """Of all GPUs. ``engines`` by GPU slot: one is made when it is first asked for."""

    def __init__(
        self,
        probe: GpuTimeProbe,
        contexts: Contexts,
        engines: Mapping[int, Engine],
        launches: LaunchMemory,
        *,
        tenant_of: Callable[[int], str | None],
        started_ns: Callable[[int], int | None],
    ) -> None:
        """``tenant_of`` a cgroup. ``started_ns``: when a process started, for contexts older than our probes."""
        self._probe, self._contexts, self._engines, self._launches = probe, contexts, engines, launches
        self._tenant_of, self._started_ns = tenant_of, started_ns
        self._pauses = Pauses()
        self.events = Events()
        """What the edges of one read said besides time."""

    def apply(self, edge: Edge, rows: ProcessUses) -> None:
        """``rows``: of the read that goes on."""
        if edge.kind == kinds.PROC_NEW:
            self.events.new_processes.append(edge.tgid)
            return
        if edge.kind == kinds.PROC_EXIT:
            self.events.gone_processes.append(edge.tgid)
            return
        if edge.kind == kinds.GPU_IDLE or edge.engine != abi.COMPUTE or edge.gpu == abi.NO_GPU:
            return
        context = self._context_of(edge, rows)
        engine = self._engines[context.gpu]
        context.cached = None
        engine.replay.advance(edge.t_ns)
        self.end_drains(engine)
        if edge.cgroup_id != context.cgroup_id:
            self._follow(context, engine, edge, rows)
        if edge.kind == kinds.OPEN:
            self._open(context, engine, edge)
        elif edge.kind in (kinds.CLOSE, kinds.PROGRESS):
            self._complete(context, engine, edge)
        elif edge.kind == kinds.RESUBMIT:
            self._resubmit(context, engine, edge)
        elif edge.kind == kinds.CTX_GONE:
            if engine.end_unasked(context, edge.seq):
                self._launches.remember(context.cgroup_id, context.launch)
            self.drop(context, edge.t_ns, rows)
            return
        engine.look(context, edge.t_ns)

    def end_drains(self, engine: Engine) -> None:
        """Tell the drains which of them the replay has seen end, and which it has passed over."""
        drained, passed = engine.replay.take_drained(), engine.replay.take_passed()
        for key, t_ns in drained:
            context = self._contexts.get(key)
            if context is not None:
                engine.drains.drained(context, t_ns)
                if context.is_timed:
                    engine.look(context, t_ns)
        for key, t_ns in passed:
            context = self._contexts.get(key)
            if context is not None:
                engine.drains.passed(context, t_ns)

    # ---- contexts that come, move and go ----

    def _context_of(self, edge: Edge, rows: ProcessUses) -> Context:
        context = self._contexts.get((edge.slot, edge.generation))
        if context is None:
            return self._begin(edge)
        if context.gpu != edge.gpu:
            self._change_gpu(context, edge, rows)
        return context

    def _begin(self, edge: Edge) -> Context:
        key = (edge.slot, edge.generation)
        place = self._place_of(edge, key)
        context = Context(key, edge.tgid, place, edge.gpu, proven_ns=edge.t_ns, anchored_ns=edge.t_ns)
        context.is_unseen = edge.arg == 0 or edge.kind != kinds.CTX_NEW
        context.rank = rank_of(edge, self._started_ns)
        self._contexts.add(context)
        engine = self._engines[edge.gpu]
        engine.replay.add(key, context.rank, context.tgid)
        if context.is_unseen:  # it may have worked before we saw it: whoever seemed to be alone was not
            engine.costs.forget()
        return context

    def adopt_unknown(self, now_ns: int, rows: ProcessUses) -> None:
        """Take in contexts whose first edges were lost, and that may never fall idle: BPF knows them."""
        for slot, live in self._probe.contexts():
            if (slot, live.generation) not in self._contexts and live.gpu != abi.NO_GPU:
                whose = (live.generation, live.tgid, live.gpu)
                new = Edge(now_ns, live.cgroup_id, 0, 0, slot, *whose, kinds.CTX_NEW, abi.COMPUTE)
                self._context_of(new, rows)

    def _follow(self, context: Context, engine: Engine, edge: Edge, rows: ProcessUses) -> None:
        """Its process was seen in another cgroup than the context is in: its tenant may keep it where it is."""
        place = self._place_of(edge, context.key)
        if place != context.cgroup_id:
            _book(context, engine, rows)
            self.events.moves.append(self._contexts.move(context, place, edge.t_ns))

    def _place_of(self, edge: Edge, key: ContextKey) -> int:
        live = self._probe.context(edge.slot)
        return self._contexts.place_of(key, edge.cgroup_id, live, self._tenant_of)

    def _change_gpu(self, context: Context, edge: Edge, rows: ProcessUses) -> None:
        """Its GPU had been a guess and has been named: it goes on, between two bursts, on the right one."""
        engine = self._engines[context.gpu]
        context.cached = None
        engine.replay.advance(edge.t_ns)
        _book(context, engine, rows)
        engine.timed.forget(context, edge.t_ns)
        engine.replay.remove(context.key, edge.t_ns)
        engine.forget(context, edge.t_ns)
        context.gpu = edge.gpu
        context.reported_ns = context.seq_exec_ns = context.metered_ns = 0
        self._engines[edge.gpu].replay.add(context.key, context.rank, context.tgid)

    def drop(self, context: Context, t_ns: int, rows: ProcessUses) -> None:
        """The context is gone."""
        engine = self._engines[context.gpu]
        engine.replay.advance(t_ns)
        _book(context, engine, rows)
        engine.replay.remove(context.key, t_ns)
        engine.forget(context, t_ns)
        if engine.replay.is_traced:  # else nothing comes in its name
            engine.strangers.leave(context.tgid, context.cgroup_id, t_ns)
        self._contexts.drop(context)

    # ---- work that begins and ends ----

    def _open(self, context: Context, engine: Engine, edge: Edge) -> None:
        engine.drains.answer(context, edge.t_ns)
        context.is_ended_in_bpf = False
        self._pauses.note(context.gpu, edge.t_ns - context.closed_at_ns)
        context.busy_ns = edge.t_ns
        if context.is_timed:
            engine.timed.open(context, self._probe.context(edge.slot), edge.seq, edge.t_ns)
            return
        context.anchored_ns = edge.t_ns  # all before that was done
        engine.replay.open(context.key, edge.t_ns)
        engine.begin(context, edge)

    def _complete(self, context: Context, engine: Engine, edge: Edge) -> None:
        if edge.kind == kinds.CLOSE and not edge.arg:
            return  # no call of the process proved it: we told BPF so, or the process is gone
        replay = engine.replay
        is_anchor = context.is_anchor(edge.arg)
        engine.timed.hear(context, edge.t_ns, is_anchor=is_anchor)
        if context.is_timed:
            engine.drains.answer(context, edge.t_ns)
            engine.timed.prove(context, self._probe.context(edge.slot), edge.seq, edge.t_ns)
            return
        is_end = edge.kind == kinds.CLOSE or context.is_end_of_drain(edge.seq)
        if is_end:
            is_hit = replay.close(context.key, edge.t_ns, is_anchor=is_anchor)
        else:
            is_hit = replay.progress(context.key, edge.t_ns, is_anchor=is_anchor)
        engine.silence.hear(context, is_hit)
        if is_anchor and not is_end:  # it goes on, whatever its silence was taken for
            replay.open(context.key, edge.t_ns)
        if is_end:
            context.busy_ns = context.closed_at_ns = edge.t_ns
        context.proven_ns = edge.t_ns
        engine.drains.answer(context, edge.t_ns)
        if engine.end(context, edge):
            self._launches.remember(context.cgroup_id, context.launch)

    def _resubmit(self, context: Context, engine: Engine, edge: Edge) -> None:
        """It polls, and saw the end of its last burst a pause ago; as long as its neighbours' is the best guess."""
        if context.is_timed:
            return
        engine.replay.close_before(context.key, edge.t_ns, self._pauses.mean_ns(context.gpu))
        engine.replay.open(context.key, edge.t_ns)
        engine.silence.measure(context, edge.seq, edge.t_ns)


def _book(context: Context, engine: Engine, rows: ProcessUses) -> None:
    """What it used up to here goes to where it is now: it is about to move, or to go."""
    row_of(rows, context).used_ns += context.take(engine.replay.exec_ns(context.key))
