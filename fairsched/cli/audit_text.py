# SPDX-License-Identifier: Apache-2.0
"""Renders entries of the audit log for ``fairsched audit show``, of this host or of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairsched.base.printable import printable
from fairsched.base.text import wrap
from fairsched.cli.text import short_command


def render(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """A few lines an entry, at most 80 columns wide."""
    lines: list[str] = []
    for entry in entries:
        lines += _RENDERERS.get(entry.get("event", ""), _plain)(entry)
    return lines or ["nothing was reclaimed"]


def _heading(entry: Mapping[str, Any]) -> str:
    """Number, time, what and by whom; what a client of MCP calls itself is a claim."""
    by = entry.get("who") or {}
    login = by.get("login") or "no login"
    client = str(entry.get("claims_client") or "an assistant")[:40]
    via = f", via {entry['via']}: {client!r}" if entry.get("via") else ""
    who = f"{by.get('user') or by.get('uid')} ({login}){via}"
    return printable(f"{entry['seq']} {entry.get('time')} {entry.get('event')} by {who}")


def _asked(entry: Mapping[str, Any]) -> list[str]:
    why = f", because: {entry['why']}" if entry.get("why") else ""
    said = f"asked {entry.get('asked')}{' --force' if entry.get('is_forced') else ''}{why}"
    return [*wrap(_heading(entry), rest="    "), *wrap(printable(said), first="  ")]


def _plan(entry: Mapping[str, Any]) -> list[str]:
    """Of an assistant: it waits to be confirmed."""
    pids = ", ".join(str(one["pid"]) for one in entry.get("targets", ()))
    return [*_asked(entry), *wrap(f"would end {pids}", first="  ", rest="    ")]


def _reclaim(entry: Mapping[str, Any]) -> list[str]:
    lines = _asked(entry)
    for one in entry.get("targets", ()):
        marks = [mark for has in one.get("evidence", ()) for mark in has.get("marks", ())]
        said = "; ".join([one.get("why", ""), *dict.fromkeys(marks)])
        whose = one.get("user") or f"uid {one.get('uid')}"
        lines += wrap(
            printable(f"to end {one['pid']} {short_command(one['command'])[:60]} ({whose}): {said}"),
            first="  ",
            rest="    ",
        )
    for one in entry.get("left", ()):
        lines += wrap(printable(f"left {one['pid']} ({one['name']}): {one['why']}"), first="  ", rest="    ")
    return lines


def _outcome(entry: Mapping[str, Any]) -> list[str]:
    word = "done" if entry.get("is_whole") else "done in part"
    lines = [f"{entry['seq']} {entry.get('time')} outcome of {entry.get('of')}: {word}"]
    for one in entry.get("processes", ()):
        why = f": {one['why']}" if one.get("why") else ""
        lines += wrap(printable(f"{one['fate']} {one['pid']}{why}"), first="  ", rest="    ")
    for gpu in entry.get("gpus", ()):
        for text in gpu.get("still", ()):
            lines += wrap(printable(f"GPU {gpu.get('index')}: {text}"), first="  ", rest="    ")
    if entry.get("reset"):
        lines += wrap(
            printable(f"{'reset' if entry['reset']['is_done'] else 'not reset'}: {entry['reset']['text']}"),
            first="  ",
            rest="    ",
        )
    return lines


def _refused(entry: Mapping[str, Any]) -> list[str]:
    pids = ", ".join(map(str, entry.get("pids", ()))) or "nobody"
    return [
        *wrap(_heading(entry), rest="    "),
        *wrap(printable(f"to end {pids}: {entry.get('code')}"), first="  ", rest="    "),
    ]


def _guard(entry: Mapping[str, Any]) -> list[str]:
    """What limits came to: told, lowered, given back, or what would have been done."""
    limit = f" ({entry['limit']})" if entry.get("limit") else ""
    change = f" {entry['key']} of {entry['tenant']}" if entry.get("key") else ""
    if "set" in entry:
        change += f" from {_value(entry.get('before'))} to {_value(entry['set'])}"
    elif "now" in entry:
        change += f", now {_value(entry['now'])}"
    head = f"{entry['seq']} {entry.get('time')} guard: {entry.get('did')}{change}{limit}"
    lines = wrap(printable(head), rest="    ")
    for text in (entry.get("text"), entry.get("detail")):
        lines += wrap(printable(str(text)), first="  ", rest="    ") if text else []
    return lines


def _value(value: object) -> str:
    return "not set" if value is None else str(value)


def _plain(entry: Mapping[str, Any]) -> list[str]:
    return [f"{entry.get('seq')} {entry.get('time')} {entry.get('event')}"]


_RENDERERS = {
    "reclaim": _reclaim,
    "plan": _plan,
    "refused": _refused,
    "outcome": _outcome,
    "guard": _guard,
}
