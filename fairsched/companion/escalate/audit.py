# SPDX-License-Identifier: Apache-2.0
"""The audit: one JSON object a line for everything the escalation ordered, did, failed to do and took back.

Problem: an action on other people's pods must be explainable a week later, even if the machine lost power in
between, and the record must not fill the disk.

Approach: append and fsync before and after each action; ``audit.jsonl`` is renamed to ``.1``, ``.2`` ... when it
has its size, and the oldest is dropped. Whoever cannot write the entry before an action must not act
(:meth:`Audit.write` raises). A line that a power cut left unfinished is closed by the next entry and skipped by
readers.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairsched.base.files import sync_directory
from fairsched.errors import FairschedError

MAX_BYTES = 1 << 20
FILES = 4
"""The current one and the older ones: 4 MiB in all, some ten thousand actions."""
MAX_LINE_BYTES = 16_384
_LONG_CHARACTERS = 2_000


class Audit:
    """``audit.jsonl`` in `directory`."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES, files: int = FILES) -> None:
        self._directory = directory
        self.path = directory / "audit.jsonl"
        self._max_bytes = max_bytes
        self._files = files

    def write(self, event: str, at_s: float, entry: Mapping[str, Any]) -> None:
        """Append an entry; it is on the disk when this returns. Raises OSError."""
        line = _line({"time": _iso(at_s), "at_s": round(at_s, 3), "event": event, **entry})
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._rotate(len(line))
        is_new = not self.path.exists()
        with open(self.path, "ab+") as file:
            if file.tell() and _last_byte(file.fileno()) != b"\n":
                line = b"\n" + line  # a power cut left half a line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_directory(self._directory)

    def read(self, last: int | None = None) -> list[dict[str, Any]]:
        """The entries, oldest first; of the last so many. Broken lines are left out.

        Raises FairschedError when the files cannot be read.
        """
        return list(deque(self._entries(), maxlen=last))

    def _entries(self) -> Iterator[dict[str, Any]]:
        for path in [self._older(n) for n in range(self._files - 1, 0, -1)] + [self.path]:
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise FairschedError(f"{path}: {error.strerror}", remedy="use sudo") from None
            for line in raw.splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry

    def _older(self, number: int) -> Path:
        return self._directory / f"{self.path.name}.{number}"

    def _rotate(self, coming_bytes: int) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size + coming_bytes <= self._max_bytes:
            return
        for number in range(self._files - 1, 1, -1):
            if self._older(number - 1).exists():
                os.replace(self._older(number - 1), self._older(number))
        if self._files > 1:
            os.replace(self.path, self._older(1))
        else:
            self.path.unlink()
        sync_directory(self._directory)


def _line(entry: Mapping[str, Any]) -> bytes:
    """`entry` as one line; texts that would make it too long are cut, and that is said."""
    line = json.dumps(entry, separators=(",", ":"), default=str).encode() + b"\n"
    if len(line) <= MAX_LINE_BYTES:
        return line
    short = {key: _cut(value) for key, value in entry.items()}
    return json.dumps({**short, "is_cut": True}, separators=(",", ":"), default=str).encode() + b"\n"


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= _LONG_CHARACTERS else text[:_LONG_CHARACTERS] + "..."


def _last_byte(descriptor: int) -> bytes:
    return os.pread(descriptor, 1, os.fstat(descriptor).st_size - 1)


def _iso(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) + f".{int(at_s % 1 * 1000):03d}Z"
