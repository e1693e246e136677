# SPDX-License-Identifier: Apache-2.0
"""Observe: from cgroups and account rows to the Snapshot the policy judges.

Problem: BPF speaks of cgroup ids and pids, the policy of tenants and GPU UUIDs; cgroups come, go and are made
again under the same name while we look.

Approach: the tree is walked about once a second and whenever a row names a cgroup we do not know; ids, not
paths, tie rows to tenants. What a tenant is held by is the cgroup the configuration matched, opened as a
directory descriptor when it is first seen.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fairsched.accounting.context import Row
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.state import read_state
from fairsched.config.owners import CgroupOwners
from fairsched.errors import ConfigError, FairschedError
from fairsched.gpu import Gpu, gpu_label
from fairsched.model import Confidence, Hold, Snapshot, Use

_WALK_EVERY_NS = 1_000_000_000
_WALK_AGAIN_NS = 50_000_000

logger = logging.getLogger(__name__)


@dataclass
class TenantView:
    """One leaf tenant on this node."""

    name: str
    is_leaf: bool = True
    refs: dict[int, CgroupRef] = field(default_factory=dict)
    """The cgroups that are frozen to hold it, by id."""
    cgroup_ids: set[int] = field(default_factory=set)
    """All cgroups whose use is its use, by id."""
    foreign: set[int] = field(default_factory=set)
    """Of ``refs``, those somebody else has paused."""


def refuse_own_cgroup(owners: CgroupOwners, mount: Mount, file: str) -> None:
    """Raises ConfigError where the configuration would have us freeze ourselves."""
    path = tree.cgroup_path_of(os.getpid(), mount)
    owner = owners.owner(path) if path else None
    if owner is not None:
        raise ConfigError(
            f"the daemon itself runs in {path}, which belongs to tenant '{owner.tenant}': it would freeze itself",
            file=file,
            key=f"tenants.{owner.tenant}.cgroup",
            remedy="run the daemon outside the tenants' cgroups, as the systemd service does",
        )


class Tree:
    """The cgroups of the tenants, kept current."""

    def __init__(self, mount: Mount, owners: CgroupOwners) -> None:
        self._mount = mount
        self._owners = owners
        self._tenant_of: dict[int, str] = {}
        self._next_walk_ns = 0
        self._strangers: set[int] = set()
        """Cgroups of no tenant that use a GPU: no reason to walk again."""
        self.tenants: dict[str, TenantView] = {}

    def set_owners(self, owners: CgroupOwners) -> None:
        """The configuration changed: match everything again."""
        self._owners = owners
        self._next_walk_ns = 0
        self._strangers.clear()

    def tenant_of(self, cgroup_id: int) -> str | None:
        """The leaf tenant a cgroup belongs to; None = nobody's or not known yet."""
        return self._tenant_of.get(cgroup_id)

    def refresh(self, now_ns: int, held: Iterable[int], users: Iterable[int] = ()) -> bool:
        """Walk the tree if it is time, or if one of ``users`` (cgroup ids with GPU work) is not known yet.

        True when it was walked. ``held``: cgroup ids we hold ourselves.
        """
        unknown = {user for user in users if user not in self._tenant_of} - self._strangers
        due_ns = self._next_walk_ns
        if unknown:
            due_ns = min(due_ns, self._next_walk_ns - _WALK_EVERY_NS + _WALK_AGAIN_NS)
        if now_ns < due_ns:
            return False
        self._next_walk_ns = now_ns + _WALK_EVERY_NS
        before, self.tenants, self._tenant_of = self.tenants, {}, {}
        old_refs = {key: ref for view in before.values() for key, ref in view.refs.items()}
        for node in tree.walk(self._mount):
            owner = self._owners.owner(node.path)
            if owner is None:
                continue
            view = self.tenants.setdefault(owner.tenant, TenantView(owner.tenant, owner.is_leaf))
            view.cgroup_ids.add(node.id)
            self._tenant_of[node.id] = owner.tenant
            if owner.is_leaf and node.path == owner.cgroup:
                self._keep_ref(view, node, old_refs)
        for ref in old_refs.values():
            ref.close()
        self._find_foreign(set(held))
        self._strangers |= unknown - self._tenant_of.keys()
        return True

    def _keep_ref(self, view: TenantView, node: tree.Node, old_refs: dict[int, CgroupRef]) -> None:
        ref = old_refs.pop(node.id, None)
        if ref is None:
            try:
                ref = CgroupRef.open(self._mount, node.path)
            except FairschedError:
                return  # gone again: the next walk will know
        view.refs[ref.id] = ref

    def _find_foreign(self, held: set[int]) -> None:
        for view in self.tenants.values():
            for cgroup_id, ref in view.refs.items():
                if cgroup_id in held:
                    continue
                try:
                    if read_state(ref).is_paused:
                        view.foreign.add(cgroup_id)
                except (FairschedError, OSError):
                    continue

    def pids(self) -> list[int]:
        """Every process of every tenant, now."""
        found: list[int] = []
        for view in self.tenants.values():
            for ref in view.refs.values():
                try:
                    found += tree.read_pids_recursive(self._mount, ref.path)
                except (FairschedError, OSError):
                    continue
        return found

    def close(self) -> None:
        """Give the descriptors back."""
        for view in self.tenants.values():
            for ref in view.refs.values():
                ref.close()
        self.tenants = {}


@dataclass
class _Sum:
    used_ns: int = 0
    has_demand: bool = False
    outstanding_ns: int = 0
    confidence: Confidence = Confidence.HIGH
    launches: int = 0


def build_snapshot(
    rows: Iterable[Row],
    tree_view: Tree,
    gpus: tuple[Gpu, ...],
    holds: Mapping[str, Hold],
    freeze_latency_ns: Mapping[str, int],
    idle_slots: Iterable[int],
    now_ns: int,
    interval_ns: int,
    idle_since_ns: Mapping[int, int] | None = None,
    doubted: Collection[tuple[str, str]] = (),
) -> tuple[Snapshot, dict[str, int]]:
    """The Snapshot, and the GPU time in ns by UUID of processes that belong to no tenant.

    ``idle_since_ns``: by slot, when GPUs last fell idle in this interval, where that is known. ``doubted``: (tenant,
    UUID) whose account is not to be believed, whatever it says of itself.
    """
    sums: dict[tuple[str, str], _Sum] = {}
    strangers: dict[str, int] = {}
    for row in rows:
        tenant = tree_view.tenant_of(row.cgroup_id)
        gpu = gpu_label(gpus, row.gpu)
        if tenant is None:
            strangers[gpu] = strangers.get(gpu, 0) + row.used_ns
            continue
        total = sums.setdefault((tenant, gpu), _Sum())
        total.used_ns += row.used_ns
        total.has_demand |= row.has_demand
        total.outstanding_ns += row.outstanding_ns
        total.launches += row.launches
        if row.confidence is not Confidence.HIGH:
            total.confidence = row.confidence
    for key in doubted:
        if key in sums:
            sums[key].confidence = Confidence.LOW
    uses = tuple(
        Use(tenant, gpu, s.used_ns, s.has_demand, s.outstanding_ns, s.confidence, launches=s.launches)
        for (tenant, gpu), s in sums.items()
    )
    snapshot = Snapshot(
        now_ns=now_ns,
        interval_ns=interval_ns,
        uses=uses,
        holds=holds,
        freeze_latency_ns=freeze_latency_ns,
        idle_gpus=frozenset(gpu_label(gpus, slot) for slot in idle_slots),
        idle_since_ns={gpu_label(gpus, slot): since for slot, since in (idle_since_ns or {}).items()},
    )
    return snapshot, strangers
