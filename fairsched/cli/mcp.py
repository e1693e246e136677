# SPDX-License-Identifier: Apache-2.0
"""``fairsched mcp``: a server of the Model Context Protocol, on stdio or on loopback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli.common import connect, report_of
from fairsched.cli.holders import Place, own_of, place_options

if TYPE_CHECKING:
    from fairsched.protocol.status import StatusReport
    from fairsched.reclaim.listing import Lister
    from fairsched.reclaim.session import Own, Session

EPILOG = """\b
Tools that read: list_gpu_processes, gpu_status, explain_tenant,
audit_entries, plan_reclaim. With --allow-reclaim also confirm_reclaim, which
ends the processes of a plan: once, within two minutes, in the session that
made it, and only where nobody was added. Plans, acts and refusals are in
`fairsched audit show`; a log that cannot be written refuses.
\b
What tenants name (commands, containers, cgroups) leaves below "untrusted".
That an assistant asks a person before it confirms is up to its client.
\b
Over HTTP each request needs the token: Authorization: Bearer TOKEN. To make
one: ( umask 077; head -c 32 /dev/urandom | base64 > FILE ). Only this host
is served; from elsewhere use ssh -L.
\b
Exit status: 0 the client went, 1 failed, 2 wrong usage or a token file that
others can read, 3 the SDK is not installed.
\b
Examples:
  fairsched mcp                         in a client: command fairsched,
                                        args ["mcp"]
  sudo fairsched mcp --allow-reclaim    it may end what is confirmed
  fairsched mcp --http 8765 --token-file FILE"""


def address_of(text: str) -> tuple[str, int]:
    """PORT, 127.0.0.1:PORT or [::1]:PORT; the type of an option. Raises click.BadParameter."""
    match = re.fullmatch(r"(?:(127\.0\.0\.1|\[::1\]):)?(\d{1,5})", str(text))
    if match is None or int(match[2]) > 65535:
        raise click.BadParameter(f"{text!r} is not PORT, 127.0.0.1:PORT or [::1]:PORT")
    return (match[1] or "127.0.0.1").strip("[]"), int(match[2])


@click.command("mcp", epilog=EPILOG)
@click.option("--allow-reclaim", is_flag=True, help="Offer confirm_reclaim, which ends processes.")
@click.option("--allow-force", is_flag=True, help="Let plans ask for SIGKILL.")
@click.option("--http", "address", type=address_of, metavar="[HOST:]PORT", help="On loopback, not on stdio.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="The token for --http; mode 0600."
)
@place_options
def command(
    place: Place,
    allow_reclaim: bool,
    allow_force: bool,
    address: tuple[str, int] | None,
    token_file: Path | None,
) -> None:
    """A door for assistants (MCP): they read, and end only what is confirmed."""
    if allow_force and not allow_reclaim:
        raise click.UsageError("--allow-force needs --allow-reclaim.")
    if address is not None and token_file is None:
        raise click.UsageError("--http needs --token-file: every user of this host reaches its loopback.")
    if address is None and token_file is not None:
        raise click.UsageError("--token-file is for --http.")
    from fairsched.errors import HostUnsupported

    try:
        from fairsched.reclaim.mcp.http import read_token, serve_http
        from fairsched.reclaim.mcp.server import make_server, serve_stdio
    except ImportError as error:
        if (error.name or "").startswith("fairsched"):
            raise
        raise HostUnsupported(
            "the SDK of the Model Context Protocol is not installed", remedy="pip install 'fairsched[mcp]'"
        ) from None
    import contextlib
    import logging

    from fairsched.reclaim.mcp.tools import Tools, check_audit

    logging.basicConfig(level=logging.WARNING)  # on stderr: stdout is the protocol's
    token = None if token_file is None else read_token(token_file)
    host = PlaceHost(place)
    if allow_reclaim:
        check_audit(host)
    with contextlib.closing(Tools(host, may_act=allow_reclaim)) as tools:
        transport = "stdio" if address is None else "http"
        server = make_server(tools, transport=transport, may_act=allow_reclaim, may_force=allow_force)
        if address is None or token is None:
            serve_stdio(server)
        else:
            serve_http(server, token, *address)


class PlaceHost:
    """This host, as the tools need it."""

    def __init__(self, place: Place) -> None:
        from fairsched.reclaim.audit import DIRECTORY

        self._place = place
        config = place.config
        self.audit_directory = DIRECTORY if config is None else config.state_dir / "audit"

    def lister(self) -> Lister:
        return self._place.lister(is_strict=True, is_quiet=True)

    def own(self) -> Own:
        return own_of(self._place)

    def session(self, lister: Lister) -> Session:
        from fairsched.reclaim.session import Session

        return Session(lister, self.own())

    def status(self) -> StatusReport | None:
        return self._place.status()

    def explain(self, tenant: str) -> list[Any]:
        client = connect(self._place.socket_path, self._place.config_path, only_asks=True)
        report_of(client.request("status"))  # a daemon of another version is told as such
        found: list[Any] = client.request("explain", tenant=tenant)
        return found
