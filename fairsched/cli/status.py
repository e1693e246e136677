# SPDX-License-Identifier: Apache-2.0
"""``fairsched status``: who uses what, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairsched.cli.common import daemon_options, echo_json, echo_lines, json_option, report_of
from fairsched.cli.remote import RemoteCommand
from fairsched.cli.status_text import Detail, render

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient

EPILOG = """\b
Columns:
  STATE     run, held, idle, exempt, away (no process of it opened a GPU),
            foreign (frozen by somebody else)
  ENTITLED  percent of what the GPU delivers that is its due now
  USED      percent it got in the last window
  LAG       ms of GPU time it is owed; negative = it is ahead
  QUEUE     ms its work waited while others ran, median
  HELD      ms it was held, per second
  ERR       how far USED may be off, in percent of it (>99: it may be
            anything); low: it is not known, so it is held for what it had at
            most, or not at all
A line that begins with ! names GPU work that never ends or cannot be seen, or
memory beyond a tenant's limit, or token counters that cannot be read.
Most overdrawn first. n/a = not known, which is not 0. Reasons that would not
fit on a screen of 24 lines are left to --full, and to fairsched explain.
\b
Examples:
  fairsched status
  fairsched status --json | jq '.tenants[] | {name, used_ratio}'"""


@click.command("status", cls=RemoteCommand, epilog=EPILOG)
@click.option("--full", is_flag=True, help="Every reason, however long.")
@daemon_options
@json_option
def command(client: ControlClient, full: bool, as_json: bool) -> None:
    """Who uses what, who is entitled to what, who is held and why."""
    document = client.request("status")
    if as_json:
        echo_json(document)
        return
    echo_lines(render(report_of(document), Detail.FULL if full else None))
