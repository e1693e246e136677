# SPDX-License-Identifier: Apache-2.0
"""``fairsched config check|show|schema|reload``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import change_options, config_option, connect, echo_json, json_option, socket_option
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient


@click.group("config")
def command() -> None:
    """Check, show and reload the configuration."""


@command.command(
    "check",
    epilog="""\b
Examples:
  fairsched config check
  fairsched config check -c new.yaml""",
)
@config_option
@json_option
@click.pass_context
def check_command(ctx: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Say whether a configuration is valid.

    Changes nothing. Exit status 2 if it is not valid.
    """
    from fairsched.config import DEFAULT_PATH, load

    file = str(config_path or DEFAULT_PATH)
    try:
        config = load(config_path)
    except FairschedError as error:
        if not as_json:
            raise
        found = [vars(problem) for problem in getattr(error, "problems", ())]
        echo_json(
            {
                "file": file,
                "is_valid": False,
                "problems": found
                or [
                    {
                        "key": getattr(error, "key", ""),
                        "line": None,
                        "message": str(error),
                        "remedy": error.remedy,
                    }
                ],
            }
        )
        ctx.exit(error.exit_status)
    if as_json:
        echo_json({"file": file, "is_valid": True, "problems": []})
    elif config_path is None and not DEFAULT_PATH.exists():
        click.echo(f"there is no {file}: the defaults are in effect, without tenants")
    else:
        click.echo(f"{file}: valid, mode {config.mode}, tenants {len(config.tenants)}")


@command.command(
    "show",
    epilog="""\b
Examples:
  fairsched config show               what the file says, with defaults
  fairsched config show --running     what the daemon has in effect""",
)
@config_option
@socket_option
@click.option("--running", is_flag=True, help="Ask the daemon what it has in effect.")
@json_option
def show_command(config_path: Path | None, socket_path: Path | None, running: bool, as_json: bool) -> None:
    """Show what is in effect.

    Comments mark every value that does not stand in the file.
    """
    if running:
        answer = connect(socket_path, config_path, only_asks=True).request("config_show")
        if as_json:
            echo_json(answer)
        else:
            click.echo(answer["yaml"], nl=False)
        return
    from fairsched.config import list_settings, load, load_overrides, render

    config = load(config_path)
    overrides = load_overrides(config.overrides_path)
    if as_json:
        echo_json(
            {
                item.name: {"value": item.value, "origin": item.origin}
                for item in list_settings(config, overrides)
            }
        )
    else:
        click.echo(render(config, overrides), nl=False)


@command.command(
    "schema",
    epilog="""\b
Examples:
  fairsched config schema > fairsched.schema.json   for an editor or CI""",
)
def schema_command() -> None:
    """Print the JSON schema of the file."""
    from fairsched.config import schema

    echo_json(schema())


@command.command(
    "reload",
    epilog="""\b
Examples:
  fairsched config check && fairsched config reload""",
)
@change_options
@json_option
def reload_command(client: ControlClient, as_json: bool) -> None:
    """Make the daemon re-read its file.

    An invalid file changes nothing.
    """
    changes = client.request("reload")
    if as_json:
        echo_json({"changes": changes})
    else:
        click.echo("\n".join(changes) if changes else "no change")
