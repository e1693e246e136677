# SPDX-License-Identifier: Apache-2.0
"""Finds the cgroups of tenants.

Problem: BPF speaks of cgroup ids and pids, the policy of tenants and GPU UUIDs; cgroups come, go and are made
again under the same name while we look.

Approach: the tree is looked at about once a second and whenever a row names a cgroup we do not know; ids, not
paths, tie rows to tenants. What a tenant is held by is the cgroup the configuration matched, opened as a
directory descriptor when it is first seen.

A look is a walk, the tenants built anew where the walk found something else than the one before, and a glance at
each tenant's cgroup for pauses that are not ours. No tick does more than _PORTION of it: a tree of thousands of cgroups
is looked at over many ticks, a small one at once. A tenant may make as many cgroups as it likes: of each the walk takes
in MOST_CGROUPS. A cgroup beyond that is found by its id, without a walk, once it uses a GPU.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fairsched.base.printable import word
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.state import read_state
from fairsched.config.owners import CgroupOwners
from fairsched.errors import ConfigError, FairschedError, KernelRefused
from fairsched.model import TenantSpec
from fairsched.observe.processes import ProcessLists
from fairsched.observe.whose import Whose

_WALK_EVERY_NS = 1_000_000_000
_WALK_AGAIN_NS = 50_000_000
_PORTION = 256
"""Of a look, at one time: so many cgroups walked over, or a quarter of that looked into."""
_LOOK_COST = 4
_LEAST = 64
_LONGEST_NS = 2_000_000
"""Of a look, at one time: no more than _LEAST once it has taken so long."""
_MATCHED_PER_COST = 8
"""Cgroups that are matched in the time in which one is walked over."""
MOST_CGROUPS = 2048
"""Of one tenant, its children included; a node of Kubernetes has some 110 pods of four or five in all."""
_MOST_UNKNOWN = 32
"""Cgroups found by their ids in one tick: some 20 us each."""
_MOST_BEYOND = 1024
"""Kept of those, on the node."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
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
    spec: TenantSpec | None = None
    """As the configuration said when its cgroups were matched."""
    is_pod: bool = False

    @property
    def is_paused(self) -> bool:
        """Somebody else has paused all of it. Of one in several cgroups the others are held as before: who pauses one
        of its own frees none of them."""
        return bool(self.foreign) and self.foreign >= self.refs.keys()


def _top(tenant: str) -> str:
    """The tenant of the configuration that a leaf tenant is, or is below."""
    return tenant.partition("/")[0]


def refuse_own_cgroup(owners: CgroupOwners, mount: Mount, file: str) -> None:
    """Raises ConfigError where the configuration would have us freeze ourselves."""
    path = tree.cgroup_path_of(os.getpid(), mount)
    owner = owners.owner(path) if path else None
    if owner is not None:
        raise ConfigError(
            f"the daemon itself runs in {path}, which belongs to tenant '{owner.tenant}': it would freeze itself",
            file=file,
            key=owner.key,
            remedy="run the daemon outside the tenants' cgroups, as the systemd service does",
        )


class Tree(Whose):
    """The cgroups of the tenants, kept current. ``is_beside``: names are read in a thread from now on."""

    def __init__(self, mount: Mount, owners: CgroupOwners, *, is_beside: bool = False) -> None:
        super().__init__(mount)
        self._owners = owners
        if is_beside:
            owners.names.start()
        self._nodes: dict[int, str] | None = None
        """The path of each cgroup, as it was matched; None = to be matched whatever is found."""
        self._names_version = 0
        """Of the names that people gave, when the cgroups were matched."""
        self._next_walk_ns = 0
        self._look: Iterator[int] | None = None
        """The look that goes on; yields what each part of it cost."""
        self._strangers: set[int] = set()
        """Cgroups of no tenant that use a GPU: no reason to walk again."""
        self._held: Collection[int] = ()
        self._processes = ProcessLists(mount)
        self._counts: dict[str, int] = {}
        """Of the walk that goes on, by tenant: its cgroups, those of its children included."""
        self._beyond: dict[int, str] = {}
        """The paths of cgroups that no walk has taken in, and that use a GPU."""
        self.crowded: frozenset[str] = frozenset()
        """Tenants with more than MOST_CGROUPS."""
        self.changes = 0
        """How often the tenants were built anew."""
        self.tenants: dict[str, TenantView] = {}

    def set_owners(self, owners: CgroupOwners) -> None:
        """Take in a changed configuration: match all cgroups again."""
        self._owners = owners
        self._next_walk_ns = 0
        self._nodes = self._look = None
        self._strangers.clear()
        self._beyond.clear()

    @property
    def paths(self) -> Mapping[int, str] | None:
        """Every cgroup by id, as of the last look at all of them; None before that."""
        return self._nodes

    def has_cgroup(self, cgroup_id: int) -> bool:
        """Whether a cgroup was there at the last look, of a tenant or not; True before the first."""
        return self._nodes is None or cgroup_id in self._nodes or cgroup_id in self._beyond

    def refresh(self, now_ns: int, held: Collection[int], users: Iterable[int] = ()) -> bool:
        """Look at the tree if it is time, or if one of ``users`` (cgroup ids with GPU work) is not known yet.

        True when tenants or their cgroups are not what they were. ``held``: cgroup ids we hold ourselves.
        """
        if self._look is None:
            unknown = self._find(set(users) - self._tenant_of.keys() - self._strangers)
            due_ns = self._next_walk_ns
            if unknown or self._names_version != self._owners.version:
                due_ns = min(due_ns, self._next_walk_ns - _WALK_EVERY_NS + _WALK_AGAIN_NS)
            if now_ns < due_ns:
                return False
            self._next_walk_ns = now_ns + _WALK_EVERY_NS
            self._look = self._look_at_all(unknown)
        self._held, before, cost, begun_ns = held, self.changes, 0, time.monotonic_ns()
        for part in self._look:
            cost += part
            is_enough = cost >= _PORTION or (cost >= _LEAST and time.monotonic_ns() - begun_ns > _LONGEST_NS)
            # Nothing can be done before all has been seen once.
            if is_enough and self._nodes is not None:
                return self.changes != before
        self._look = None
        return self.changes != before

    def _look_at_all(self, unknown: set[int]) -> Iterator[int]:
        found: dict[int, str] = {}
        self._counts = {}
        for node in tree.walk(self.mount, most=self._room):
            found[node.id] = node.path
            owner = self._owners.owner(node.path)
            if owner is not None:
                name = _top(owner.tenant)
                self._counts[name] = self._counts.get(name, 0) + 1
            yield 1
        self._note_crowded()
        yield len(found) // _MATCHED_PER_COST
        if found != self._nodes or self._names_version != self._owners.version:
            self._match(found)
        for cgroup_id, path in list(self._beyond.items()):
            if cgroup_id in found or tree.path_of_id(self.mount, cgroup_id) != path:
                self._forget(cgroup_id)
            yield 1
        self._strangers |= unknown - self._tenant_of.keys()
        for view in list(self.tenants.values()):
            for ref in list(view.refs.values()):
                self._look_for_pause(view, ref)
                yield _LOOK_COST

    def _room(self, path: str) -> int | None:
        """How many children of a cgroup are taken in; None = all. They are of its tenant: no other is inside."""
        owner = self._owners.owner(path)
        return None if owner is None else max(0, MOST_CGROUPS - self._counts.get(_top(owner.tenant), 0))

    def _note_crowded(self) -> None:
        crowded = frozenset(name for name, count in self._counts.items() if count >= MOST_CGROUPS)
        for name in crowded - self.crowded:
            logger.warning("cgroups=many tenant=%s at_least=%d", word(name), MOST_CGROUPS)
        for name in self.crowded - crowded:
            logger.info("cgroups=few tenant=%s", word(name))
        self.crowded = crowded

    def _find(self, unknown: set[int]) -> set[int]:
        """Take in cgroups of tenants that no walk has taken in, by their ids; those that are still unknown."""
        if not self.crowded:
            return unknown
        for cgroup_id in sorted(unknown)[:_MOST_UNKNOWN]:
            path = tree.path_of_id(self.mount, cgroup_id)
            owner = None if path is None else self._owners.owner(path)
            view = None if owner is None else self.tenants.get(owner.tenant)
            if path is not None and owner is None:
                self._strangers.add(cgroup_id)
            if path is None or view is None:
                continue
            while len(self._beyond) >= _MOST_BEYOND:
                self._forget(next(iter(self._beyond)))
            self._beyond[cgroup_id] = path
            self._add(cgroup_id, view.name)
            view.cgroup_ids.add(cgroup_id)
        return unknown - self._tenant_of.keys() - self._strangers

    def _forget(self, cgroup_id: int) -> None:
        """Of a cgroup that was found by its id."""
        del self._beyond[cgroup_id]
        if self._nodes is not None and cgroup_id not in self._nodes:
            name = self._remove(cgroup_id)
            if name in self.tenants:
                self.tenants[name].cgroup_ids.discard(cgroup_id)

    def _match(self, found: dict[int, str]) -> None:
        """Build the tenants anew; what is known of a cgroup that is still there is kept."""
        before, self.tenants = self.tenants, {}
        tenant_of: dict[int, str] = {}
        homes: dict[str, int] = {}
        old_refs = {key: ref for view in before.values() for key, ref in view.refs.items()}
        foreign = {key for view in before.values() for key in view.foreign}
        self._nodes, self._names_version = found, self._owners.version
        for cgroup_id, path in list(found.items()):
            owner = self._owners.owner(path)
            if owner is None:
                continue
            view = self.tenants.get(owner.tenant)
            if view is None:
                view = self.tenants[owner.tenant] = TenantView(
                    owner.tenant, owner.is_leaf, spec=owner.spec, is_pod=owner.is_pod
                )
            view.cgroup_ids.add(cgroup_id)
            tenant_of[cgroup_id] = owner.tenant
            if path == owner.cgroup:
                homes[path] = cgroup_id
            if owner.is_leaf and path == owner.cgroup:
                ref = old_refs.pop(cgroup_id, None) or self._open(path)
                if ref is None:
                    del found[cgroup_id]  # gone again, or not to be had now: the next walk finds a difference
                    continue
                view.refs[ref.id] = ref
                view.foreign |= foreign & {ref.id}
        for ref in old_refs.values():
            ref.close()
        for cgroup_id, path in self._beyond.items():
            owner = self._owners.owner(path)
            if owner is not None and cgroup_id not in found and owner.tenant in self.tenants:
                tenant_of[cgroup_id] = owner.tenant
                self.tenants[owner.tenant].cgroup_ids.add(cgroup_id)
        self._set(tenant_of, homes)
        self.changes += 1

    def _open(self, path: str) -> CgroupRef | None:
        try:
            return CgroupRef.open(self.mount, path)
        except FairschedError:
            return None

    def look_for_pauses(self, cgroup_id: int) -> None:
        """Look again at the tenant of a cgroup, whose pause began or ended."""
        view = self.tenants.get(self._tenant_of.get(cgroup_id, ""))
        if view is not None:
            for ref in list(view.refs.values()):
                self._look_for_pause(view, ref)

    def _look_for_pause(self, view: TenantView, ref: CgroupRef) -> None:
        try:
            is_foreign = ref.id not in self._held and read_state(ref).is_paused
        except KernelRefused as error:
            if error.errno != errno.ENOENT:
                return
            is_foreign = False  # this kernel has no freezer: what a hold has found stopped may be tried again
        except (FairschedError, OSError):
            return
        if is_foreign:
            view.foreign.add(ref.id)
        else:
            view.foreign.discard(ref.id)

    def pids(self, *, begin: bool) -> dict[int, str] | None:
        """Every process of every tenant, once; None while that takes further calls. ``begin``: again, if it is over."""
        own = {name: view.cgroup_ids for name, view in self.tenants.items() if view.refs}
        return self._processes.step(own, self._path_of, begin=begin)

    def _path_of(self, cgroup_id: int) -> str | None:
        return (self._nodes or {}).get(cgroup_id) or self._beyond.get(cgroup_id)

    def close(self) -> None:
        """Give the descriptors back, and end the thread."""
        self._owners.names.close()
        for view in self.tenants.values():
            for ref in view.refs.values():
                ref.close()
        self.tenants = {}


def specs_in_force(
    named: Mapping[str, TenantSpec], tenants: Mapping[str, TenantView]
) -> dict[str, TenantSpec]:
    """What holds for each tenant: those the file names, and those that exist because a cgroup matched a pattern.

    ``tenants`` may be older than ``named``: a tenant the file names no more is there until the next look.
    """
    specs = dict(named)
    for name, view in tenants.items():
        spec = specs.get(name, view.spec)
        if spec is not None:
            # Processes directly in a parent's cgroup: holding them would hold all children.
            specs[name] = spec if view.is_leaf else replace(spec, is_exempt=True)
    return specs
