# SPDX-License-Identifier: Apache-2.0
"""The companion's part: a moment every other second, rows every interval.

What is wrong with the disk is a finding, so `fairsched status` says it for as long as it lasts; the log says when
it began and when it was over.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

from fairsched.companion.history.collect import Collector, Rows
from fairsched.companion.history.store import Damaged, Store, open_store, set_aside
from fairsched.companion.part import Finding, Moment
from fairsched.config.outward import History

_SAMPLES = 5
"""Moments in an interval."""
_TIDY_EVERY = 1000
"""Intervals between two looks for names that nobody has any more."""

logger = logging.getLogger(__name__)


class HistoryPart:
    """A companion.part.Part. The database is opened at the first rows, and anew after every error."""

    name = "history"
    wants_decisions = True

    def __init__(self, path: Path, config: History) -> None:
        self.interval_s = max(0.5, config.interval_s / _SAMPLES)
        self._path = path
        self._config = config
        self._collector = Collector(config.interval_s)
        self._store: Store | None = None
        self._fault: str | None = None
        self._written = 0

    def take(self, moment: Moment) -> Finding | None:
        rows = self._collector.add(moment.report, moment.decisions, is_gapless=moment.is_gapless)
        if rows is not None:
            self._write(rows)
        return None if self._fault is None else Finding(faults=[self._fault])

    def _write(self, rows: Rows) -> None:
        try:
            self._keep(rows)
        except (sqlite3.Error, OSError) as error:
            self.close()
            fault = f"history is not written: {self._path}: {error}"
            if fault != self._fault:
                logger.error("history=%s error=%r", self._path, str(error))
            self._fault = fault
            return
        if self._fault is not None:
            logger.info("history=%s written_again=true", self._path)
        self._fault = None

    def _keep(self, rows: Rows) -> None:
        try:
            self._opened().write(rows)
        except Damaged as error:
            self.close()
            set_aside(self._path, str(error))
            self._opened().write(rows)
        self._written += 1
        if self._written % _TIDY_EVERY == 0:
            self._opened().forget_names()

    def _opened(self) -> Store:
        if self._store is not None and not self._store.is_in_place():
            self.close()
        if self._store is None:
            keep_s = self._config.keep_hours * 3600
            self._store = open_store(self._path, keep_s=keep_s, max_bytes=self._config.max_bytes)
        return self._store

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(sqlite3.Error):
                store.close()
