# SPDX-License-Identifier: Apache-2.0
"""Writes the daemon's log to stderr: one line per event, logfmt or JSON.

A record may have ``fields`` (``extra={"fields": {...}}``): decisions have. In JSON they are members of the object.
Where stderr is systemd's journal they become fields of the entry as well, FAIRSCHED_TENANT and so on, so that
``journalctl FAIRSCHED_TENANT=chat`` finds them; such an entry goes to the journal's own socket. Everything else
goes through stderr, which the journal attributes to the unit even when the process has ended by the time it reads.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

from fairsched.base.printable import printable
from fairsched.base.sd_notify import is_journal
from fairsched.base.text import utc

JOURNAL_SOCKET = "/run/systemd/journal/socket"
DECISION_MESSAGE_ID = "6f0f2b6c1f5d4f0c9a1e7b9c3d2a8e54"
"""Of entries that are decisions: journalctl MESSAGE_ID=..."""
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""syslog's, by least level; 7 below."""


class LogfmtFormatter(logging.Formatter):
    """``time=2026-11-26T18:15:38.123Z level=info from=daemon ...``; without time where the reader has one."""

    def __init__(self, *, has_time: bool) -> None:
        super().__init__()
        self._has_time = has_time

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("fairsched.")
        time = f"time={utc(record.created)} " if self._has_time else ""
        text = f"{time}level={record.levelname.lower()} from={name} {record.getMessage()}"
        if record.exc_info:
            text += f" exception={self.formatException(record.exc_info)!r}"
        # Names of tenants' cgroups and files are in it: no line of theirs, no escape sequence.
        return printable(text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "from": record.name.removeprefix("fairsched."),
            "message": record.getMessage(),
        }
        line |= fields_of(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The structured part of a record; empty for most."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class JournalHandler(logging.Handler):
    """Records with fields to the journal, without ever waiting for it; all others, and what it refuses, to `rest`."""

    def __init__(self, rest: logging.Handler, path: str = JOURNAL_SOCKET) -> None:
        super().__init__()
        self._rest = rest
        self._path = path
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )

    def emit(self, record: logging.LogRecord) -> None:
        fields = fields_of(record)
        if fields:
            try:
                self._socket.sendto(journal_entry(self._rest.format(record), record, fields), self._path)
                return
            except OSError:
                pass  # full, gone, too long: the line is not lost, see below
            except Exception:
                self.handleError(record)  # it must not end who says it, least of all in the middle of a thaw
        self._rest.handle(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def journal_entry(message: str, record: logging.LogRecord, fields: Mapping[str, Any]) -> bytes:
    """One entry in the journal's native protocol (systemd, "Native Journal Protocol")."""
    priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
    entry = {
        "MESSAGE": message,
        "PRIORITY": priority,
        "SYSLOG_IDENTIFIER": "fairsched",
        "FAIRSCHED_FROM": record.name.removeprefix("fairsched."),
        **{f"FAIRSCHED_{key.upper()}": value for key, value in fields.items()},
    }
    if "decision" in fields:
        entry["MESSAGE_ID"] = DECISION_MESSAGE_ID
    data = bytearray()
    for key, value in entry.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        text = shown.encode(errors="backslashreplace")
        if b"\n" in text:
            data += key.encode() + b"\n" + struct.pack("<Q", len(text)) + text + b"\n"
        else:
            data += key.encode() + b"=" + text + b"\n"
    return bytes(data)


def set_up_logging(line_format: str, level: str) -> None:
    """Log everything of fairsched to stderr; ``line_format`` is logfmt or json."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    has_journal = is_journal(os.environ, 2)  # which knows when a line came
    handler.setFormatter(
        JsonFormatter() if line_format == "json" else LogfmtFormatter(has_time=not has_journal)
    )
    if has_journal:
        handler = JournalHandler(handler)
    root = logging.getLogger("fairsched")
    for old in root.handlers:
        old.close()
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())
