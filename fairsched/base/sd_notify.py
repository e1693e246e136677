# SPDX-License-Identifier: Apache-2.0
"""Tells systemd how the daemon is doing: sd_notify(3) over NOTIFY_SOCKET, without libsystemd.

Source: sd_notify(3), "The protocol". Outside systemd every call does nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """One datagram socket to the service manager, or nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address: str | None = None
        self._told: str | None = None
        """The status that was taken last."""
        if address.startswith("/"):
            self._address = address
        elif address.startswith("@"):
            self._address = "\0" + address[1:]  # a socket in the abstract namespace

    def ready(self) -> bool:
        """The daemon works (also: a reload is done)."""
        return self._send("READY=1")

    def status(self, text: str) -> bool:
        """The line that ``systemctl status`` shows; sent when it is another than before."""
        if text == self._told or not self._send(f"STATUS={text}"):
            return False
        self._told = text
        return True

    def watchdog(self) -> bool:
        """The loop is alive."""
        return self._send("WATCHDOG=1")

    def reloading(self) -> bool:
        """A reload begins; call :meth:`ready` when it is over. Type=notify-reload needs the time."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> bool:
        """The daemon is on its way out."""
        return self._send("STOPPING=1")

    def _send(self, *assignments: str) -> bool:
        """True when the datagram was taken. Never raises and never blocks: a service manager that
        does not listen is no reason to stop scheduling."""
        if self._address is None:
            return False
        text = "\n".join(assignment.replace("\n", " ") for assignment in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError:
            return False
        return True


def is_journal(environ: Mapping[str, str], fd: int) -> bool:
    """Whether this descriptor is the stream to the journal that systemd says it gave us."""
    try:
        stat = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
