# SPDX-License-Identifier: Apache-2.0
"""The log: one line per event; to systemd's journal with fields, and never waiting for it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.base import logs
from fairsched.base.sd_notify import is_journal


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """fairsched's logger, put back afterwards."""
    found = logging.getLogger("fairsched")
    before = (list(found.handlers), found.level, found.propagate)
    yield found
    found.handlers[:], found.level, found.propagate = before


def record(message: str = "decision=hold tenant=chat", **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("fairsched.act.holds", logging.INFO, "f", 1, "%s", (message,), None)
    if fields:
        made.fields = fields
    return made


def entry(data: bytes) -> dict[str, str]:
    """The fields of one entry, read as the journal reads them."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, is_short, value = line.partition(b"=")
        if not is_short:
            (size,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + size], data[9 + size :]
        found[name.decode()] = value.decode()
    return found


def test_fields_are_members_of_a_json_line() -> None:
    line = json.loads(logs.JsonFormatter().format(record(tenant="chat", lag_ms=-12.5, dry_run=True)))
    assert (line["tenant"], line["lag_ms"], line["dry_run"]) == ("chat", -12.5, True)
    assert (line["level"], line["from"]) == ("info", "act.holds")


class Journal:
    """The journal's end of its socket, and a stream for what does not go there."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))
        self.stream = io.StringIO()
        stream = logging.StreamHandler(self.stream)
        stream.setFormatter(logs.LogfmtFormatter(has_time=False))
        self.handler = logs.JournalHandler(stream, str(path))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "j")
    yield made
    made.handler.close()
    made.socket.close()


def test_a_decision_is_an_entry_with_fields(journal: Journal) -> None:
    journal.handler.handle(
        record(decision="hold", tenant="chat", lag_ms=-12.0, dry_run=True, error="two\nlines")
    )
    found = entry(journal.socket.recv(65536))
    assert found["MESSAGE"] == "level=info from=act.holds decision=hold tenant=chat"
    assert found["FAIRSCHED_TENANT"] == "chat"
    assert found["FAIRSCHED_LAG_MS"] == "-12.0"
    assert found["FAIRSCHED_DRY_RUN"] == "true"
    assert found["FAIRSCHED_ERROR"] == "two\nlines"
    assert (found["PRIORITY"], found["SYSLOG_IDENTIFIER"]) == ("6", "fairsched")
    assert found["MESSAGE_ID"] == logs.DECISION_MESSAGE_ID
    assert journal.stream.getvalue() == ""


def test_everything_else_goes_through_the_stream(journal: Journal) -> None:
    journal.handler.handle(record("stopping"))
    assert journal.stream.getvalue() == "level=info from=act.holds stopping\n"
    with pytest.raises(BlockingIOError):
        journal.socket.recv(65536)


def test_a_journal_that_does_not_read_costs_no_time_and_no_line(journal: Journal) -> None:
    count = 3000  # far more than a socket holds
    for number in range(count):
        journal.handler.handle(record(f"number={number}", tenant="chat"))
    read = 0
    while True:
        try:
            journal.socket.recv(65536)
        except BlockingIOError:
            break
        read += 1
    assert 0 < read < count
    assert read + journal.stream.getvalue().count("\n") == count


def test_a_journal_that_is_gone_is_no_error(journal: Journal) -> None:
    journal.socket.close()
    journal.handler.handle(record(tenant="chat"))
    assert journal.stream.getvalue().count("\n") == 1


def test_only_the_stream_that_systemd_gave_is_the_journal(tmp_path: Path) -> None:
    with open(tmp_path / "f", "w") as file:
        stat = os.fstat(file.fileno())
        assert is_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}, file.fileno())
        assert not is_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino + 1}"}, file.fileno())
        assert not is_journal({}, file.fileno())
    assert not is_journal({"JOURNAL_STREAM": "1:1"}, 987)


def test_the_set_up_takes_the_journal_where_there_is_one(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.set_up_logging("json", "info")
    assert not isinstance(root.handlers[0], logs.JournalHandler)
    stat = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino}")
    logs.set_up_logging("logfmt", "warning")
    assert isinstance(root.handlers[0], logs.JournalHandler)
    assert (len(root.handlers), root.level) == (1, logging.WARNING)


FOREIGN = os.fsdecode(b"/gpu.slice/\xff\x1b[2J\rlevel=error")
"""A cgroup as a tenant may name it."""


def test_a_line_has_a_time_unless_the_journal_gives_it_one(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def line() -> str:
        logs.set_up_logging("logfmt", "info")
        root.info("plain")
        return capsys.readouterr().err

    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info from=fairsched plain\n", line()
    )
    monkeypatch.setattr(logs, "is_journal", lambda environ, fd: True)
    assert line() == "level=info from=fairsched plain\n"


def test_a_name_that_is_no_utf8_goes_to_the_journal(journal: Journal) -> None:
    journal.handler.handle(record(f"cgroup={FOREIGN}", tenant=FOREIGN))
    found = entry(journal.socket.recv(65536))
    assert found["MESSAGE"] == r"level=info from=act.holds cgroup=/gpu.slice/\xff\x1b[2J\rlevel=error"
    assert found["FAIRSCHED_TENANT"].startswith("/gpu.slice/\\udcff")
    assert journal.stream.getvalue() == ""


def test_a_line_that_cannot_be_written_is_nobodys_end(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unspeakable:
        def __str__(self) -> str:
            raise ValueError("no words")

    monkeypatch.setattr(logging, "raiseExceptions", True)
    journal.handler.handle(record(tenant=Unspeakable()))
    assert "no words" in capsys.readouterr().err, "a fault of ours is said, where somebody sees it"
    assert journal.stream.getvalue().count("\n") == 1, "and the line is not lost"


def test_names_of_tenants_neither_break_a_line_nor_steer_a_terminal() -> None:
    line = logs.LogfmtFormatter(has_time=False).format(record(f"cgroup={FOREIGN}\nlevel=error"))
    assert line.isprintable()
    assert line.startswith("level=info from=act.holds cgroup=/gpu.slice/")
