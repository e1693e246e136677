# SPDX-License-Identifier: Apache-2.0
"""``fairsched audit show|verify``: who ended what and why, and whether that is whole; ``rogue`` is in rogue.py."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.base.printable import printable
from fairsched.base.text import counted, wrap
from fairsched.cli.audit_text import render
from fairsched.cli.common import config_option, echo_json, echo_lines, json_option
from fairsched.cli.remote import RemoteCommand
from fairsched.cli.rogue import command as rogue_command

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


def _audit(config_path: Path | None) -> Audit:
    from fairsched.reclaim.audit import DIRECTORY, Audit

    if config_path is None and not Path("/etc/fairsched/config.yaml").exists():
        return Audit(DIRECTORY)
    from fairsched.config import load

    return Audit(load(config_path).state_dir / "audit")


def _head(text: str) -> Head:
    from fairsched.reclaim.chain import Head

    match = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text)
    if match is None:
        raise click.BadParameter(f"{text[:80]!r} is not SEQ:HASH, as verify prints it", param_hint="--head")
    return Head(int(match[1]), match[2])
