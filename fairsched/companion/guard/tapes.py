# SPDX-License-Identifier: Apache-2.0
"""Keeps the rounds of the last days on tapes, so that limits and rogue rules can be tried on what really happened.

Problem: a history that fills the disk ends more than itself, and one that a power cut leaves in the middle of a line
must still be played.

Approach: files ``DATE-TIME.NUMBER.tape`` (UTC) in one directory, a new one each day, at each start, when one has its
size, and after each error. The oldest ones go when they are older than wanted or all of them have more than wanted.
Other tapes in the directory, such as those of ``fairsched audit rogue --record``, are neither counted nor removed.

Terms: *ours* is a file of that name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fairsched.guard.sample import Round
from fairsched.guard.tape import Recorder

_OURS = re.compile(r"(\d{8}-\d{6})\.\d{3}\.tape")
_FILES_IN_ALL = 16
"""The least number of files that all of them together make: so much of the past goes at a time."""
_MAX_NUMBER = 1000
_DAY_S = 86400

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TapeLimits:
    """How much is kept."""

    max_bytes: int = 256 << 20
    """Of all tapes together."""
    keep_s: float = 14 * 86400.0
    """A tape that ended earlier goes."""
    files: int = 512
    """However small they are."""

    @property
    def file_bytes(self) -> int:
        return max(1, self.max_bytes // _FILES_IN_ALL)


class Tapes:
    """Writes rounds to tapes in `directory`. Call :meth:`close`."""

    def __init__(self, directory: Path, limits: TapeLimits = TapeLimits()) -> None:
        self._directory, self._limits = directory, limits
        self._file: TextIO | None = None
        self.path: Path | None = None
        """Of the tape that is written."""
        self._recorder: Recorder | None = None
        self._day = -1
        self._chars = 0
        self.kept_bytes = 0
        """Of all tapes, at the last look."""

    def write(self, moment: Round) -> None:
        """Append a round; anybody who reads the tape sees it whole. Raises OSError; the next one is on a new tape."""
        day = int(moment.t_s // _DAY_S)
        try:
            if self._file is None or day != self._day or self._chars >= self._limits.file_bytes:
                self._begin(moment.t_s)
                self._day = day
            assert self._file is not None and self._recorder is not None
            self._chars += self._recorder.write(moment)
            self._file.flush()
        except OSError:
            self.close()  # there may be half a line at its end: nothing may follow it
            raise

    def close(self) -> None:
        """End the tape."""
        file, self._file, self._recorder, self.path = self._file, None, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _begin(self, now_s: float) -> None:
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop(now_s)
        path = self._new_path(now_s)
        # only root may read it: it has the commands of everybody
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file, self._chars = os.fdopen(descriptor, "w", encoding="utf-8"), 0
        self._recorder, self.path = Recorder(self._file), path

    def _new_path(self, now_s: float) -> Path:
        stem = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
        for number in range(_MAX_NUMBER):
            path = self._directory / f"{stem}.{number:03d}.tape"
            if not path.exists():
                return path
        raise FileExistsError(17, "too many tapes of one second", str(self._directory))

    def _drop(self, now_s: float) -> None:
        """Remove the oldest until what is left, and one more file, is within the limits."""
        limits, kept = self._limits, self._ours()
        total, dropped, is_short = sum(size for _, size, _ in kept), 0, False
        while kept:
            path, size, ended_s = kept[0]
            is_old = ended_s < now_s - limits.keep_s
            is_much = total + limits.file_bytes > limits.max_bytes or len(kept) >= limits.files
            if not is_old and not is_much:
                break
            path.unlink(missing_ok=True)
            kept, total, dropped = kept[1:], total - size, dropped + 1
            is_short = is_short or not is_old
        self.kept_bytes = total
        if dropped:
            why = "size" if is_short else "age"
            logger.info("tape=dropped files=%d why=%s kept_bytes=%d", dropped, why, total)

    def _ours(self) -> list[tuple[Path, int, float]]:
        """Path, bytes, Unix time of the last write, oldest first."""
        found = []
        for name in sorted(os.listdir(self._directory)):
            if _OURS.fullmatch(name):
                path = self._directory / name
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    found.append((path, stat.st_size, stat.st_mtime))
        return found
