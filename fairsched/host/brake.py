# SPDX-License-Identifier: Apache-2.0
"""Chooses what holds tenants back on this host: the best brake that works, or the one that the configuration names.

The order is freezer, freezer_v1, sigstop: cgroup.freeze stops a cgroup whole and at once; v1's freezer does so with
groups that its processes are moved to; SIGSTOP stops processes one by one (:mod:`fairsched.cgroup.freezer_v1` and
:mod:`fairsched.cgroup.sigstop` say what those cannot do). The choice is pure; :func:`gather_brakes` finds the facts
for a daemon, which needs no others.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fairsched.base.privileges import privileges
from fairsched.cgroup.journal import BrakeName
from fairsched.cgroup.probe import CgroupFacts, probe_host, v1_obstacle

if TYPE_CHECKING:
    from fairsched.config import Config


class BrakeFacts(Protocol):
    """The part of the facts about a host that brakes depend on."""

    @property
    def cgroup_mount(self) -> str | None: ...
    @property
    def is_cgroup_v1(self) -> bool: ...
    @property
    def has_freezer(self) -> bool | None: ...
    @property
    def v1_obstacle(self) -> str | None: ...
    @property
    def cgpu_obstacle(self) -> str | None: ...
    @property
    def has_pidfd(self) -> bool | None: ...
    @property
    def capabilities(self) -> frozenset[str]: ...


@dataclass(frozen=True)
class _Facts:
    cgroup_mount: str | None
    is_cgroup_v1: bool
    has_freezer: bool | None
    v1_obstacle: str | None
    cgpu_obstacle: str | None
    has_pidfd: bool | None
    capabilities: frozenset[str]


def gather_brakes(config: Config) -> BrakeFacts:
    """As ``doctor`` finds them; makes and removes an empty scratch cgroup."""
    cgroups = probe_host()
    mount = cgroups.mount
    path, is_v1 = (None, False) if mount is None else (mount.path, bool(mount.v1))
    return _Facts(
        path,
        is_v1,
        has_freezer(cgroups),
        v1_obstacle(),
        cgpu_obstacle(config),
        has_pidfd(),
        privileges()[0],
    )


def cgpu_obstacle(config: Config) -> str | None:
    """Why there is no module to write shares to; None when its directory is there, and None where nobody asks."""
    if config.mechanisms.brake != "cgpu" or config.cgpu.share_file is None:
        return None
    directory = config.cgpu.share_file.partition("{")[0].rpartition("/")[0] or "/"
    return None if os.path.isdir(directory) else f"{directory} is not there: is the vendor's module loaded?"


def has_freezer(cgroups: CgroupFacts) -> bool | None:
    """A scratch cgroup was frozen and thawed; where that could not be tried, cgroup.freeze exists."""
    return cgroups.has_freeze if cgroups.can_freeze is None else cgroups.can_freeze


def has_pidfd() -> bool:
    """A process can be signalled by descriptor (Linux 5.3)."""
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(fd, 0)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def freezer_obstacle(facts: BrakeFacts, config: Config) -> str | None:
    """Why cgroup.freeze cannot be used; None when it can."""
    if config.mechanisms.freezer == "off":
        return "mechanisms.freezer is off"
    if facts.cgroup_mount is None or facts.is_cgroup_v1:
        return "cgroup v2 is not in use"
    if facts.has_freezer is False:
        return "cgroup.freeze does not work here"
    if "CAP_DAC_OVERRIDE" not in facts.capabilities:
        return "CAP_DAC_OVERRIDE missing"
    return None


def sigstop_obstacle(facts: BrakeFacts) -> str | None:
    """Why processes cannot be stopped by signals; None when they can."""
    if facts.cgroup_mount is None:
        return "no cgroups are mounted by which tenants could be told"
    if facts.has_pidfd is False:
        return "this kernel has no pidfd"
    if "CAP_KILL" not in facts.capabilities:
        return "CAP_KILL missing"
    return None


def freezer_v1_obstacle(facts: BrakeFacts) -> str | None:
    """Why cgroup v1's freezer cannot be used; None when it can."""
    if facts.cgroup_mount is None:
        return "no cgroups are mounted by which tenants could be told"
    if facts.v1_obstacle is not None:
        return facts.v1_obstacle
    if "CAP_DAC_OVERRIDE" not in facts.capabilities:
        return "CAP_DAC_OVERRIDE missing"
    return None


def brake_obstacles(facts: BrakeFacts, config: Config) -> dict[BrakeName, str | None]:
    """Why each brake that holds cannot be used, best first; None: it can."""
    return {
        BrakeName.FREEZER: freezer_obstacle(facts, config),
        BrakeName.FREEZER_V1: freezer_v1_obstacle(facts),
        BrakeName.SIGSTOP: sigstop_obstacle(facts),
    }


def choose_brake(facts: BrakeFacts, config: Config) -> tuple[BrakeName | None, str]:
    """The brake and why; None where nobody can be held."""
    wish = config.mechanisms.brake
    if wish == "none":
        return None, "mechanisms.brake is none"
    obstacles = brake_obstacles(facts, config)
    if wish == "cgpu":
        why = facts.cgpu_obstacle
        return (None, why) if why else (BrakeName.CGPU, "it takes the shares, and nobody is held")
    if wish != "auto":
        named = BrakeName(wish)
        obstacle = obstacles[named]
        return (named, "mechanisms.brake asks for it") if obstacle is None else (None, obstacle)
    freezer = obstacles[BrakeName.FREEZER]
    if freezer is None:
        return BrakeName.FREEZER, "cgroup.freeze works"
    if config.mechanisms.freezer == "off":  # who says so wants nobody held
        return None, freezer
    for name, obstacle in obstacles.items():
        if obstacle is None:
            return name, f"the freezer cannot be used: {freezer}"
    return None, "; ".join(f"{name.value}: {obstacle}" for name, obstacle in obstacles.items())


def brake_lack(facts: BrakeFacts, config: Config) -> str | None:
    """Why nobody can be held; None: somebody can."""
    brake, reason = choose_brake(facts, config)
    if brake is BrakeName.CGPU:
        return f"mechanisms.brake is cgpu: {reason}"
    return f"nobody can be held: {reason}" if brake is None else None


def brake_refusal(facts: BrakeFacts, config: Config) -> str | None:
    """Why a daemon must not start: the brake that is named, or the freezer that is required, cannot be used."""
    wish, (name, reason) = config.mechanisms.brake, choose_brake(facts, config)
    if config.mechanisms.freezer == "required" and name is not BrakeName.FREEZER:
        return f"freezer is required, but {freezer_obstacle(facts, config) or reason}"
    if wish not in ("auto", "none") and name is None:
        return f"mechanisms.brake is {wish}, but {reason}"
    return None
