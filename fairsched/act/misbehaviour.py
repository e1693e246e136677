# SPDX-License-Identifier: Apache-2.0
"""Detects misbehaving tenants on this node and acts on them: gathers the evidence, has it judged, logs it, and ends
processes where the tenant's policy says so.

Problem: some GPU work a freezer cannot end, and some the account cannot see. Both have to be found within seconds,
at no cost to the ticks, and without ever harming a tenant that did nothing wrong.

Approach: observe, judge, act, once a second. The account's rows are summed as they come, NVML is asked beside the loop
(gpu/samples.py), the judgement is pure (policy/misbehaviour.py), processes are ended by terminate.py. While an episode
of endless work lasts, the tenant's account on that GPU is ``doubted``: confidence low, so it is not held, and what the
others are entitled to is counted without it; but for ``stuck`` processes it is held as long as others of it have work.
For ``unseen`` work it is charged what samples say, accused or not, and held for that. Nothing here may end the daemon:
a look that fails is logged and counted.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fairsched.accounting.context import Move, ProcessUse
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.act.holds import Applier
from fairsched.act.terminate import Accused, Terminator
from fairsched.base.process import ProcessId
from fairsched.cgroup.tree import id_at
from fairsched.config import Config
from fairsched.gpu.nvml import gpu_label
from fairsched.gpu.sampler import open_readers
from fairsched.gpu.samples import ProcessSamples, SampleWatch
from fairsched.model import (
    NOTHING_UNSEEN,
    Action,
    ActionKind,
    Confidence,
    ContextWork,
    MisbehaviourAction,
    MisbehaviourKind,
    Reason,
    ReasonCode,
    TenantSpec,
    Unseen,
)
from fairsched.observe.libraries import ProbesLost
from fairsched.observe.sensors import Sensors
from fairsched.observe.tree import Tree
from fairsched.policy.evidence import (
    Episode,
    EpisodeKey,
    Evidence,
    Leave,
    MisbehaviourLimits,
    TenantSamples,
    Where,
)
from fairsched.policy.launches import NO_TIMINGS, time_launches
from fairsched.policy.misbehaviour import WatchState, judge
from fairsched.policy.shares import spec_for
from fairsched.policy.unseen import borne_out, suspected_gpus, unseen_rates
from fairsched.protocol.status import MisbehaviourStatus

_LOOK_NS = 900_000_000
"""A little less than a second: housekeeping comes every 200 ms, and late at times."""
_URGENT_NS = 350_000_000
_EXAMINED = 16
"""Suspects a look: each costs the reading of its memory map."""
_BLIND_NS = 5_000_000_000
"""Contexts older than the probes are seen from their next call on."""
_MOVES = 4096
"""Between two looks; of more the last ones count."""
_ATTACHING_NS = 60_000_000_000
"""For so long after the account began, who waits for its probes is excused: there may be many to attach to."""

_DOUBTFUL = (MisbehaviourKind.ENDLESS, MisbehaviourKind.UNSEEN)

logger = logging.getLogger(__name__)


class _Booked:
    """What the account said of (process, GPU slot) since the last look."""

    def __init__(self) -> None:
        self.charged_ns, self.anchored_ns = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        self.launches: Counter[tuple[int, int]] = Counter()
        """In contexts for whose work nobody waits."""
        self.cgroups: dict[int, int] = {}
        """By process."""

    def add(self, row: ProcessUse) -> None:
        key = (row.tgid, row.gpu)
        self.charged_ns[key] += row.used_ns
        self.anchored_ns[key] += row.anchored_ns
        self.launches[key] += row.unanchored_launches
        self.cgroups[row.tgid] = row.cgroup_id


class Misbehaviour:
    """Finds misbehaving tenants and acts on them.

    Call :meth:`book` at each tick and :meth:`poll` about once a second.
    """

    def __init__(self, sensors: Sensors, tree: Tree, applier: Applier) -> None:
        self._sensors, self._tree, self._applier = sensors, tree, applier
        self._watch: SampleWatch | None = None
        if sensors.account is not None and sensors.gpus and sensors.nvml is not None:
            self._watch = SampleWatch(open_readers(sensors.nvml), tree.cgroup_of)
            self._watch.start()
        self.terminator = Terminator(tree.tenant_of_process, self._let_run)
        self._state = WatchState()
        self._timings = NO_TIMINGS
        self._account: EbpfAccount | None = None
        self._began_ns = self._blind_until_ns = self._late_until_ns = self._next_look_ns = 0
        self._booked = _Booked()
        self._held_ns: dict[str, int] = {}
        """How long tenants were held, up to the last look."""
        self._moves: deque[tuple[Move, str | None]] = deque(maxlen=_MOVES)
        self._turns: dict[int, int] = {}
        """Of suspects: when each was examined last, in looks at any."""
        self._owners: dict[int, ProcessId] = {}
        """The process last seen under each pid."""
        self.unseen: Unseen = NOTHING_UNSEEN
        """What tenants have beyond what their calls account for."""
        self._actions: dict[EpisodeKey, str] = {}
        self.errors = 0

    @property
    def doubted(self) -> frozenset[tuple[str, str]]:
        """(tenant, GPU) that have work which never ends: their account is not to be believed now."""
        return frozenset((one.tenant, one.gpu) for one in self._endless())

    @property
    def stuck(self) -> frozenset[Where]:
        """Processes whose work never ends."""
        return frozenset((pid, one.gpu) for one in self._endless() for pid in one.pids)

    def _endless(self) -> Iterator[Episode]:
        return (one for one in self._state.episodes.values() if one.kind is MisbehaviourKind.ENDLESS)

    # ---- observe ----

    def book(self, rows: Iterable[ProcessUse]) -> None:
        """What the account charged in one tick."""
        for row in rows:
            if row.used_ns or row.launches:
                self._booked.add(row)
        # Whose cgroup it left is asked now, too: it may be gone at the look.
        self._moves.extend((move, self._tree.tenant_of(move.before)) for move in self._sensors.events.moves)

    def poll(self, now_ns: int, specs: Mapping[str, TenantSpec], config: Config, *, is_acting: bool) -> None:
        """Judge and act. ``is_acting``: processes are really ended, as in mode enforce."""
        account, watch = self._sensors.account, self._watch
        if watch is None:
            self._booked = _Booked()
            self._moves.clear()
            return
        if account is not None:
            account.seen_running, account.sample_period_ns = watch.seen_running, watch.period_ns
        if now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + _LOOK_NS
        limits = MisbehaviourLimits(endless_ns=config.misbehaviour.endless_s * 1_000_000_000)
        try:
            evidence = self._evidence(account, watch.take(), now_ns)
            before, self._state = self._state, judge(evidence, self._state, limits)
            if self._state.is_urgent:
                self._next_look_ns = now_ns + _URGENT_NS
            self.unseen = NOTHING_UNSEEN
            if account is not None:
                self._count_on(account, evidence)
            # Of whom it asks late it does not learn whose it was.
            watch.is_urgent = self._state.is_urgent or bool(self.unseen.rates)
            self._act(before, specs, config, now_ns, is_acting=is_acting)
        except Exception:
            self.unseen = NOTHING_UNSEEN
            if account is not None:
                account.sampled = {}
            self.errors += 1
            logger.exception("look for misbehaviour failed")

    def _evidence(self, account: EbpfAccount | None, sampled: list[ProcessSamples], now_ns: int) -> Evidence:
        booked, self._booked = self._booked, _Booked()
        whose = {pid: self._tree.tenant_of(cgroup_id) for pid, cgroup_id in booked.cgroups.items()}
        if account is not self._account:  # begun, lost, or begun anew
            self._account, self._began_ns, self._blind_until_ns = account, now_ns, now_ns + _BLIND_NS
        if self._sensors.libraries.is_attaching and now_ns - self._began_ns < _ATTACHING_NS:
            self._late_until_ns = now_ns + _BLIND_NS
        guessed = (
            account.guessed_processes() if account is not None and len(self._sensors.gpus) > 1 else set()
        )
        latest = {one.pid: one.owner for one in sampled}
        samples = [self._samples_of(one) for one in sampled if one.owner == latest[one.pid]]
        return Evidence(
            now_ns=now_ns,
            works=self._works(account) if account is not None else {},
            samples=tuple(one for one in samples if one is not None),
            charged_ns=self._by_uuid(booked.charged_ns, guessed),
            anchored_ns=self._by_uuid(booked.anchored_ns, guessed),
            launches=self._by_uuid(booked.launches, guessed),
            whose={pid: tenant for pid, tenant in whose.items() if tenant is not None},
            held_ns=self._held_since(now_ns),
            watched_since_ns=self._watched_since_ns(now_ns),
            late_until_ns=self._late_until_ns,
            is_blind=account is None or now_ns < self._blind_until_ns,
            over_budget=self._sensors.owners.over_work,
            leaves=tuple(self._leaves()),
            unanchored=self._unanchored(account),
            unsure=self._unsure(account),
        )

    def _held_since(self, now_ns: int) -> dict[str, int]:
        """For how long each was held since the look before."""
        before, self._held_ns = self._held_ns, self._applier.held_ns(now_ns)
        return {tenant: ns - before.get(tenant, 0) for tenant, ns in self._held_ns.items()}

    def _leaves(self) -> Iterator[Leave]:
        """By the tree of now: at the move itself a cgroup that the tenant had just made was not known. One that is not
        known even now, because it is gone again, speaks against nobody."""
        moves = list(self._moves)
        self._moves.clear()
        for move, tenant_then in moves:
            tenant = tenant_then or self._tree.tenant_of(move.before)
            if tenant is None or self._tree.tenant_of(move.after) == tenant or not self._is_known(move.after):
                continue
            yield Leave(move.t_ns, tenant, move.tgid, gpu_label(self._sensors.gpus, move.gpu), move.key)

    def _is_known(self, cgroup_id: int) -> bool:
        """The tree lists what is below the root."""
        return self._tree.has_cgroup(cgroup_id) or cgroup_id == id_at(self._tree.mount, "/")

    def _unanchored(self, account: EbpfAccount | None) -> frozenset[Where]:
        found = account.unanchored() if account is not None else ()
        return frozenset((pid, gpu_label(self._sensors.gpus, slot)) for pid, slot in found)

    def _unsure(self, account: EbpfAccount | None) -> frozenset[str]:
        if account is None:
            return frozenset()
        return frozenset(gpu_label(self._sensors.gpus, slot) for slot in account.contradicted_gpus())

    def _watched_since_ns(self, now_ns: int) -> dict[int, int]:
        """Of the suspects; one who is gone is none."""
        found: dict[int, int] = {}
        for pid in self._in_turn(self._state.suspects):
            with contextlib.suppress(ProbesLost):  # which is noticed by who attends to the probes
                since_ns = self._sensors.libraries.watched_since_ns(pid, now_ns)
                if since_ns is not None:
                    found[pid] = since_ns
        return found

    def _in_turn(self, suspects: Iterable[int]) -> list[int]:
        """Whom to examine now: of each tenant one, then of each another; who was examined last comes last.

        Else many suspects of one tenant would keep those of the others from being accused.
        """
        self._turns = {pid: self._turns.get(pid, 0) for pid in suspects}
        tenants = {pid: looks[-1].tenant for (pid, _), looks in self._state.seen.items()}
        ranks: Counter[str | None] = Counter()
        queue = []
        for pid in sorted(self._turns, key=lambda pid: (self._turns[pid], pid)):
            tenant = tenants.get(pid)
            queue.append((ranks[tenant], self._turns[pid], pid))
            ranks[tenant] += 1
        chosen = [pid for _, _, pid in sorted(queue)[:_EXAMINED]]
        last = max(self._turns.values(), default=0) + 1
        self._turns.update(dict.fromkeys(chosen, last))
        return chosen

    def _count_on(self, account: EbpfAccount, evidence: Evidence) -> None:
        """Charge tenants what samples say that they had unseen, but where the GPU itself names whoever has it."""
        labels = {gpu_label(self._sensors.gpus, slot): slot for slot in range(len(self._sensors.gpus))}
        slots = {gpu: slot for gpu, slot in labels.items() if slot not in account.traced_gpus()}
        self._timings = time_launches(self._state, evidence, self._timings)
        rates, left = unseen_rates(self._state, evidence, self._timings)
        self.unseen = Unseen(
            {key: rate for key, rate in rates.items() if key[1] in slots},
            {gpu: ratio for gpu, ratio in left.items() if gpu in slots},
        )
        sure = borne_out(self._state, evidence.now_ns)
        account.borne_out = {(pid, slots[gpu]) for pid, gpu in sure if gpu in slots}
        launches = self._timings.launches.items()
        account.sampled = {(pid, slots[gpu]): one for (pid, gpu), one in launches if gpu in slots}
        suspected = suspected_gpus(self._state, self.unseen)
        account.intruded = {slots[gpu] for gpu in suspected if gpu in slots}

    def _samples_of(self, one: ProcessSamples) -> TenantSamples | None:
        if one.owner is None or one.cgroup_id is None:
            return None  # gone since
        if self._owners.get(one.pid, one.owner) != one.owner:  # what was remembered is another process's
            seen = {where: looks for where, looks in self._state.seen.items() if where[0] != one.pid}
            self._state = replace(self._state, seen=seen)
        self._owners[one.pid] = one.owner
        tenant = self._tree.tenant_of(one.cgroup_id)
        if tenant is None:
            return None
        gpu = gpu_label(self._sensors.gpus, one.slot)
        counted = (one.samples, one.busy_ns, one.period_ns, one.first_ns, one.last_ns)
        return TenantSamples(tenant, one.pid, gpu, *counted)

    def _works(self, account: EbpfAccount) -> dict[Where, tuple[ContextWork, ...]]:
        found: dict[Where, list[ContextWork]] = {}
        for work in account.work():
            if self._tree.tenant_of(work.cgroup_id) is not None:
                found.setdefault((work.pid, gpu_label(self._sensors.gpus, work.gpu)), []).append(work)
        return {where: tuple(works) for where, works in found.items()}

    def _by_uuid(
        self, booked: Mapping[tuple[int, int], int], guessed: set[int]
    ) -> dict[tuple[int, str], int]:
        """Of a process whose GPU is a guess, what was booked anywhere may explain what is seen anywhere."""
        labels = [gpu_label(self._sensors.gpus, slot) for slot in range(max(1, len(self._sensors.gpus)))]
        found: dict[tuple[int, str], int] = {}
        for (pid, slot), amount in booked.items():
            for label in labels if pid in guessed else [gpu_label(self._sensors.gpus, slot)]:
                found[pid, label] = found.get((pid, label), 0) + amount
        return found

    # ---- act ----

    def _act(
        self,
        before: WatchState,
        specs: Mapping[str, TenantSpec],
        config: Config,
        now_ns: int,
        *,
        is_acting: bool,
    ) -> None:
        episodes, self._actions = self._state.episodes, {}
        accused: set[ProcessId] = set()
        for key, episode in episodes.items():
            wish = spec_for(episode.tenant, specs).on_misbehaviour
            is_wished = wish is MisbehaviourAction.TERMINATE and episode.is_certain
            action = "warn" if not is_wished else "terminate" if is_acting else "would_terminate"
            self._actions[key] = action
            if key not in before.episodes:
                logger.warning("misbehaviour=%s action=%s %s", key[2].value, action, words(episode))
            if action == "terminate":
                accused |= self._end(episode, now_ns)
        for key, episode in before.episodes.items():
            if key not in episodes:
                lasted_s = (now_ns - episode.since_ns) / 1e9
                logger.info(
                    "misbehaviour=over tenant=%s kind=%s lasted_s=%.0f", key[0], key[2].value, lasted_s
                )
        self.terminator.settle(accused, now_ns, config.misbehaviour.grace_s * 1_000_000_000)
        named = {pid for episode in episodes.values() for pid in episode.pids}
        recent = {pid for pid, _ in self._state.seen}
        self._owners = {pid: owner for pid, owner in self._owners.items() if pid in named | recent}

    def _end(self, episode: Episode, now_ns: int) -> set[ProcessId]:
        owners = {self._owners[pid] for pid in episode.pids if pid in self._owners}
        if any(not self.terminator.is_asked(o) for o in owners):
            self._let_run(episode.tenant, now_ns, episode.gpu)  # a frozen process gets no SIGTERM
        for owner in owners:
            self.terminator.ask(Accused(episode.tenant, episode.kind, owner), now_ns)
        return owners

    def _let_run(self, tenant: str, now_ns: int, gpu: str | None = None) -> None:
        if tenant in self._applier.holds:
            thaw = Action(ActionKind.THAW, tenant, Reason(ReasonCode.LOW_CONFIDENCE, gpu=gpu))
            self._applier.apply([thaw], now_ns)

    # ---- tell ----

    def statuses(self, tenant: str, now_ns: int) -> tuple[MisbehaviourStatus, ...]:
        """What goes on with a tenant, the longest first."""
        now_s = time.time()
        mine = [(key, one) for key, one in self._state.episodes.items() if one.tenant == tenant]
        mine.sort(key=lambda item: item[1].since_ns)
        return tuple(
            MisbehaviourStatus(
                kind=one.kind,
                since_s=now_s - (now_ns - one.since_ns) / 1e9,
                gpu=one.gpu,
                detail=detail(one),
                action=self._actions.get(key, "warn"),
            )
            for key, one in mine
        )

    def close(self) -> None:
        """Stop asking NVML, and end no process any more."""
        if self._watch is not None:
            self._watch.close()
        self.terminator.close()


def lowered(confidence: Confidence, statuses: Iterable[MisbehaviourStatus]) -> Confidence:
    """The confidence of an account; LOW where the tenant does what makes it doubtful."""
    return Confidence.LOW if any(one.kind in _DOUBTFUL for one in statuses) else confidence


def detail(episode: Episode) -> str:
    """One episode as a sentence with its numbers."""
    pids = ", ".join(map(str, episode.pids[:8])) + (", ..." if len(episode.pids) > 8 else "")
    charged, window = f"{episode.charged_ns / 1e9:.1f} s", f"{episode.window_ns / 1e9:.0f} s"
    if episode.kind is MisbehaviourKind.ENDLESS:
        count = episode.contexts or 0
        whose = f"{count} contexts have completed none of their"
        if count == 1:
            whose = "1 context has completed none of its"
        stuck = f"{(episode.stuck_ns or 0) / 1e9:.1f} s"
        return f"{whose} work for {stuck} while the GPU worked {charged} for it (pid {pids})"
    if episode.kind is MisbehaviourKind.MOVING:
        return (
            f"pid {pids} left the tenant's cgroups {episode.leaves} times in {window} while it used the GPU"
        )
    text = (
        f"NVML saw pid {pids} on the GPU in {episode.samples} samples of the last {window}, calls account for "
        f"{charged}"
    )
    return (
        text
        if episode.is_certain
        else f"{text}; whether its libcuda has probes is not known, so nobody is terminated"
    )


def words(episode: Episode) -> str:
    """One episode for the log."""
    numbers = [
        f"tenant={episode.tenant}",
        f"gpu={episode.gpu}",
        f"pids={','.join(map(str, episode.pids))}",
        f"contexts={episode.contexts}" if episode.contexts is not None else "",
        f"stuck_s={episode.stuck_ns / 1e9:.1f}" if episode.stuck_ns is not None else "",
        f"charged_s={episode.charged_ns / 1e9:.2f}",
        f"samples={episode.samples}",
        f"leaves={episode.leaves}" if episode.leaves else "",
        f"window_s={episode.window_ns / 1e9:.1f}",
    ]
    return " ".join(word for word in numbers if word)
