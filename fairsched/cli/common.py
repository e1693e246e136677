# SPDX-License-Identifier: Apache-2.0
"""What the commands share: options, the way to the daemon, and JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairsched.base.printable import printable

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient
    from fairsched.protocol.status import StatusReport

F = TypeVar("F", bound=Callable[..., Any])

json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")

config_option: Callable[[F], F] = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FAIRSCHED_CONFIG",
    help="Configuration file.  [default: /etc/fairsched/config.yaml]",
)

socket_option: Callable[[F], F] = click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    envvar="FAIRSCHED_SOCKET",
    help="Control socket of the daemon.  [default: the configuration's]",
)


def daemon_options(function: F) -> F:
    """--socket and --config, handed to a command that only asks as one ``client``."""
    return _with_client(function, only_asks=True)


def change_options(function: F) -> F:
    """The same for a command that changes something: it must not reach another daemon than the one meant."""
    return _with_client(function, only_asks=False)


def _with_client(function: F, *, only_asks: bool) -> F:
    @socket_option
    @config_option
    @functools.wraps(function)
    def command(*args: Any, socket_path: Path | None, config_path: Path | None, **kwargs: Any) -> Any:
        return function(*args, client=connect(socket_path, config_path, only_asks=only_asks), **kwargs)

    return command  # type: ignore[return-value]


def connect(socket_path: Path | None, config_path: Path | None, *, only_asks: bool) -> ControlClient:
    """The client for the socket that was named, or the one a daemon on this host would have."""
    from fairsched.protocol.client import DEFAULT_SOCKET, ControlClient

    if socket_path is None and config_path is None and DEFAULT_SOCKET.exists():
        socket_path = DEFAULT_SOCKET  # the usual case must not pay for reading the configuration
    if socket_path is None:
        from fairsched.config import load
        from fairsched.errors import ConfigError

        try:
            socket_path = load(config_path).socket_path
        except ConfigError as error:
            # a file broken since the daemon started must not hide the daemon
            if config_path is not None:
                if not only_asks:
                    raise
                click.echo(f"warning: {printable(str(error))}", err=True)
                click.echo(f"  asking on {DEFAULT_SOCKET}; name another one with --socket", err=True)
            socket_path = DEFAULT_SOCKET
    return ControlClient(socket_path)


def report_of(document: Any) -> StatusReport:
    """The daemon's answer to ``status``. Raises ControlError when it cannot be understood."""
    from fairsched.errors import ControlError
    from fairsched.protocol.status import status_from_plain

    try:
        return status_from_plain(document)
    except (ValueError, TypeError, KeyError) as error:
        raise ControlError(
            f"the daemon's status cannot be understood: {error}",
            remedy="use the fairsched command of the same version as the daemon",
        ) from None


def echo_lines(lines: Iterable[str]) -> None:
    """Lines on stdout. Tenants name their cgroups and processes: nothing in them may steer the terminal."""
    click.echo("\n".join(printable(piece) for line in lines for piece in line.split("\n")))


def echo_json(document: Any) -> None:
    """One JSON document on stdout, indented for people, stable for diffs."""
    click.echo(json.dumps(document, indent=2))
