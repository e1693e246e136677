# SPDX-License-Identifier: Apache-2.0
"""The command line: ``fairsched COMMAND``.

Stdout is the answer, stderr the log. Exit status: 0 ok, 1 failed, 2 usage or configuration, 3 this
host cannot. Command modules import only click at the top: ``--help`` and ``release`` must work, and
fast, on a host where half of the rest does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from fairsched import __version__
from fairsched.base.printable import printable
from fairsched.cli.lazy import LazyGroup
from fairsched.errors import FairschedError

COMMANDS = {
    "run": ("fairsched.cli.run", "Schedule: the daemon, in the foreground."),
    "demo": ("fairsched.cli.demo", "See it work, on a simulated GPU."),
    "doctor": ("fairsched.cli.doctor", "Say what this host can do, and what would help."),
    "status": ("fairsched.cli.status", "Who uses what, who is entitled to what."),
    "health": ("fairsched.cli.health", "Whether the daemon ticks and does what it is to do."),
    "top": ("fairsched.cli.top.command", "The same and more, live."),
    "ps": ("fairsched.cli.ps", "Which processes use the GPUs, and whose they are."),
    "reclaim": ("fairsched.cli.reclaim", "End who holds a GPU, and check that it is free."),
    "audit": ("fairsched.cli.audit", "Who ended what, and why; who looks like a rogue."),
    "guard": ("fairsched.cli.guard", "Limits, who is over them, and what is done about it."),
    "mcp": ("fairsched.cli.mcp", "A door for assistants (MCP): read, and end only what is confirmed."),
    "explain": ("fairsched.cli.explain", "Why a tenant was held, in the last minute."),
    "events": ("fairsched.cli.events", "Holds, thaws and terminations as JSON lines."),
    "report": ("fairsched.cli.report", "The past as a page with plots."),
    "tenant": ("fairsched.cli.tenant", "List tenants; change weights and limits live."),
    "exec": ("fairsched.cli.execute", "Run a command as a tenant."),
    "release": ("fairsched.cli.release", "Thaw everything fairsched holds; needs no daemon."),
    "escalation": ("fairsched.cli.escalation", "What is done when fairness stays bad."),
    "config": ("fairsched.cli.config", "Check and show the configuration."),
    "k8s": ("fairsched.cli.k8s", "Node pools and trouble of a Kubernetes cluster."),
}
"""Command: module (its ``command``) and the line in ``fairsched --help``."""


EPILOG = """\b
Examples:
  fairsched doctor                      can this host do it?
  fairsched run --dry-run               decide and log, hold nobody
  fairsched status                      who uses what
  fairsched tenant set chat --weight 6  at once, no restart
  fairsched release                     let go of everything
\b
Exit status: 0 ok, 1 failed, 2 usage or configuration, 3 this host cannot,
4 some of several hosts failed (--host)."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="fairsched")
def cli() -> None:
    """Weighted fair shares of GPU time for cgroup v2 tenants.

    Nothing is injected into the tenants: eBPF sees who uses the GPU, a daemon
    decides, cgroup.freeze acts, and every pause is explained.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    run_main(cli, argv, "fairsched")


def run_main(command: click.Command, argv: Sequence[str] | None, name: str) -> None:
    """Run a command and exit. Never shows a traceback for an error it expects."""
    try:
        status = command.main(args=argv, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        status = 130
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except FairschedError as error:
        show_error(error)
        status = error.exit_status
    except BrokenPipeError:
        # the reader (head, less) has gone; keep the interpreter from flushing into the void at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


def show_error(error: FairschedError) -> None:
    """Message and remedy on stderr; every problem of a configuration, not only the first."""
    problems = getattr(error, "problems", ())
    file = str(getattr(error, "file", "")).rpartition(":")[0] or str(getattr(error, "file", ""))
    if len(problems) > 1:
        for problem in problems:
            where = f"{file}:{problem.line}" if problem.line is not None else file
            _complain(f"error: {where}: {problem.key}: {problem.message}")
            _complain(f"  remedy: {problem.remedy}")
        return
    _complain(f"error: {error}")
    if error.remedy:
        _complain(f"  remedy: {error.remedy}")


def _complain(text: str) -> None:
    """On stderr; a cgroup or a process that is named in it steers no terminal."""
    click.echo("\n".join(map(printable, text.split("\n"))), err=True)
