# SPDX-License-Identifier: Apache-2.0
"""Reads and changes what tenants are promised, through the daemon, so that each change can be taken back.

Problem: whoever changes a tenant's setting for a while must give back what was there, and a person may have set
another value meanwhile, which is then nobody else's to touch.

Approach: a change is plain data, written down before it is made: the tenant, the key, the value that is set, the value
before it and whether that was an override. It is taken back only while the override is still the one that was set; also
that of a tenant which a reload took out of the configuration, or it would be in force again when the tenant is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


class Daemon(Protocol):
    """The daemon's control socket."""

    def request(self, name: str, **args: Any) -> Any:
        """As ControlClient.request; raises ControlError."""


@dataclass(frozen=True)
class Value:
    """One setting of a tenant, as it is in effect."""

    value: Any
    is_override: bool


Settings = Mapping[str, Mapping[str, Value]]
"""By tenant (``team/chat``) and key."""


class PutBack(Enum):
    """What came of taking a change back."""

    DONE = "done"
    GONE = "gone"
    """There is neither such a tenant nor an override of it."""
    CHANGED = "changed"
    """Somebody has set another value meanwhile, which was left alone."""


def settings_of(daemon: Daemon) -> Settings:
    """What is in effect. Raises ControlError."""
    return _in_effect(daemon.request("tenant_list"))


def _in_effect(answer: Mapping[str, Any]) -> Settings:
    found: dict[str, dict[str, Value]] = {}
    for row in answer["settings"]:
        *path, key = (str(part) for part in row["key"])
        name = "/".join(path[1::2])  # tenants, NAME, children, NAME, ...
        found.setdefault(name, {})[key] = Value(row["value"], row["origin"] == "override")
    return found


def number(settings: Settings, tenant: str, key: str) -> float | None:
    """A number that is set; None: there is none."""
    found = settings.get(tenant, {}).get(key)
    return float(found.value) if found is not None and isinstance(found.value, (int, float)) else None


def put_back(
    daemon: Daemon, change: Mapping[str, Any], check: Callable[[], None] = lambda: None
) -> tuple[PutBack, Any]:
    """Take a change back (keys tenant, key, set, before, was_override); and the value that is in effect afterwards.

    ``check`` is called right before anything is changed, and may raise. Raises ControlError.
    """
    tenant, key = str(change.get("tenant")), str(change.get("key"))
    answer = daemon.request("tenant_list")
    found = _in_effect(answer).get(tenant, {}).get(key)
    if found is None:
        kept = answer["kept"].get(tenant, {})
        if key not in kept:
            return PutBack.GONE, None
        found = Value(kept[key], is_override=True)
    if not found.is_override or not is_same(found.value, change.get("set")):
        return PutBack.CHANGED, found.value
    check()
    if change.get("was_override"):
        daemon.request("tenant_set", tenant=tenant, values={key: change["before"]})
    else:
        daemon.request("tenant_unset", tenant=tenant, keys=[key])
    return PutBack.DONE, change.get("before")


def is_same(left: Any, right: Any) -> bool:
    """Two numbers that are one setting."""
    return isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(left - right) < 1e-9
