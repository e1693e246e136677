# SPDX-License-Identifier: Apache-2.0
"""What the eBPF account keeps of one GPU: its replay, and what sets that right.

The replay divides the time until the next proof of completion; what was proven complete is charged what it costs
(costs.py). A cost is learnt from bursts that had the GPU to themselves (company.py); where nothing is known the replay
stands. Drains are estimates that the next proof settles (drains.py), and contexts that never prove anything are borne
out by their neighbours (silent.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from fairsched.accounting import edge_kinds as kinds
from fairsched.accounting.company import Company
from fairsched.accounting.context import Context, ProcessUse
from fairsched.accounting.costs import Cost, Costs
from fairsched.accounting.drains import Drains
from fairsched.accounting.error import TRACED_RATIO
from fairsched.accounting.graphs import Graphs, graphs_of
from fairsched.accounting.launch_time import LaunchTime
from fairsched.accounting.pauses import TenantPauses
from fairsched.accounting.silent import Silence
from fairsched.accounting.strangers import Strangers
from fairsched.accounting.timed import Timed
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge
from fairsched.model import QUEUE_LAUNCHES

_MANY = 4
"""Times as many launches: then an error of as many as there were makes little difference."""
REMEMBERED_TENANTS = 1024
"""Whose costs are kept after their last process has ended; who is in no tenant counts by its cgroup."""


class Engine:
    """The compute engine of one GPU."""

    def __init__(
        self,
        replay: Turns,
        launch_of: Callable[[Context], LaunchTime],
        owner_of: Callable[[int], Hashable],
        end_in_bpf: Callable[[int, int, int], bool],
        graphs_of_slot: Callable[[int], abi.Graphs],
        submitted_of: Callable[[Context], int],
    ) -> None:
        """``launch_of``: what is known of a context's time per launch. ``owner_of`` a cgroup: whose it is.
        ``graphs_of_slot``: what BPF keeps of the graphs launched there. ``submitted_of``: launches of a context."""
        self.replay = replay
        self._graphs_of_slot = graphs_of_slot
        self._submitted_of = submitted_of
        self.drains = Drains(replay, self._remaining, end_in_bpf)
        self.silence = Silence(replay)
        self.timed = Timed(replay, end_in_bpf)
        self.costs = Costs(REMEMBERED_TENANTS)
        self._company = Company()
        self.pauses = TenantPauses()
        self.strangers = Strangers()
        self._idle_ns = 0
        self._launch_of = launch_of
        self._owner_of = owner_of
        self.is_intruded = False
        """Work comes and goes here that is in no account: nobody is known to be alone."""

    @property
    def is_contradicted(self) -> bool:
        """It takes turns otherwise than they are replayed."""
        return self.costs.is_contradicted and not self.replay.is_traced

    def error_ratio(self, tenant: str) -> float | None:
        """How far what a tenant is charged may be off, in parts of it."""
        return TRACED_RATIO if self.replay.is_traced else self.costs.error_ratio(tenant)

    def look(self, context: Context, now_ns: int) -> bool:
        """Whether it has work, or may have: that may have changed."""
        key, owner = context.key, self._owner_of(context.cgroup_id)
        is_running = self.replay.is_runnable(key)
        is_there = is_running or self.drains.may_run(context, now_ns)
        self._company.note(key, owner, now_ns, is_there=is_there)
        wants = context.held_with_demand if context.is_held else is_running
        self.pauses.note(key, owner, now_ns, wants=wants)
        return is_there

    def stir(self, context: Context, now_ns: int) -> None:
        """It was held or let go just now; to one with no work at all that makes no difference."""
        if not context.is_idle:
            context.cached = None
            self.look(context, now_ns)

    def see(self, seen_ns: Mapping[int, int], now_ns: int) -> None:
        """Samples named processes, last at these moments. Whoever was taken to be alone meanwhile was not."""
        since_ns = None if self.replay.is_traced else self.drains.seen(seen_ns, now_ns)
        if since_ns is not None:
            self.costs.forget_alone(since_ns)

    def take_pauses(self, rows: Mapping[Hashable, ProcessUse], now_ns: int) -> None:
        """Tell one row of each tenant that wants something how long it paused, and how long nobody worked."""
        before_ns, self._idle_ns = self._idle_ns, self.replay.idle_ns(now_ns)
        idle_ns = max(0, self._idle_ns - before_ns)  # a drain that ran on after all takes some back
        for owner, row in rows.items():
            row.paused_ns = self.pauses.paused_ns(owner, now_ns)
            row.idle_ns = min(row.paused_ns, idle_ns)
        self.pauses.go_on(now_ns)

    def forget(self, context: Context, now_ns: int) -> None:
        """The context is gone."""
        self._company.note(context.key, None, now_ns, is_there=False)
        self.pauses.forget(context.key, self._owner_of(context.cgroup_id), now_ns)
        self.silence.forget(context.key)
        self.drains.forget(context)

    def resync(self, context: Context, live: abi.Ctx, now_ns: int) -> None:
        """Edges were lost: take what BPF holds now as the truth."""
        is_open = bool(live.busy[abi.COMPUTE].streams)
        # What a timed one has to do goes by what it launched, and none of that was lost.
        if is_open and not context.is_held and not context.is_timed:
            self.replay.open(context.key, now_ns)
        elif not is_open:
            self.replay.close(context.key, now_ns, is_anchor=False)
        context.seq = max(context.seq, live.proven)
        context.seq_exec_ns = self.replay.exec_ns(context.key)
        context.is_tainted, context.metered_ns = True, context.seq_exec_ns

    # ---- bursts ----

    def _graphs(self, context: Context, after: int, last: int) -> Graphs:
        """Among its launches with numbers above ``after``, up to ``last``."""
        return graphs_of(context.key, self._graphs_of_slot(context.key[0]), after, last)

    def _known(self, context: Context, launches: int, graphs: Graphs) -> tuple[int, LaunchTime]:
        """What is known of the time of such a burst, and of how many units that is."""
        launch = self._launch_of(context)
        if not launch.samples:
            launch = self.silence.guess_of(context) or launch
        if not graphs or context.is_timed:
            return launches, launch
        known = context.graphs.of(graphs)
        if known is not None:
            return len(graphs.handles), known
        # That other graphs vary little says nothing of a new one.
        return launches, replace(launch, observed=0) if context.graphs.is_new(graphs) else launch

    def left_ns(self, context: Context, submitted: int) -> int:
        """What is left of its work, with which it goes on."""
        launches, spent_ns = submitted - context.seq, self._spent_ns(context)
        units, known = self._known(context, launches, self._graphs(context, context.seq, submitted))
        return known.left_ns(units, spent_ns)

    def queued_ns(self, context: Context, submitted: int) -> float:
        """What it has submitted since it was last held."""
        launches = submitted - context.drain_seq
        units, known = self._known(context, launches, self._graphs(context, context.drain_seq, submitted))
        return units * known.tau_ns

    def begin(self, context: Context, edge: Edge) -> None:
        """Nothing older is outstanding, so the next proof measures what is submitted from here on.

        Except in a context older than our probes: what it had queued before is in its first proof.
        """
        is_first = context.is_unseen and context.seq == 0
        launches = edge.seq - 1 - context.seq
        if launches > 0 and not is_first:
            graphs = self._graphs(context, context.seq, edge.seq - 1)
            if self.replay.is_traced:  # who is always held when its work ends never proves it otherwise
                self._take_metered(context, launches, graphs)
            else:
                self._settle(context, self._owner_of(context.cgroup_id), launches, graphs)
        context.is_tainted = context.is_held or is_first
        context.seq = max(context.seq, edge.seq - 1)
        context.seq_exec_ns, context.seq_ns = self.replay.exec_ns(context.key), edge.t_ns
        context.metered_ns = context.seq_exec_ns

    def end(self, context: Context, edge: Edge) -> bool:
        """Launches up to ``edge.seq`` are proven complete. Whether that teaches something about them.

        Whoever was alone had all the time there was; and where neighbours told the end of a drain its charge may be
        surer than what such work costs.
        """
        launches, asked = edge.seq - context.seq, edge.seq - context.asked_seq
        context.asked_seq = max(context.asked_seq, edge.seq)
        if launches <= 0:
            return False
        if self.replay.is_traced:
            return self._meter(context, edge, launches)
        is_prompt = edge.kind != kinds.PROGRESS or context.is_anchor(edge.arg)
        if not is_prompt and self._is_late(context, edge, asked):
            return False
        spent_ns, owner = self._spent_ns(context), self._owner_of(context.cgroup_id)
        is_whole, is_clean = not context.is_tainted and not context.is_behind and spent_ns > 0, True
        is_alone = self._company.is_alone(owner, context.seq_ns)
        graphs = self._graphs(context, context.seq, edge.seq)
        if is_whole and self._may_judge(owner, launches, graphs):
            units, known = self._known(context, launches, graphs)
            moved_ns, is_clean = self.drains.witnessed(context, known, spent_ns, units, edge.t_ns)
            spent_ns -= moved_ns
            is_whole = spent_ns > 0
        if is_whole and not self.is_intruded:
            self.costs.learn(
                owner, spent_ns, launches, graphs, is_alone=is_alone, waited_ns=edge.arg, t_ns=edge.t_ns
            )
        # All it had queued when it was held: learning from whole bursts alone would forget the long ones.
        is_cut = not context.is_held and context.seq < context.drain_seq <= edge.seq
        is_told = is_cut and context.is_drain_known and self.costs.of(owner).is_vague(launches, graphs)
        is_exact = (is_alone or is_told) and context.is_of_one_piece(edge.seq)
        spent_ns = (
            self._spent_ns(context)
            if is_exact
            else self._settle(context, owner, launches, graphs, is_whole=is_whole)
        )
        if spent_ns > 0 and ((is_whole and is_clean) or is_cut):
            # An estimate nobody confirmed teaches less than a measurement.
            is_measured = (is_whole and is_clean) or context.is_drain_known
            (context.launch.learn if is_measured else context.launch.impute)(spent_ns, launches)
            if graphs and is_measured:
                context.graphs.learn(graphs, spent_ns)
        context.is_tainted, context.is_behind = context.is_held, False
        context.seq, context.seq_ns = edge.seq, edge.t_ns
        context.seq_exec_ns = context.metered_ns = self.replay.exec_ns(context.key)
        return is_whole

    def _is_late(self, context: Context, edge: Edge, asked: int) -> bool:
        """Whether what is proven was done before it was asked for, and some of what follows is done as well.

        Nobody waited for it, and it was charged more than it takes. Sure where more is in flight than a queue holds;
        likely where nothing was measured yet and far more is in flight than is proven. When it was done nobody tells,
        so it measures nothing; but what it was charged beyond what it takes is of the launches that follow.

        ``asked``: launches since the proof before.
        """
        launches, spent_ns = edge.seq - context.seq, self._spent_ns(context)
        in_flight = self._submitted_of(context) - edge.seq
        is_sure = in_flight > QUEUE_LAUNCHES + 2 * asked  # as many again may have been launched since
        is_likely = not context.launch.observed and in_flight > _MANY * asked
        if not (is_sure or is_likely):
            return False
        owed_ns, _ = self._left(context, launches, 0, self._graphs(context, context.seq, edge.seq))
        if spent_ns < owed_ns:
            return False
        if context.is_tainted:
            context.seq, context.seq_ns = edge.seq, edge.t_ns
            context.seq_exec_ns += owed_ns or spent_ns
            context.metered_ns = context.seq_exec_ns
            context.is_tainted, context.is_behind = context.is_held, True
            return True
        self._guess(context, launches, in_flight)
        return launches < _MANY * in_flight

    def _guess(self, context: Context, launches: int, in_flight: int) -> None:
        """Where nothing is known: what was charged is of ``launches`` and of some of those in flight, of half at best
        guess; or of as many as are proven now, where as many were in flight at the last late proof."""
        spent_ns = self._spent_ns(context)
        if context.launch.samples or spent_ns <= 0:
            return
        if not context.is_behind:
            context.launch.impute(spent_ns, launches + in_flight // 2)
        elif launches >= in_flight:
            context.launch.impute(spent_ns, launches)

    def end_unasked(self, context: Context, submitted: int) -> bool:
        """It is gone with all that it had submitted. Whether that teaches something: nothing where it proved anything.

        Of launches that nobody asked after all that is known is what they were charged, until they ended or were cut
        off. Without it their tenant would be unknown for good, and be held for nothing. Of what was launched before our
        probes saw it not even that is known.
        """
        launches, spent_ns = submitted - context.seq, self._spent_ns(context)
        if context.seq or context.is_unseen or launches <= 0 or spent_ns <= 0:
            return False
        context.launch.impute(spent_ns, launches)
        return True

    def _take_metered(self, context: Context, launches: int, graphs: Graphs) -> int:
        """What was charged since the last proof is what these launches took."""
        exec_ns = self.replay.exec_ns(context.key)
        spent_ns, context.metered_ns = max(0, exec_ns - context.metered_ns), exec_ns
        context.launch.meter(spent_ns, launches)
        if graphs and spent_ns and not context.is_tainted:
            context.graphs.learn(graphs, spent_ns)
        return spent_ns

    def _meter(self, context: Context, edge: Edge, launches: int) -> bool:
        """What was charged is what was had, whether or not it was held; when it was proven says less."""
        exec_ns, owner = self.replay.exec_ns(context.key), self._owner_of(context.cgroup_id)
        graphs = self._graphs(context, context.seq, edge.seq)
        spent_ns = self._take_metered(context, launches, graphs)
        if spent_ns and not context.is_tainted:
            self.costs.learn(
                owner, spent_ns, launches, graphs, is_alone=True, waited_ns=edge.arg, t_ns=edge.t_ns
            )
        units, known = self._known(context, launches, graphs)
        is_end = not self.replay.is_runnable(context.key)
        # Of what it goes on with some has run by now.
        context.seq_exec_ns = (
            exec_ns if is_end else min(exec_ns, context.seq_exec_ns + round(units * known.tau_ns))
        )
        context.is_tainted = context.is_held
        context.seq, context.seq_ns = edge.seq, edge.t_ns
        return True

    def _may_judge(self, owner: Hashable, launches: int, graphs: Graphs) -> bool:
        """Whether what the replay charges for such a burst says something about drains beside it."""
        is_confirmed = self.costs.of(owner).is_confirmed(launches, graphs)
        return self.costs.is_replay_right if is_confirmed is None else is_confirmed

    def _settle(
        self, context: Context, owner: Hashable, launches: int, graphs: Graphs, *, is_whole: bool = False
    ) -> int:
        """Charge what so many launches cost; returns that."""
        spent_ns = self._spent_ns(context)
        if self.replay.is_traced or self.is_intruded:
            return spent_ns
        owed_ns = self.costs.charge_ns(owner, spent_ns, launches, graphs, is_whole=is_whole)
        self.replay.settle(context.key, owed_ns - spent_ns)
        return owed_ns

    def _cost(self, context: Context) -> Cost:
        """Of its tenant: one that goes from cgroup to cgroup is known all the same, and displaces nobody."""
        return self.costs.of(self._owner_of(context.cgroup_id))

    def _spent_ns(self, context: Context) -> int:
        """What the replay charged since its last proof."""
        return self.replay.exec_ns(context.key) - context.seq_exec_ns

    def _is_alone(self, context: Context) -> bool:
        """Whether no other tenant was there since its last proof."""
        return self._company.is_alone(self._owner_of(context.cgroup_id), context.seq_ns)

    # ---- what is to come ----

    def _remaining(self, context: Context, launches: int, spent_ns: int) -> tuple[int, int]:
        """Of its drain."""
        graphs = self._graphs(context, context.seq, context.seq + launches)
        context.is_drain_new = context.graphs.is_new(graphs)
        return self._left(context, launches, spent_ns, graphs)

    def _left(self, context: Context, launches: int, spent_ns: int, graphs: Graphs) -> tuple[int, int]:
        """GPU time left of so many launches that ran for so long, and the doubt. ``graphs``: among them."""
        is_known = launches > 0 and not context.is_timed
        mean_ns = self._cost(context).expected_ns(launches, graphs) if is_known else None
        units, known = self._known(context, launches, graphs)
        return known.remaining(units, spent_ns, mean_ns)

    def unmeasured_ns(self, context: Context) -> int:
        """What a burst of it takes, if too little is known of what it costs; else 0.

        Of who is alone more can be learnt, and more is enough.
        """
        launch, cost = context.launch, self._cost(context)
        is_alone = self._is_alone(context)
        if context.is_timed or self.silence.launch_of(context) is not None:
            return 0  # it never proves anything
        if (
            self.is_intruded
            or self.replay.is_traced
            or self.costs.is_replay_right
            or not launch.samples
            or (cost.is_settled if is_alone else cost.is_measured)
        ):
            return 0
        return round(launch.tau_ns * launch.launches)
