# SPDX-License-Identifier: Apache-2.0
"""What the guard knows, did and would have done, on a screen of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from fairsched.base.printable import printable
from fairsched.base.text import WIDTH, counted, wrap
from fairsched.cli.text import cut, duration, short_command, short_uuid, table
from fairsched.guard.breach import Act, What
from fairsched.guard.finding import lasting
from fairsched.guard.words import amount_text

if TYPE_CHECKING:
    from fairsched.guard.forecast import News
    from fairsched.guard.report import Deed, GuardStatus, LimitText, SubjectUse

_DEEDS = 8
"""Shown of those that are kept."""
_USES = 20
_NAMED = 8


@dataclass
class Rehearsed:
    """What a judge came to."""

    rounds: int = 0
    first_s: float | None = None
    last_s: float | None = None
    processes: set[tuple[str, int, int]] = field(default_factory=set)
    news: list[News] = field(default_factory=list)
    uses: list[SubjectUse] = field(default_factory=list)
    """At the end."""
    notes: list[str] = field(default_factory=list)

    def count(self, act: Act) -> int:
        return sum(one.breach.act is act for one in self.news)


def show_lines(status: GuardStatus, now_s: float, zone: tzinfo) -> list[str]:
    """Limits, who is near, today's GPU time, what is next, the last deeds."""
    lines = wrap(_head(status, now_s))
    for note in status.notes:
        lines += wrap(printable(f"! {note}"), rest="  ")
    if not status.limits:
        return [*lines, "no limits: see `guard` in docs/configuration.md"]
    lines += ["", "limits:"]
    for limit in status.limits:
        lines += wrap(printable(limit_line(limit)), first="  ", rest="    ")
    if status.t_s is not None:
        lines += ["", *near_lines(status.uses, now_s)]
    today = [one for one in status.uses if one.what is What.GPU_SECONDS and one.used]
    if today:
        lines += ["", "GPU time today:", *_today(today)]
    if status.held:
        lines += ["", *wrap(printable(f"held now: {', '.join(status.held)}"))]
    if status.deeds:
        lines += ["", "last done:"]
        for deed in status.deeds[-_DEEDS:]:
            lines += wrap(_deed(deed, zone), first="  ", rest="    ")
    return lines


def _head(status: GuardStatus, now_s: float) -> str:
    mode = {
        "off": "off: nothing is looked at",
        "dry_run": "dry run: it warns, and writes down what it would hold and end",
        "act": "acts: it warns, holds and ends",
    }.get(status.mode, status.mode)
    if status.mode == "act" and status.acts_as == "dry_run":
        mode = "dry run, as the daemon's mode is (guard.mode: act): it warns, and writes down the rest"
    if status.t_s is None:
        return f"guard: {mode}"
    ago = duration(max(0.0, now_s - status.t_s))
    if not status.is_running:
        return f"guard: {mode}; nobody looks all the time now, this is one look"
    return f"guard: {mode}; {counted(status.rounds, 'look')}, the last {ago} ago"


def limit_line(limit: LimitText) -> str:
    """``everybody: per user: vram 20.0 GiB; 3 warnings, 5 min apart``."""
    of = "" if limit.of is None else f" of {', '.join(limit.of)}"
    per = limit.per if limit.per == "maintenance" else f"per {limit.per}{of}"
    return f"{limit.name}: {per}: {'; '.join(limit.bounds)}; {limit.steps}"


def near_lines(uses: Iterable[SubjectUse], now_s: float) -> list[str]:
    """Who is over a limit or near it, those over first."""
    near = [one for one in uses if one.is_near]
    if not near:
        return ["nobody is over a limit or near it"]
    over = sum(one.is_over for one in near)
    lines = [f"{over or 'none'} over a limit, {len(near) - over or 'none'} near it:"]
    rows = [("LIMIT", "SUBJECT", "WHAT", "USED", "ALLOWED", "NEXT")]
    width = 12 if any(one.gpu for one in near[:_USES]) else 16
    for one in near[:_USES]:
        rows.append(
            (
                cut(one.limit, 10),
                cut(printable(_subject(one)), width),
                _what(one),
                "over"
                if one.used is None
                else ("≥ " if one.is_least else "") + amount_text(one.what, one.used),
                amount_text(one.what, one.allowed),
                _next(one, now_s),
            )
        )
    lines += [cut(f"  {line}", WIDTH) for line in table(rows, right=(3, 4))]
    if len(near) > _USES:
        lines.append(f"  and {len(near) - _USES} more")
    return lines


def _subject(one: SubjectUse) -> str:
    name = one.subject.name
    return f"{one.subject.per.value} {short_uuid(name) if one.subject.per.value == 'gpu' else name}"


def _what(one: SubjectUse) -> str:
    """``vram``, of one GPU ``vram@5f2c``."""
    words = {What.GPU_SECONDS: "gpu time", What.GPUS: "gpus", What.MAINTENANCE: "window"}
    what = words.get(one.what, one.what.value)
    return what if one.gpu is None else f"{what}@{one.gpu.partition('-')[2][:4]}"


def _next(one: SubjectUse, now_s: float) -> str:
    """``warn 3 in 5 min``, ``end in 40 s``, ``warned 3 times``."""
    if one.next_act is None or one.next_s is None:
        return "-" if one.since_s is None else f"warned {counted(one.warnings, 'time')}"
    number = f" {one.warnings + 1}" if one.next_act is Act.WARN else ""
    return f"{one.next_act.value}{number} in {lasting(max(0.0, one.next_s - now_s))}"


def _today(uses: Sequence[SubjectUse]) -> list[str]:
    rows = [("SUBJECT", "LIMIT", "USED", "ALLOWED", "LEFT")]
    for one in uses[:_USES]:
        left = max(0.0, (one.allowed or 0.0) - (one.used or 0.0))
        used, allowed, rest = (amount_text(one.what, value) for value in (one.used, one.allowed, left))
        gpu = "" if one.gpu is None else f" {short_uuid(one.gpu)}"
        rows.append((cut(printable(_subject(one) + gpu), 32), cut(one.limit, 16), used, allowed, rest))
    return [cut(f"  {line}", WIDTH) for line in table(rows, right=(2, 3, 4))]


def _deed(deed: Deed, zone: tzinfo) -> str:
    would = "would " if deed.is_dry and deed.act is not Act.WARN else ""
    whom = f" pid {', '.join(map(str, deed.pids[:_NAMED]))}" if deed.pids else ""
    whom += f" {', '.join(deed.tenants[:_NAMED])}" if deed.tenants else ""
    outcome = f": {deed.outcome}" if deed.outcome else ""
    return printable(f"{clock(deed.t_s, zone)} {would}{deed.act.value}{whom}: {deed.text}{outcome}")


def clock(t_s: float, zone: tzinfo) -> str:
    """``2026-11-27 09:30:05``, as a clock of that zone shows it."""
    return datetime.fromtimestamp(t_s, zone).strftime("%Y-%m-%d %H:%M:%S")


def test_lines(found: Rehearsed, zone: tzinfo, *, is_now: bool, most: int) -> list[str]:
    """``is_now``: of one look that is thought to go on; ``most``: lines of news at most."""
    lines = []
    for note in found.notes:
        lines += wrap(printable(f"! {note}"), rest="  ")
    if found.first_s is None or found.last_s is None:
        return [*lines, "no round was looked at"]
    seen = counted(len(found.processes), "process", "processes")
    warned = counted(found.count(Act.WARN) + found.count(Act.HOLD), "warning")
    held = f" ({found.count(Act.HOLD)} of them with a hold)" if found.count(Act.HOLD) else ""
    counts = f"{warned}{held}, {counted(found.count(Act.END), 'batch', 'batches')} of processes ended"
    if is_now:
        lines += wrap(
            f"{seen} on GPUs at {clock(found.first_s, zone)} ({zone}). If all stay as they are there, with what they "
            f"hold: {counts}."
        )
    else:
        lines += wrap(
            f"{counted(found.rounds, 'round')} with {seen}, {clock(found.first_s, zone)} to "
            f"{clock(found.last_s, zone)} ({zone}). It would have come to: {counts}."
        )
    if found.count(Act.END) and not is_now:
        lines += wrap("Whoever would have been ended is left out from then on.")
    lines.append("")
    for one in found.news[:most]:
        lines += news_lines(one, zone)
    if len(found.news) > most:
        lines.append(f"and {len(found.news) - most} more: --most, or --json")
    if found.uses:
        lines += ["", "at the end:" if not is_now else "now:", *near_lines(found.uses, found.last_s)]
    return lines


def news_lines(one: News, zone: tzinfo) -> list[str]:
    """When, what, whom and why."""
    breach = one.breach
    word = breach.act.value if breach.act is Act.END else f"warning {breach.warnings}"
    lines = wrap(printable(f"{clock(one.t_s, zone)}  {word}: {breach.text}"), rest="  ")
    if breach.act is Act.HOLD:
        whom = ", ".join(breach.tenants[:_NAMED]) or "nobody, for no tenant is theirs alone"
        lines += wrap(printable(f"holds {whom}"), first="    ", rest="      ")
    if breach.act is Act.END:
        for process in breach.processes[:_NAMED]:
            user = process.user or process.uid
            text = f"pid {process.pid} of {user}, {short_command(process.command)}"
            lines.append(cut(printable(f"    {text}"), WIDTH))
        if len(breach.processes) > _NAMED:
            lines.append(f"    and {len(breach.processes) - _NAMED} more")
    return lines


def plain_of(found: Rehearsed) -> dict[str, Any]:
    """For machines."""
    return {
        "rounds": found.rounds,
        "first_s": found.first_s,
        "last_s": found.last_s,
        "processes": len(found.processes),
        "warnings": found.count(Act.WARN) + found.count(Act.HOLD),
        "holds": found.count(Act.HOLD),
        "ends": found.count(Act.END),
        "notes": found.notes,
        "news": [
            {
                "t_s": one.t_s,
                "limit": one.breach.limit,
                "subject": one.breach.subject.text,
                "what": one.breach.what.value,
                "act": one.breach.act.value,
                "warnings": one.breach.warnings,
                "used": one.breach.used,
                "allowed": one.breach.allowed,
                "gpu": one.breach.gpu,
                "pids": [process.pid for process in one.breach.processes],
                "tenants": list(one.breach.tenants),
                "text": one.breach.text,
            }
            for one in found.news
        ],
    }
