# SPDX-License-Identifier: Apache-2.0
"""Tells whether this host can have the device gate that is asked for, and makes the rows of ``doctor`` about it
(pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairsched.driver.gate import is_asked_for

if TYPE_CHECKING:
    from fairsched.config import Config
    from fairsched.host.facts import Check, HostFacts, Level

_NEEDED = ("device program", "compiler")
"""By the names of fairsched.bpf.probe."""
_OPEN = "any tenant can open any GPU"


def obstacle(facts: HostFacts, config: Config) -> str | None:
    """Why there can be no device gate; None when there can, or nobody asks for one."""
    if not is_asked_for(config) or config.mechanisms.device_gate == "off":
        return None
    if facts.is_cgroup_v1:
        return "cgroup v2 is not in use, and device programs are of v2"
    if facts.bcc_version is None:
        return "bcc is not installed"
    failed = [fact for fact in facts.bpf or () if fact.name in _NEEDED and not fact.is_ok]
    return f"{failed[0].name}: {failed[0].detail}" if failed else None


def rows(facts: HostFacts, config: Config) -> Iterator[Check]:
    """What is asked for, what is left from an earlier daemon, and what stands in the way."""
    from fairsched.host.facts import Check

    wish, why_not = config.mechanisms.device_gate, obstacle(facts, config)
    if facts.gates and facts.daemon_pid is None:
        choice = "it denies what that one's configuration denied"
        remedy = "start the daemon, or fairsched release"
        yield Check("device gate", "warn", "left in force by a daemon that is gone", choice, remedy)
    if not is_asked_for(config):
        yield Check("device gate", "ok", "nothing in the configuration asks for it")
    elif why_not is not None:
        level: Level = "fail" if wish == "required" else "warn"
        yield Check("device gate", level, why_not, _OPEN, "see the rows about bpf")
    elif wish == "off":
        why = "asked for, but mechanisms.device_gate is off"
        yield Check("device gate", "warn", why, _OPEN, "set mechanisms.device_gate to auto")
    elif config.mode != "enforce":
        why = f"asked for, but mode is {config.mode}"
        yield Check("device gate", "warn", why, _OPEN, "set mode to enforce")
    else:
        yield Check("device gate", "ok", "asked for, and device programs can be loaded")
