# SPDX-License-Identifier: Apache-2.0
"""A command on a terminal of its own, with somebody at the keys."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from fairsched.base.wait import is_readable

_CODE = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "fairsched"
{before}
from fairsched.cli import main
main()
"""
BEGIN, END = "\x1b[?2026h\x1b[H", "\x1b[?2026l"
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
PATIENCE_S = 30.0


class OnTerminal:
    """``fairsched ARGUMENTS`` on a pty. ``before`` is Python that runs first."""

    def __init__(
        self, *arguments: str, before: str = "", size: tuple[int, int] = (80, 24), **environ: str
    ) -> None:
        self.master, self._slave = os.openpty()
        self.resize(*size, is_told=False)
        self.settings = self._settings()
        env = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1", **environ}
        env = {key: value for key, value in env.items() if value != "-"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE.format(before=before), *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env,
            cwd=Path(__file__).resolve().parents[4],
        )
        self.output = ""

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self.master)
        os.close(self._slave)

    def _settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def is_as_before(self) -> bool:
        """Whether the terminal's settings are those from before the command."""
        return self._settings() == self.settings

    def resize(self, width: int, height: int, *, is_told: bool = True) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
        if is_told:  # the kernel tells the foreground group; it may not be that yet
            os.kill(self.process.pid, signal.SIGWINCH)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def _read(self, wait_s: float) -> bool:
        if not is_readable(self.master, wait_s):
            return False
        self.output += os.read(self.master, 65536).decode(errors="replace")
        return True

    @property
    def frames(self) -> list[list[str]]:
        """Lines of all whole frames, without colours."""
        found = re.findall(re.escape(BEGIN) + "(.*?)" + re.escape(END), self.output, re.S)
        return [re.sub(r"\x1b\[[0-9;]*[mK]", "", frame).replace("\r", "").split("\n") for frame in found]

    def screen(self) -> str:
        return "\n".join(self.frames[-1]) if self.frames else ""

    def wait_for(self, text: str, *, is_absent: bool = False) -> str:
        """The first screen with (without) the text; what is on the way is read."""
        claim = f"{text!r} {'goes' if is_absent else 'comes'}"
        self.wait_until(lambda: bool(self.frames) and (text in self.screen()) is not is_absent, claim)
        return self.screen()

    def wait_until(self, condition: Callable[[], bool], claim: str) -> None:
        """The same for any claim about the output."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"not true: {claim}\n{self.screen() or self.output}"
            if not self._read(0.2) and self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode(errors="replace")

    def ended(self) -> int:
        """Its exit status, once everything it wrote is read."""
        end_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end_s, f"it does not end:\n{self.screen()}"
            self._read(0.02)
        while self._read(0):
            pass
        return self.process.returncode
