# SPDX-License-Identifier: Apache-2.0
"""Lag: how much GPU time each tenant is owed (positive) or has taken ahead of its turn (negative).

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
- enforced: confidence HIGH and not exempt. The use of the others is taken off the top: it moves
  nobody's lag, the enforced tenants share what is left.
- expiry: positive lag of a tenant without demand is dropped at once (no hoarding); debt is forgotten
  as exp(-t/window), so a short pause forgives almost nothing.
- aside: a tenant held by us for another GPU. It may spend its credit here or run up debt, but earns no
  more: that it does not run here is not the doing of the tenants here.
- drain: GPU time already queued. It is never booked here: it is delivered, and charged to its owner
  as ``used_ns``, whether or not the owner is held. The *effective* lag = lag - outstanding stays put
  while the drain is delivered, which is why deciding on it counts nothing twice.
- quota level: leaky bucket, += used, -= quota x interval, credit bounded by ``quota_burst_ratio``.
- ``*_window_ns``: sums with exponential forgetting over the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fairsched.model import Confidence, PolicyParams, Snapshot, TenantClass, TenantSpec, Use
from fairsched.policy.shares import ancestors, entitlements, spec_for

Key = tuple[str, str]
"""(tenant, GPU UUID); for quotas the name may be an inner node."""

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
    """Largest queue seen in a long while: what it queues when nobody stops it."""


@dataclass(frozen=True)
class GpuAccount:
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


@dataclass(frozen=True)
class PolicyState:
    """Everything the policy remembers between two decisions. Treat as immutable."""

    accounts: Mapping[Key, Account] = field(default_factory=dict)
    gpus: Mapping[str, GpuAccount] = field(default_factory=dict)
    quota_level_ns: Mapping[Key, float] = field(default_factory=dict)
    gates: Mapping[str, Gate] = field(default_factory=dict)

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

    accounts: dict[Key, Account]
    gpus: dict[str, GpuAccount]
    quota_level_ns: dict[Key, float]
    owed: dict[str, dict[str, float]]
    """GPU -> tenant -> entitlement over A, caps included; the keys are A."""
    enforced: dict[str, set[str]]
    """GPU -> tenants with a use there that is enforced."""


def is_enforced(use: Use, specs: Mapping[str, TenantSpec]) -> bool:
    return use.confidence is Confidence.HIGH and not spec_for(use.tenant, specs).is_exempt


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
    accounts: Mapping[Key, Account],
    gpus: Mapping[str, GpuAccount],
    quota_level_ns: Mapping[Key, float],
    parked: Mapping[str, str],
    specs: Mapping[str, TenantSpec],
    params: PolicyParams,
) -> Books:
    """Book one snapshot. ``parked``: tenants held by us, and the GPU each is held for."""
    step, books = _Step.of(snapshot, specs, params), Books({}, {}, {}, {}, {})
    uses: dict[str, list[Use]] = {}
    before: dict[str, dict[str, Account]] = {}
    present = {(use.tenant, use.gpu) for use in snapshot.uses}
    for key, account in accounts.items():
        if key not in present:
            before.setdefault(key[1], {})[key[0]] = account
    new = Account()
    for use in snapshot.uses:
        uses.setdefault(use.gpu, []).append(use)
        before.setdefault(use.gpu, {})[use.tenant] = accounts.get((use.tenant, use.gpu), new)
    for gpu in sorted(before):
        rows = uses.get(gpu, [])
        aside = {tenant for tenant, held_for in parked.items() if held_for != gpu}
        _book_gpu(gpu, rows, before[gpu], aside, step, books)
        back = books.gpus.get(gpu)
        books.gpus[gpu] = _book_window(gpu, rows, gpus.get(gpu, GpuAccount()), step)
        if back is not None:
            books.gpus[gpu] = replace(books.gpus[gpu], back_ns=back.back_ns)
    _book_quotas(quota_level_ns, step, books)
    return books


def _book_gpu(
    gpu: str,
    rows: Iterable[Use],
    before: Mapping[str, Account],
    aside: set[str],
    step: _Step,
    books: Books,
) -> None:
    used = {use.tenant: use for use in rows}
    enforced = {name for name, use in used.items() if is_enforced(use, step.specs)}
    active_ns = {name: _active_ns(name, account, used.get(name), step) for name, account in before.items()}
    active = {name for name in enforced - step.foreign if _is_recent(active_ns[name], step)}
    owed = entitlements(active, step.specs)
    # Where everybody is capped the caps leave part of the GPU owed to nobody; booking that part as
    # debt would punish using a GPU nobody else wanted. Quotas are enforced by their own bucket.
    total = math.fsum(owed.values())
    part = {name: ratio / total for name, ratio in owed.items()} if total > 0 else {}
    delivered = sum(used[name].used_ns for name in enforced)
    lag = {name: account.lag_ns for name, account in before.items()}
    for name in enforced:
        lag[name] += part.get(name, 0.0) * delivered - used[name].used_ns
    # A taker may be owed nothing (its sibling's floor fills their parent's cap), and cannot take then.
    if aside and not any(part[name] > 0 for name in part.keys() - aside):
        aside = set()
    surplus = 0.0
    for name in aside & part.keys():
        most = max(before[name].lag_ns, 0.0)
        surplus += max(lag[name] - most, 0.0)
        lag[name] = min(lag[name], most)
    takers = {name: part[name] for name in part if name not in aside} if aside else part
    _settle(lag, takers, part, surplus, step)
    if any(_is_back(name, before[name], step) for name in active):
        books.gpus[gpu] = GpuAccount(back_ns=step.snapshot.now_ns)
    books.owed[gpu], books.enforced[gpu] = owed, enforced
    for name, account in before.items():
        use = used.get(name)
        if use is not None or abs(lag[name]) > _FORGOTTEN_NS:
            books.accounts[name, gpu] = _moved(account, use, lag[name], active_ns[name], step)


def _is_back(name: str, before: Account, step: _Step) -> bool:
    was_away = before.active_ns is None or step.snapshot.now_ns - before.active_ns > step.params.away_ns
    return was_away and spec_for(name, step.specs).tenant_class is TenantClass.LATENCY


def _active_ns(name: str, account: Account, use: Use | None, step: _Step) -> int | None:
    is_active = use is not None and (use.has_demand or use.used_ns > 0) and name not in step.foreign
    return step.snapshot.now_ns if is_active else account.active_ns


def _moved(account: Account, use: Use | None, lag_ns: float, active_ns: int | None, step: _Step) -> Account:
    """The account at the end of the interval."""
    drain_ns, window_ns = account.drain_ns * step.kept_ratio, account.used_window_ns * step.kept_ratio
    refill_ns = account.refill_ns * step.kept_queue_ratio
    if use is None:
        return Account(lag_ns, active_ns, drain_ns, window_ns, refill_ns)
    queued_ns = float(use.outstanding_ns)
    return Account(
        lag_ns, active_ns, max(queued_ns, drain_ns), window_ns + use.used_ns, max(queued_ns, refill_ns)
    )


def _settle(
    lag: dict[str, float],
    takers: Mapping[str, float],
    active: Mapping[str, float],
    pot: float,
    step: _Step,
) -> None:
    """Expire, forget and clamp; what that takes from one account goes to ``takers`` by entitlement."""
    clamp = float(step.params.lag_clamp_ns)
    for name, lag_ns in lag.items():
        after = lag_ns
        if name not in active:
            after = 0.0 if lag_ns > 0 else lag_ns * step.kept_ratio
        after = min(max(after, -clamp), clamp)
        if after != lag_ns:
            pot += lag_ns - after
            lag[name] = after
    if not pot:
        return
    total = math.fsum(takers.values())
    for name, ratio in takers.items():
        lag[name] = min(max(lag[name] + pot * ratio / total, -clamp), clamp)


def _book_window(gpu: str, rows: Iterable[Use], before: GpuAccount, step: _Step) -> GpuAccount:
    snapshot = step.snapshot
    delivered = sum(use.used_ns for use in rows)
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


def _book_quotas(before: Mapping[Key, float], step: _Step, books: Books) -> None:
    """A quota on an inner node binds the sum of the leaves below it."""
    specs, params = step.specs, step.params
    if all(spec.quota_ratio is None for spec in specs.values()):
        return
    used: dict[Key, int] = {}
    for use in step.snapshot.uses:
        if use.tenant in books.enforced[use.gpu]:
            for node in ancestors(use.tenant):
                used[node, use.gpu] = used.get((node, use.gpu), 0) + use.used_ns
    for key, used_ns in used.items():
        quota = specs[key[0]].quota_ratio if key[0] in specs else None
        if quota is not None:
            level = before.get(key, 0.0) + used_ns - quota * step.snapshot.interval_ns
            # A little credit, so that a thaw some ms late does not take away what the quota grants.
            credit = params.quota_burst_ratio * quota * params.window_ns
            books.quota_level_ns[key] = min(max(level, -credit), float(params.window_ns))


def _is_recent(active_ns: int | None, step: _Step) -> bool:
    if active_ns is None:
        return False
    # A stamp from the future comes from a state saved before a reboot.
    return 0 <= step.snapshot.now_ns - active_ns <= step.params.demand_grace_ns
