# SPDX-License-Identifier: Apache-2.0
"""``fairsched top``: the live table; with --once one picture, with --json its rows."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli.common import daemon_options, echo_json, json_option, report_of

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient

_ORDERS = ("lag", "used", "entitled", "weight", "tokens", "queue", "vram", "held", "name")
"""Those of top.rows.Order, which would bring rich into every --help; a test compares them."""
_PATIENCE_S = 2.0

EPILOG = """\b
Columns:
  STATE  run, held, idle, exempt, away (no process of it opened a GPU),
         foreign (frozen by somebody else)
  WT     weight; * = changed with fairsched tenant set
  bar    GPU time it got in the last window; the mark is its due
  USED   the same in percent of one GPU, of the GPU on which it owes most
  DUE    percent it is entitled to now
  LAG    ms of GPU time it is owed; negative = it is ahead
  TOK/S  tokens per second, from its own metrics
  P99    ms its work waited while others ran, 99th percentile of the last ten
         seconds; with --once and --json of the last minute
  VRAM   memory on all GPUs
n/a = not known, which is not 0. A wider terminal shows more.
\b
Keys: s sort, r reverse, / filter, p pause, arrows scroll, ? help, q quit.
NO_COLOR is minded; a dumb terminal gets one picture below the other.
\b
Examples:
  fairsched top
  fairsched top --sort queue --filter held
  fairsched top --once
  fairsched top --json | jq '.tenants[] | select(.lag_ms < -50)'"""


@click.command("top", epilog=EPILOG)
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Seconds.",
)
@click.option("--sort", "order", type=click.Choice(_ORDERS), default="lag", show_default=True)
@click.option("--reverse", "is_reversed", is_flag=True, help="Sort the other way round.")
@click.option("--filter", "needle", metavar="TEXT", default="", help="Part of a name, or a state.")
@click.option("--once", is_flag=True, help="One picture of all tenants; so where stdout is no terminal.")
@daemon_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    client: ControlClient,
    interval_s: float,
    order: str,
    is_reversed: bool,
    needle: str,
    once: bool,
    as_json: bool,
) -> None:
    """Tenants and GPUs, live: used against due, lag, tokens, delay, memory."""
    from fairsched.cli.top import live, terminal
    from fairsched.cli.top.rows import Order
    from fairsched.cli.top.view import View

    view = View(order=Order(order), is_reversed=is_reversed, needle=needle)
    ask = functools.partial(client.request, "status")
    if as_json:
        echo_json(_document(ask(), view))
    elif once or not sys.stdout.isatty():
        live.run_once(ask, view, sys.stdout)
    elif terminal.is_capable(os.environ, sys.stdin.fileno(), sys.stdout.fileno()):
        client.timeout_s = _PATIENCE_S
        ctx.exit(live.run_live(ask, interval_s, view))
    else:
        ctx.exit(live.run_plain(ask, interval_s, view, sys.stdout))


def _document(plain: Any, view: Any) -> dict[str, Any]:
    from fairsched.cli.top.rows import make_rows
    from fairsched.protocol.status import to_plain

    report = report_of(plain)
    rows = make_rows(report, view.order, is_reversed=view.is_reversed, needle=view.needle)
    return {
        "wall_time_s": report.wall_time_s,
        "mode": report.mode,
        "fairness_error_ratio": report.fairness_error_ratio,
        "slis": to_plain(report.slis),
        "gpus": to_plain(report.gpus),
        "tenants": to_plain(rows),
        "warnings": list(report.warnings),
    }
