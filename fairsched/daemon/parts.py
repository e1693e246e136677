# SPDX-License-Identifier: Apache-2.0
"""The parts of the daemon, handed to whoever answers a question about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairsched.act.holds import Applier
from fairsched.act.misbehaviour import Misbehaviour
from fairsched.act.vram import VramLimits
from fairsched.cgroup.path import Mount
from fairsched.companion.keeper import CompanionKeeper
from fairsched.config.settings import Settings
from fairsched.daemon.cost import OwnCost
from fairsched.daemon.ledger import Ledger
from fairsched.guardian.keeper import GuardianKeeper
from fairsched.model import ShareView, TenantSpec
from fairsched.observe.sensors import Sensors
from fairsched.observe.tree import Tree
from fairsched.policy.watchdog import Doubt
from fairsched.protocol.server import ServerCounters
from fairsched.protocol.status import GateStatus


@dataclass(frozen=True)
class Vitals:
    """What the daemon knows of itself: its mode, its age, its errors, its cost."""

    started_ns: int
    now_ns: int
    mode: str
    mode_reason: str | None
    tick_ms: int
    errors: int
    cost: OwnCost
    well_ns: int = 0
    """When the watchdog was fed last: ticks and what is between them went well until then."""


@dataclass(frozen=True)
class Parts:
    """What questions about the daemon are answered from."""

    vitals: Vitals
    settings: Settings
    sensors: Sensors
    tree: Tree
    applier: Applier
    ledger: Ledger
    misbehaviour: Misbehaviour
    vram: VramLimits
    shares: Sequence[ShareView]
    specs: Mapping[str, TenantSpec]
    mount: Mount
    gate: GateStatus
    pid_view: Mapping[str, Any] | None
    companion: CompanionKeeper
    guardian: GuardianKeeper
    control: ServerCounters
    doubts: Mapping[int, Doubt]
