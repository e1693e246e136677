# SPDX-License-Identifier: Apache-2.0
"""What was typed, from the bytes a terminal sends: a character, or a word such as ``up`` or ``enter``. Pure.

A key such as the arrow up is several bytes that begin with ESC, and a slow line may bring them in pieces; ESC itself is
such a beginning alone. So bytes that may go on are kept until they do, or until :meth:`Keys.flush` says that nothing
came for a while.
"""

from __future__ import annotations

import codecs
import re

FLUSH_S = 0.05
"""A sequence that has not gone on after this never will."""

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?\Z")
_WORDS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page_up",
    "\x1b[6~": "page_down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "kill_line",
    "\x0c": "redraw",
    "\x1b": "escape",
}


class Keys:
    """Bytes in, keys out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    @property
    def is_waiting(self) -> bool:
        """Whether the beginning of a key is there that may go on."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        self._text += self._decoder.decode(data)
        return self._take(is_last=False)

    def flush(self) -> list[str]:
        """What is there is all there is."""
        return self._take(is_last=True)

    def _take(self, *, is_last: bool) -> list[str]:
        keys: list[str] = []
        while self._text:
            sequence = _SEQUENCE.match(self._text)
            if sequence is None and not is_last and _UNFINISHED.match(self._text):
                break
            taken = sequence.group() if sequence is not None else self._text[0]
            self._text = self._text[len(taken) :]
            key = _WORDS.get(taken, taken if taken.isprintable() else "")
            if key:
                keys.append(key)
        return keys
