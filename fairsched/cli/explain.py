# SPDX-License-Identifier: Apache-2.0
"""``fairsched explain TENANT``: the last minute in plain words with numbers.

A few holds are told one by one. Of many, what they have in common is told first, by reason and with the range of
the numbers, and then the last few. What a dry run would have held is told apart, and added to nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from fairsched.base.text import percent, wrap
from fairsched.cli.common import daemon_options, echo_json, echo_lines, json_option, report_of
from fairsched.cli.text import (
    milliseconds,
    misbehaviour_text,
    reason_text,
    reason_words,
    short_uuid,
    vram_text,
)

if TYPE_CHECKING:
    from fairsched.model import GraphWork, ReasonCode
    from fairsched.protocol.client import ControlClient
    from fairsched.protocol.status import DecisionRecord, MisbehaviourStatus, TenantStatus, VramStatus

WINDOW_S = 60
FEW = 8
"""So many holds are told one by one."""
LAST = 5
"""Of more than that, so many."""

EPILOG = """\b
Examples:
  fairsched explain chat
  fairsched explain batch --all         every hold, however many
  fairsched explain team/chat --json"""


@click.command("explain", epilog=EPILOG)
@click.argument("tenant")
@click.option("--all", "is_all", is_flag=True, help="Tell every hold, not only the last ones.")
@daemon_options
@json_option
def command(client: ControlClient, tenant: str, is_all: bool, as_json: bool) -> None:
    """Why TENANT was held and thawed in the last minute."""
    from fairsched.protocol.status import decision_from_plain

    documents = client.request("explain", tenant=tenant)
    if as_json:
        echo_json(documents)
        return
    records = [decision_from_plain(document) for document in documents]
    report = report_of(client.request("status"))
    now = next((one for one in report.tenants if one.name == tenant), None)
    misbehaviours, vram = (now.misbehaviours, now.vram) if now is not None else ((), ())
    now_ns, now_s = time.monotonic_ns(), report.wall_time_s
    lines = render(
        tenant, records, now_ns, misbehaviours, now_s, vram, now=now, is_all=is_all, uptime_s=report.uptime_s
    )
    echo_lines(lines)


def render(
    tenant: str,
    records: Sequence[DecisionRecord],
    now_ns: int,
    misbehaviours: Sequence[MisbehaviourStatus] = (),
    now_s: float = 0.0,
    vram: Sequence[VramStatus] = (),
    *,
    now: TenantStatus | None = None,
    is_all: bool = False,
    uptime_s: float = WINDOW_S,
) -> list[str]:
    """The story of `records` (oldest first), at most 80 columns a line; a summary comes first."""
    episodes = _episodes(records, now_ns)
    window_s = max(1.0, min(WINDOW_S, uptime_s))
    begin_ns = now_ns - round(window_s * 1e9)
    lines = _summary(tenant, episodes, begin_ns, window_s)
    if now is not None:
        lines += wrap(_now(now))
        lines += wrap(f"weight {now.weight:g}, by {now.policy}") if now.policy else []
        lines += wrap(now.note) if now.note else []
        for gpu in now.gpus:
            if gpu.graphs is not None:
                where = f" on {short_uuid(gpu.uuid)}" if len(now.gpus) > 1 else ""
                lines += wrap(_graphs(gpu.graphs, where))
    for one in misbehaviours:
        lines += wrap(misbehaviour_text(one, now_s), first="! ", rest="  ")
    for is_over, text in (vram_text(one, now_s) for one in vram):
        lines += wrap(text, first="! " if is_over else "", rest="  ")
    if len(episodes) > FEW:
        for is_dry in (False, True):
            lines += _digest([one for one in episodes if one.is_dry is is_dry], begin_ns)
        if not is_all:
            lines.append(f"the last {LAST} of {len(episodes)}; --all tells all of them:")
            episodes = episodes[-LAST:]
    for episode in episodes:
        wall_s = episode.records[0].wall_time_s
        stamp = f"{time.strftime('%H:%M:%S', time.localtime(wall_s))}.{int(wall_s % 1 * 1000):03d}  "
        lines += wrap(_sentence(episode), first=stamp, rest=" " * len(stamp))
    return lines


def _now(now: TenantStatus) -> str:
    """``now run: used 24.9%, entitled 25.0%, lag +3.0 ms; its work waits 1.2 ms, p99 8.0 ms; 51.5 tokens/s``"""
    shares = []
    if now.used_ratio is not None:
        error = "" if now.error_ratio is None else f" (+-{100 * now.error_ratio:.0f}% of that)"
        shares.append(f"used {percent(now.used_ratio)}%{error}")
    if now.entitled_ratio is not None:
        shares.append(f"entitled {percent(now.entitled_ratio)}%")
    if now.lag_ms is not None:
        shares.append(f"lag {milliseconds(now.lag_ms, signed=True)} ms")
    parts = [", ".join(shares)] if shares else []
    if now.queue_delay_p50_ms is not None:
        p99 = "" if now.queue_delay_p99_ms is None else f", p99 {milliseconds(now.queue_delay_p99_ms)} ms"
        parts.append(f"its work waits {milliseconds(now.queue_delay_p50_ms)} ms{p99}")
    if now.tokens is not None and now.tokens.tokens_per_s is not None:
        parts.append(f"{now.tokens.tokens_per_s:.1f} tokens/s")
    return f"now {now.state.value}{': ' if parts else ''}{'; '.join(parts)}"


def _graphs(graphs: GraphWork, where: str) -> str:
    """``graph launches of 20 to 95 ms (3 graphs; the longest +-4%, measured alone): each is one piece``"""
    shortest, longest = milliseconds(graphs.shortest_ms), milliseconds(graphs.longest_ms)
    lengths = longest if shortest == longest else f"{shortest} to {longest}"
    many = "1 graph" if graphs.count == 1 else f"{graphs.count} graphs; the longest"
    source = "measured alone" if graphs.is_measured else "as charged beside others"
    doubt = f"+-{percent(graphs.error_ratio)}%"
    return f"graph launches of {lengths} ms{where} ({many} {doubt}, {source}): each runs as one piece"


class _Episode(NamedTuple):
    """A hold with the thaw that ended it. A thaw alone: its hold is older than the records."""

    hold: DecisionRecord | None
    thaw: DecisionRecord | None
    began_ns: int
    ended_ns: int
    """Now, for one that lasts."""

    @property
    def records(self) -> list[DecisionRecord]:
        return [record for record in (self.hold, self.thaw) if record is not None]

    @property
    def is_dry(self) -> bool:
        return self.records[0].is_dry_run

    def held_ns(self, begin_ns: int = 0) -> int:
        """After ``begin_ns``."""
        return max(0, self.ended_ns - max(self.began_ns, begin_ns))


def _episodes(records: Sequence[DecisionRecord], now_ns: int) -> list[_Episode]:
    """In the order in which they began. None of one kind outlasts the record that follows it, so they add up."""
    found = []
    for is_dry in (False, True):
        mine = [record for record in records if record.is_dry_run is is_dry]
        for before, record, after in zip([None, *mine], mine, [*mine[1:], None], strict=False):
            if _is_hold(record):
                ended_ns = record.t_ns if record.error else after.t_ns if after is not None else now_ns
                thaw = None if after is None or _is_hold(after) else after
                found.append(_Episode(record, thaw, record.t_ns, ended_ns))
            elif before is None or not _is_hold(before):
                began_ns = max(record.t_ns - (record.held_ns or 0), before.t_ns if before is not None else 0)
                found.append(_Episode(None, record, began_ns, record.t_ns))
    return sorted(found, key=lambda one: one.began_ns)


def _is_hold(record: DecisionRecord) -> bool:
    return record.action.value == "hold"


def _summary(tenant: str, episodes: Sequence[_Episode], begin_ns: int, seconds: float) -> list[str]:
    if not episodes:
        return [f"{tenant} was not held in the last minute."]
    lines: list[str] = []
    for is_dry, verb in ((False, "was"), (True, "would have been")):
        mine = [one for one in episodes if one.is_dry is is_dry]
        if not mine:
            continue
        total_ms = sum(one.held_ns(begin_ns) for one in mine) / 1e6
        longest_ms = max(one.held_ns() for one in mine) / 1e6
        lines += wrap(
            f"{tenant} {verb} held {_times(len(mine))} in the last minute, "
            f"{milliseconds(total_ms)} ms in all ({milliseconds(total_ms / seconds)} ms of each second), "
            f"{milliseconds(longest_ms)} ms at the longest."
        )
    return lines


def _sentence(episode: _Episode) -> str:
    hold, thaw = episode.hold, episode.thaw
    length = f"{milliseconds(episode.held_ns() / 1e6)} ms"
    would = "would have been " if episode.is_dry else ""
    parts: list[str] = []
    if hold is not None:
        if hold.error:
            parts.append(f"could not be held ({hold.error}): {reason_text(hold.reason)}")
        elif thaw is None:
            verb = "would be held" if episode.is_dry else "held"
            parts.append(f"{verb}, for {length} so far{_long(hold)}: {reason_text(hold.reason)}")
        else:
            parts.append(f"{would}held {length}{_long(hold)}: {reason_text(hold.reason)}")
    if thaw is not None:
        after = f" after {length}" if hold is None else ""
        failed = f" (failed: {thaw.error})" if thaw.error else ""
        parts.append(f"{would}thawed{after}{failed}: {reason_text(thaw.reason)}")
    return "; ".join(parts)


def _long(hold: DecisionRecord) -> str:
    """Of a hold that may last longer than its class promises."""
    limit_ns = hold.reason.long_hold_ns
    if limit_ns is None:
        return ""
    return f" ({milliseconds(limit_ns / 1e6)} ms at most: it owes more than short holds repay)"


def _digest(episodes: Sequence[_Episode], begin_ns: int) -> list[str]:
    """What many holds have in common: why they were made, with the range of each number, and why they ended."""
    lines: list[str] = []
    would = "would have been " if episodes and episodes[0].is_dry else ""
    for code in _codes([one.hold for one in episodes]):
        mine = [one for one in episodes if one.hold is not None and one.hold.reason.code == code]
        holds = [one.hold for one in mine if one.hold is not None]
        lengths = [one.held_ns(begin_ns) / 1e6 for one in mine]
        failed = sum(hold.error is not None for hold in holds)
        words = f"{would}held {_times(len(holds))}: {reason_words(code)}; {milliseconds(sum(lengths))} ms in all, "
        words += f"{_range(lengths, milliseconds)} ms each{_numbers(holds)}"
        lines += wrap(words + (f"; {failed} of them failed" if failed else ""), first="  ", rest="    ")
    for code in _codes([one.thaw for one in episodes]):
        count = sum(one.thaw is not None and one.thaw.reason.code == code for one in episodes)
        lines += wrap(f"{would}thawed {_times(count)}: {reason_words(code)}", first="  ", rest="    ")
    return lines


def _codes(records: Sequence[DecisionRecord | None]) -> list[ReasonCode]:
    """The most frequent first."""
    codes = [record.reason.code for record in records if record is not None]
    return sorted(dict.fromkeys(codes), key=lambda code: -codes.count(code))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _numbers(holds: Sequence[DecisionRecord]) -> str:
    reasons = [hold.reason for hold in holds]
    used = [one.used_ratio for one in reasons if one.used_ratio is not None]
    entitled = [one.entitlement_ratio for one in reasons if one.entitlement_ratio is not None]
    lags = [one.lag_ns / 1e6 for one in reasons if one.lag_ns is not None]
    gpus = {one.gpu for one in reasons if one.gpu is not None}
    parts = []
    if used:
        parts.append(f"used {_range(used, percent)}%")
    if entitled:
        parts.append(f"entitled {_range(entitled, percent)}%")
    if parts and len(gpus) == 1:
        parts[-1] += f" of {short_uuid(gpus.pop())}"
    if lags:
        parts.append(f"lag {_range(lags, lambda value: milliseconds(value, signed=True))} ms")
    return "; " + ", ".join(parts) if parts else ""


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    """``40``, or ``12 to 80 (median 35)``."""
    low, high, middle = text(min(values)), text(max(values)), text(statistics.median(values))
    return low if low == high else f"{low} to {high} (median {middle})"
