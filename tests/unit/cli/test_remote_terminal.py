# SPDX-License-Identifier: Apache-2.0
"""Many hosts on a terminal: a live table while they are asked, and Ctrl-C, after which no ssh is left."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.base.wait import is_readable
from tests.support import wait_until

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
    good*) echo '[]' ;;
    hangs*) echo $$ > "$0.$2"; exec sleep 300 ;;
    flood) exec yes 'a flood of words' ;;
    noise) exec yes 'a flood of words' >&2 ;;
    *) echo 'ssh: no way' >&2; exit 255 ;;
esac
"""
PATIENCE_S = 60.0


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, directory: Path, words: list[str]) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

        def take() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        env = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "TERM": "xterm"}
        command = [sys.executable, "-c", "from fairsched.cli import main; main()", *words]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, preexec_fn=take
        )
        os.close(slave)
        self.seen = b""

    def read(self) -> bool:
        """Whether it said something."""
        if not is_readable(self.master, 0.1):
            return False
        try:
            got = os.read(self.master, 65536)
        except OSError:
            return False  # it has ended
        self.seen += got
        return bool(got)

    def wait_for(self, pattern: bytes) -> None:
        def is_there() -> bool:
            self.read()
            return re.search(pattern, self.seen, re.DOTALL) is not None

        wait_until(is_there, PATIENCE_S, f"it says {pattern!r}")

    def end(self) -> int:
        def is_over() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(is_over, PATIENCE_S, "it ends")
        while self.read():
            pass
        assert self.process.returncode is not None
        return self.process.returncode


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    one = Terminal(tmp_path, request.param)
    yield one
    one.process.kill()
    one.process.wait()
    os.close(one.master)


def on(*hosts: str) -> list[str]:
    return [word for host in hosts for word in ("--host", host)]


@pytest.mark.parametrize("terminal", [["ps", *on("good", "away", "hangs1", "hangs2")]], indirect=True)
def test_the_table_is_live_and_ctrl_c_leaves_nobody(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for(rb"HOST.*hangs1 .*asked.*hangs2 .*asked.*away .*unreachable.*no way.*2 of 4 hosts done")
    terminal.wait_for(rb"hangs1 .*asked +1 s")
    pids = [int((tmp_path / f"ssh.hangs{number}").read_text()) for number in (1, 2)]
    os.write(terminal.master, b"\x03")
    assert terminal.end() == 130
    assert b"interrupted" in terminal.seen and b"Traceback" not in terminal.seen
    assert terminal.seen.count(b"\x1b[?25l") <= terminal.seen.count(b"\x1b[?25h"), "the cursor is back"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), PATIENCE_S, "ssh is gone")


@pytest.mark.parametrize("terminal", [["ps", *on("hangs1")]], indirect=True)
def test_who_is_hung_up_leaves_nobody(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for(rb"hangs1 .*asked")
    wait_until((tmp_path / "ssh.hangs1").exists, PATIENCE_S, "ssh was started")
    pid = int((tmp_path / "ssh.hangs1").read_text())
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.end() == 128 + signal.SIGHUP
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE_S, "ssh is gone")


@pytest.mark.parametrize(
    "terminal", [["ps", "--host-timeout", "2s", *on("flood", "noise", "good")]], indirect=True
)
def test_a_flood_of_one_host_is_cut_and_keeps_no_other(terminal: Terminal) -> None:
    assert terminal.end() == 4
    said = b" ".join(terminal.seen.split())
    assert b"flood: bad answer: it printed more than 4096 KiB" in said
    assert b"noise: no answer in time: not within 2 s: a flood of words" in said
    assert b"good: ok" in said and b"1 of 3 hosts: ok" in said
