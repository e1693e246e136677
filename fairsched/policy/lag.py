# SPDX-License-Identifier: Apache-2.0
"""Books the lag of each tenant: how much GPU time it is owed (positive) or has taken ahead of its turn (negative).

Problem. An entitlement is a ratio; a decision needs to know who is behind and by how much, over
uneven intervals, while tenants come, go idle, are held, and drain what they had queued.

Approach. One account per (tenant, GPU), moved once per snapshot:

    delivered = sum of used_i over the enforced tenants of the GPU
    lag_i    += e_i x delivered - used_i            (e: entitlement over A, normalised to sum 1)

Normalised on what the GPU delivered, not on wall clock: with gaps and switch cost a wall-clock
budget is never exhausted and so never enforced. Lag is therefore zero-sum: the lags of one GPU add
up to 0, and whatever one account loses outside the formula (expiry, forgetting, clamping) goes to A
by entitlement. So nobody stays in debt to a tenant that left.

Terms.
- A: enforced tenants with demand. A pause shorter than ``demand_grace_ns`` is demand (a decoder
  between two tokens); held by us with work is demand; held by somebody else is not.
- charged: its use; where that is no measure, the most it may have had or what it certainly had (model.Use.most_ns).
- enforced: confidence HIGH or SAMPLED, or charged for the most, and not exempt. The use of the others is taken off the
  top: it moves nobody's lag, the enforced tenants share what is left.
- expiry: positive lag of a tenant without demand is dropped at once (no hoarding); debt is forgotten
  as exp(-t/window), so a short pause forgives almost nothing.
- aside: a tenant held by us for another GPU. It may spend its credit here or run up debt, but earns no more: that it
  does not run here is not the doing of the tenants here. Nor does one of which nobody knows whether it wants anything
  (model.Use.may_be_owed). One of which it is found that it had less than it was charged has no credit left.
- light: a tenant whose pauses leave it less than its entitlement even if nobody hinders it. Credit that it cannot spend
  would have others held for ever. So it earns credit for what it would use, and time in which it pauses and nobody
  works is spent credit. Its debts are booked like everybody's.
- drain: GPU time already queued. It is never booked here: it is delivered, and charged to its owner
  as ``used_ns``, whether or not the owner is held. The *effective* lag = lag - outstanding stays put
  while the drain is delivered, which is why deciding on it counts nothing twice.
- quota level: leaky bucket, += used, -= quota x interval, credit bounded by ``quota_burst_ratio``.
- ``*_window_ns``: sums with exponential forgetting over the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fairsched.model import PolicyParams, Snapshot, TenantClass, TenantGpu, TenantSpec, Use
from fairsched.policy import deep
from fairsched.policy.shares import ancestors, entitlements, spec_for

_FORGOTTEN_NS = 1_000.0
"""An absent tenant's account is dropped when its debt has shrunk to this."""


class Account(NamedTuple):
    """One tenant on one GPU. A tuple, because all are made anew at each snapshot: a frozen dataclass takes longer."""

    lag_ns: float = 0.0
    active_ns: int | None = None
    """When it last had demand; None = not seen with demand yet."""
    drain_ns: float = 0.0
    """Largest queue seen lately (forgotten over the window): the size of one overshoot."""
    used_window_ns: float = 0.0
    refill_ns: float = 0.0
    """Largest queue seen in a long while: what it queues when it is not stopped."""
    paused_window_ns: float = 0.0
    """For how long it had no work, and was not held."""

    @property
    def most_ratio(self) -> float:
        """Of a GPU that it would use if nobody hindered it: the rest of the time it pauses."""
        wanted_ns = self.used_window_ns + self.paused_window_ns
        return self.used_window_ns / wanted_ns if wanted_ns > 0 else 1.0


@dataclass(frozen=True)
class GpuAccount:
    """What one GPU delivered, and when it was idle."""

    delivered_window_ns: float = 0.0
    wall_window_ns: float = 0.0
    idle_since_ns: int | None = None
    back_ns: int | None = None
    """When somebody of class latency last came back to it."""


@dataclass(frozen=True)
class Gate:
    """What a tenant's last change forbids and what its hold is for."""

    hold_gpu: str | None = None
    """The GPU it is held for; None = we believe it runs."""
    is_quota: bool = False
    free_ns: int = 0
    """It may not be held before this moment (minimum dwell or minimum run)."""
    vain_ns: int = 0
    """How long its last hold was, if that was a long one and did not do."""


class Solo(NamedTuple):
    """A moment in which one tenant has a GPU to itself (solo.py)."""

    tenant: str
    begin_ns: int
    until_ns: int
    is_over: bool = False

    @property
    def next_ns(self) -> int:
        """Not before this does another one begin: all run for as long as it lasted."""
        return 2 * self.until_ns - self.begin_ns


@dataclass(frozen=True)
class Solos:
    """The latest on each GPU, and how many there were of each tenant."""

    latest: Mapping[str, Solo] = field(default_factory=dict)
    tries: Mapping[TenantGpu, tuple[int, int]] = field(default_factory=dict)
    """And when the last one was."""

    def on(self, gpu: str) -> str | None:
        """Who has it now."""
        solo = self.latest.get(gpu)
        return None if solo is None or solo.is_over else solo.tenant


@dataclass(frozen=True)
class PolicyState:
    """Everything the policy remembers between two decisions. Treat as immutable."""

    accounts: Mapping[TenantGpu, Account] = field(default_factory=dict)
    gpus: Mapping[str, GpuAccount] = field(default_factory=dict)
    quota_level_ns: Mapping[TenantGpu, float] = field(default_factory=dict)
    gates: Mapping[str, Gate] = field(default_factory=dict)
    solos: Solos = field(default_factory=Solos)
    """Not kept: what was measured is gone with the daemon, so that it was tried says nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, so that debt survives a restart of the daemon."""
        return {
            "accounts": [[*key, account._asdict()] for key, account in sorted(self.accounts.items())],
            "gpus": {gpu: dict(vars(account)) for gpu, account in sorted(self.gpus.items())},
            "quota_level_ns": [[*key, level] for key, level in sorted(self.quota_level_ns.items())],
            "gates": {tenant: dict(vars(gate)) for tenant, gate in sorted(self.gates.items())},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyState:
        return cls(
            accounts={(tenant, gpu): Account(**kept) for tenant, gpu, kept in data["accounts"]},
            gpus={gpu: GpuAccount(**kept) for gpu, kept in data["gpus"].items()},
            quota_level_ns={(node, gpu): level for node, gpu, level in data["quota_level_ns"]},
            gates={tenant: Gate(**kept) for tenant, kept in data["gates"].items()},
        )


@dataclass(frozen=True)
class Books:
    """The accounts brought up to ``now_ns``, and who counts."""

    accounts: dict[TenantGpu, Account]
    gpus: dict[str, GpuAccount]
    quota_level_ns: dict[TenantGpu, float]
    owed: dict[str, dict[str, float]]
    """GPU -> tenant -> entitlement over A, caps included; the keys are A."""
    enforced: dict[str, set[str]]
    """GPU -> tenants with a use there that is enforced."""
    left_ratio: dict[str, float]
    """GPU -> part of what it delivered over the window that they share; the rest was taken off the top."""
    clamp_ns: dict[str, float]
    """GPU -> the most that anybody owes, or is owed."""


@dataclass(frozen=True)
class _Step:
    """One snapshot being booked, and what is the same for every account in it."""

    snapshot: Snapshot
    specs: Mapping[str, TenantSpec]
    params: PolicyParams
    kept_ratio: float
    """What is left of a debt or a window's sum after the interval ..."""
    kept_queue_ratio: float
    """... and of the memory of a queue."""
    foreign: frozenset[str]
    """Tenants that somebody else has paused."""

    @classmethod
    def of(cls, snapshot: Snapshot, specs: Mapping[str, TenantSpec], params: PolicyParams) -> _Step:
        interval_ns = max(snapshot.interval_ns, 0)
        return cls(
            snapshot,
            specs,
            params,
            math.exp(-interval_ns / params.window_ns),
            math.exp(-interval_ns / params.queue_memory_ns),
            frozenset(name for name, hold in snapshot.holds.items() if not hold.is_ours),
        )


def advance(
    snapshot: Snapshot,
    state: PolicyState,
    parked: Mapping[str, str],
    specs: Mapping[str, TenantSpec],
    params: PolicyParams,
) -> Books:
    """Book one snapshot. ``parked``: tenants held by us, and the GPU each is held for."""
    step, books = _Step.of(snapshot, specs, params), Books({}, {}, {}, {}, {}, {}, {})
    uses: dict[str, list[Use]] = {}
    before: dict[str, dict[str, Account]] = {}
    accounts, new, known = state.accounts, Account(), 0
    for use in snapshot.uses:
        gpu = use.gpu
        if gpu not in uses:
            uses[gpu], before[gpu] = [], {}
        account = accounts.get((use.tenant, gpu))
        known += account is not None
        uses[gpu].append(use)
        before[gpu][use.tenant] = account or new
    if known < len(accounts):
        _add_absent(before, accounts)
    for gpu in sorted(before):
        rows = uses.get(gpu, [])
        aside = {tenant for tenant, held_for in parked.items() if held_for != gpu}
        aside |= {use.tenant for use in rows if not use.may_be_owed or use.is_anew}
        is_back = _book_gpu(gpu, {use.tenant: use for use in rows}, before[gpu], aside, step, books)
        window = _book_window(gpu, rows, state.gpus.get(gpu, GpuAccount()), step)
        books.gpus[gpu] = replace(window, back_ns=snapshot.now_ns) if is_back else window
        books.left_ratio[gpu] = _left_ratio(gpu, rows, books)
    _book_quotas(state.quota_level_ns, step, books)
    return books


def _add_absent(before: dict[str, dict[str, Account]], accounts: Mapping[TenantGpu, Account]) -> None:
    """Those that nothing was seen of in this snapshot."""
    for (tenant, gpu), account in accounts.items():
        before.setdefault(gpu, {}).setdefault(tenant, account)


def _book_gpu(
    gpu: str,
    used: Mapping[str, Use],
    before: Mapping[str, Account],
    aside: set[str],
    step: _Step,
    books: Books,
) -> bool:
    """Returns whether somebody of class latency came back to it just now."""
    active_ns, enforced, active, is_back = _attendance(used, before, step)
    owed = entitlements(active, step.specs, gpu)
    # Where everybody is capped the caps leave part of the GPU owed to nobody; booking that part as
    # debt would punish using a GPU nobody else wanted. Quotas are enforced by their own bucket.
    total = math.fsum(owed.values())
    part = {name: ratio / total for name, ratio in owed.items()} if total > 0 else {}
    delivered = sum([used[name].charged_ns for name in enforced])
    lag = {}
    for name, account in before.items():
        lag_ns = account.lag_ns
        if name in enforced:
            lag_ns += part.get(name, 0.0) * delivered - used[name].charged_ns
        lag[name] = lag_ns
    light = _light(part, used, before, delivered)
    unearned = {name: 0.0 if used[name].is_anew else before[name].lag_ns for name in aside & part.keys()}
    most, takers = _limits(part, lag, unearned, light)
    surplus = 0.0
    for name, credit in most.items():
        kept = min(lag[name], max(credit, 0.0))
        surplus += lag[name] - kept
        lag[name] = kept
    clamp = books.clamp_ns[gpu] = deep.clamp_ns(
        [account.refill_ns for account in before.values()], step.params
    )
    _settle(lag, takers, part, surplus, clamp, step.kept_ratio)
    books.owed[gpu], books.enforced[gpu] = owed, enforced
    for name, account in _moved(used, before, lag, active_ns, step):
        books.accounts[name, gpu] = account
    return is_back


def _limits(
    part: Mapping[str, float],
    lag: Mapping[str, float],
    aside: Mapping[str, float],
    light: Mapping[str, float],
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The most credit of those who may not earn like others, and who takes what they forfeit, by entitlement."""
    most, takers = dict[str, float](), part
    for limits in (aside, light):
        if not limits:
            continue
        rest = {name: ratio for name, ratio in takers.items() if name not in limits}
        if limits is light and not any(rest.values()):
            # Together they want less than there is: what one forfeits is forgiven to those in debt.
            rest = {name: ratio for name, ratio in takers.items() if lag[name] < 0}
        # A taker may be owed nothing (its sibling's floor fills their parent's cap), and cannot take then.
        if any(rest.values()):
            most, takers = {**limits, **most}, rest
    return most, takers


def _light(
    part: Mapping[str, float],
    used: Mapping[str, Use],
    before: Mapping[str, Account],
    delivered: int,
) -> dict[str, float]:
    """Who pauses so much that it would not use its part if nobody hindered it, and the most credit that it has."""
    light = {}
    for name, ratio in part.items():
        account = before[name]
        if account.paused_window_ns and account.most_ratio < ratio:
            spent = used[name].charged_ns + used[name].idle_ns
            light[name] = account.lag_ns + account.most_ratio * delivered - spent
    return light


def _attendance(
    used: Mapping[str, Use], before: Mapping[str, Account], step: _Step
) -> tuple[dict[str, int | None], set[str], set[str], bool]:
    """When each last had demand, who is enforced, who is in A, and whether somebody of class latency came back.

    One pass, because a thousand tenants are gone through at every tick.
    """
    now_ns, foreign, specs = step.snapshot.now_ns, step.foreign, step.specs
    # A stamp from the future comes from a state saved before a reboot.
    earliest_ns = now_ns - step.params.demand_grace_ns
    # A look that comes late makes nobody absent who wanted the GPU at the one before.
    away_ns = now_ns - max(step.params.away_ns, step.snapshot.interval_ns)
    active_ns: dict[str, int | None] = {}
    enforced: set[str] = set()
    active: set[str] = set()
    is_back = False
    for name, account in before.items():
        before_ns = since_ns = account.active_ns
        use = used.get(name)
        if use is None:
            active_ns[name] = since_ns
            continue
        is_foreign = name in foreign
        if (use.has_demand or use.used_ns > 0) and not is_foreign:
            since_ns = now_ns
        active_ns[name] = since_ns
        spec = specs.get(name) or spec_for(name, specs)
        if not use.is_enforced or spec.is_exempt:
            continue
        enforced.add(name)
        if since_ns is not None and earliest_ns <= since_ns <= now_ns and not is_foreign:
            active.add(name)
            if before_ns is None or before_ns < away_ns:
                is_back |= spec.tenant_class is TenantClass.LATENCY
    return active_ns, enforced, active, is_back


def _moved(
    used: Mapping[str, Use],
    before: Mapping[str, Account],
    lag: Mapping[str, float],
    active_ns: Mapping[str, int | None],
    step: _Step,
) -> Iterator[tuple[str, Account]]:
    """The accounts of one GPU at the end of the interval, by tenant; without those that are forgotten."""
    kept, kept_queue = step.kept_ratio, step.kept_queue_ratio
    for name, (_, _, drain_ns, window_ns, refill_ns, paused_ns) in before.items():
        drain_ns, window_ns, refill_ns = drain_ns * kept, window_ns * kept, refill_ns * kept_queue
        paused_ns *= kept
        use, lag_ns = used.get(name), lag[name]
        if use is not None:
            queued_ns = float(use.outstanding_ns)
            if use.is_anew:
                window_ns = paused_ns = 0.0
            window_ns += use.used_ns
            if use.has_demand:  # else it is away, which says nothing of what it can use while it is there
                paused_ns += use.paused_ns
            drain_ns = queued_ns if queued_ns > drain_ns else drain_ns
            refill_ns = queued_ns if queued_ns > refill_ns else refill_ns
        elif abs(lag_ns) <= _FORGOTTEN_NS:
            continue
        yield name, Account(lag_ns, active_ns[name], drain_ns, window_ns, refill_ns, paused_ns)


def _settle(
    lag: dict[str, float],
    takers: Mapping[str, float],
    active: Mapping[str, float],
    pot: float,
    clamp: float,
    kept: float,
) -> None:
    """Expire, forget and clamp; what that takes from one account goes to ``takers`` by entitlement."""
    for name, lag_ns in lag.items():
        after = lag_ns
        if name not in active:
            after = 0.0 if lag_ns > 0 else lag_ns * kept
        if after > clamp:
            after = clamp
        elif after < -clamp:
            after = -clamp
        if after != lag_ns:
            pot += lag_ns - after
            lag[name] = after
    if not pot:
        return
    total = math.fsum(takers.values())
    for name, ratio in takers.items():
        lag[name] = min(max(lag[name] + pot * ratio / total, -clamp), clamp)


def _left_ratio(gpu: str, rows: Sequence[Use], books: Books) -> float:
    enforced, delivered_ns = books.enforced[gpu], books.gpus[gpu].delivered_window_ns
    if len(enforced) == len(rows) or delivered_ns <= 0:
        return 1.0
    taken = [books.accounts[use.tenant, gpu].used_window_ns for use in rows if use.tenant not in enforced]
    return max(0.0, 1 - math.fsum(taken) / delivered_ns)


def _book_window(gpu: str, rows: Iterable[Use], before: GpuAccount, step: _Step) -> GpuAccount:
    snapshot = step.snapshot
    delivered = sum([use.used_ns for use in rows])
    idle_since = None
    if gpu in snapshot.idle_gpus:
        # Work that came and went inside the interval ended the idleness seen before it.
        is_same_pause = before.idle_since_ns is not None and delivered == 0
        idle_since = before.idle_since_ns
        if not is_same_pause:
            idle_since = min(snapshot.idle_since_ns.get(gpu, snapshot.now_ns), snapshot.now_ns)
    return GpuAccount(
        before.delivered_window_ns * step.kept_ratio + delivered,
        before.wall_window_ns * step.kept_ratio + snapshot.interval_ns,
        idle_since,
        before.back_ns,
    )


def _book_quotas(before: Mapping[TenantGpu, float], step: _Step, books: Books) -> None:
    """A quota on an inner node binds the sum of the leaves below it."""
    specs, params = step.specs, step.params
    if all(spec.quota_ratio is None for spec in specs.values()):
        return
    used: dict[TenantGpu, int] = {}
    for use in step.snapshot.uses:
        if use.tenant in books.enforced[use.gpu]:
            for node in ancestors(use.tenant):
                used[node, use.gpu] = used.get((node, use.gpu), 0) + use.charged_ns
    for key, used_ns in used.items():
        quota = specs[key[0]].quota_ratio if key[0] in specs else None
        if quota is not None:
            level = before.get(key, 0.0) + used_ns - quota * step.snapshot.interval_ns
            # A little credit, so that a thaw some ms late does not take away what the quota grants.
            credit = params.quota_burst_ratio * quota * params.window_ns
            books.quota_level_ns[key] = min(max(level, -credit), float(params.window_ns))
