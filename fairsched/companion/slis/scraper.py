# SPDX-License-Identifier: Apache-2.0
"""Reads the metrics pages of tenants once a second, each in a thread of its own.

Problem. A page that hangs must not make another late, and a page that is read late is measured wrongly.

Approach. One thread per page, all of which read at full seconds of CLOCK_MONOTONIC: windows of one second then begin
and end near a reading on every page. A page that is still being read is not asked again. One that fails is asked less
and less often, down to every ten seconds: a server that is starting is not to be hammered, a hostile page is not to
cost much.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from fairsched.companion.slis.fetch import fetch
from fairsched.companion.slis.page import Counter, PageError, Reading, Sieve

_TICK_NS = 1_000_000_000
_PATIENT_FAILURES = 3
"""So many in a row are no reason to ask less often: a held tenant answers late."""
_LONGEST_PAUSE_S = 10
_MOST_WAITING = 64
"""Readings that nobody picked up yet; the companion picks them up once a second."""

logger = logging.getLogger(__name__)


class PageReader:
    """One page. The thread reads, whoever calls :meth:`take` picks up."""

    def __init__(self, url: str, counters: Sequence[Counter], timeout_s: float) -> None:
        self.url = url
        self.shown_url = url.partition("?")[0][:100]
        """For people: what comes after may be nobody's business."""
        self.failures = 0
        """Readings that failed since the start."""
        self.error: str | None = None
        """Why the latest one failed; None when it did not."""
        self._counters = counters
        self._timeout_s = timeout_s
        self._readings: deque[tuple[int, Reading]] = deque(maxlen=_MOST_WAITING)
        self._stop = threading.Event()
        # A daemon thread: whoever ends us does not wait for a resolver.
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def take(self) -> list[tuple[int, Reading]]:
        """Readings since the last call, with their moments, oldest first."""
        found = []
        while self._readings:
            found.append(self._readings.popleft())
        return found

    def close(self) -> None:
        """Read no more. Returns at once; a reading in progress goes nowhere."""
        self._stop.set()

    def _run(self) -> None:
        in_a_row = 0
        while not self._stop.wait(wait_s(time.monotonic_ns(), in_a_row)):
            in_a_row = 0 if self.read() else in_a_row + 1

    def read(self) -> bool:
        """Once, now. Whether it succeeded."""
        sieve = Sieve(self._counters)
        try:
            head = fetch(self.url, self._timeout_s, sieve.feed)
            reading = sieve.read(head.content_type)
        except PageError as error:
            return self._fail(str(error))
        except Exception:
            # A page that breaks our own code must not end its thread: it would look like one that hangs.
            if self.error is None:
                logger.exception("page=%s failed", self.shown_url)
            return self._fail("fairsched could not read it, see its log")
        self.error = None
        self._readings.append((head.t_ns, reading))
        return True

    def _fail(self, why: str) -> bool:
        if self.error != why:
            logger.warning("page=%s error=%r", self.shown_url, why)
        self.error = why
        self.failures += 1
        return False


def wait_s(now_ns: int, failures_in_a_row: int) -> float:
    """Until the next reading (pure)."""
    ticks = min(_LONGEST_PAUSE_S, 1 << max(0, min(failures_in_a_row, 30) - _PATIENT_FAILURES))
    due_ns = (now_ns // _TICK_NS + ticks) * _TICK_NS
    return (due_ns - now_ns) / 1e9
