# SPDX-License-Identifier: Apache-2.0
"""Writes the history database, bounds its size, and mends it.

Each interval is one transaction, which also drops what is too old. Write-ahead logging lets `fairsched report` read
meanwhile; a crash loses at most the last interval.

Bounds: rows older than `keep_s` go. Before the files pass `max_bytes` (the write-ahead log included) the oldest
fiftieth of the time on record goes, as often as needed; SQLite itself is told the largest file it may make, so that
no mistake here can fill a disk. A full disk, a directory that became read-only, a lock: the interval is lost, the
next one is tried. A file that is damaged, or of another version, is renamed to ``.damaged`` and a new one begun.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from fairsched.base.printable import printable
from fairsched.companion.history.collect import DecisionRow, GpuRow, Rows, ShareRow, TenantRow
from fairsched.companion.history.schema import BY_TIME, PAGE_BYTES, TABLES, VERSION

_LOG_BYTES = 512 * 1024
"""What the write-ahead log may keep between two writes; counted as taken from `max_bytes`."""
_LOCK_WAIT_S = 1.0
_TRIES = 400
"""Of making room, a fiftieth of the time on record each."""
_BROKEN = ("SQLITE_CORRUPT", "SQLITE_NOTADB")

logger = logging.getLogger(__name__)


class Damaged(Exception):
    """The file is no history of this version."""


class Store:
    """Open it anew after any error. Raises sqlite3.Error, OSError, and Damaged for a file that must be set aside."""

    def __init__(self, path: Path, *, keep_s: float, max_bytes: int) -> None:
        self._path = path
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._names: dict[str, int] = {}
        path.parent.mkdir(
            parents=True, exist_ok=True
        )  # on a first start the daemon has kept nothing there yet
        # made before SQLite would, which minds no one's privacy but the umask's
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._inode = path.stat().st_ino
        self._db = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            is_empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            verdict = "ok" if is_empty else db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            judged = _judged(error)
            if judged is error:
                raise
            raise judged from error
        if verdict != "ok" or (not is_empty and version != VERSION):
            raise Damaged(f"version {version}" if verdict == "ok" else str(verdict))
        if is_empty:
            db.execute(f"PRAGMA page_size={PAGE_BYTES}")
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint={_LOG_BYTES // PAGE_BYTES // 2}")
        db.execute(f"PRAGMA journal_size_limit={_LOG_BYTES // 2}")
        db.execute(f"PRAGMA max_page_count={self._max_pages}")
        if is_empty:
            db.executescript(f"BEGIN; {TABLES} PRAGMA user_version={VERSION}; COMMIT;")
        self._names = {text: number for number, text in db.execute("SELECT id, text FROM name")}

    @property
    def _max_pages(self) -> int:
        return max(64, (self._max_bytes - _LOG_BYTES) // PAGE_BYTES)

    def close(self) -> None:
        self._db.close()

    def is_in_place(self) -> bool:
        """Whether the path still is this file: somebody may have removed it, and what is written now nobody finds."""
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def write(self, rows: Rows) -> None:
        """One interval, in one transaction; what is too old or too much goes first."""
        try:
            with self._transaction():
                self._drop_before(rows.t - self._keep_s)
            self._make_room()
            with self._transaction():
                self._insert(rows)
        except sqlite3.DatabaseError as error:
            judged = _judged(error)
            if judged is error:
                raise
            raise judged from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        known = dict(self._names)
        try:
            yield
        except BaseException:
            self._names = known
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _insert(self, rows: Rows) -> None:
        t = rows.t
        self._put("node", [(t, *astuple(rows.node))])
        self._put("gpu", [(t, *self._numbered(row, 1)) for row in rows.gpus])
        self._put("tenant", [(t, *self._numbered(row, 1)) for row in rows.tenants])
        self._put("share", [(t, *self._numbered(row, 2)) for row in rows.shares])
        self._put("decision", [(t, *self._numbered(row, 1)) for row in rows.decisions])

    def _numbered(self, row: GpuRow | TenantRow | ShareRow | DecisionRow, names: int) -> tuple[Any, ...]:
        """The fields of a row, which are the columns of its table; the first of them are names."""
        values = astuple(row)
        return (*map(self._number, values[:names]), *values[names:])

    def _put(self, table: str, values: Sequence[tuple[Any, ...]]) -> None:
        """Instead of rows of the same second, which a clock that was set back may bring."""
        if values:
            marks = ",".join("?" * len(values[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)

    def _number(self, text: str) -> int:
        text = printable(text)  # SQLite takes no lone surrogate, and the interval would be lost for everybody
        if text not in self._names:
            self._db.execute("INSERT OR IGNORE INTO name (text) VALUES (?)", (text,))
            self._names[text] = self._db.execute("SELECT id FROM name WHERE text=?", (text,)).fetchone()[0]
        return self._names[text]

    # ---- bounds ----

    def _drop_before(self, t: float) -> None:
        for table in BY_TIME:
            self._db.execute(f"DELETE FROM {table} WHERE t < ?", (t,))

    def _used_pages(self) -> int:
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        return int(pages - self._db.execute("PRAGMA freelist_count").fetchone()[0])

    def _make_room(self) -> None:
        """A tenth stays free for the interval to come. Freed pages are used again, then given back to the disk."""
        for _ in range(_TRIES):
            if self._used_pages() <= 0.9 * self._max_pages:
                break
            first, last = self._db.execute("SELECT min(t), max(t) FROM node").fetchone()
            if first is None:
                break
            with self._transaction():
                self._drop_before(first + max(1, (last - first) / 50))
        if self._db.execute("PRAGMA freelist_count").fetchone()[0] > self._max_pages // 4:
            # not execute(), which takes one step of a statement that returns no rows: one page
            self._db.executescript("PRAGMA incremental_vacuum;")

    def forget_names(self) -> None:
        """Drop the names that no row refers to any more: tenants come and go by the thousand."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM name WHERE id NOT IN (SELECT tenant FROM tenant UNION SELECT gpu FROM gpu "
                "UNION SELECT tenant FROM share UNION SELECT gpu FROM share UNION SELECT tenant FROM decision)"
            )
        self._names = {text: number for number, text in self._db.execute("SELECT id, text FROM name")}


def _judged(error: sqlite3.DatabaseError) -> Exception:
    """Damaged, if the error says that the file is; Python below 3.11 has no codes, so the words count as well."""
    code = getattr(error, "sqlite_errorname", "")
    text = str(error)
    if code.startswith(_BROKEN) or "malformed" in text or "not a database" in text:
        return Damaged(text)
    # tables that are missing were taken by somebody: nothing of this file can be used
    return Damaged(text) if "no such table" in text or "has no column" in text else error


def set_aside(path: Path, why: str) -> Path:
    """Rename a file that cannot be used; one that was set aside before is replaced. Raises OSError.

    Its write-ahead log stays: SQLite removes one that it finds beside an empty file.
    """
    aside = path.with_name(path.name + ".damaged")
    path.replace(aside)
    logger.error("history=%s error=%r kept_as=%s history_starts=now", path, why, aside)
    return aside


def open_store(path: Path, *, keep_s: float, max_bytes: int) -> Store:
    """The store; a file that is damaged is set aside first. Raises sqlite3.Error or OSError."""
    try:
        return Store(path, keep_s=keep_s, max_bytes=max_bytes)
    except Damaged as error:
        set_aside(path, str(error))
        return Store(path, keep_s=keep_s, max_bytes=max_bytes)
