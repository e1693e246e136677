# SPDX-License-Identifier: Apache-2.0
"""Makes the pages for scrapes: each is made once and shared.

Problem: a hundred scrapes at once must cost the daemon no more than one.

Approach: one status a second, at most, and one page of it per format. Whoever comes while it is being made waits for
it. A daemon that does not answer makes a page that says so (fairsched_up 0) and is not asked again for a second either.
All of it happens in a thread beside the server's, because asking may take seconds. Passwords are checked in another
one, a few at a time: whoever tries many keeps nobody from a page whose password is known.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from fairsched.companion.exporter.book import OPENMETRICS, TEXT, Labels, write
from fairsched.companion.exporter.http import Answer, Request
from fairsched.companion.exporter.readings import MOST_TENANTS, Own, read
from fairsched.companion.exporter.webconfig import WebConfig
from fairsched.errors import ControlError
from fairsched.protocol.status import StatusReport, to_plain

SHARED_S = 1.0
"""A status is shown for so long before the daemon is asked for another."""
MOST_CHECKS = 16
"""Passwords that wait to be checked; each takes a tenth of a second."""
_GZIP_LEVEL = 1
"""A page of 1.5 MB becomes 60 kB either way; the higher levels take five times as long."""
_LANDING = b"""<!doctype html><html lang="en"><head><title>fairsched</title></head>
<body><h1>fairsched</h1><p><a href="metrics">Metrics</a></p></body></html>
"""

MetricRow = tuple[str, Labels, float]
"""Family of the catalogue, values of its labels, value."""


@dataclass
class _Snapshot:
    """One status, or that there is none, and the pages made of it so far."""

    report: StatusReport | None
    asked_s: float
    pages: dict[tuple[str, bool], bytes] = field(default_factory=dict)


class Pages:
    """``ask`` gives the status, at most ``SHARED_S`` old, and raises ControlError when there is none.

    ``others``: what other parts of the companion have to say, asked for at each page of a daemon that answers.
    ``counts`` are those of the server: answers by status, and connections refused.
    """

    def __init__(
        self,
        ask: Callable[[float], StatusReport],
        *,
        explain: Callable[[str], Sequence[Any]] = lambda tenant: (),
        others: Iterable[Callable[[], Iterable[MetricRow]]] = (),
        most_tenants: int = MOST_TENANTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._others, self._most, self._clock = ask, tuple(others), most_tenants, clock
        self._explain = explain
        self._snapshot: _Snapshot | None = None
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "exporter-page")
        self._render_s: float | None = None
        self.counts: Callable[[], tuple[Mapping[str, int], Mapping[str, int]]] = lambda: ({}, {})

    async def get(self, content_type: str, *, is_packed: bool) -> bytes:
        """A page, in gzip when ``is_packed``."""
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._make, content_type, is_packed
            )

    async def document(self, tenant: str | None, *, is_packed: bool) -> tuple[HTTPStatus, bytes]:
        """The status as JSON, or with it what was decided about a tenant; shared and made as a page is."""
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._make_document, tenant, is_packed
            )

    def _make_document(self, tenant: str | None, is_packed: bool) -> tuple[HTTPStatus, bytes]:
        known = self._known()
        status, key = HTTPStatus.OK, (f"json {tenant or ''}", is_packed)
        if key not in known.pages:
            status, plain = self._write_document(known, tenant)
            page = gzip.compress(plain, _GZIP_LEVEL) if is_packed else plain
            if status is not HTTPStatus.OK:
                return status, page
            known.pages[key] = page
        return status, known.pages[key]

    def _write_document(self, known: _Snapshot, tenant: str | None) -> tuple[HTTPStatus, bytes]:
        report = known.report
        if report is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _json({"error": "the daemon does not answer"})
        if tenant is None:
            return HTTPStatus.OK, _json(to_plain(report))
        if all(one.name != tenant for one in report.tenants):
            return HTTPStatus.NOT_FOUND, _json({"error": "no such tenant"})
        try:
            decisions = self._explain(tenant)
        except ControlError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, _json({"error": str(error)})
        return HTTPStatus.OK, _json({"status": to_plain(report), "decisions": list(decisions)})

    def close(self) -> None:
        """End the thread, after the page that is being made."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, content_type: str, is_packed: bool) -> bytes:
        known = self._known()
        key = (content_type, is_packed)
        if key not in known.pages:
            if is_packed:
                plain = known.pages.get((content_type, False)) or self._write(known, content_type)
                known.pages[content_type, False] = plain
                known.pages[key] = gzip.compress(plain, _GZIP_LEVEL)
            else:
                known.pages[key] = self._write(known, content_type)
        return known.pages[key]

    def _known(self) -> _Snapshot:
        now_s, known = self._clock(), self._snapshot
        if known is None or now_s - known.asked_s >= SHARED_S:
            known = self._snapshot = self._ask_daemon()
        return known

    def _ask_daemon(self) -> _Snapshot:
        try:
            report = self._ask(SHARED_S)
        except ControlError:
            return _Snapshot(None, self._clock())
        return _Snapshot(report, self._clock())

    def _write(self, snapshot: _Snapshot, content_type: str) -> bytes:
        begin_s, report = time.perf_counter(), snapshot.report
        requests, refused = self.counts()
        age_s = None if report is None else max(0.0, time.monotonic() - report.t_ns / 1e9)
        book = read(report, Own(requests, refused, self._render_s, age_s), self._most)
        for rows in self._others if report is not None else ():
            for name, labels, value in rows():
                book.add(name, labels, value)
        page = write(book, content_type)
        self._render_s = time.perf_counter() - begin_s
        return page


class Checks:
    """Passwords being checked, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "exporter-check")
        self.waiting = 0
        """How many, with the one that is being checked."""

    async def ask(self, check: Callable[[str, str], bool], user: str, password: str) -> bool | None:
        """What ``check`` says; None: so many wait already that this one is not asked for."""
        if self.waiting >= MOST_CHECKS:
            return None
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, check, user, password)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """End the thread, after the check that is going on."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Site:
    """What the exporter answers to a request: who may ask, the page, the landing page."""

    def __init__(self, pages: Pages, web: WebConfig, checks: Checks) -> None:
        self._pages, self.web, self._checks = pages, web, checks

    async def answer(self, request: Request) -> Answer:
        """A :data:`http.Handler`."""
        may_ask = await self._may_ask(request)
        if may_ask is None:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "1"})
        if not may_ask:
            return Answer(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": 'Basic realm="fairsched"'})
        if request.path == "/":
            return Answer(HTTPStatus.OK, {"Content-Type": "text/html; charset=utf-8"}, _LANDING)
        if request.path == "/status" or request.path.startswith("/explain/"):
            return await self._document(request)
        if request.path != "/metrics":
            return Answer(HTTPStatus.NOT_FOUND)
        content_type = choose_format(request.headers.get("accept", ""))
        is_packed = _quality(request.headers.get("accept-encoding", ""), "gzip") > 0
        body = await self._pages.get(content_type, is_packed=is_packed)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        return Answer(HTTPStatus.OK, {**headers, **({"Content-Encoding": "gzip"} if is_packed else {})}, body)

    async def _document(self, request: Request) -> Answer:
        """What ``kubectl fairsched`` shows, read only."""
        name = unquote(request.path.removeprefix("/explain/")) if request.path != "/status" else None
        is_packed = _quality(request.headers.get("accept-encoding", ""), "gzip") > 0
        status, body = await self._pages.document(name, is_packed=is_packed)
        headers = {"Content-Type": "application/json", "Vary": "Accept-Encoding"}
        return Answer(status, {**headers, **({"Content-Encoding": "gzip"} if is_packed else {})}, body)

    async def _may_ask(self, request: Request) -> bool | None:
        """None: too many ask for that to be found out now."""
        if not self.web.has_users:
            return True
        told = credentials(request.headers.get("authorization", ""))
        if told is None:
            return False
        return self.web.is_known(*told) or await self._checks.ask(self.web.check, *told)


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def credentials(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header; None when it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def _quality(header: str, wanted: str) -> float:
    """Of the best entry that names it in a header of the kind of Accept; 0 = it is not wanted."""
    best = 0.0
    for entry in header.split(","):
        name, *parameters = (word.strip() for word in entry.split(";"))
        if name.lower() != wanted:
            continue
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        best = max(best, quality)
    return best


def choose_format(accept: str) -> str:
    """OpenMetrics for whoever prefers it to the text format, else the text format, which everything reads."""
    wanted = _quality(accept, "application/openmetrics-text")
    return OPENMETRICS if wanted > 0 and wanted >= _quality(accept, "text/plain") else TEXT
