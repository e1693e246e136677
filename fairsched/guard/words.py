# SPDX-License-Identifier: Apache-2.0
"""Says in a sentence what is over which limit, and what limits there are (pure). Names in it are data."""

from __future__ import annotations

import time

from fairsched.guard.breach import Act, Per, Subject, What
from fairsched.guard.finding import gib, lasting
from fairsched.guard.report import LimitText
from fairsched.guard.rules import Bound, GuardRules


def amount_text(what: What, amount: float | None) -> str:
    """``20.0 GiB``, ``4``, ``2.5 h``; ``-`` where no amount is meant."""
    if amount is None:
        return "-"
    if what is What.VRAM:
        return gib(amount)
    return lasting(amount) if what is What.GPU_SECONDS else f"{amount:.0f}"


def excess_text(
    bound: Bound, subject: Subject, used: float, gpu: str | None, *, is_least: bool, most: str | None
) -> str:
    """Of a bound with an amount; ``most``: the user with most of it, of a subject that is not one."""
    assert bound.amount is not None
    has = {
        What.VRAM: "of GPU memory are held",
        What.CONTEXTS: "contexts are open",
        What.PROCESSES: "processes are on a GPU",
        What.GPU_SECONDS: "of GPU time are used today",
    }[bound.what]
    where = "" if gpu is None or subject.per is Per.GPU else f" on {gpu}"
    least = "at least " if is_least else ""
    text = (
        f"{subject.text}{where}: {least}{amount_text(bound.what, used)} {has}, and "
        f"{amount_text(bound.what, bound.amount)} allowed by {bound.limit}"
    )
    return text if most is None else f"{text}; most of it by user {most}"


def presence_text(bound: Bound, subject: Subject, gpus: tuple[str, ...], t_s: float) -> str:
    """Of a bound that says where or when."""
    where = ", ".join(sorted(gpus))
    if bound.what is What.GPUS:
        return (
            f"{subject.text}: is on {where}, and may be on {', '.join(bound.allowed_gpus)} by {bound.limit}"
        )
    if bound.what is What.HOURS:
        assert bound.hours is not None
        return (
            f"{subject.text}: is on {where} outside the hours of {bound.limit} ({bound.hours.text}, "
            f"{bound.hours.zone})"
        )
    assert bound.maintenance is not None
    begin_s, end_s = bound.maintenance.begin_s, bound.maintenance.end_s
    verb = "begins" if t_s < begin_s else "has begun"
    return (
        f"{subject.text}: is on {where}; maintenance {bound.limit} {verb} at {_minute(begin_s)} and ends at "
        f"{_minute(end_s)}"
    )


def limit_texts(rules: GuardRules) -> tuple[LimitText, ...]:
    """All limits, for people."""
    by_name: dict[str, list[Bound]] = {}
    for bound in rules.bounds:
        by_name.setdefault(bound.limit, []).append(bound)
    return tuple(_limit(name, bounds) for name, bounds in by_name.items())


def _limit(name: str, bounds: list[Bound]) -> LimitText:
    one = bounds[0]
    if one.maintenance is not None:
        return LimitText(name, "maintenance", None, (_bound_text(one),), _steps(one))
    of = None if one.of is None else tuple(sorted(one.of))
    return LimitText(name, one.per.value, of, tuple(map(_bound_text, bounds)), _steps(one))


def _bound_text(bound: Bound) -> str:
    on = "" if bound.gpus is None else f" on GPUs {', '.join(bound.gpus)}"
    if bound.amount is not None:
        each = " on each GPU" if bound.each_gpu else ""
        return f"{bound.what.value} {amount_text(bound.what, bound.amount)}{each}{on}"
    if bound.hours is not None:
        return f"hours {bound.hours.text} ({bound.hours.zone}){on}"
    if bound.maintenance is not None:
        return f"{_minute(bound.maintenance.begin_s)} to {_minute(bound.maintenance.end_s)}{on}"
    return f"allowed_gpus {', '.join(bound.allowed_gpus)}{on}"


def _steps(bound: Bound) -> str:
    hard = f"end{' (with force)' if bound.force else ''}"
    if bound.maintenance is not None:
        return f"warned {lasting(bound.warn_before_s)} before" + (f", then {hard}" if bound.is_hard else "")
    count = (
        "1 warning" if bound.warnings == 1 else f"{bound.warnings} warnings, {lasting(bound.every_s)} apart"
    )
    hold = ", held meanwhile" if bound.soft is Act.HOLD else ""
    return f"{count}{hold}" + (f", then {hard} after {lasting(bound.grace_s)}" if bound.is_hard else "")


def _minute(t_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(t_s))
