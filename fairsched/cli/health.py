# SPDX-License-Identifier: Apache-2.0
"""``fairsched health``: is the daemon well? For a supervisor that asks from outside, such as a kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairsched.cli.common import daemon_options, echo_json, echo_lines, json_option

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient

EPILOG = """\b
Without --live: also whether the mode of the configuration is in effect. If it
is not, a restart changes nothing: fairsched status and doctor say why.
\b
Exit status: 0 well, 1 not, or nobody answers.
\b
Examples:
  fairsched health          may a rollout go on to the next node?
  fairsched health --live   must the daemon be started again?"""


@click.command("health", epilog=EPILOG)
@click.option("--live", is_flag=True, help="Only whether it ticks.")
@daemon_options
@json_option
@click.pass_context
def command(ctx: click.Context, client: ControlClient, live: bool, as_json: bool) -> None:
    """Whether the daemon ticks, and does what it is configured to do."""
    from fairsched.errors import ControlError
    from fairsched.protocol.health import Health

    try:
        found = Health.of(client.request("ping"))
    except (KeyError, TypeError, ValueError):
        raise ControlError(
            "the daemon does not say how it is: it is of an older version",
            remedy="use the fairsched command of the same version as the daemon",
        ) from None
    why = found.why_not_live() if live else found.why_not_ready()
    if as_json:
        echo_json({"is_well": why is None, "why": why, "mode": found.mode, "wanted_mode": found.wanted_mode})
    else:
        echo_lines([f"well: mode {found.mode}" if why is None else f"not well: {why}"])
    ctx.exit(0 if why is None else 1)
