# SPDX-License-Identifier: Apache-2.0
"""``fairsched demo``: the whole thing in less than a minute."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from fairsched.cli.common import json_option

EPILOG = """\b
Examples:
  fairsched demo                    watch unfair become fair
  fairsched demo --png fair.png     and keep the picture there
  fairsched demo --json             for a machine"""


@click.command("demo", epilog=EPILOG)
@click.option(
    "--seconds",
    type=click.FloatRange(min=2, max=3600),
    default=15.0,
    show_default=True,
    help="Length of each half.",
)
@click.option(
    "--png",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the shares to this file.  [default: fairsched-demo.png]",
)
@click.option("--no-live", is_flag=True, help="No moving picture, only the result.")
@json_option
@click.pass_context
def command(ctx: click.Context, seconds: float, png: Path | None, no_live: bool, as_json: bool) -> None:
    """See it work: four tenants with weights on one GPU, unscheduled, then scheduled.

    The GPU is simulated, also where there is a real one; processes, cgroups,
    eBPF and the daemon are real. Needs root. Nothing is left behind. Exits 1,
    and says why, when a tenant ends more than 3 points from its due.
    """
    demo = importlib.import_module("fairsched.demo")  # only now: it brings bcc with it
    ctx.exit(demo.run_demo(seconds=seconds, png=png, as_json=as_json, is_live=not no_live and not as_json))
