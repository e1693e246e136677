# SPDX-License-Identifier: Apache-2.0
"""GPU time per (cgroup, process, GPU) from the eBPF programs: edges in, rows out.

Problem: BPF counts (clock, contexts, edges); somebody has to turn that into "tenant X received 31 ms since the last
look, has 12 ms queued, and we are sure of it".

Approach: the edges drive one :class:`Replay` per GPU (edges.py), which divides time among those who have work; what is
proven complete is charged what it costs (engine.py). The processor-sharing clock kept in BPF is the second opinion,
used while edges are being lost. The work still queued is estimated from the learnt GPU time per launch; for a held
context that estimate is the drain after which its interval is closed, in the replay and in BPF.

Terms: *drain* is what a held context still executes. *tau* is the learnt execution time per launch of a context.
*Demand* is outstanding work, now or within the last DEMAND_LINGER_NS: what a decoder spends on the CPU is no idleness.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set

from fairsched.accounting import edge_kinds as kinds
from fairsched.accounting import outstanding
from fairsched.accounting.confidence import confidence
from fairsched.accounting.context import (
    CachedLook,
    Context,
    Events,
    ProcessUse,
    ProcessUses,
    row_of,
    wanting_by_gpu,
)
from fairsched.accounting.contexts import Contexts
from fairsched.accounting.edges import Edges
from fairsched.accounting.engine import REMEMBERED_TENANTS, Engine
from fairsched.accounting.error import TRACED_POINTS, probed_points
from fairsched.accounting.follow import Following
from fairsched.accounting.launch_time import LaunchMemory, LaunchTime
from fairsched.accounting.timed import is_unanchored
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.model import Confidence, ContextKey, ContextWork, GraphWork, SampledLaunch, Source

_LIVE = int(abi.CtxFlag.LIVE)
_GUESSED = int(abi.CtxFlag.GPU_GUESSED | abi.CtxFlag.UNSEEN)


class EbpfAccount:
    """The account of all GPUs of this node. See :class:`fairsched.accounting.source.GpuTimeSource`."""

    source = Source.EBPF

    def __init__(
        self,
        probe: GpuTimeProbe,
        *,
        gpus: int,
        nature: tuple[int, int],
        started_ns: Callable[[int], int | None] = lambda _pid: None,
    ) -> None:
        """``nature``: the length of a slice a GPU is taken to have, and what a switch costs, in ns.
        ``started_ns`` tells when a process started (CLOCK_MONOTONIC), for contexts older than our probes."""
        self.gpus = gpus
        self._probe = probe
        self._nature = nature
        self._started_ns = started_ns
        self._engines: defaultdict[int, Engine] = defaultdict(self._make_engine)
        """By GPU slot, made when one is first asked for."""
        self._contexts = Contexts()
        self._launches = LaunchMemory(REMEMBERED_TENANTS, self._owner)
        self._edges = Edges(
            probe,
            self._contexts,
            self._engines,
            self._launches,
            tenant_of=lambda cgroup_id: self.tenant_of(cgroup_id),
            started_ns=started_ns,
        )
        self._dropped = 0
        """Edges, in all, as of the last read."""
        self.following = Following(self._engines)
        """GPUs that tell themselves whose turn it is."""
        self.single_gpu_processes: set[int] = set()
        """Processes that can see one GPU only: which one a context of theirs is on needs no guess."""
        self.seen_running: Mapping[tuple[int, int], int] = {}
        """By (process, GPU): when NVML last saw it run. Replaced, never changed."""
        self.sample_period_ns: Callable[[int], int] = lambda _: 0
        """Of a GPU: from one of those samples to the next."""
        self._seen: Mapping[tuple[int, int], int] = self.seen_running
        """The same, at the last read."""
        self.borne_out: Set[tuple[int, int]] = frozenset()
        """(Process, GPU) of which NVML's samples say that they had what they were charged."""
        self.sampled: Mapping[tuple[int, int], SampledLaunch] = {}
        """By (process, GPU): what NVML's samples say that a launch takes, of those in :meth:`unanchored`."""
        self.tenant_of: Callable[[int], str | None] = lambda _cgroup_id: None
        self.cgroup_of: Callable[[int], int | None] = lambda _pid: None
        """Of a process, where it is now: only asked for who is seen on a GPU and in no call."""
        self.is_lived_in: Callable[[str], bool] = lambda _tenant: True
        """Whether a tenant has a process: only asked where one has ended in a hold."""
        self._begun: ProcessUses | None = None
        """What the next read will tell, as far as it is known."""
        self.is_anybody_hidden = False
        """A tenant has work that is in no account, anywhere: nobody is known to be alone."""
        self.intruded: Set[int] = frozenset()
        """GPUs on which there may be work that is in no account: of what is charged there a part is taken back, on the
        average."""

    @property
    def events(self) -> Events:
        """What the edges of the last read said besides time."""
        return self._edges.events

    def tenants_changed(self) -> None:
        """``tenant_of`` may have other answers now: at the next read contexts are put where they belong then."""
        self._contexts.is_stale = True

    # ---- read ----

    def take_in(self, most: int | None = None) -> ProcessUses:
        """Take in what happened, or ``most`` edges of it, ahead of the next read, which tells of it."""
        if self._begun is None:
            self._begun = ProcessUses()
            self._edges.events = Events()
        edges = self._probe.read_edges(most)
        self.following.read(edges[-1].t_ns if most and edges else None)  # after them: whose turn was it then
        for edge in edges:
            self._edges.apply(edge, self._begun)
        return self._begun

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read, one row per (cgroup, process, GPU) that exists or just ended."""
        rows = self.take_in()
        self._begun = None
        self.events.unknown = self._contexts.place(self.tenant_of, self._probe.context)
        dropped = self._probe.count(abi.Count.EDGE_DROPPED)
        has_lost = dropped != self._dropped
        self._dropped = dropped
        if has_lost:
            self._edges.adopt_unknown(now_ns, rows)
        for gpu, engine in self._engines.items():
            engine.is_intruded = self.is_anybody_hidden or gpu in self.intruded
            engine.replay.look(now_ns)
            self._edges.end_drains(engine)
            if self.seen_running is not self._seen:
                # A sample may be of all the time since the one before. Who has none knows no period: GPUs come and go.
                seen = ((pid, t) for (pid, where), t in self.seen_running.items() if where == gpu)
                engine.see({pid: t - self.sample_period_ns(gpu) for pid, t in seen}, now_ns)
            engine.strangers.read(gpu, engine.replay, self.cgroup_of, now_ns, rows)
        self._seen = self.seen_running
        if has_lost:
            for context in self._contexts.all():  # looking may drop one
                self._look(context, now_ns, rows, has_lost=True)
        else:
            for context in self._contexts.due(rows):
                if not self._is_unchanged(context, now_ns, rows):
                    self._look(context, now_ns, rows, has_lost=False)
        self._contexts.want_on(rows, self.tenant_of, self.is_lived_in)
        self._take_pauses(now_ns, rows)
        self._doubt_intruded(rows)
        return list(rows.values())

    def _take_pauses(self, now_ns: int, rows: ProcessUses) -> None:
        wanting = wanting_by_gpu(rows, self._owner)
        for gpu, engine in self._engines.items():
            engine.take_pauses(wanting.get(gpu, {}), now_ns)

    def _doubt_intruded(self, rows: ProcessUses) -> None:
        intruded = self.intruded - self.traced_gpus()
        if intruded:
            for row in rows.values():
                if row.gpu in intruded:
                    row.confidence = row.confidence.and_of(Confidence.SAMPLED)

    def _is_unchanged(self, context: Context, now_ns: int, rows: ProcessUses) -> bool:
        """Since the last look nothing of it has changed but the time: most are, most of the time.

        It waits for its turn among many, wants nothing, or is held and drains or has drained.
        """
        cached = context.cached
        if cached is None:
            return False
        live = self._probe.context(context.key[0])
        exec_ns, is_running = self._engines[context.gpu].replay.state(context.key)
        if not context.is_unchanged(live, exec_ns, is_running):
            return False
        if cached.is_running:
            context.busy_ns = now_ns
        row = row_of(rows, context)
        if cached.has_demand:
            row.has_demand = True
            row.outstanding_ns += cached.outstanding_ns
        row.unmeasured_ns += cached.unmeasured_ns
        if cached.sure is not Confidence.HIGH:
            row.confidence = row.confidence.and_of(cached.sure)
        return True

    def _look(self, context: Context, now_ns: int, rows: ProcessUses, *, has_lost: bool) -> None:
        """Add what it used and wants to its row. ``has_lost``: edges were lost, so BPF is asked for all of it."""
        live = self._probe.context(context.key[0])
        context.cached = None
        if live.generation != context.key[1] or not live.flags & _LIVE:
            if has_lost:
                self._edges.drop(context, now_ns, rows)
            return
        engine = self._engines[context.gpu]
        replay = engine.replay
        if has_lost:
            engine.resync(context, live, now_ns)
        was_timed = context.is_timed
        self._judge_open_work(context, engine, live, now_ns)
        is_there = engine.look(context, now_ns)
        is_running = replay.is_runnable(context.key)
        if is_running:
            context.busy_ns = now_ns
        used_ns = self._take_used(context, live, now_ns, has_lost=has_lost)
        if used_ns and replay.is_traced and not context.wants(now_ns):  # no call told of that
            context.busy_ns = now_ns
        launches = live.submitted - context.launches
        context.launches = live.submitted
        has_demand = context.wants(now_ns)
        is_sampled = (context.tgid, context.gpu) in self.borne_out
        is_borne_out = (
            None if context.is_timed else engine.silence.poll(context, live, now_ns, is_sampled=is_sampled)
        )
        launch = self._launch(context)
        left_ns = engine.left_ns(context, live.submitted) if is_running else 0
        unmeasured_ns = engine.unmeasured_ns(context)
        is_guess = self._is_guess(context, live)
        sure = confidence(
            launch,
            is_borne_out,
            is_guess=is_guess,
            is_timed=context.is_timed,
            is_traced=replay.is_traced,
        )
        row = row_of(rows, context)
        row.used_ns += used_ns
        row.launches += launches
        if is_unanchored(context, int(live.last_call_ns)):
            row.unanchored_launches += launches
        else:
            row.anchored_ns += used_ns
        row.has_demand |= has_demand
        row.outstanding_ns += left_ns
        row.unmeasured_ns += unmeasured_ns
        if context.is_timed and not was_timed:
            row.is_anew |= self.sampled[context.tgid, context.gpu].is_less
        if sure is not Confidence.HIGH:
            row.confidence = row.confidence.and_of(sure)
        is_clear = not used_ns and not launches and not is_guess and is_there is is_running
        if is_clear and context.may_be_cached(live, now_ns):
            seen = (context.launches, live.last_call_ns, *replay.state(context.key), launch.tau_ns)
            context.cached = CachedLook(*seen, has_demand, left_ns, sure, unmeasured_ns)

    def _take_used(self, context: Context, live: abi.Ctx, now_ns: int, *, has_lost: bool) -> int:
        """What it used since the last row: by the clock in BPF where edges were lost, else by the replay."""
        exec_ns = self._engines[context.gpu].replay.exec_ns(context.key)
        if has_lost:
            clock_ns = outstanding.clock_ns(live, self._probe.clock(live.gpu), now_ns)
            return context.take_clock(clock_ns, exec_ns)
        context.clock_ns = None
        return context.take(exec_ns)

    def _judge_open_work(self, context: Context, engine: Engine, live: abi.Ctx, now_ns: int) -> None:
        """Whether what it has open still runs: a drain by estimate, that of one that never asks by who saw it run."""
        # What is measured at full queues, and borne out, is better than samples.
        is_measured = engine.silence.launch_of(context) is not None
        sampled = None if is_measured else self.sampled.get((context.tgid, context.gpu))
        is_timed = engine.timed.step(context, live, sampled, now_ns)
        if context.is_held:
            engine.drains.estimate(context, live, now_ns)
        elif is_timed:
            engine.drains.answer(context, now_ns)
            engine.silence.forget(context.key)
        elif live.synced == 0 and now_ns - live.last_call_ns > outstanding.UNSYNCED_IDLE_NS:
            outstanding.end_unless_seen(context, live, engine.replay, self.seen_running, now_ns)
        else:
            engine.drains.step(context, live, now_ns)

    def _is_guess(self, context: Context, live: abi.Ctx) -> bool:
        """Whether the GPU that it is on is one."""
        return self.gpus > 1 and bool(live.flags & _GUESSED) and context.tgid not in self.single_gpu_processes

    # ---- judgements ----

    def _launch(self, context: Context) -> LaunchTime:
        """What is known of the context, else of another of its tenant."""
        measured = self._engines[context.gpu].silence.launch_of(context)
        if measured is not None and measured is not context.launch:
            context.launch = measured
            self._launches.remember(context.cgroup_id, measured)
        if not context.launch.samples:
            context.launch = self._launches.borrow(context.cgroup_id) or context.launch
        return context.launch

    def _owner(self, cgroup_id: int) -> Hashable:
        """Its tenant; itself where it is in none."""
        return self.tenant_of(cgroup_id) or cgroup_id

    def _make_engine(self) -> Engine:
        replay, probe = Turns(*self._nature), self._probe
        return Engine(replay, self._launch, self._owner, probe.end_drain, probe.graphs, self._submitted)

    def _submitted(self, context: Context) -> int:
        return int(self._probe.context(context.key[0]).submitted)

    # ---- holds ----

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These cgroups were just frozen: their queues drain unseen. ``by_others``: they want nothing any more."""
        held = frozenset(cgroup_ids)
        self.following.hold(held, now_ns, by_others=by_others)
        for context in self._contexts.of(held):
            if not context.is_held:
                engine = self._engines[context.gpu]
                context.held_with_demand = not by_others and context.wants(now_ns)
                engine.replay.advance(now_ns)
                engine.drains.begin(context, now_ns)
                engine.drains.estimate(context, self._probe.context(context.key[0]), now_ns)
                engine.stir(context, now_ns)

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These cgroups run again."""
        thawed = frozenset(cgroup_ids)
        self.following.thaw(thawed, now_ns)
        self._contexts.let_go(thawed)
        for context in self._contexts.of(thawed):
            if context.is_held:
                engine = self._engines[context.gpu]
                engine.drains.thaw(context, now_ns)
                engine.stir(context, now_ns)

    def is_comeback(self, edge: Edge) -> bool:
        """Whether an edge says that somebody wants a GPU again after a long pause of its own."""
        if edge.kind != kinds.OPEN:
            return False
        context = self._contexts.get((edge.slot, edge.generation))
        return context is not None and edge.t_ns - context.busy_ns > abi.COMEBACK_NS

    def relearn(self, gpu: int) -> None:
        """What was learnt of the work there was wrong: somebody was taken to be there who was not.

        What was learnt of those who were alone is right all the same.
        """
        self._launches.clear()
        for context in self._contexts.all():
            if context.gpu == gpu and not context.is_timed:  # what samples say is right all the same
                context.launch = LaunchTime()
                context.is_tainted = True

    def is_charged(self, key: ContextKey) -> bool:
        """Whether a context is taken to be working, so that it is charged while time goes by."""
        context = self._contexts.get(key)
        return context is not None and self._engines[context.gpu].replay.is_runnable(key)

    def end(self, key: ContextKey, now_ns: int) -> None:
        """The work of a context is over, whatever was heard of it."""
        context = self._contexts.get(key)
        if context is not None:
            engine = self._engines[context.gpu]
            engine.replay.close(key, now_ns, is_anchor=False)
            context.thawed_ns = context.cached = None
            engine.look(context, now_ns)

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """See :class:`GpuTimeSource`; whatever has been read of it."""
        return outstanding.queued_ns(self._contexts.of(cgroup_ids), self._probe.context, self._engines)

    def next_drain_end_ns(self) -> int | None:
        """When a GPU on which nothing but drains run falls idle; worth waking up for. None: none does."""
        ends_ns = [engine.replay.drain_end_ns() for engine in self._engines.values()]
        return min((end_ns for end_ns in ends_ns if end_ns), default=None)

    def unanchored(self) -> set[tuple[int, int]]:
        """(Process, GPU) with a context that launched something there for the end of which nobody waits."""
        return {
            (context.tgid, context.gpu)
            for context in self._contexts.all()
            if context.launches
            and not self._engines[context.gpu].replay.is_traced
            and is_unanchored(context, int(self._probe.context(context.key[0]).last_call_ns))
        }

    def open_drains(self) -> dict[int, int]:
        """By GPU slot: how many held contexts have an interval open in BPF."""
        return {gpu: engine.drains.open_in_bpf(self._probe.context) for gpu, engine in self._engines.items()}

    # ---- facts for others ----

    def error_points(self, window_s: float) -> float:
        """See :class:`GpuTimeSource`."""
        is_traced = bool(self._engines) and self.traced_gpus() == self._engines.keys()
        return TRACED_POINTS if is_traced else probed_points(window_s)

    def error_ratio(self, tenant: str, gpu: int) -> float | None:
        """See :class:`GpuTimeSource`."""
        return self._engines[gpu].error_ratio(tenant) if gpu in self._engines else None

    def graph_work(self, tenant: str, gpu: int) -> GraphWork | None:
        """See :class:`GpuTimeSource`."""
        return self._engines[gpu].costs.of(tenant).graphs() if gpu in self._engines else None

    def traced_gpus(self) -> set[int]:
        """Slots of those that tell themselves whose turn it is."""
        return {gpu for gpu, engine in self._engines.items() if engine.replay.is_traced}

    def idle_gpus(self) -> set[int]:
        """Slots with contexts, none of which has work."""
        return {gpu for gpu, engine in self._engines.items() if not engine.replay.runnable}

    def work(self) -> Iterator[ContextWork]:
        """What every context has outstanding."""
        return outstanding.work_of_all(self._contexts.all(), self._probe.context, self._engines)

    def guessed_processes(self) -> set[int]:
        """Processes with a context whose GPU is a guess."""
        guessed = {live.tgid for _, live in self._probe.contexts() if live.flags & _GUESSED}
        return guessed - self.single_gpu_processes

    def contradicted_gpus(self) -> set[int]:
        """Slots of GPUs that take turns otherwise than the replay: who was not measured may be charged wrongly."""
        return {gpu for gpu, engine in self._engines.items() if engine.is_contradicted}
