# SPDX-License-Identifier: Apache-2.0
"""Defines what the daemon tells about the device gate: a part of the status document (see status.py)."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class GateState(str, enum.Enum):
    """One word for the device gate."""

    ON = "on"
    OFF = "off"
    WAITING = "waiting"
    """Asked for, and nothing attached yet."""
    FAILED = "failed"
    """Asked for, and not all of it is in force."""


@dataclass(frozen=True)
class GateStatus:
    """Who may open which GPU: what of the configuration is in force."""

    state: GateState
    reason: str | None = None
    """Why it is not on; None when it is."""
    rules: int = 0
    """Cgroups with a rule of their own."""
    attached: tuple[str, ...] = ()
    """Cgroups the program is attached to."""
    denied: Mapping[str, int] = field(default_factory=dict)
    """Opens refused since the daemon started, by tenant; "" = cgroups of none, by devices.default."""
    blind: int | None = None
    """Opens let through because the cgroup could not be read."""
    warnings: tuple[str, ...] = ()


def gate_from_plain(data: Mapping[str, Any]) -> GateStatus:
    """The inverse of ``status.to_plain``; fields of a newer daemon are ignored."""
    names = {item.name for item in dataclasses.fields(GateStatus)}
    known = {key: value for key, value in data.items() if key in names}
    for name in ("attached", "warnings"):
        known[name] = tuple(known.get(name, ()))
    return GateStatus(**{**known, "state": GateState(known["state"])})
