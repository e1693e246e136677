# SPDX-License-Identifier: Apache-2.0
"""``fairsched report``: the past as a page with plots, or as one picture."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from fairsched.cli.common import config_option
from fairsched.cli.duration import seconds_of

EPILOG = """\b
The page loads nothing from anywhere, fits light and dark, and ends in tables.
It is drawn from state_dir/history.sqlite, which the daemon's companion writes
while history.enabled is true; no daemon needs to run.
\b
Examples:
  fairsched report --since 1h
  fairsched report --since 7d --output week.html
  fairsched report --since 15m --output shares.png    (needs matplotlib)"""

SUFFIXES = (".html", ".png")


@click.command("report", epilog=EPILOG)
@click.option(
    "--since",
    "since_s",
    type=seconds_of,
    metavar="TIME",
    default="1h",
    show_default=True,
    help="How far back: 90s, 15m, 1h, 7d.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fairsched-report.html"),
    show_default=True,
    help="FILE.html or FILE.png.",
)
@click.option(
    "--history",
    "history_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The database.  [default: history.sqlite in state_dir]",
)
@config_option
def command(since_s: float, output: Path, history_path: Path | None, config_path: Path | None) -> None:
    """What happened: shares, lag, holds, delays, tokens, as plots."""
    from fairsched import __version__
    from fairsched.base.files import replacing
    from fairsched.cli.page import png
    from fairsched.cli.page.charts import make_board
    from fairsched.cli.page.page import make_page
    from fairsched.companion.history.read import read_past
    from fairsched.errors import FairschedError

    if output.suffix not in SUFFIXES:
        raise click.BadParameter(f"'{output}' ends neither in .html nor in .png", param_hint="--output")
    if output.suffix == ".png":
        png.check_can_draw()
    now_s = time.time()
    board = make_board(read_past(history_path or _history_of(config_path), now_s - since_s, now_s))
    node = os.uname().nodename
    try:
        with replacing(output.absolute()) as scratch:
            if output.suffix == ".png":
                png.save(board, scratch, node=node)
            else:
                page = make_page(board, node=node, version=__version__, now_s=now_s)
                scratch.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FairschedError(
            f"{output}: {error.strerror}", remedy="name a file that can be written: --output FILE"
        ) from error
    click.echo(str(output))


def _history_of(config_path: Path | None) -> Path:
    """Where the configuration on this host has it; where the default has it when the file is broken."""
    from fairsched.config import Config, load
    from fairsched.errors import ConfigError

    try:
        return load(config_path).history_path
    except ConfigError:
        if config_path is not None:
            raise
        return Config().history_path
