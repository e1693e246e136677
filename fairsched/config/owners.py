# SPDX-License-Identifier: Apache-2.0
"""Which tenant owns a cgroup: the runtime side of the patterns and names in the configuration.

The configuration guarantees that at most one tenant claims any path by pattern, and any name, so the answer does not
depend on the order in which cgroups appear. Where one claims a cgroup by pattern and another by name, or two by names
of different things, the outermost cgroup that is claimed decides; of the same cgroup, the pattern, then the name that a
person gave, then the id. So no tenant's cgroup is ever inside of another's.

Names come from files that are read beside the loop: an answer that had to do without one is given anew when
:attr:`CgroupOwners.version` has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairsched.base.printable import printable
from fairsched.cgroup import names as known_names
from fairsched.cgroup.identity import layers_of
from fairsched.cgroup.names import Names
from fairsched.config import patterns
from fairsched.config.gpus import GpuWish
from fairsched.config.match import claims_of
from fairsched.config.models import MAX_NAME_CHARS, Child, Config, Tenant
from fairsched.model import TenantSpec

_REMEMBERED = 16384
"""Paths. Pods come and go: then all are forgotten and asked again."""


@dataclass(frozen=True)
class GpuList:
    """What one `gpus` key says."""

    key: str
    """Where it stands: ``tenants.team.children.chat.gpus``."""
    gpus: GpuWish


@dataclass(frozen=True)
class CgroupOwner:
    """The leaf tenant a cgroup belongs to."""

    tenant: str
    """``chat``, or ``team/chat`` for a child cgroup."""
    cgroup: str
    """The cgroup that is frozen to hold this tenant, as in /proc/PID/cgroup: ``/gpu.slice/chat``."""
    spec: TenantSpec
    is_leaf: bool
    """False: the cgroup belongs to a tenant with children, but to none of them (a process directly
    in the parent's cgroup). It is accounted to the parent; holding it would hold all children."""
    gpu_lists: tuple[GpuList, ...] = ()
    """The `gpus` keys that hold for it, the outermost first."""
    key: str = ""
    """What claims it in the file: ``tenants.chat.cgroup``."""
    is_pod: bool = False
    """It is a child for being a pod: its tenant cannot make another."""


class _Found(NamedTuple):
    """Who claims a cgroup."""

    tenant: str
    cgroup: str
    """What it claims: the path or a prefix of it."""
    pod: str = ""
    """The pod's name, where it is claimed as one."""


class _Claims:
    """Patterns and whose they are: of paths, or of paths of names."""

    def __init__(self, claims: list[tuple[str, str]]) -> None:
        # No two claims meet, so the order in which they are tried does not matter.
        self.literal = {pattern: name for pattern, name in claims if patterns.is_literal(pattern)}
        self.globs = [claim for claim in claims if not patterns.is_literal(claim[0])]

    def on(self, path: str) -> _Found | None:
        """The tenant, and what it claims: the path or a prefix of it."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1 if self.literal else 1):
            prefix = "/".join(parts[:depth])
            if prefix in self.literal:
                return _Found(self.literal[prefix], prefix)
        for pattern, name in self.globs:
            claimed = patterns.claimed_prefix(pattern, path)
            if claimed is not None:
                return _Found(name, claimed)
        return None


class CgroupOwners:
    """Answers :meth:`owner` for one configuration. ``names``: those of this host unless others are given."""

    def __init__(self, config: Config, names: Names | None = None) -> None:
        self._config = config
        self._names = names or known_names.shared()
        self._paths = _Claims(
            [(one, name) for name in config.tenants for one in config.cgroup_patterns(name)]
        )
        matches = [(name, node.match) for name, node in config.tenants.items() if node.match is not None]
        self._named = _Claims([(one, name) for name, match in matches for one in match.claims()])
        self._has_names = bool(matches)
        self._known: dict[str, CgroupOwner | None] = {}
        """Answers given: a walk asks for the same paths every second."""
        self._waiting: set[str] = set()
        """Of those, the ones that a name which is not known yet may change."""
        self._version = self.version
        if self._has_names:
            self._names.ask_again()

    @property
    def names(self) -> Names:
        """Where names that people gave are read."""
        return self._names

    @property
    def version(self) -> int:
        """Changes when a name has come that may change an answer."""
        return self._names.version if self._has_names else 0

    def owner(self, path: str) -> CgroupOwner | None:
        """The owner of the cgroup at `path` (from the mount, ``/gpu.slice/chat``); None = nobody's."""
        if self._waiting and self.version != self._version:
            self._version = self.version
            for one in self._waiting:
                self._known.pop(one, None)
            self._waiting.clear()
        try:
            return self._known[path]
        except KeyError:
            pass
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
            self._waiting.clear()
        found = self._known[path] = self._find(path.strip("/"), path)
        return found

    def is_waiting(self, path: str) -> bool:
        """Whether a name that is not known yet may change the answer that :meth:`owner` has just given."""
        return path in self._waiting

    def _find(self, path: str, asked: str) -> CgroupOwner | None:
        by_path = self._paths.on(path)
        claim = self._by_name(path, asked, by_path) if self._has_names else by_path
        if claim is None:
            return None
        key = f"tenants.{claim.tenant}.{'cgroup' if claim is by_path else 'match'}"
        node = self._config.tenants[claim.tenant]
        if node.children_are == "pods" and claim.pod:
            return replace(self._pod(claim, node), key=key)
        return replace(self._descend(claim.tenant, node, claim.cgroup, path), key=key)

    def _by_name(self, path: str, asked: str, claim: _Found | None) -> _Found | None:
        """The claim on `path`: the one by path, or one by name on a cgroup outside of that."""
        for layer in layers_of(f"/{path}"):
            cgroup = layer.cgroup.strip("/")
            if claim is not None and len(claim.cgroup) <= len(cgroup):
                break
            claims = claims_of(layer, self._names)
            if not claims.is_whole:
                self._waiting.add(asked)
            for one in claims.paths:
                found = self._named.on(one)
                if found is not None and found.cgroup == one:
                    pod = one.split("/", 2)[2] if one.startswith("pod/") else ""
                    return _Found(found.tenant, cgroup, pod)
        return claim

    def _pod(self, claim: _Found, node: Tenant) -> CgroupOwner:
        """A pod that is a child: by its own name, or that of the child which says that the pod is its."""
        name, child = _child_of_pod(node.children, claim.pod)
        path = f"{claim.tenant}/{leaf_name(name)}"
        lists = _gpu_list(f"tenants.{claim.tenant}", node)
        if child is not None:
            lists += _gpu_list(f"tenants.{claim.tenant}.children.{name}", child)
        spec = self._config.spec(path, child)
        return CgroupOwner(path, f"/{claim.cgroup}", spec, is_leaf=True, gpu_lists=lists, is_pod=True)

    def _descend(self, name: str, node: Tenant | Child, cgroup: str, path: str) -> CgroupOwner:
        key = f"tenants.{name}"
        lists = _gpu_list(key, node)
        while node.children:
            rest = path[len(cgroup) :].strip("/")
            if not rest:
                spec = self._config.spec(name, node)
                return CgroupOwner(name, f"/{cgroup}", spec, is_leaf=False, gpu_lists=lists)
            part = rest.split("/", 1)[0]
            named, child = _child(node.children, part)
            name = f"{name}/{leaf_name(part)}"
            cgroup = f"{cgroup}/{part}"
            if child is None:
                spec = self._config.spec(name, None)
                return CgroupOwner(name, f"/{cgroup}", spec, is_leaf=True, gpu_lists=lists)
            key, node = f"{key}.children.{named}", child
            lists += _gpu_list(key, node)
        return CgroupOwner(name, f"/{cgroup}", self._config.spec(name, node), is_leaf=True, gpu_lists=lists)


def _gpu_list(key: str, node: Tenant | Child) -> tuple[GpuList, ...]:
    return () if node.gpus is None else (GpuList(f"{key}.gpus", node.gpus),)


def _child(children: Mapping[str, Child], part: str) -> tuple[str, Child | None]:
    """What the file says of a child cgroup, and under which name."""
    exact = children.get(part)
    if exact is not None and patterns.is_literal(part):
        return part, exact
    for pattern, child in children.items():
        if not patterns.is_literal(pattern) and patterns.claimed_prefix(pattern, part) is not None:
            return pattern, child
    return part, None


def _child_of_pod(children: Mapping[str, Child], pod: str) -> tuple[str, Child | None]:
    """The child that a pod is, and what the file says of it; a plain name wins over a pattern."""
    claims = [(glob, name) for name, child in children.items() for glob in child.pods or (name,)]
    for glob, name in sorted(claims, key=lambda claim: not patterns.is_literal(claim[0])):
        if patterns.claimed_prefix(glob, pod) == pod:
            is_named = children[name].pods is not None or patterns.is_literal(name)
            return name if is_named else pod, children[name]
    return pod, None


def leaf_name(part: str) -> str:
    """A cgroup's own name as part of a tenant name; one that is long or cannot be printed is changed, still unique.

    Whoever may make a cgroup chooses its name, and everything that is written has tenants' names in it.
    """
    shown = printable(part)
    if shown == part and len(part) <= MAX_NAME_CHARS:
        return part
    digest = hashlib.sha256(part.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{shown[: MAX_NAME_CHARS - 9]}~{digest}"
