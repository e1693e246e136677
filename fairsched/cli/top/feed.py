# SPDX-License-Identifier: Apache-2.0
"""The daemon's status, asked for in a thread of its own: a daemon that hangs must not make the keys hang.

Each answer makes :meth:`Feed.fileno` readable. A daemon that is gone is asked again and again, so one that comes
back is seen at once; until then the last report stays, with the reason why there is no new one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairsched.errors import FairschedError
from fairsched.protocol.delays import with_recent_delays
from fairsched.protocol.status import StatusReport, status_from_plain

RECENT_NS = 10_000_000_000


@dataclass(frozen=True)
class News:
    """What is known of the daemon."""

    report: StatusReport | None = None
    """The last one, however old."""
    error: str | None = None
    """Why there is no newer one."""


class Feed:
    """Asks every `interval_s` while it is entered. ``ask`` returns the plain document, or raises FairschedError."""

    def __init__(self, ask: Callable[[], Any], interval_s: float) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._news = News()
        self._past: deque[StatusReport] = deque()
        """Reports of the last RECENT_NS, the oldest first."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._read_fd, self._write_fd = -1, -1

    def __enter__(self) -> Feed:
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """The thread may still wait for an answer; nobody waits for it, and its pipe stays open for it."""
        self._is_over.set()

    def fileno(self) -> int:
        return self._read_fd

    def take(self) -> News:
        """The latest, at once. The descriptor is not readable any more until there is more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        return self._news

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._news = self._recent(fetch(self._ask, self._news))
            with contextlib.suppress(BlockingIOError):  # nobody reads: it is readable already
                os.write(self._write_fd, b"!")
            self._is_over.wait(self._interval_s)

    def _recent(self, news: News) -> News:
        """Delays are those of the last seconds, not of all the time since the daemon started."""
        if news.error is not None or news.report is None:
            return news
        self._past.append(news.report)
        while len(self._past) > 2 and news.report.t_ns - self._past[1].t_ns >= RECENT_NS:
            self._past.popleft()
        if len(self._past) < 2:
            return news
        return News(with_recent_delays(self._past[0], news.report))


def fetch(ask: Callable[[], Any], before: News) -> News:
    """One question. Anything but an answer leaves the report as it was."""
    try:
        return News(status_from_plain(ask()))
    except FairschedError as error:
        return News(before.report, str(error))
    except (ValueError, TypeError, KeyError) as error:
        return News(before.report, f"the daemon's status cannot be understood: {error}")
