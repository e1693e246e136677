# SPDX-License-Identifier: Apache-2.0
"""``--host`` and ``--hosts``: the same command on other hosts, over the user's own ssh.

Problem: what a command does here and what it does there must not drift apart, and no word of the user may change on
its way to another host.
Approach: a class of commands. With a host named, the options are sent as they were typed, one word each
(``--opt=value``), with ``--json``; without one the command runs here as if this class were not there. What the
options mean is judged where they are acted on.
Terms: a *raw* value is the text of an option before click converts it.
Errors: click.UsageError, HostsError (status 2), HostUnsupported (3).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli.common import echo_json, echo_lines
from fairsched.cli.duration import seconds_of
from fairsched.errors import SOME_HOSTS_FAILED

if TYPE_CHECKING:
    from fairsched.reclaim.remote import Answer, Round

HOST_S = 10.0
_DOCTOR_S = 60.0
_RESET_S = 120.0
"""For the reset of a GPU and the checks around it."""
_RAW = "fairsched.cli.remote"
_OWN = ("host", "hosts", "parallel", "host_timeout", "remote_sudo", "remote_command")
_NOT_THERE = {"watch": "--watch", "tree": "--tree"}
_OF_ONE = {"pids": "--pid", "head": "--head"}
_REDRAW_S = 0.2
_SECTION = "On other hosts"


def _own_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--host"], multiple=True, metavar="HOST", help="On this host, over ssh; may be repeated."
        ),
        click.Option(
            ["--hosts"], type=click.Path(path_type=Path), metavar="FILE", help="On these, one host a line."
        ),
        click.Option(
            ["--parallel"], type=click.IntRange(1, 1000), metavar="N", help="So many at once.  [default: 64]"
        ),
        click.Option(["--host-timeout"], metavar="TIME", help="For one host's answer; see below."),
        click.Option(["--remote-sudo"], is_flag=True, help="There: sudo -n."),
        click.Option(["--remote-command"], metavar="PATH", help="There: this program.  [default: fairsched]"),
    ]


class RemoteCommand(click.Command):
    """A command that also runs on other hosts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _own_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_RAW] = self.make_parser(ctx).parse_args(list(args))[0]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        own = {name: ctx.params.pop(name) for name in _OWN}
        if not own["host"] and own["hosts"] is None:
            extra = next((name for name in _OWN if own[name]), None)
            if extra is not None:
                raise click.UsageError(f"--{extra.replace('_', '-')} goes with --host or --hosts.", ctx)
            return super().invoke(ctx)
        return ctx.exit(_ask(ctx, own))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those of this class in a section of their own."""
        mine: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                (mine if parameter.name in _OWN else others).append(record)
        with formatter.section("Options"):
            formatter.write_dl(others)
        with formatter.section(_SECTION):
            formatter.write_dl(mine)
            formatter.write_paragraph()
            formatter.write_text(
                f"A host has {_limit_text(ctx)} to answer. Exit status: of one host its own; of several 0 all "
                f"answered ok, 1 none did, {SOME_HOSTS_FAILED} some did not, 2 wrong usage."
            )


def _limit_text(ctx: click.Context) -> str:
    if ctx.info_name == "reclaim":
        return f"--grace and {HOST_S:g} s, with --reset-gpu {_RESET_S:g} s more,"
    return f"{_default_s(ctx.info_name, {}):g} s"


def _default_s(command: str | None, raw: Mapping[str, Any]) -> float:
    """How long one host may take."""
    if command == "doctor":
        return _DOCTOR_S
    if command != "reclaim":
        return HOST_S
    return HOST_S + seconds_of(raw.get("grace", "30s")) + (_RESET_S if raw.get("reset_gpu") else 0.0)


def _ask(ctx: click.Context, own: Mapping[str, Any]) -> int:
    """Asks, shows, and gives the exit status."""
    from fairsched.cli.remote_text import lines_of, sound, summary
    from fairsched.reclaim.hosts import all_hosts, remote_words
    from fairsched.reclaim.remote import PARALLEL, Limits, Round

    raw: Mapping[str, Any] = ctx.meta[_RAW]
    hosts = all_hosts(own["host"], own["hosts"])
    _refuse(ctx, raw, hosts)
    limit = own["host_timeout"]
    host_s = _default_s(ctx.info_name, raw) if limit is None else seconds_of(limit)
    words = remote_words(
        own["remote_command"] or "fairsched", _words(ctx, raw), has_sudo=bool(own["remote_sudo"])
    )
    answers = _run(Round(hosts, words, Limits(host_s, own["parallel"] or PARALLEL)))
    kind = str(ctx.info_name)
    judged = [sound(kind, answer, is_full=bool(raw.get("full"))) for answer in answers]
    answers = [answer for answer, _ in judged]
    if raw.get("as_json"):
        echo_json([answer.plain() for answer in answers])
    else:
        shown = [line for answer, lines in judged for line in lines_of(answer, lines)]
        echo_lines([*shown, *(["", *summary(answers)] if len(answers) > 1 else [])])
    return exit_status(answers)


def _refuse(ctx: click.Context, raw: Mapping[str, Any], hosts: Sequence[str]) -> None:
    """What cannot be meant. Raises click.UsageError."""
    for name, option in _NOT_THERE.items():
        if raw.get(name):
            raise click.UsageError(f"{option} shows this host only: leave it out, or --host.", ctx)
    for name, option in _OF_ONE.items():
        if raw.get(name) and len(hosts) > 1:
            raise click.UsageError(f"{option} is of one host, and {len(hosts)} are named.", ctx)


def _words(ctx: click.Context, raw: Mapping[str, Any]) -> list[str]:
    """The command and its options as they were typed, one word each."""
    path: list[str] = []
    level: click.Context | None = ctx
    while level is not None and level.parent is not None:
        path.insert(0, str(level.info_name))
        level = level.parent
    words = [*path, "--json"]
    for parameter in ctx.command.params:
        if not isinstance(parameter, click.Option) or parameter.name in (*_OWN, "as_json"):
            continue
        if parameter.name not in raw:
            continue
        option = max(parameter.opts, key=len)
        value = raw[parameter.name]
        if parameter.is_flag:
            words.append(option)
        else:
            words += [f"{option}={one}" for one in (value if parameter.multiple else [value])]
    return words


def exit_status(answers: Sequence[Answer]) -> int:
    """One host: its own. Several: 0 all ok, 1 none, SOME_HOSTS_FAILED some."""
    from fairsched.reclaim.remote import Result

    good = sum(answer.result is Result.OK for answer in answers)
    if len(answers) == 1 and answers[0].result is Result.FAILED:
        status = answers[0].exit_status
        return status if status in (1, 2, 3) else 1
    if good == len(answers):
        return 0
    return SOME_HOSTS_FAILED if good else 1


def _run(round_: Round) -> list[Answer]:
    """With a live table on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        return round_.run()
    from rich.console import Console
    from rich.live import Live

    from fairsched.cli.remote_text import live_table

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw() -> None:
            live.update(live_table(round_, console.size.height - 3), refresh=True)

        return round_.run(_now_and_then(draw))


def _now_and_then(draw: Callable[[], None]) -> Callable[[], None]:
    next_s = 0.0

    def tell() -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + _REDRAW_S
            draw()

    return tell
