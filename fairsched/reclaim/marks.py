# SPDX-License-Identifier: Apache-2.0
"""Tells what is odd about a process that holds a GPU, from facts alone (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fairsched.base.text import counted
from fairsched.cgroup.identity import Kind, layers_of
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import Holder

IDLE_S = 600.0
"""From here on it is said that a holder launches nothing."""
_MANAGER = "systemd"


def is_orphan(facts: Facts, table: Mapping[int, Facts]) -> bool:
    """Whether whoever started it is gone: it was handed to an init, and is no service of that init.

    An init is pid 1, the first process of a pid namespace, or a user's systemd. The child of one is an orphan when the
    leader of its session has ended, or when it leads a session itself and is in no service of systemd.
    """
    parent = table.get(facts.parent)
    if facts.parent == 0 or facts.is_namespace_init or facts.is_kernel:
        return False
    if parent is not None and not (parent.pid == 1 or parent.is_namespace_init or parent.name == _MANAGER):
        return False
    if facts.session != facts.pid:
        return facts.session not in table
    is_hosted = parent is None or parent.pid == 1 or parent.name == _MANAGER
    return is_hosted and not is_service(facts.cgroup)


def is_service(cgroup: str | None) -> bool:
    """Whether systemd started it as a service, or a runtime as a container: it has a parent by right."""
    layers = layers_of(cgroup or "/")
    return any(
        layer.kind is not Kind.USER and not (layer.unit or "x.service").endswith(".scope") for layer in layers
    )


def marks_of(holder: Holder) -> list[str]:
    """Sentences about it, for people."""
    facts, said = holder.facts, list[str]()
    if holder.status.note:
        said.append(holder.status.note)
    if facts is not None and facts.is_zombie:
        said.append(f"defunct, and a context of it is listed: its parent {facts.parent} has not reaped it")
    if facts is not None and facts.is_headless:
        said.append(f"defunct to look at, and {counted(facts.threads - 1, 'thread')} of it left")
    if holder.is_orphan and facts is not None:
        said.append(f"its parent is gone: a child of {facts.parent} now")
    if facts is None:
        said.append("the driver lists it, and it is not in /proc")
    if holder.mps is not None:
        said.append(f"{'the server' if holder.mps == 'server' else 'a client'} of MPS")
    if holder.doubt is not None:
        said.append(holder.doubt)
    return said


def plain_of(holder: Holder) -> dict[str, Any]:
    """For ``--json``."""
    facts = holder.facts
    return {
        **dataclasses.asdict(holder.status),
        "gpu_index": holder.gpu_index,
        "vendor": holder.vendor,
        "regions": dict(holder.regions),
        "busy": {name: round(ratio, 3) for name, ratio in holder.busy.items()},
        "user": holder.user,
        "uid": None if facts is None else facts.uid,
        "state": None if facts is None else facts.state,
        "parent_pid": None if facts is None else facts.parent,
        "start_ticks": None if facts is None else facts.start_ticks,
        "age_s": None if holder.age_s is None else round(holder.age_s, 1),
        "is_orphan": holder.is_orphan,
        "is_zombie": holder.has_mark("zombie"),
        "mps": holder.mps,
        "marks": marks_of(holder),
        "is_confirmed": holder.is_listed,
        "source": holder.source,
    }
