# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md, written from the commands: ``python -m fairsched.cli.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from fairsched.cli import cli

_INTRO = """\
# Command line

<!-- Written by `python -m fairsched.cli.reference`; a test compares it with the commands. -->

Stdout is the answer, stderr the log. `--json` gives every answer a machine may read as one JSON
document; `events` and `config schema` speak JSON without it, and `report` writes a page. `run` and `exec`
have no answer to give: the one logs (`status --json` asks it), and what the other prints is its command's.

Exit status: 0 ok, 1 failed, 2 usage or configuration, 3 this host cannot, 4 some of several
hosts failed (`--host`); `exec` ends with the status of its command. Errors name what is wrong and the remedy.

Ctrl-C ends a command with 130. Where SIGINT is ignored at its start, as a script's `fairsched events -f &` has it, it
stays ignored: end it with SIGTERM.

`status`, `top`, `ps`, `explain`, `events`, `tenant` and `config reload` ask the daemon over its control socket,
which root and the members of the group `fairsched` (`control.group`) may use. `ps` and `reclaim` also work without it,
from NVML and /proc, and say so. `guard` shows what the companion counts, and works without one. `release`,
`doctor`, `exec`, `report`, `audit` and the rest of `config` need no daemon.

Completion of commands and options, for bash (zsh and fish alike):

    eval "$(_FAIRSCHED_COMPLETE=bash_source fairsched)"
"""


def reference() -> str:
    """The text of docs/cli.md."""
    return _INTRO + "".join(_pages(cli, None, "fairsched"))


def _pages(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    options = {**command.context_settings, "terminal_width": 80, "max_content_width": 80}
    context = click.Context(command, info_name=name, parent=parent, **options)
    lines = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"\n## {context.command_path}\n\n```text\n{lines}\n```\n"
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from _pages(child, context, child_name)


if __name__ == "__main__":
    sys.stdout.write(reference())
