# SPDX-License-Identifier: Apache-2.0
"""Which tenant owns a cgroup: the runtime side of the patterns in the configuration.

The configuration guarantees that at most one tenant claims any path, so the answer does not depend
on the order in which cgroups appear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from fairsched.config import patterns
from fairsched.config.models import MAX_NAME_CHARS, Child, Config, Tenant
from fairsched.model import TenantSpec


@dataclass(frozen=True)
class Owner:
    """The leaf tenant a cgroup belongs to."""

    tenant: str
    """``chat``, or ``team/chat`` for a child cgroup."""
    cgroup: str
    """The cgroup that is frozen to hold this tenant, as in /proc/PID/cgroup: ``/gpu.slice/chat``."""
    spec: TenantSpec
    is_leaf: bool
    """False: the cgroup belongs to a tenant with children, but to none of them (a process directly
    in the parent's cgroup). It is accounted to the parent; holding it would hold all children."""


class CgroupOwners:
    """Answers :meth:`owner` for one configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._claims: list[tuple[str, str]] = [
            (pattern, name) for name in config.tenants for pattern in config.cgroup_patterns(name)
        ]

    def owner(self, path: str) -> Owner | None:
        """The owner of the cgroup at `path` (from the mount, ``/gpu.slice/chat``); None = nobody's."""
        path = path.strip("/")
        for pattern, name in self._claims:
            cgroup = patterns.claimed_prefix(pattern, path)
            if cgroup is not None:
                return self._descend(name, self._config.tenants[name], cgroup, path)
        return None

    def _descend(self, name: str, node: Tenant | Child, cgroup: str, path: str) -> Owner:
        while node.children:
            rest = path[len(cgroup) :].strip("/")
            if not rest:
                return Owner(name, f"/{cgroup}", self._config.spec(name, node), is_leaf=False)
            part = rest.split("/", 1)[0]
            child = _child(node.children, part)
            name = f"{name}/{leaf_name(part)}"
            cgroup = f"{cgroup}/{part}"
            if child is None:
                return Owner(name, f"/{cgroup}", self._config.spec(name, None), is_leaf=True)
            node = child
        return Owner(name, f"/{cgroup}", self._config.spec(name, node), is_leaf=True)


def _child(children: Mapping[str, Child], part: str) -> Child | None:
    exact = children.get(part)
    if exact is not None and patterns.is_literal(part):
        return exact
    for pattern, child in children.items():
        if not patterns.is_literal(pattern) and patterns.claimed_prefix(pattern, part) is not None:
            return child
    return None


def leaf_name(part: str) -> str:
    """A cgroup's own name as part of a tenant name; long ones are cut, still unique."""
    if len(part) <= MAX_NAME_CHARS:
        return part
    digest = hashlib.sha256(part.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{part[: MAX_NAME_CHARS - 9]}~{digest}"
