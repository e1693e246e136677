# SPDX-License-Identifier: Apache-2.0
"""Parses the address the exporter listens on, and tells whether it can be had."""

from __future__ import annotations

import socket

from fairsched.errors import ConfigError

LOOPBACK = "127.0.0.1"
_HIGHEST_PORT = 65535
IN_USE = "free the address, or set metrics.listen to another one, or to null"


def address_of(listen: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[HOST]:PORT`` or ``:PORT``, which is loopback. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not 1 <= int(port) <= _HIGHEST_PORT:
        raise refused(listen, f"there is no port {port}", "use a port from 1 to 65535")
    return host or LOOPBACK, int(port)


def refused(listen: str, why: str, remedy: str) -> ConfigError:
    """The error that names the key."""
    return ConfigError(f"cannot listen on {listen}: {why}", key="metrics.listen", remedy=remedy)


def check_free(listen: str) -> None:
    """Raises ConfigError when it is not possible to listen there now."""
    host, port = address_of(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise refused(listen, error.strerror or str(error), IN_USE) from None
