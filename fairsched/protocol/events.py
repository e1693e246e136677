# SPDX-License-Identifier: Apache-2.0
"""Writes decisions, and what else is done to tenants, as structured records for the log and for ``fairsched events``,
and limits how many decisions.

Problem: a busy tenant is held and thawed some ten times a second. Each decision is worth a line to somebody who
looks, and none of them is worth filling a journal.

Approach: one set of fields, used by the log line, by the fields in the journal and by the JSON lines alike; and a
token bucket per tenant that counts what it keeps back, so that a reader knows how many there were.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.base.printable import word
from fairsched.base.text import utc
from fairsched.protocol.status import DecisionRecord

_MAX_BUCKETS = 4096
_REMEMBER = 1024


@dataclass(frozen=True)
class EventRecord:
    """Something that is done to a tenant, or found, besides holds and thaws."""

    t_ns: int
    """CLOCK_MONOTONIC."""
    wall_time_s: float
    event: str
    """termination or vram."""
    fields: Mapping[str, Any]
    """Under the names of the log; ``tenant`` is one of them."""


def event_from_plain(data: Mapping[str, Any]) -> EventRecord:
    """Of an answer of the daemon's; fields of a newer one are ignored."""
    return EventRecord(data["t_ns"], data["wall_time_s"], data["event"], data["fields"])


class EventBook:
    """Logs such events, and keeps the last of them."""

    def __init__(self, logger: logging.Logger, event: str) -> None:
        self._logger, self._event = logger, event
        self.records: deque[EventRecord] = deque(maxlen=_REMEMBER)

    def tell(self, level: int, **fields: Any) -> None:
        """At this level of the log."""
        self._logger.log(level, "%s", logfmt(fields), extra={"fields": fields})
        self.records.append(EventRecord(time.monotonic_ns(), time.time(), self._event, fields))


def later(records: deque[Any], since_ns: int) -> tuple[list[Any], bool]:
    """Records later than that, and whether none such was forgotten."""
    found = [record for record in records if record.t_ns > since_ns]
    return found, len(records) < (records.maxlen or 0) or len(found) < len(records)


def decision_fields(record: DecisionRecord) -> dict[str, Any]:
    """What is known of it, under the names of the log and of the JSON lines; what is not known is left out."""
    reason = record.reason
    fields: dict[str, Any] = {
        "decision": record.action.value,
        "tenant": record.tenant,
        "reason": reason.code.value,
        "gpu": reason.gpu,
        "lag_ms": _ms(reason.lag_ns),
        "used_ratio": _ratio(reason.used_ratio),
        "entitled_ratio": _ratio(reason.entitlement_ratio),
        "drain_ms": _ms(reason.outstanding_ns),
        "threshold_ms": _ms(reason.threshold_ns),
        "vram_bytes": reason.vram_bytes,
        "limit_bytes": reason.vram_limit_bytes,
        "long_hold_ms": _ms(reason.long_hold_ns),
        "held_ms": _ms(record.held_ns),
        "dry_run": True if record.is_dry_run else None,
        "error": record.error,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else round(value_ns / 1e6, 1)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def logfmt(fields: Mapping[str, Any]) -> str:
    """``decision=hold tenant=chat ...``; text with blanks in it is quoted."""
    return " ".join(f"{key}={_word(value)}" for key, value in fields.items())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return word(str(value))


@dataclass
class _Bucket:
    tokens: float
    t_ns: int
    suppressed: int = 0


class Limiter:
    """A token bucket for each key; time is handed in."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: dict[Hashable, _Bucket] = {}

    def take(self, key: Hashable, t_ns: int) -> int | None:
        """None: keep this one back. Else how many of the key were kept back since the last that was not."""
        bucket = self._buckets.get(key)
        if bucket is None:
            self._forget_full(t_ns)
            bucket = self._buckets[key] = _Bucket(self._burst, t_ns)
        self._fill(bucket, t_ns)
        if bucket.tokens < 1:
            bucket.suppressed += 1
            return None
        bucket.tokens -= 1
        suppressed, bucket.suppressed = bucket.suppressed, 0
        return suppressed

    def overdue(self, t_ns: int) -> Iterator[tuple[Any, int]]:
        """(key, how many were kept back) of keys that may speak again and had nothing to say since."""
        for key, bucket in self._buckets.items():
            if bucket.suppressed:
                self._fill(bucket, t_ns)
                if bucket.tokens >= 1:
                    bucket.tokens -= 1
                    yield key, bucket.suppressed
                    bucket.suppressed = 0

    def rest(self) -> Iterator[tuple[Any, int]]:
        """(key, how many were kept back) of all keys, at the end."""
        for key, bucket in self._buckets.items():
            if bucket.suppressed:
                yield key, bucket.suppressed
                bucket.suppressed = 0

    def _fill(self, bucket: _Bucket, t_ns: int) -> None:
        gained = max(0, t_ns - bucket.t_ns) / 1e9 * self._per_s
        bucket.tokens = min(float(self._burst), bucket.tokens + gained)
        bucket.t_ns = max(bucket.t_ns, t_ns)

    def _forget_full(self, t_ns: int) -> None:
        """Tenants come and go; a bucket that is full again says nothing."""
        if len(self._buckets) < _MAX_BUCKETS:
            return
        refill_ns = self._burst / self._per_s * 1e9
        self._buckets = {
            key: one for key, one in self._buckets.items() if one.suppressed or t_ns - one.t_ns < refill_ns
        }


class EventStream:
    """Records in, JSON documents out: one each, of one tenant or of all; decisions limited per tenant."""

    def __init__(self, *, tenant: str | None = None, per_s: float | None = None, burst: int = 1) -> None:
        self._tenant = tenant
        self._limiter = None if per_s is None else Limiter(per_s=per_s, burst=burst)

    def documents(self, records: Iterable[DecisionRecord | EventRecord]) -> Iterator[dict[str, Any]]:
        for record in records:
            if isinstance(record, EventRecord):
                if self._tenant in (None, record.fields["tenant"]):
                    yield (
                        _head(record.event, record.wall_time_s) | {"t_ns": record.t_ns} | dict(record.fields)
                    )
            elif self._tenant in (None, record.tenant):
                yield from self._decision(record)

    def _decision(self, record: DecisionRecord) -> Iterator[dict[str, Any]]:
        suppressed = 0 if self._limiter is None else self._limiter.take(record.tenant, record.t_ns)
        if suppressed is not None:
            document = _head("decision", record.wall_time_s) | {"t_ns": record.t_ns} | decision_fields(record)
            yield document | ({"suppressed": suppressed} if suppressed else {})

    def counts(self, t_ns: int, wall_s: float, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        """What was kept back of tenants that have fallen silent; at the end, of all."""
        if self._limiter is None:
            return
        for tenant, count in self._limiter.rest() if is_last else self._limiter.overdue(t_ns):
            yield _head("suppressed", wall_s) | {"tenant": tenant, "count": count}


def gap_document(wall_s: float, why: str) -> dict[str, Any]:
    """Decisions may be missing here."""
    return _head("gap", wall_s) | {"message": why}


def _head(event: str, wall_s: float) -> dict[str, Any]:
    return {"time": utc(wall_s), "event": event}
