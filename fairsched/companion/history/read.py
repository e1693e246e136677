# SPDX-License-Identifier: Apache-2.0
"""The database for a reader: a stretch of the past as series of at most some hundred points, and as totals.

A series is a list of (Unix seconds, value); a value is None where it was not known. Where the daemon was away there
are no points: whoever draws a line breaks it where two points are further apart than `Past.gap_s`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairsched.companion.history.schema import VERSION
from fairsched.errors import FairschedError

Series = list[tuple[float, "float | None"]]
POINTS = 240
"""Most points of a series: more than a page has room for would only make it larger."""
_GAP_STEPS = 2.5

ENABLE = "set history.enabled: true, reload, and come back in a while"


@dataclass(frozen=True)
class TenantTotal:
    """One tenant over the whole stretch."""

    name: str
    weight: float
    """The last one."""
    gpu_time_s: float | None
    used_ratio: float | None
    """Mean over the time on record, of the GPUs together."""
    entitled_ratio: float | None
    held_s: float | None
    holds: int
    queue_delay_p99_ms: float | None
    """The worst interval's."""
    tokens_per_s: float | None
    """Mean of the intervals in which it was known."""
    dry_holds: int = 0
    """That a dry run would have made, in none of the above."""
    dry_held_s: float | None = None
    """How long those would have been that ended; None = there were none."""


@dataclass(frozen=True)
class Past:
    """A stretch of the past."""

    begin_s: float
    end_s: float
    step_s: float
    """What one point stands for."""
    on_record_s: float
    """Time of it that the history knows of."""
    gapless: bool
    modes: tuple[str, ...]
    used: Mapping[tuple[str, str], Series] = field(default_factory=dict)
    """By tenant and GPU UUID."""
    entitled: Mapping[tuple[str, str], Series] = field(default_factory=dict)
    lag_ms: Mapping[str, Series] = field(default_factory=dict)
    """By tenant, of the GPU with the largest."""
    queue_delay_p99_ms: Mapping[str, Series] = field(default_factory=dict)
    tokens_per_s: Mapping[str, Series] = field(default_factory=dict)
    busy: Mapping[str, Series] = field(default_factory=dict)
    """By GPU UUID."""
    holds: Mapping[str, Series] = field(default_factory=dict)
    """By reason: how many in each step."""
    dry_holds: Mapping[str, Series] = field(default_factory=dict)
    """Those that a dry run would have made."""
    slis: Mapping[str, Series] = field(default_factory=dict)
    """By column of the table node."""
    totals: tuple[TenantTotal, ...] = ()
    """By GPU time, the largest first."""

    @property
    def gap_s(self) -> float:
        return _GAP_STEPS * self.step_s


def read_past(path: Path, begin_s: float, end_s: float) -> Past:
    """Raises FairschedError with a remedy when there is no history, or it cannot be read."""
    with _opened(path) as db:
        db.execute("BEGIN")  # one moment of the file for all questions, though the companion goes on writing
        spans = db.execute(
            "SELECT min(t), max(t), count(*), sum(span_s), max(span_s), min(is_gapless) FROM node "
            "WHERE t BETWEEN ? AND ?",
            (begin_s, end_s),
        ).fetchone()
        if not spans[2]:
            raise _nothing(db, path, begin_s)
        # an hour asked for a minute after the start is drawn as that minute
        begin_s = max(begin_s, spans[0] - spans[4])
        # at the pace of the rows, each has a step of its own; a little more, as they do not come to the second
        step_s = max((end_s - begin_s) / POINTS, spans[3] / spans[2])
        read = _Reader(db, begin_s, end_s, step_s)
        modes = db.execute("SELECT DISTINCT mode FROM node WHERE t BETWEEN ? AND ?", (begin_s, end_s))
        return Past(
            begin_s=begin_s,
            end_s=end_s,
            step_s=step_s,
            on_record_s=spans[3],
            gapless=bool(spans[5]),
            modes=tuple(sorted(row[0] for row in modes)),
            used=read.shares("used_ratio"),
            entitled=read.shares("entitled_ratio"),
            lag_ms=read.lags(),
            queue_delay_p99_ms=read.tenants("max(queue_delay_p99_ms)"),
            tokens_per_s=read.tenants("avg(tokens_per_s)"),
            busy=read.series("SELECT name.text, avg(t), avg(busy_ratio) FROM gpu JOIN name ON id = gpu"),
            holds=read.holds(is_dry_run=False),
            dry_holds=read.holds(is_dry_run=True),
            slis=read.node(),
            totals=read.totals(spans[3]),
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with open(path, "rb"):
            pass
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
    except FileNotFoundError:
        raise FairschedError(f"no history: {path} does not exist", remedy=ENABLE) from None
    except PermissionError:
        raise FairschedError(f"{path}: no permission to read it", remedy="use sudo") from None
    except (OSError, sqlite3.Error) as error:
        raise FairschedError(f"{path}: {error}", remedy="name another one: --history FILE") from None
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise FairschedError(
                f"{path}: a history of version {version}, not {VERSION}",
                remedy="use the fairsched command of the same version as the daemon",
            )
        yield db
    except sqlite3.Error as error:
        remedy = "restart the daemon: it sets a damaged history aside and begins another"
        raise FairschedError(f"{path}: {error}", remedy=remedy) from None
    finally:
        db.close()


def _nothing(db: sqlite3.Connection, path: Path, begin_s: float) -> FairschedError:
    last = db.execute("SELECT max(t) FROM node").fetchone()[0]
    if last is None:
        return FairschedError(f"{path}: no history yet", remedy=ENABLE)
    ago = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last))
    asked = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin_s))
    return FairschedError(
        f"{path}: nothing since {asked}; the last row is of {ago}",
        remedy="ask for more with --since, such as 7d",
    )


@dataclass(frozen=True)
class _Reader:
    db: sqlite3.Connection
    begin_s: float
    end_s: float
    step_s: float

    def series(self, select: str, where: str = "1") -> dict[str, Series]:
        """`select` gives key, time, value. Keys whose value is never known are left out."""
        found: dict[str, Series] = {}
        for key, t, value in self._rows(select, where, "1"):
            found.setdefault(key, []).append((t, value))
        return {key: series for key, series in found.items() if any(value is not None for _, value in series)}

    def _rows(self, select: str, where: str, keys: str) -> Iterator[Any]:
        bucket = f"cast((t - {self.begin_s!r}) / {self.step_s!r} AS INTEGER)"
        select = select.format(bucket=bucket, step=repr(self.step_s), begin=repr(self.begin_s))
        query = f"{select} WHERE t BETWEEN ? AND ? AND {where} GROUP BY {keys}, {bucket} ORDER BY {keys}, {bucket}"
        yield from self.db.execute(query, (self.begin_s, self.end_s))

    def shares(self, column: str) -> dict[tuple[str, str], Series]:
        found: dict[tuple[str, str], Series] = {}
        select = (
            f"SELECT a.text, b.text, avg(t), avg({column}) FROM share "
            "JOIN name a ON a.id = tenant JOIN name b ON b.id = gpu"
        )
        for tenant, gpu, t, value in self._rows(select, "1", "1, 2"):
            found.setdefault((tenant, gpu), []).append((t, value))
        return found

    def lags(self) -> dict[str, Series]:
        """The one that is furthest from zero: the largest of the credits, or the largest of the debts."""
        furthest = "CASE WHEN max(lag_ms) > -min(lag_ms) THEN max(lag_ms) ELSE min(lag_ms) END"
        return self.series(f"SELECT name.text, avg(t), {furthest} FROM share JOIN name ON id = tenant")

    def tenants(self, value: str) -> dict[str, Series]:
        return self.series(f"SELECT name.text, avg(t), {value} FROM tenant JOIN name ON id = tenant")

    def holds(self, *, is_dry_run: bool) -> dict[str, Series]:
        return self.series(
            "SELECT reason, {bucket} * {step} + {begin} + {step} / 2, sum(count) FROM decision",
            where=f"action = 'hold' AND failed < count AND is_dry_run = {is_dry_run:d}",
        )

    def node(self) -> dict[str, Series]:
        columns = {
            "fairness_error_ratio": "avg",
            "queue_delay_p99_ms": "max",
            "sm_utilization_stdev_ratio": "avg",
            "token_rate_cv_ratio": "avg",
        }
        found: dict[str, Series] = {}
        for column, function in columns.items():
            found |= self.series(f"SELECT '{column}', avg(t), {function}({column}) FROM node")
        return found

    def totals(self, on_record_s: float) -> tuple[TenantTotal, ...]:
        span = (self.begin_s, self.end_s)
        names = dict(self.db.execute("SELECT id, text FROM name"))
        # a tenant that was there for a part of the time used nothing in the rest
        shares = {
            row[0]: row[1:]
            for row in self.db.execute(
                "SELECT tenant, sum(gpu_time_s), sum(used_ratio * span_s) / ?, sum(entitled_ratio * span_s) / ? "
                "FROM share JOIN node USING (t) WHERE t BETWEEN ? AND ? GROUP BY tenant",
                (on_record_s, on_record_s, *span),
            )
        }
        holds = {
            row[:2]: row[2:]
            for row in self.db.execute(
                "SELECT tenant, is_dry_run, sum(CASE action WHEN 'hold' THEN count - failed ELSE 0 END), sum(held_s) "
                "FROM decision WHERE t BETWEEN ? AND ? GROUP BY tenant, is_dry_run",
                span,
            )
        }
        found = []
        # max(t) makes the bare column weight that of the last row, as SQLite documents
        select = "SELECT tenant, max(t), weight, sum(held_s), max(queue_delay_p99_ms), avg(tokens_per_s) FROM tenant"
        select += " WHERE t BETWEEN ? AND ? GROUP BY tenant"
        for tenant, _, weight, held_s, delay_ms, tokens in self.db.execute(select, span):
            gpu_time_s, used, entitled = shares.get(tenant, (None, None, None))
            count, _ = holds.get((tenant, 0), (0, None))
            dry_count, dry_s = holds.get((tenant, 1), (0, None))
            if dry_s is not None:  # the first that ended may have begun before
                dry_s = min(dry_s, on_record_s)
            found.append(
                TenantTotal(
                    name=names[tenant],
                    weight=weight,
                    gpu_time_s=gpu_time_s,
                    used_ratio=used,
                    entitled_ratio=entitled,
                    held_s=held_s,
                    holds=count,
                    queue_delay_p99_ms=delay_ms,
                    tokens_per_s=tokens,
                    dry_holds=dry_count,
                    dry_held_s=dry_s,
                )
            )
        return tuple(sorted(found, key=lambda one: (-(one.gpu_time_s or 0.0), one.name)))
