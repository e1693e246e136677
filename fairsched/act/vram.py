# SPDX-License-Identifier: Apache-2.0
"""Enforces the VRAM limit of tenants: the kernel refuses what it can, who is over the limit is warned, held or ended.

Problem: an allocation is refused only where the kernel has a hook for that, and what was asked for at the same moment
passes the limit together. What a tenant has must be known either way, and cost the ticks nothing.

Approach: about once a second the memory of every process is taken from the driver's calls, or, of processes whose
calls were not seen, from NVML's list, which a thread asks for. The judgement is pure (policy/vram.py). Holds go through
the applier, as all holds do; the policy of shares leaves a tenant alone that is held for its memory. Only in mode
enforce is anything refused, held or ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from fairsched.act.holds import Applier
from fairsched.act.terminate import Accused, Terminator
from fairsched.base.process import ProcessId
from fairsched.driver.books import DriverUse
from fairsched.driver.vram_gate import CgroupLimit
from fairsched.gpu.nvml import gpu_label
from fairsched.gpu.processes import Listed, Listing
from fairsched.model import NEVER_NS, Action, ActionKind, Reason, ReasonCode, TenantSpec, VramAction
from fairsched.observe.sensors import Sensors
from fairsched.observe.tree import TenantView, Tree
from fairsched.policy import vram as policy
from fairsched.policy.shares import ancestors, spec_for
from fairsched.protocol.events import EventBook
from fairsched.protocol.status import VramStatus

_LOOK_NS = 900_000_000
_SWEEP_NS = 60_000_000_000
_IOCTLS, _NVML = "ioctls", "nvml"

logger = logging.getLogger(__name__)


class VramLimits:
    """Enforces the limits.

    Call :meth:`poll` often, it does something about once a second, and :meth:`step` at each tick.
    """

    def __init__(self, sensors: Sensors, tree: Tree, applier: Applier) -> None:
        self._sensors, self._tree, self._applier = sensors, tree, applier
        self._listing: Listing | None = None
        self.terminator = Terminator(tree.tenant_of_process, self._let_run)
        self.book = EventBook(logger, "vram")
        self._state = policy.VramState()
        self._params = policy.VramParams()
        self._specs: Mapping[str, TenantSpec] = {}
        self._processes: tuple[policy.ProcessVram, ...] = ()
        self._owners: dict[int, ProcessId] = {}
        """Of those processes, for the time they are to end."""
        self._listed: tuple[Listed, ...] = ()
        self._unendable: set[tuple[str, int]] = set()
        """Processes that may not be ended for a limit, by the tenant whose limit it is, or cannot be."""
        self._is_acting = False
        self._next_look_ns = self._next_sweep_ns = 0
        self._refusal: str | None = None
        """What the kernel said of the limits at the last look."""
        self._gone: set[int] = set()
        """Cgroups that the kernel has sums of and that were not there any more a sweep ago."""
        self.source: str | None = None
        self.due_ns = NEVER_NS
        """When :meth:`step` has something to do."""
        self.errors = 0

    # ---- observe ----

    def poll(self, now_ns: int, specs: Mapping[str, TenantSpec], grace_s: float, *, is_acting: bool) -> None:
        """Judge, and tell the kernel its limits. ``is_acting``: something is done, as in mode enforce."""
        if now_ns < self._next_look_ns:
            return
        specs = self._sensors.mps.spare(specs)
        self._next_look_ns, self._is_acting, self._specs = now_ns + _LOOK_NS, is_acting, specs
        try:
            limited = [name for name in self._names() if self._limit(name) is not None]
            self._tell_kernel(limited if is_acting else [], now_ns)
            if not limited:
                self._forget()
                return
            processes = self._read()
            if processes is None:
                if self.source is None:  # nobody can be asked any more: what was last known is nobody's debt
                    self._forget()
                return
            self._processes = processes
            before = self._state
            self._state = policy.judge(processes, before, specs, now_ns, self._params, self._unendable)
            self._tell(before, now_ns)
            self._terminate(now_ns, round(grace_s * 1e9))
            self.step(now_ns)
        except Exception:
            self.errors += 1
            logger.exception("look at VRAM failed")

    def _tell_kernel(self, limited: Iterable[str], now_ns: int) -> None:
        """What it refuses is no reason not to judge: who is over is held or ended from here then."""
        refusal = None
        try:
            self._sweep(now_ns)
            self._set_limits(limited)
        except OSError as error:
            self.errors += 1
            refusal = str(error)
            if refusal != self._refusal:
                logger.error("vram_limits=refused error=%r", refusal)
        self._refusal = refusal

    def _sweep(self, now_ns: int) -> None:
        """Drop the kernel's sums of cgroups that are gone; one that is new may not have been found yet."""
        gate = self._sensors.driver.gate
        if gate is None or now_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = now_ns + _SWEEP_NS
        gone = {cgroup_id for cgroup_id in gate.sums() if cgroup_id and not self._tree.has_cgroup(cgroup_id)}
        gate.forget(gone & self._gone)
        self._gone = gone

    def _names(self) -> set[str]:
        return {above for name in self._tree.tenants for above in ancestors(name)}

    def _limit(self, name: str) -> int | None:
        return spec_for(name, self._specs).vram_limit_bytes

    def _forget(self) -> None:
        self._state, self._processes, self.source = policy.VramState(), (), None
        self._applier.reserved, self.due_ns = frozenset(), NEVER_NS
        if self._listing is not None:
            self._listing.stop()
            self._listing = None

    def _read(self) -> tuple[policy.ProcessVram, ...] | None:
        """Of every process of a tenant; None: nothing new is known.

        Of what processes made before we looked only NVML knows, which counts more than was asked for; so it is heard
        of those that we have seen nothing or not all of, or that are older than our eyes, and whose number is larger.
        """
        listed = self._ask_nvml()
        if self._sensors.driver.hook is None:
            self.source = None if self._listing is None else _NVML
            self._owners = self._owners if listed is None else {}
            return None if listed is None else tuple(self._from_nvml(listed))
        self.source = _IOCTLS
        self._listed = self._listed if listed is None else listed
        uses, since_ns = self._sensors.driver.uses(), self._sensors.driver.since_ns
        seen = {use.tgid for use in uses if use.gpu is not None}  # of which instance the ioctls do not tell
        whole = seen - self._sensors.driver.partial()
        older = [
            one
            for one in self._listed
            if (one.owner.pid not in whole or (since_ns is not None and one.owner.started_ns < since_ns))
            and one.owner.is_alive()
        ]
        owners = {one.owner.pid: one.owner for one in older}
        self._owners = {pid: owner for pid, owner in self._owners.items() if pid in seen} | owners
        return policy.combine(self._from_uses(uses), self._from_nvml(older))

    def _ask_nvml(self) -> tuple[Listed, ...] | None:
        nvml = self._sensors.nvml
        if self._listing is None:
            if nvml is None or nvml.error:
                return None
            self._listing = Listing(nvml, self._tree.cgroup_of)
        return self._listing.take()

    def _from_uses(self, uses: Iterable[DriverUse]) -> Iterable[policy.ProcessVram]:
        for use in uses:
            tenant = self._tree.tenant_of(use.cgroup_id) or self._tree.tenant_of_process(use.tgid)
            if use.gpu is None or tenant is None or not use.vram_bytes:
                continue
            if use.tgid not in self._owners and (owner := _maker(use)) is not None:
                self._owners[use.tgid] = owner
            yield policy.ProcessVram(tenant, self._label(use.gpu), use.tgid, use.vram_bytes)

    def _from_nvml(self, listed: Iterable[Listed]) -> Iterable[policy.ProcessVram]:
        for one in listed:
            tenant = self._tree.tenant_of(one.cgroup_id)
            if tenant is not None:
                self._owners[one.owner.pid] = one.owner
                yield policy.ProcessVram(tenant, self._label(one.slot), one.owner.pid, one.vram_bytes)

    def _label(self, slot: int) -> str:
        return gpu_label(self._sensors.gpus, slot)

    # ---- act ----

    def _set_limits(self, names: Iterable[str]) -> None:
        gate = self._sensors.driver.gate
        if gate is None:
            return
        chosen, limits = set(names), []
        for name in sorted(chosen):
            limit, view = self._limit(name), self._tree.tenants.get(name)
            above = next((one for one in ancestors(name)[1:] if one in chosen), None)
            if limit is not None and view is not None:
                limits.append(CgroupLimit(name, limit, tops(view), above))
        gate.set_limits(limits)

    def _tell(self, before: policy.VramState, now_ns: int) -> None:
        for key, one in self._state.episodes.items():
            if key not in before.episodes:
                self.book.tell(logging.WARNING, vram="over", action=self._action(one), **_fields(one))
        for key, one in before.episodes.items():
            if key not in self._state.episodes:
                lasted_s = round((now_ns - one.since_ns) / 1e9)
                self.book.tell(logging.INFO, vram="within", tenant=one.tenant, gpu=one.gpu, lasted_s=lasted_s)

    def _action(self, one: policy.VramEpisode) -> str:
        wish = one.wish
        if wish is VramAction.HOLD and spec_for(one.leaf, self._specs).is_exempt:
            wish = VramAction.WARN
        if wish is VramAction.WARN or self._is_acting:
            return wish.value
        return f"would_{wish.value}"

    def step(self, now_ns: int) -> None:
        """Hold the tenants that are to be held now, and let go those that were held for long enough."""
        if not self._state.episodes and not self._applier.reserved:
            return
        self._applier.thaw_expired(now_ns)
        if not self._is_acting:
            self._applier.reserved, self.due_ns = frozenset(), NEVER_NS
            return
        self._applier.reserved = policy.held_for_it(self._state, self._specs)
        held = self._applier.all_held()
        self._state, holds = policy.due_holds(self._state, self._specs, held, now_ns, self._params)
        for one in holds:
            self._applier.apply([_hold(one)], now_ns)
        deadlines = [hold.deadline_ns for name, hold in self._applier.holds.items() if self._is_mine(name)]
        frees = [ns for leaf, ns in self._state.free_ns.items() if self._is_mine(leaf) and ns > now_ns]
        self.due_ns = min([*deadlines, *frees], default=NEVER_NS)

    def _is_mine(self, leaf: str) -> bool:
        return leaf in self._applier.reserved

    def _terminate(self, now_ns: int, grace_ns: int) -> None:
        known = {one.pid for one in self._processes}
        self._unendable = {one for one in self._unendable if one[1] in known}
        if not self._is_acting:
            self.terminator.close()
            return
        accused = set()
        for one in self._state.episodes.values():
            if one.victim is None or not one.is_over:
                continue
            owner = self._owners.get(one.victim)
            if owner is None or not self._ask(owner, one.tenant, now_ns):
                self._unendable.add((one.tenant, one.victim))
                continue
            accused.add(owner)
        self.terminator.settle(accused, now_ns, grace_ns)

    def _ask(self, owner: ProcessId, limited: str, now_ns: int) -> bool:
        """Of ``limited``, whose limit it is: nobody is ended for the memory of another tenant."""
        if self.terminator.is_asked(owner):
            return True
        tenant = self._tree.tenant_of_process(owner.pid)
        if tenant is None or limited not in ancestors(tenant):
            return False
        self._let_run(tenant, now_ns)  # a frozen process gets no SIGTERM
        return self.terminator.ask(Accused(tenant, ReasonCode.OVER_VRAM, owner), now_ns)

    def _let_run(self, tenant: str, now_ns: int) -> None:
        if tenant in self._applier.holds:
            thaw = Action(ActionKind.THAW, tenant, Reason(ReasonCode.OVER_VRAM))
            self._applier.apply([thaw], now_ns)

    # ---- tell ----

    def statuses(self, tenant: str, now_ns: int) -> tuple[VramStatus, ...]:
        """What a tenant with a limit has, by GPU; empty for others."""
        limit = self._limit(tenant)
        if limit is None:
            return ()
        gate = self._sensors.driver.gate
        refused = {
            slot: one for (name, slot), one in (gate.refused() if gate else {}).items() if name == tenant
        }
        used = policy.sums(self._processes, self._specs)
        keeps = gate is not None and gate.refuses and tenant not in gate.unlimited and self._is_acting
        found = []
        for slot, gpu in enumerate(self._sensors.gpus):
            episode = self._state.episodes.get((tenant, gpu.uuid))
            found.append(
                VramStatus(
                    gpu=gpu.uuid,
                    limit_bytes=limit,
                    used_bytes=used.get((tenant, gpu.uuid), 0) if self.source is not None else None,
                    source=self.source,
                    is_kept_by_kernel=keeps,
                    refused=refused[slot].count if slot in refused else 0,
                    over_since_s=time.time() - (now_ns - episode.since_ns) / 1e9 if episode else None,
                    action=self._action(episode) if episode else None,
                    pid=episode.victim if episode and episode.is_over else None,
                )
            )
        return tuple(found)

    def close(self) -> None:
        """Stop asking NVML, and end no process any more. The kernel's limits go with the driver's programs."""
        if self._listing is not None:
            self._listing.close()
        self.terminator.close()


def tops(view: TenantView) -> tuple[int, ...]:
    """The cgroups of a tenant that are below no other of its own."""
    if not view.is_leaf:
        return tuple(sorted(view.cgroup_ids))
    paths = {ref.path for ref in view.refs.values()}
    return tuple(
        sorted(ref.id for ref in view.refs.values() if not any(ref.path.startswith(f"{p}/") for p in paths))
    )


def _maker(use: DriverUse) -> ProcessId | None:
    """The process that made what is in use; None: it is gone, whoever may have its pid now.

    Memory outlives its maker while a child keeps the file open.
    """
    owner = ProcessId.of(use.tgid)
    if owner is None or (use.made_ns is not None and owner.started_ns > use.made_ns):
        return None
    return owner


def _hold(one: policy.VramHold) -> Action:
    episode = one.episode
    reason = Reason(
        ReasonCode.OVER_VRAM,
        gpu=episode.gpu,
        vram_bytes=episode.used_bytes,
        vram_limit_bytes=episode.limit_bytes,
    )
    return Action(ActionKind.HOLD, episode.leaf, reason, one.deadline_ns)


def _fields(one: policy.VramEpisode) -> dict[str, Any]:
    return {
        "tenant": one.tenant,
        "gpu": one.gpu,
        "used_bytes": one.used_bytes,
        "limit_bytes": one.limit_bytes,
        "most": one.leaf,
    }
