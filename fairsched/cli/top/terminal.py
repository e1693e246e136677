# SPDX-License-Identifier: Apache-2.0
"""The terminal: taken over, written to a frame at a time, and given back as it was.

A frame is one write: home, every line over the one before it, and what is left of each line erased. Nothing is ever
cleared first, so nothing flickers; a frame that is the same as the last one is not written at all. Where a terminal
knows synchronised updates (mode 2026) it shows the frame at once; others ignore that.

Signals (a new size, Ctrl-C, SIGTERM, SIGHUP, Ctrl-Z) only set a flag and make :meth:`Terminal.wait` return: nothing
is written from a handler. Leaving undoes everything, in the opposite order, on every way out but SIGKILL.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text

from fairsched.base.signals import not_ignored
from fairsched.base.wait import wait_readable
from fairsched.cli.top.keys import FLUSH_S, Keys

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Alternate screen, no cursor, no wrapping of long lines, and empty."""
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[?2026l"
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (*_ENDINGS, signal.SIGWINCH, signal.SIGTSTP)


def is_capable(environ: Mapping[str, str], fd_in: int, fd_out: int) -> bool:
    """Whether a picture can be drawn over itself here and keys be read."""
    is_terminal = os.isatty(fd_in) and os.isatty(fd_out)
    return is_terminal and environ.get("TERM", "") not in ("", "dumb", "unknown")


def has_blocks(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")


class Painter:
    """Lines of rich text as what a terminal wants to be sent; rich minds NO_COLOR and what colours there are."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        self._file = io.StringIO()
        self._console = Console(
            file=self._file, force_terminal=is_terminal, width=80, legacy_windows=False, highlight=False
        )

    def paint(self, line: Text, width: int) -> str:
        """One line, without its end."""
        self._console.width = width
        self._console.print(line, end="", no_wrap=True, overflow="crop", crop=True, soft_wrap=False)
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text


class Terminal:
    """Use it as a context manager. ``wait`` returns keys; ``ended_by`` is the signal that asks to leave."""

    def __init__(self, fd_in: int = 0, fd_out: int = 1) -> None:
        self._in, self._out = fd_in, fd_out
        self._keys = Keys()
        self._painter = Painter()
        self._painted: dict[tuple[int, str, str], str] = {}
        self._last = ""
        self._undo = contextlib.ExitStack()
        self._is_taken = False
        self._wake_read, self._wake_write = -1, -1
        self._is_to_stop = False
        self.ended_by: int | None = None

    def __enter__(self) -> Terminal:
        with contextlib.ExitStack() as undo:
            self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            undo.callback(os.close, self._wake_read)
            undo.callback(os.close, self._wake_write)
            for number in not_ignored(_SIGNALS):
                undo.callback(signal.signal, number, signal.signal(number, self._on_signal))
            # undone first: a signal on the way out still finds our handlers, and leaves the terminal alone
            undo.callback(self._give_back)
            self._take()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    # ---- taking and giving back ----

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._in)
        self._is_taken = True
        tty.setcbreak(self._in, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._last = ""
        self._write(_ENTER)

    def _give_back(self) -> None:
        if not self._is_taken:
            return
        self._is_taken = False
        # a terminal that is gone (SIGHUP) has nothing to be given back to
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._in, termios.TCSAFLUSH, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDINGS:
            self.ended_by = number
        elif number == signal.SIGTSTP:
            self._is_to_stop = True
        with contextlib.suppress(OSError):  # full: it will wake up anyway
            os.write(self._wake_write, b"!")

    def _stop(self) -> None:
        """Ctrl-Z: give the terminal back, stand still, and take it again when somebody says so."""
        self._is_to_stop = False
        self._give_back()
        own = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, own)
        self._take()

    # ---- in and out ----

    def size(self) -> tuple[int, int]:
        """Columns and lines now; 80x24 where the terminal does not say."""
        try:
            size = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def wait(self, others: Sequence[Any], timeout_s: float | None) -> list[str]:
        """Until a key, a signal, one of `others` (things with a file descriptor) is readable, or the time is over."""
        if self._is_to_stop:
            self._stop()
        limit_s = FLUSH_S if self._keys.is_waiting else timeout_s
        ready = wait_readable([self._in, self._wake_read, *others], limit_s)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if self._is_to_stop:
            self._stop()
        if self._in in ready:
            return self._read()
        return self._keys.flush() if self._keys.is_waiting and not ready else []

    def _read(self) -> list[str]:
        try:
            data = os.read(self._in, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal has gone
            self.ended_by = signal.SIGHUP
            return []
        return self._keys.feed(data)

    def forget(self) -> None:
        """Write the next frame whatever the last one was: something else has written here."""
        self._last = ""

    def show(self, lines: Sequence[Text], width: int) -> None:
        """One frame: as many lines as the terminal has."""
        frame = frame_of(self._paint(lines, width))
        if frame == self._last:
            return
        self._last = frame
        try:
            self._write(frame)
        except OSError:  # the terminal has gone
            self.ended_by = signal.SIGHUP

    def _paint(self, lines: Sequence[Text], width: int) -> Iterator[tuple[str, bool]]:
        """Each line as the terminal wants it, and whether it is full. Most are those of the frame before."""
        painted: dict[tuple[int, str, str], str] = {}
        for line in lines:
            key = (width, line.markup, str(line.style))
            painted[key] = self._painted.get(key) or self._painter.paint(line, width)
            yield painted[key], line.cell_len >= width
        self._painted = painted

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._out, data) :]


def frame_of(lines: Iterator[tuple[str, bool]]) -> str:
    """The bytes of a frame. A full line is not erased behind its end: that would take its last character with it."""
    return _BEGIN + "\r\n".join(text if is_full else text + "\x1b[K" for text, is_full in lines) + _END
