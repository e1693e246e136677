# SPDX-License-Identifier: Apache-2.0
"""Makes the Snapshot of account rows and holds that the policy judges.

Problem. The account speaks of processes, cgroup ids and slots, the policy of tenants and UUIDs; and of some work it is
not sure, or it does not see it at all.

Approach. A tenant is charged the most that it may have had, and what may be held is what a hold can end: so nothing of
which we know little frees its tenant, or anybody else, from its weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fairsched.accounting.context import ProcessUse
from fairsched.gpu.nvml import Gpu, gpu_label
from fairsched.model import NOTHING_UNSEEN, Confidence, Hold, Snapshot, Unseen, Use
from fairsched.observe.tree import Tree


def _sum(one: ProcessUse, other: ProcessUse) -> ProcessUse:
    """Two processes of one tenant on one GPU; as sure as the less sure of them."""
    return replace(
        one,
        used_ns=one.used_ns + other.used_ns,
        has_demand=one.has_demand or other.has_demand,
        outstanding_ns=one.outstanding_ns + other.outstanding_ns,
        confidence=one.confidence.and_of(other.confidence),
        launches=one.launches + other.launches,
        unmeasured_ns=one.unmeasured_ns + other.unmeasured_ns,
        paused_ns=one.paused_ns + other.paused_ns,
        idle_ns=one.idle_ns + other.idle_ns,
        is_anew=one.is_anew or other.is_anew,
    )


@dataclass(frozen=True)
class Observation:
    """What was read of the world at one moment, by cgroup id and GPU slot."""

    now_ns: int
    interval_ns: int
    """Since the observation before."""
    rows: Iterable[ProcessUse] = ()
    holds: Mapping[str, Hold] = field(default_factory=dict)
    freeze_latency_ns: Mapping[str, int] = field(default_factory=dict)
    idle_slots: Iterable[int] = ()
    idle_since_ns: Mapping[int, int] = field(default_factory=dict)
    """By slot, when GPUs last fell idle in this interval, where that is known."""
    doubted: Collection[tuple[str, str]] = ()
    """(tenant, UUID) whose account is not to be believed, whatever it says of itself."""
    stuck: Collection[tuple[int, str]] = ()
    """(process, UUID) whose work never ends: no hold stops it, and it excuses none of its siblings."""
    kept: Collection[tuple[str, str]] = ()
    """(tenant, UUID) that are never held."""
    contradicted: frozenset[str] = frozenset()
    """UUIDs of GPUs on which nobody is to be held now."""
    hidden: Collection[str] = ()
    """Tenants that have work which no table of ours has room for."""
    unseen: Unseen = NOTHING_UNSEEN
    """What tenants have beyond what their calls account for."""


_UNSURE = (Confidence.LOW, Confidence.NONE)


def with_unseen(uses: list[Use], seen: Observation) -> list[Use]:
    """With the work that is in no account charged to whose it is, and not to the others.

    It is as much as samples say, in the time in which its tenant runs. It is held for that, and owed nothing: it may
    want less, and nobody is to be held for its sake.
    """
    rates, left = seen.unseen
    found = {
        (use.tenant, use.gpu): _scaled(use, 1.0 if (use.tenant, use.gpu) in rates else left.get(use.gpu, 1.0))
        for use in uses
    }
    for (tenant, gpu), rate in rates.items():
        use = found.get((tenant, gpu)) or Use(tenant, gpu, 0, True, 0, Confidence.LOW)
        used_ns = use.used_ns + (0 if tenant in seen.holds else round(rate * seen.interval_ns))
        found[tenant, gpu] = use._replace(
            used_ns=used_ns,
            has_demand=True,
            confidence=Confidence.LOW,
            most_ns=None if (tenant, gpu) in seen.kept else used_ns,
            may_be_owed=False,
        )
    return list(found.values())


def _scaled(use: Use, ratio: float) -> Use:
    most_ns = None if use.most_ns is None else round(use.most_ns * ratio)
    return use._replace(used_ns=round(use.used_ns * ratio), most_ns=most_ns)


def _overdrawn(uses: list[Use], seen: Observation) -> list[Use]:
    """With what who is over its budget may have used: a whole GPU, wherever others work, unless it was held.

    It wants all that, as far as anybody can tell; where nobody else has work it is not held for it.
    """
    found = {(use.tenant, use.gpu): use for use in uses}
    for tenant in seen.hidden:
        most_ns = 0 if tenant in seen.holds else seen.interval_ns
        for gpu in {use.gpu for use in uses}:
            use = found.get((tenant, gpu)) or Use(tenant, gpu, 0, True, 0, Confidence.LOW)
            found[tenant, gpu] = use._replace(
                has_demand=True,
                confidence=Confidence.LOW,
                most_ns=max(most_ns, use.used_ns),
                may_be_owed=False,
            )
    return list(found.values())


def build_snapshot(
    seen: Observation, tree_view: Tree, gpus: tuple[Gpu, ...]
) -> tuple[Snapshot, dict[str, int]]:
    """Make the Snapshot, and sum up the GPU time in ns by UUID of processes that belong to no tenant."""
    found: dict[tuple[str, str], ProcessUse] = {}
    strangers: dict[str, int] = {}
    labels: dict[int, str] = {}
    sure_ns: dict[tuple[str, str], int] = {}  # of those of its processes of which the account is sure
    stuck, wanting = set[tuple[str, str]](), set[tuple[str, str]]()
    tenant_of = tree_view.tenant_of
    for row in seen.rows:
        gpu = labels.get(row.gpu) or labels.setdefault(row.gpu, gpu_label(gpus, row.gpu))
        tenant = tenant_of(row.cgroup_id)
        if tenant is None:
            strangers[gpu] = strangers.get(gpu, 0) + row.used_ns
            continue
        key = (tenant, gpu)
        if row.confidence not in _UNSURE:
            sure_ns[key] = sure_ns.get(key, 0) + row.used_ns
        if (row.tgid, gpu) in seen.stuck:
            stuck.add(key)
        elif row.has_demand:
            wanting.add(key)
        found[key] = row if key not in found else _sum(found[key], row)
    held_anyway = (stuck & wanting).difference(seen.kept)
    uses = []
    for key, row in found.items():
        is_doubted = key in seen.doubted or key in seen.kept
        sure = row.confidence if not is_doubted else Confidence.LOW
        most_ns = None
        if sure is Confidence.BOUND:
            sure, most_ns = Confidence.LOW, row.used_ns
        elif key in held_anyway:
            most_ns = row.used_ns  # a hold ends the work of the others
        elif row.confidence is Confidence.LOW and not is_doubted:
            most_ns = sure_ns.get(key)  # what is a guess of one process excuses no other
        tenant, gpu = key
        told = (row.used_ns, row.has_demand, row.outstanding_ns, sure, 0, row.launches, row.unmeasured_ns)
        pauses = (row.paused_ns, row.idle_ns, row.is_anew)
        uses.append(Use(tenant, gpu, *told, most_ns, True, *pauses))
    uses = with_unseen(uses, seen) if seen.unseen.rates else uses
    uses = _overdrawn(uses, seen) if seen.hidden else uses
    snapshot = Snapshot(
        now_ns=seen.now_ns,
        interval_ns=seen.interval_ns,
        uses=tuple(uses),
        holds=seen.holds,
        freeze_latency_ns=seen.freeze_latency_ns,
        idle_gpus=frozenset(gpu_label(gpus, slot) for slot in seen.idle_slots),
        idle_since_ns={gpu_label(gpus, slot): since for slot, since in seen.idle_since_ns.items()},
        contradicted=seen.contradicted,
    )
    return snapshot, strangers
