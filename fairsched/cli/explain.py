# SPDX-License-Identifier: Apache-2.0
"""``fairsched explain TENANT``: the last minute, hold by hold, in plain words with numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import daemon_options, echo_json, json_option
from fairsched.cli.text import milliseconds, misbehaviour_text, reason_text, wrap

if TYPE_CHECKING:
    from fairsched.control_client import ControlClient
    from fairsched.status import DecisionRecord, MisbehaviourStatus

WINDOW_S = 60

EPILOG = """\b
Examples:
  fairsched explain chat
  fairsched explain team/chat --json"""


@click.command("explain", epilog=EPILOG)
@click.argument("tenant")
@daemon_options
@json_option
def command(client: ControlClient, tenant: str, as_json: bool) -> None:
    """Why TENANT was held and thawed in the last minute."""
    from fairsched.status import decision_from_plain, status_from_plain

    documents = client.request("explain", tenant=tenant)
    if as_json:
        echo_json(documents)
        return
    records = [decision_from_plain(document) for document in documents]
    report = status_from_plain(client.request("status"))
    now = next((one.misbehaviours for one in report.tenants if one.name == tenant), ())
    click.echo("\n".join(render(tenant, records, time.monotonic_ns(), now, report.wall_time_s)))


def render(
    tenant: str,
    records: Sequence[DecisionRecord],
    now_ns: int,
    misbehaviours: Sequence[MisbehaviourStatus] = (),
    now_s: float = 0.0,
) -> list[str]:
    """The story of `records` (oldest first), at most 80 columns a line; a summary comes first."""
    episodes = _episodes(records)
    lines = _summary(tenant, episodes, now_ns)
    for one in misbehaviours:
        lines += wrap(misbehaviour_text(one, now_s), first="! ", rest="  ")
    for hold, thaw in episodes:
        first = hold or thaw
        assert first is not None
        stamp = time.strftime("%H:%M:%S", time.localtime(first.wall_time_s))
        stamp += f".{int(first.wall_time_s % 1 * 1000):03d}  "
        lines += wrap(_sentence(hold, thaw, now_ns), first=stamp, rest=" " * len(stamp))
    return lines


_Episode = tuple["DecisionRecord | None", "DecisionRecord | None"]


def _episodes(records: Sequence[DecisionRecord]) -> list[_Episode]:
    """Each hold with the thaw that ended it. A thaw alone: its hold is older than the records."""
    found: list[_Episode] = []
    for record in records:
        if record.action.value == "hold":
            found.append((record, None))
        elif found and found[-1][0] is not None and found[-1][1] is None:
            found[-1] = (found[-1][0], record)
        else:
            found.append((None, record))
    return found


def _held_ns(episode: _Episode, now_ns: int) -> int:
    hold, thaw = episode
    if hold is not None and hold.error:
        return 0
    if thaw is not None and thaw.held_ns is not None:
        return thaw.held_ns
    if hold is None:
        return 0
    return max(0, (thaw.t_ns if thaw is not None else now_ns) - hold.t_ns)


def _summary(tenant: str, episodes: Sequence[_Episode], now_ns: int) -> list[str]:
    if not episodes:
        return [f"{tenant} was not held in the last minute."]
    lengths = [_held_ns(episode, now_ns) for episode in episodes]
    is_dry = all(record is None or record.is_dry_run for episode in episodes for record in episode)
    total_ms, longest_ms = sum(lengths) / 1e6, max(lengths) / 1e6
    times = "once" if len(episodes) == 1 else f"{len(episodes)} times"
    return wrap(
        f"{tenant} {'would have been' if is_dry else 'was'} held {times} in the last minute, "
        f"{milliseconds(total_ms)} ms in all ({milliseconds(total_ms / WINDOW_S)} ms of each second), "
        f"{milliseconds(longest_ms)} ms at the longest."
    )


def _sentence(hold: DecisionRecord | None, thaw: DecisionRecord | None, now_ns: int) -> str:
    length = f"{milliseconds(_held_ns((hold, thaw), now_ns) / 1e6)} ms"
    parts: list[str] = []
    if hold is not None:
        verb = "would be held" if hold.is_dry_run else "held"
        if hold.error:
            parts.append(f"could not be held ({hold.error}): {reason_text(hold.reason)}")
        elif thaw is None:
            parts.append(f"{verb}, for {length} so far: {reason_text(hold.reason)}")
        else:
            parts.append(f"{verb} {length}: {reason_text(hold.reason)}")
    if thaw is not None:
        after = f" after {length}" if hold is None else ""
        failed = f" (failed: {thaw.error})" if thaw.error else ""
        parts.append(f"thawed{after}{failed}: {reason_text(thaw.reason)}")
    return "; ".join(parts)
