# SPDX-License-Identifier: Apache-2.0
"""``fairsched run``: the daemon, in the foreground."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from fairsched.cli.common import config_option

EPILOG = """\b
Examples:
  fairsched run                    with /etc/fairsched/config.yaml
  fairsched run --dry-run          decide and log, hold nobody
  fairsched run --once --dry-run   one tick, then exit
\b
SIGHUP re-reads the configuration; a bad one is logged and the running one
stays. SIGTERM thaws everything and exits."""


@click.command("run", epilog=EPILOG)
@config_option
@click.option("--dry-run", is_flag=True, help="Decide and log, but freeze nothing.")
@click.option("--once", is_flag=True, help="One tick, then thaw everything and exit.")
@click.pass_context
def command(ctx: click.Context, config_path: Path | None, dry_run: bool, once: bool) -> None:
    """Schedule: the daemon, in the foreground. Logs on stderr."""
    daemon = importlib.import_module("fairsched.daemon.main")  # only now: it brings bcc with it
    ctx.exit(daemon.run_daemon(config_path, dry_run=dry_run, once=once))
