# SPDX-License-Identifier: Apache-2.0
"""The step ``quota``: two points of a GPU more for the tenant that suffers, for a while.

Which value is raised. The promise is *points of a GPU*, so:

* a tenant that runs into its own ``quota`` gets a higher one: nothing else can help it;
* everybody else gets a higher ``min``: what it is entitled to now, plus the step. A weight would have to be changed
  by an amount that depends on who else has demand, and would mean something else as soon as somebody comes or goes.
* A child (``team/chat``) has no guarantee of its own without one of its parent: the tenant it belongs to is raised,
  and shares it out among its children by their weights.

Bounds: guarantees never add up to more than 1, ``min`` never exceeds ``quota``, and the ladder takes the step only
``max_raise / step`` times. It is taken back increment by increment, and lapses by itself. What somebody else has
changed meanwhile is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fairsched.errors import ControlError
from fairsched.escalate.model import Order
from fairsched.escalate.steps import NotNow, Plan, StepFailed
from fairsched.status import StatusReport, TenantStatus

_NEAR_RATIO = 0.02
"""Whose use is so close to its quota runs into it."""
_LEAST_RAISE_RATIO = 0.005
"""Less is not worth an action."""
_DIGITS = 4


class Daemon(Protocol):
    """The daemon's control socket."""

    def request(self, name: str, **args: Any) -> Any:
        """As ControlClient.request; raises ControlError."""


@dataclass(frozen=True)
class _Value:
    value: Any
    is_override: bool


Settings = Mapping[str, Mapping[str, _Value]]
"""By tenant and key."""


class QuotaStep:
    """See the module; `step_ratio` is of one GPU."""

    name = "quota"
    timeout_s = 30.0

    def __init__(self, daemon: Daemon, step_ratio: float) -> None:
        self._daemon = daemon
        self._step_ratio = step_ratio

    def prepare(self, order: Order, report: StatusReport | None) -> Plan:
        if order.tenant is None:
            raise NotNow("it is not known which tenant suffers")
        if report is None:
            raise NotNow("the daemon has not told its status")
        if report.mode != "enforce":
            raise NotNow(f"mode is {report.mode}: what tenants are promised is not enforced")
        tenant = next((one for one in report.tenants if one.name == order.tenant), None)
        if tenant is None:
            raise NotNow(f"tenant {order.tenant} is gone")
        change = self._choose(tenant, order.gpu, report, self._settings())
        was = "not set" if change["before"] is None else f"{change['before']:.2%}"
        detail = f"raise {change['key']} of {change['tenant']} from {was} to {change['set']:.2%} of a GPU"
        return Plan(detail, undo=change)

    def apply(self, order: Order, plan: Plan) -> str:
        change = plan.undo
        try:
            self._daemon.request("tenant_set", tenant=change["tenant"], values={change["key"]: change["set"]})
        except ControlError as error:
            raise StepFailed(f"the daemon refused to {plan.detail}: {error}", remedy=error.remedy) from error
        return plan.detail.replace("raise", "raised", 1)

    def rollback(self, order: Order, report: StatusReport | None) -> str:
        change = order.undo or {}
        tenant, key = str(change.get("tenant")), str(change.get("key"))
        try:
            found = self._settings().get(tenant, {}).get(key)
            if found is None:
                return f"nothing to do: tenant {tenant} is gone"
            if not found.is_override or not _is_same(found.value, change.get("set")):
                return f"left alone: {key} of {tenant} is {found.value} now, which is not what it was set to here"
            if change.get("was_override"):
                self._daemon.request("tenant_set", tenant=tenant, values={key: change["before"]})
            else:
                self._daemon.request("tenant_unset", tenant=tenant, keys=[key])
        except ControlError as error:
            raise StepFailed(f"the daemon refused to put {key} of {tenant} back: {error}") from error
        before = change.get("before")
        return f"{key} of {tenant} is {'not set' if before is None else format(before, '.2%')} again"

    def _choose(
        self, tenant: TenantStatus, gpu: str | None, report: StatusReport, settings: Settings
    ) -> dict[str, Any]:
        """The change: tenant, key, set, before, was_override."""
        quota = _number(settings, tenant.name, "quota")
        if quota is not None and tenant.used_ratio is not None and tenant.used_ratio >= quota - _NEAR_RATIO:
            return self._change(settings, tenant.name, "quota", quota, 1.0)
        top = tenant.name.split("/")[0]
        if top not in settings:
            raise NotNow(f"tenant {top} is not in the configuration")
        entitled = _entitled(top, gpu, report)
        if entitled is None:
            raise NotNow(f"it is not known what {tenant.name} is entitled to now")
        others = math.fsum(
            _number(settings, name, "min") or 0.0 for name in settings if "/" not in name and name != top
        )
        ceiling = min(1.0 - others, 1.0 if (cap := _number(settings, top, "quota")) is None else cap)
        base = max(_number(settings, top, "min") or 0.0, entitled)
        return self._change(settings, top, "min", base, ceiling)

    def _change(
        self, settings: Settings, tenant: str, key: str, base: float, ceiling: float
    ) -> dict[str, Any]:
        wanted = round(min(base + self._step_ratio, math.floor(ceiling * 10**_DIGITS) / 10**_DIGITS), _DIGITS)
        if wanted < base + _LEAST_RAISE_RATIO:
            raise NotNow(f"{key} of {tenant} cannot be more than {ceiling:.2%}, and {base:.2%} is in effect")
        now = settings[tenant][key]
        return {
            "tenant": tenant,
            "key": key,
            "set": wanted,
            "before": now.value,
            "was_override": now.is_override,
        }

    def _settings(self) -> Settings:
        answer = self._daemon.request("tenant_list")
        found: dict[str, dict[str, _Value]] = {}
        for row in answer["settings"]:
            *path, key = (str(part) for part in row["key"])
            name = "/".join(path[1::2])  # tenants, NAME, children, NAME, ...
            found.setdefault(name, {})[key] = _Value(row["value"], row["origin"] == "override")
        return found


def _number(settings: Settings, tenant: str, key: str) -> float | None:
    found = settings.get(tenant, {}).get(key)
    return float(found.value) if found is not None and isinstance(found.value, (int, float)) else None


def _is_same(left: Any, right: Any) -> bool:
    return isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(left - right) < 1e-9


def _entitled(top: str, gpu: str | None, report: StatusReport) -> float | None:
    """What a tenant with all its children is entitled to now, on `gpu` or where it is entitled to least."""
    by_gpu: dict[str, float] = {}
    for tenant in report.tenants:
        if tenant.name != top and not tenant.name.startswith(f"{top}/"):
            continue
        for one in tenant.gpus:
            if one.has_demand and one.entitled_ratio is not None:
                by_gpu[one.uuid] = by_gpu.get(one.uuid, 0.0) + one.entitled_ratio
    return by_gpu.get(gpu) if gpu in by_gpu else min(by_gpu.values(), default=None)
