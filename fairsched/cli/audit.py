# SPDX-License-Identifier: Apache-2.0
"""``fairsched audit show|verify``: who ended what and why, and whether that is whole; ``rogue`` is in rogue.py."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.base.printable import printable
from fairsched.base.text import counted, wrap
from fairsched.cli.common import config_option, echo_json, echo_lines, json_option
from fairsched.cli.remote import RemoteCommand
from fairsched.cli.rogue import command as rogue_command
from fairsched.cli.text import short_command

if TYPE_CHECKING:
    from fairsched.reclaim.audit import Audit
    from fairsched.reclaim.chain import Head

SHOW_EPILOG = """\b
Examples:
  sudo fairsched audit show             the last 20 entries
  sudo fairsched audit show -n 500 --json | jq '.[].who.login'"""

VERIFY_EPILOG = """\b
Each line has the hash of the one before it, and state.json beside the log
has the last one: a byte that was changed, a line that was cut or moved, also
at the end, is found. Whoever may write both may write them anew: that is
found by a head that was kept elsewhere. The journal has each one
(FAIRSCHED_AUDIT_HASH), and verify prints the last one for --head.
\b
Exit status: 0 whole, 1 changed, or it cannot be read.
\b
Examples:
  sudo fairsched audit verify
  sudo fairsched audit verify --head 812:9f2c...   as noted last week"""


@click.group("audit")
def command() -> None:
    """Who ended what, and why: a log that shows when it was changed. And who looks like a rogue."""


command.add_command(rogue_command)


@command.command("show", cls=RemoteCommand, epilog=SHOW_EPILOG)
@click.option(
    "-n", "--last", type=click.IntRange(min=1), default=20, show_default=True, help="So many entries."
)
@config_option
@json_option
def show_command(last: int, config_path: Path | None, as_json: bool) -> None:
    """Show who ended what, oldest first."""
    entries = list(deque(_audit(config_path).entries(), maxlen=last))
    if as_json:
        echo_json(entries)
        return
    echo_lines(render(entries))


@command.command("verify", cls=RemoteCommand, epilog=VERIFY_EPILOG)
@click.option("--head", metavar="SEQ:HASH", help="What an entry was, as noted elsewhere.")
@config_option
@json_option
@click.pass_context
def verify_command(ctx: click.Context, head: str | None, config_path: Path | None, as_json: bool) -> None:
    """Check that each byte of the log is as it was written."""
    audit = _audit(config_path)
    verdict = audit.verify(None if head is None else _head(head))
    is_whole = not verdict.faults
    if as_json:
        echo_json(
            {
                "is_whole": is_whole,
                "entries": verdict.entries,
                "dropped": verdict.dropped,
                "head": str(verdict.head),
                "faults": [vars(fault) for fault in verdict.faults],
                "notes": list(verdict.notes),
            }
        )
        ctx.exit(0 if is_whole else 1)
    dropped = f", {verdict.dropped} before them dropped by rotation" if verdict.dropped else ""
    lines = [f"{'whole' if is_whole else 'CHANGED'}: {counted(verdict.entries, 'entry', 'entries')}{dropped}"]
    for fault in verdict.faults:
        lines += wrap(printable(f"! {fault}"), first="  ", rest="    ")
    for note in verdict.notes:
        lines += wrap(printable(note), first="  ", rest="    ")
    lines += ["to note elsewhere:", f"  {verdict.head}"] if verdict.entries else []
    echo_lines(lines)
    ctx.exit(0 if is_whole else 1)


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


def _plain(entry: Mapping[str, Any]) -> list[str]:
    return [f"{entry.get('seq')} {entry.get('time')} {entry.get('event')}"]


_RENDERERS = {"reclaim": _reclaim, "plan": _plan, "refused": _refused, "outcome": _outcome}


def _audit(config_path: Path | None) -> Audit:
    from fairsched.reclaim.audit import DIRECTORY, Audit

    if config_path is None and not Path("/etc/fairsched/config.yaml").exists():
        return Audit(DIRECTORY)
    from fairsched.config import load

    return Audit(load(config_path).state_dir / "audit")


def _head(text: str) -> Head:
    from fairsched.reclaim.chain import Head

    match = re.fullmatch(r"(\d+):([0-9a-f]{64})", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not SEQ:HASH, as verify prints it", param_hint="--head")
    return Head(int(match[1]), match[2])
