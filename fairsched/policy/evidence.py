# SPDX-License-Identifier: Apache-2.0
"""Defines what is known of possible misbehaviour, and what is concluded from it: plain data (see misbehaviour.py).

What there is once per context and look is a tuple: a thousand frozen dataclasses cost milliseconds to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.model import ContextKey, ContextWork, MisbehaviourKind

CLEAR_NS = 3_000_000_000
_TURN_PARTS = 6

Where = tuple[int, str]
"""(process, GPU UUID)."""
EpisodeKey = tuple[str, str, MisbehaviourKind]
"""(tenant, GPU UUID, kind)."""


@dataclass(frozen=True)
class TenantSamples:
    """NVML's samples of one process of a tenant on one GPU since the look before."""

    tenant: str
    pid: int
    gpu: str
    samples: int
    busy_ns: int
    period_ns: int
    """Between two samples of this GPU."""
    first_ns: int
    """When the first of them was taken, as nearly as can be told."""
    last_ns: int


class Leave(NamedTuple):
    """A process was found outside its tenant, with a context that had been seen inside."""

    t_ns: int
    tenant: str
    """The one that it left."""
    pid: int
    gpu: str
    key: ContextKey


@dataclass(frozen=True)
class Evidence:
    """Everything known at one look."""

    now_ns: int
    works: Mapping[Where, tuple[ContextWork, ...]] = field(default_factory=dict)
    """Of the contexts of tenants."""
    samples: tuple[TenantSamples, ...] = ()
    charged_ns: Mapping[Where, int] = field(default_factory=dict)
    """Since the look before."""
    anchored_ns: Mapping[Where, int] = field(default_factory=dict)
    """Of that, in contexts for the end of whose work somebody waits ..."""
    launches: Mapping[Where, int] = field(default_factory=dict)
    """... and what was launched in the others."""
    whose: Mapping[int, str] = field(default_factory=dict)
    """The tenants of these processes, as far as they are known."""
    held_ns: Mapping[str, int] = field(default_factory=dict)
    """For how long tenants were held by us since the look before."""
    watched_since_ns: Mapping[int, int] = field(default_factory=dict)
    """Of suspects: since when every libcuda that the process maps has probes; 0 = it maps none; NEVER_NS = one cannot
    have any. Lacks processes that could not be read."""
    late_until_ns: int = 0
    """Who got its probes before this moment got them as soon as we could attach them, however late that was."""
    is_blind: bool = False
    """The account has only just begun: what is known is forgotten, so that no process is accused of being unseen."""
    over_budget: frozenset[str] = frozenset()
    """Tenants with work that a table of ours has no room for: they are charged for it, and that it is unseen is no
    proof of intent."""
    leaves: tuple[Leave, ...] = ()
    """Since the look before."""
    unanchored: frozenset[Where] = frozenset()
    """Processes that launch in contexts for the end of whose work nobody was seen to wait lately."""
    unsure: frozenset[str] = frozenset()
    """GPUs whose turns the account cannot follow: what it charged there may be far too little."""


@dataclass(frozen=True)
class MisbehaviourLimits:
    """After how long work is called endless, and after how long an episode is over."""

    endless_ns: int = 3_000_000_000
    clear_ns: int = CLEAR_NS

    @property
    def turn_ns(self) -> int:
        """GPU time without a completion below which work is not called endless."""
        return self.endless_ns // _TURN_PARTS


@dataclass(frozen=True)
class Episode:
    """A tenant misbehaves on a GPU."""

    tenant: str
    gpu: str
    kind: MisbehaviourKind
    since_ns: int
    seen_ns: int
    """The last look at which something spoke for it."""
    pids: tuple[int, ...]
    """Of that look."""
    contexts: int | None = None
    """endless: that are stuck."""
    stuck_ns: int | None = None
    """endless: the longest time without progress."""
    charged_ns: int = 0
    """endless: by the stuck contexts meanwhile; unseen: by the process, in the window."""
    samples: int = 0
    leaves: int = 0
    """moving: the most that one context was seen to leave, in the window."""
    window_ns: int = 0
    is_certain: bool = True
    """False: shown, never acted on."""
