# SPDX-License-Identifier: Apache-2.0
"""Tells the journal, or else syslog, of each entry of the audit log, with its number and hash.

The copy is for people who watch the journal, and is a witness: the journal may be kept on another machine, where who
rewrites the audit log here cannot reach it. It is told after the entry is on the disk, and never waited for: a host
without either has the log alone.

Source: systemd, "Native Journal Protocol"; RFC 3164 for /dev/log.
"""

from __future__ import annotations

import socket

from fairsched.base.logs import JOURNAL_SOCKET
from fairsched.base.printable import printable
from fairsched.reclaim.chain import Head

MESSAGE_ID = "b5c1a9f36d3e4c7f9a52f0e1d47c8b60"
"""Of entries of the audit: journalctl MESSAGE_ID=..."""
SYSLOG = "/dev/log"
MOST_CHARS = 4000
"""Of a message: a datagram that is too long would reach nobody, and somebody might want that."""
_NOTICE = 5
_AUTHPRIV = 10 << 3


def tell(text: str, head: Head, journal: str = JOURNAL_SOCKET, syslog: str = SYSLOG) -> str | None:
    """Who was told: ``journal`` or ``syslog``; None = neither is there."""
    said = printable(text[:MOST_CHARS])
    fields = {
        "MESSAGE": f"{said} audit={head}",
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": str(_NOTICE),
        "SYSLOG_IDENTIFIER": "fairsched",
        "FAIRSCHED_AUDIT_SEQ": str(head.seq),
        "FAIRSCHED_AUDIT_HASH": head.hash,
    }
    entry = "".join(f"{key}={value}\n" for key, value in fields.items()).encode()
    if _send(entry, journal):
        return "journal"
    line = f"<{_AUTHPRIV | _NOTICE}>fairsched: {fields['MESSAGE']}".encode()
    return "syslog" if _send(line, syslog) else None


def _send(data: bytes, path: str) -> bool:
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    ) as sock:
        try:
            sock.sendto(data, path)
        except OSError:
            return False
    return True
