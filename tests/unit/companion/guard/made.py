# SPDX-License-Identifier: Apache-2.0
"""Rounds, breaches and a daemon's settings for tests of the hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairsched.guard.breach import Act, Breach, Per, Subject, What
from fairsched.guard.sample import GpuLoad, Process, Round, Sample

GIB = 1 << 30
GPU = "GPU-5f2c1a90-1111-2222-3333-444455556666"
T_S = 1_764_230_400.0
"""2025-11-27 08:00 UTC."""
ALICE = Subject(Per.USER, "alice", 1001)


def process(pid: int = 100, **changes: Any) -> Process:
    return replace(
        Process(pid, 1000 + pid, "boot", uid=1001, user="alice", tenant="chat", cgroup="/gpu.slice/chat"),
        **changes,
    )


def moment(t_s: float = T_S, *samples: Sample, **changes: Any) -> Round:
    there = samples or (Sample(process(), GPU, 2 * GIB, 1, 10.0),)
    return replace(Round(t_s, there, {GPU: GpuLoad(0.5, 3 * GIB, 80 * GIB)}), **changes)


def breach(act: Act = Act.WARN, **changes: Any) -> Breach:
    """Alice has 30 GiB where 20 are allowed; each round of it is news."""
    base = Breach(
        limit="people",
        subject=ALICE,
        what=What.VRAM,
        used=30.0 * GIB,
        allowed=20.0 * GIB,
        gpu=None,
        since_s=T_S - 60,
        warnings=1,
        is_news=True,
        act=act,
        next_act=None,
        next_s=None,
        processes=(process(),),
        tenants=("chat",),
        text="user alice has 30.0 GiB of GPU memory, and 20.0 are allowed (people)",
    )
    return replace(base, **changes)


def entry_of(entries: list[Mapping[str, Any]], did: str) -> Mapping[str, Any]:
    """The one entry of the audit that says so."""
    (found,) = (one for one in entries if one.get("did") == did)
    return found
