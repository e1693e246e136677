# SPDX-License-Identifier: Apache-2.0
"""The guard as a part of the companion: a thread that looks, and turns that tell what it found.

Its turns look after the thread: when no round came for a while, what is lowered is given back by another one, for the
thread may hang in a driver's call. At the end of the companion it is given back as well; what the daemon does not take
any more then stays on record, and the next companion gives it back before anything else.
"""

from __future__ import annotations

import threading
import time

from fairsched.companion.guard.lowered import Lowered
from fairsched.companion.guard.records import Records
from fairsched.companion.guard.watch import Watch
from fairsched.companion.locked import LockedFile
from fairsched.companion.part import Finding, Moment

_LEAST_PAUSE_S = 0.05
"""However long a look takes, others have a turn."""
_JOIN_S = 0.3
"""The daemon kills a companion that takes longer than a second to leave."""


class GuardPart:
    """A companion.part.Part."""

    name = "guard"
    interval_s = 1.0
    wants_decisions = False

    def __init__(self, watch: Watch, pace_s: float) -> None:
        self._watch, self._pace_s = watch, pace_s
        self._end = threading.Event()
        self._helper: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="guard-look", daemon=True)

    def start(self) -> GuardPart:
        """Begin to look."""
        self._thread.start()
        return self

    def take(self, moment: Moment) -> Finding | None:
        """What is wrong, now. Never waits for a look."""
        if self._watch.is_lost and self._watch.has_lowered:
            self._help()
        return Finding(faults=self._watch.faults())

    def rows(self) -> list[tuple[str, tuple[str, ...], float]]:
        """For the exporter."""
        return self._watch.rows()

    def close(self) -> None:
        """Give back what is lowered; the thread ends with its look."""
        self._end.set()
        self._watch.give_back("its companion ends", is_end=True)
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._watch.close()

    def _run(self) -> None:
        while True:
            next_s = time.monotonic() + self._pace_s
            self._watch.turn()
            if self._end.wait(max(_LEAST_PAUSE_S, next_s - time.monotonic())):
                return

    def _help(self) -> None:
        if self._helper is None or not self._helper.is_alive():
            self._helper = threading.Thread(
                target=self._watch.give_back, args=("no look for too long",), name="guard-help", daemon=True
            )
            self._helper.start()


class LeftPart:
    """A companion.part.Part: where no limit is kept any more, it gives back what was lowered when one was."""

    name = "guard"
    interval_s = 2.0
    wants_decisions = False

    def __init__(self, file: LockedFile, lowered: Lowered, records: Records) -> None:
        self._file, self._lowered, self._records = file, lowered, records
        self._is_ours = False

    def take(self, moment: Moment) -> Finding | None:
        if not self._is_ours and self._file.lock():
            self._is_ours = True
            self._lowered.load()
        if self._is_ours:
            self._lowered.let_go("no limit is kept any more")
        troubles = self._records.troubles
        return Finding(faults=[f"guard: {text}" for text in troubles]) if troubles else None

    def close(self) -> None:
        self._file.unlock()
