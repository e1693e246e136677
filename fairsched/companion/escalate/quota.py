# SPDX-License-Identifier: Apache-2.0
"""The step ``quota``: two points of a GPU more for the tenant that suffers, for a while.

Which value is raised. The promise is *points of a GPU*, so:

* a tenant that runs into its own ``quota`` gets a higher one: nothing else can help it;
* everybody else gets a higher ``min``: what it is owed when every tenant wants the GPU, plus the step. Not what it is
  entitled to now: that is more while others are idle, and a guarantee stays when they come back. So while some are
  idle a raise may change nothing, and works in the moments in which they are not, which make the long waits. A weight
  would have to be changed by an amount that depends on who else has demand, and would mean something else as soon as
  that changes.
* A child (``team/chat``) has no guarantee of its own without one of its parent: the tenant it belongs to is raised,
  and shares it out among its children by their weights.

Bounds: guarantees never add up to more than 1, ``min`` never exceeds ``quota``, the ladder takes the step only
``max_raise / step`` times, and no value is set higher than ``max_raise`` above what the first raise in force began
with, whatever weights and tenants change meanwhile. It is taken back increment by increment, and lapses by itself. What
somebody else has changed meanwhile is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairsched.companion.escalate.model import Order
from fairsched.companion.escalate.steps import CheckOrder, NotNow, Plan, StepFailed
from fairsched.companion.values import Daemon, PutBack, Settings, number, put_back, settings_of
from fairsched.errors import ControlError
from fairsched.model import TenantSpec
from fairsched.policy.shares import entitlements
from fairsched.protocol.status import StatusReport, TenantStatus

_NEAR_RATIO = 0.02
"""Whose use is so close to its quota runs into it."""
_LEAST_RAISE_RATIO = 0.005
"""Less is not worth an action."""
_DIGITS = 4


class QuotaStep:
    """See the module; `step_ratio` and `max_raise_ratio` are of one GPU."""

    name = "quota"
    timeout_s = 30.0

    def __init__(self, daemon: Daemon, step_ratio: float, max_raise_ratio: float) -> None:
        self._daemon = daemon
        self._step_ratio = step_ratio
        self._max_raise_ratio = max_raise_ratio

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
        change = self._choose(order, tenant, settings_of(self._daemon))
        was = "not set" if change["before"] is None else f"{change['before']:.2%}"
        detail = f"raise {change['key']} of {change['tenant']} from {was} to {change['set']:.2%} of a GPU"
        return Plan(detail, undo=change)

    def apply(self, order: Order, plan: Plan, check_order: CheckOrder) -> str:
        change = plan.undo
        check_order()
        try:
            self._daemon.request("tenant_set", tenant=change["tenant"], values={change["key"]: change["set"]})
        except ControlError as error:
            raise StepFailed(f"the daemon refused to {plan.detail}: {error}", remedy=error.remedy) from error
        return plan.detail.replace("raise", "raised", 1)

    def rollback(self, order: Order, report: StatusReport | None, check_order: CheckOrder) -> str:
        change = order.undo or {}
        tenant, key = change.get("tenant"), change.get("key")
        try:
            done, value = put_back(self._daemon, change, check_order)
        except ControlError as error:
            raise StepFailed(f"the daemon refused to put {key} of {tenant} back: {error}") from error
        if done is PutBack.GONE:
            return f"nothing to do: tenant {tenant} is gone, and {key} of it"
        if done is PutBack.CHANGED:
            return f"left alone: {key} of {tenant} is {value} now, which is not what it was set to here"
        return f"{key} of {tenant} is {'not set' if value is None else format(value, '.2%')} again"

    def _choose(self, order: Order, tenant: TenantStatus, settings: Settings) -> dict[str, Any]:
        """The change: tenant, key, base, set, before, was_override."""
        quota = number(settings, tenant.name, "quota")
        if quota is not None and tenant.used_ratio is not None and tenant.used_ratio >= quota - _NEAR_RATIO:
            return self._change(order, settings, tenant.name, "quota", quota, 1.0)
        top = tenant.name.split("/")[0]
        if top not in settings:
            raise NotNow(f"tenant {top} is not in the configuration")
        others = math.fsum(
            number(settings, name, "min") or 0.0 for name in settings if "/" not in name and name != top
        )
        ceiling = min(1.0 - others, 1.0 if (cap := number(settings, top, "quota")) is None else cap)
        base = max(number(settings, top, "min") or 0.0, _owed(settings)[top])
        return self._change(order, settings, top, "min", base, ceiling)

    def _change(
        self, order: Order, settings: Settings, tenant: str, key: str, base: float, ceiling: float
    ) -> dict[str, Any]:
        same = [one for one in order.earlier if (one.get("tenant"), one.get("key")) == (tenant, key)]
        most = next((one["base"] for one in same if "base" in one), base) + self._max_raise_ratio
        bound, why = (ceiling, "") if ceiling <= most else (most, " (max_raise)")
        wanted = min(base + self._step_ratio, math.floor(bound * 10**_DIGITS + 1e-6) / 10**_DIGITS)
        if wanted < base + _LEAST_RAISE_RATIO:
            raise NotNow(
                f"{key} of {tenant} cannot be more than {bound:.2%}{why}, and it has {base:.2%} already"
            )
        now = settings[tenant][key]
        return {
            "tenant": tenant,
            "key": key,
            "base": base,
            "set": round(wanted, _DIGITS),
            "before": now.value,
            "was_override": now.is_override,
        }


def _owed(settings: Settings) -> Mapping[str, float]:
    """What each tenant that is nobody's child is entitled to when all of them want the GPU."""
    specs = {
        name: TenantSpec(
            name,
            weight=number(settings, name, "weight") or 0.0,
            quota_ratio=number(settings, name, "quota"),
            min_ratio=number(settings, name, "min") or 0.0,
        )
        for name in settings
        if "/" not in name
    }
    return entitlements(specs, specs)
