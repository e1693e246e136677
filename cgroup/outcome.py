# SPDX-License-Identifier: Apache-2.0
"""Defines what becomes of holds and thaws: data, because none of it is an error of the host."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class HoldKind(str, enum.Enum):
    """What became of a hold or a thaw. Only errors of the host are exceptions; all this is daily life."""

    HELD = "held"
    ALREADY_HELD = "already_held"
    SETTLED = "settled"
    """All processes have stopped; ``latency_ns`` says how long it took."""
    LATE = "late"
    """After a second something of it still has not stopped, as a rule because it waits in the kernel. It stays held."""
    THAWED = "thawed"
    NOT_HELD = "not_held"
    FOREIGN = "foreign"
    """Somebody else pauses it. Not touched, and if it was ours it is theirs now."""
    RELEASED = "released"
    """Somebody else thawed it while we held it: the hold is over."""
    GONE = "gone"
    EXPIRED = "expired"
    """The deadline had passed before the hold was made."""


@dataclass(frozen=True)
class HoldResult:
    """What happened to one cgroup."""

    kind: HoldKind
    cgroup_id: int
    path: str
    tenant: str = ""
    latency_ns: int | None = None
    """SETTLED: from the write to rest. HELD and THAWED: how long the write(2) itself took."""


@dataclass(frozen=True)
class GangResult:
    """All or nothing. ``kind`` is HELD, or why nothing is held; ``members`` says who was at fault."""

    kind: HoldKind
    members: tuple[HoldResult, ...]
