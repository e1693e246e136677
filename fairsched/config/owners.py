# SPDX-License-Identifier: Apache-2.0
"""Which tenant owns a cgroup: the runtime side of the patterns in the configuration.

The configuration guarantees that at most one tenant claims any path, so the answer does not depend
on the order in which cgroups appear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from fairsched.base.printable import printable
from fairsched.config import patterns
from fairsched.config.gpus import GpuWish
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


class CgroupOwners:
    """Answers :meth:`owner` for one configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        claims = [(pattern, name) for name in config.tenants for pattern in config.cgroup_patterns(name)]
        # No two claims meet, so the order in which they are tried does not matter.
        self._literal = {pattern: name for pattern, name in claims if patterns.is_literal(pattern)}
        self._globs = [claim for claim in claims if not patterns.is_literal(claim[0])]
        self._known: dict[str, CgroupOwner | None] = {}
        """Answers given: a walk asks for the same paths every second."""

    def owner(self, path: str) -> CgroupOwner | None:
        """The owner of the cgroup at `path` (from the mount, ``/gpu.slice/chat``); None = nobody's."""
        if path not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[path] = self._find(path.strip("/"))
        return self._known[path]

    def _find(self, path: str) -> CgroupOwner | None:
        claim = self._claim_on(path)
        return (
            None if claim is None else self._descend(claim[0], self._config.tenants[claim[0]], claim[1], path)
        )

    def _claim_on(self, path: str) -> tuple[str, str] | None:
        """The tenant, and its cgroup: the path or a prefix of it."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1 if self._literal else 1):
            prefix = "/".join(parts[:depth])
            if prefix in self._literal:
                return self._literal[prefix], prefix
        for pattern, name in self._globs:
            cgroup = patterns.claimed_prefix(pattern, path)
            if cgroup is not None:
                return name, cgroup
        return None

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


def leaf_name(part: str) -> str:
    """A cgroup's own name as part of a tenant name; one that is long or cannot be printed is changed, still unique.

    Whoever may make a cgroup chooses its name, and everything that is written has tenants' names in it.
    """
    shown = printable(part)
    if shown == part and len(part) <= MAX_NAME_CHARS:
        return part
    digest = hashlib.sha256(part.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{shown[: MAX_NAME_CHARS - 9]}~{digest}"
