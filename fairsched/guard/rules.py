# SPDX-License-Identifier: Apache-2.0
"""Defines what the guard goes by: limits, projects, maintenance, and whom no limit ends (plain data).

A *limit* is one entry of the configuration; it may bound several things. A *bound* is one of these things, with all
that the judge asks about it; a window of maintenance is a bound as well. Of two bounds of the same thing for the same
kind of subject, the one that names the subject is nearer, and takes the place of one that names nobody wherever it
counts the same GPUs.

Units: bytes, counts, seconds. GPUs are selected by index (``0``) or by how their UUIDs begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from zoneinfo import ZoneInfo

from fairsched.guard.allow import Allow
from fairsched.guard.breach import Act, Breach, Per, What
from fairsched.guard.hours import Hours, Maintenance

UTC = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Project:
    """Whose processes a project has: everybody of these tenants, users and groups."""

    name: str
    tenants: frozenset[str] = frozenset()
    """With their children."""
    users: frozenset[str] = frozenset()
    """Names or uids."""
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Bound:
    """One thing that a limit bounds."""

    limit: str
    """Name in the configuration."""
    per: Per
    what: What
    amount: float | None = None
    """Bytes, a count, or seconds a day; None where no amount is meant (hours, GPUs, maintenance)."""
    of: frozenset[str] | None = None
    """Names of subjects (of users also uids, of GPUs selectors); None = every one of that kind."""
    gpus: tuple[str, ...] | None = None
    """Which GPUs count; None = all."""
    each_gpu: bool = False
    """The amount is of each GPU by itself."""
    allowed_gpus: tuple[str, ...] = ()
    hours: Hours | None = None
    maintenance: Maintenance | None = None
    zone: tzinfo = UTC
    """Whose days are counted."""
    warnings: int = 3
    """At least one."""
    every_s: float = 300.0
    """Between two warnings."""
    grace_s: float = 600.0
    """From the last warning to the end, and from one batch to the next."""
    soft: Act = Act.WARN
    """WARN or HOLD, from the first warning on."""
    is_hard: bool = False
    """END comes after the grace."""
    force: bool = False
    """SIGKILL after SIGTERM's grace."""
    warn_before_s: float = 0.0
    """Of maintenance: told so long before it begins."""


@dataclass(frozen=True, slots=True)
class GuardRules:
    """All that a judge is made of."""

    bounds: tuple[Bound, ...] = ()
    projects: tuple[Project, ...] = ()
    allow: Allow = field(default_factory=Allow)

    def is_forced(self, breach: Breach) -> bool:
        """Whether SIGKILL may follow SIGTERM: what the limit of `breach` says."""
        return any(one.force for one in self.bounds if one.limit == breach.limit and one.what is breach.what)

    def tenant_vram(self) -> Mapping[str, int]:
        """By tenant, the least memory on each GPU that a limit names it for and means to enforce.

        What a kernel may refuse: of limits ``per: tenant`` that name it, count all GPUs, each by itself, and end.
        """
        found: dict[str, int] = {}
        for one in self.bounds:
            is_meant = one.per is Per.TENANT and one.what is What.VRAM and one.is_hard
            if is_meant and one.amount is not None and one.each_gpu and one.gpus is None:
                for name in one.of or ():
                    found[name] = min(int(one.amount), found.get(name, int(one.amount)))
        return found
