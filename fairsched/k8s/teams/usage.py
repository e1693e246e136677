# SPDX-License-Identifier: Apache-2.0
"""What teams have got of the window, as Prometheus knows it.

Three questions: GPU-seconds by tenant, tenants that had an entitlement (they wanted a GPU), and how old the newest
sample is. Tenants are ``NAMESPACE`` and ``NAMESPACE/CHILD``; whose they are, the queues of the Namespace say. In a
Namespace with queues of several teams only what the children that are a team's pods got is a team's.

Errors: Unknown, with what is in the way; one that answers, and has nothing fresh, is as silent as one that is away.
"""

from __future__ import annotations

import http.client
import json
import math
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairsched.errors import ConfigError, FairschedError
from fairsched.k8s.teams.law import Reading
from fairsched.k8s.teams.placed import group_of, is_shared
from fairsched.k8s.teams.queues import Queues

TIMEOUT_S = 10.0
PATIENCE_S = 1.0
"""A change of a queue is to be in effect within two seconds, whatever Prometheus does."""
STALE_S = 90.0
"""Six scrapes of the shipped 15 s: one or two that failed are nothing."""
MAX_ANSWER_BYTES = 32 << 20
"""A tenant is some 120 bytes: room for a quarter of a million."""
_GOT = "sum by (tenant) (increase(fairsched_gpu_time_seconds_total[{window}s]))"
_WANTED = "count by (tenant) (count_over_time(fairsched_entitlement_ratio[{window}s]))"
_NEWEST = "max(timestamp(fairsched_gpu_time_seconds_total))"


class Unknown(FairschedError):
    """Prometheus does not tell."""


class Prometheus:
    """The query API of one server, ``http://HOST:PORT`` or https, with a prefix where it has one."""

    def __init__(self, url: str, *, token_file: Path | None = None, authority: Path | None = None) -> None:
        """Raises ConfigError."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{url!r} is not the address of a Prometheus",
                key="--prometheus",
                remedy="write http://HOST:PORT or https://HOST:PORT",
            )
        if token_file is not None and parts.scheme != "https":
            raise ConfigError(
                "a token would be sent in the clear",
                key="--prometheus-token-file",
                remedy="use https, or no token",
            )
        self._url, self._token_file = url.rstrip("/"), token_file
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
        try:
            if parts.scheme == "https":
                tls = ssl.create_default_context(cafile=None if authority is None else str(authority))
                handlers.append(urllib.request.HTTPSHandler(context=tls))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"not a certificate: {error}", file=str(authority)) from None
        self._opener = urllib.request.build_opener(*handlers)

    def query(self, expression: str) -> dict[str, float]:
        """The value of each series by its label ``tenant``; "" where it has none. Raises Unknown."""
        body = urllib.parse.urlencode({"query": expression}).encode()
        request = urllib.request.Request(f"{self._url}/api/v1/query", data=body)
        try:
            if self._token_file is not None:
                request.add_header(
                    "Authorization", f"Bearer {self._token_file.read_text(encoding='ascii').strip()}"
                )
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                raw = answer.read(MAX_ANSWER_BYTES + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unknown(f"Prometheus at {self._url}: {error}") from None
        if len(raw) > MAX_ANSWER_BYTES:
            raise Unknown(f"Prometheus at {self._url}: the answer is longer than {MAX_ANSWER_BYTES} bytes")
        try:
            return dict(_samples(json.loads(raw)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Unknown(
                f"Prometheus at {self._url} answers something else than samples: {error!r}"
            ) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _samples(answer: Any) -> Iterator[tuple[str, float]]:
    if answer["status"] != "success" or answer["data"]["resultType"] != "vector":
        raise ValueError(str(answer.get("error") or answer["data"]["resultType"])[:200])
    for one in answer["data"]["result"]:
        value = float(one["value"][1])
        if math.isfinite(value):
            yield str(one["metric"].get("tenant") or ""), value


def read(
    ask: Callable[[str], Mapping[str, float]],
    teams: Mapping[str, Queues],
    window_s: float,
    wall: Callable[[], float] = time.time,
) -> Reading:
    """One reading of the window. Raises Unknown, also when the newest sample is older than STALE_S."""
    newest = ask(_NEWEST).get("")
    if newest is None:
        raise Unknown("Prometheus has no sample of fairsched_gpu_time_seconds_total")
    if wall() - newest > STALE_S:
        raise Unknown(f"the newest sample is {wall() - newest:.0f} s old")
    window = f"{max(1, round(window_s))}"
    seconds: dict[str, float] = {}
    for tenant, value in ask(_GOT.format(window=window)).items():
        team = team_of(tenant, teams)
        if team is not None:
            seconds[team] = seconds.get(team, 0.0) + max(0.0, value)
    wanting = {team_of(tenant, teams) for tenant in ask(_WANTED.format(window=window))}
    return Reading(seconds, {one for one in wanting if one is not None})


def team_of(tenant: str, teams: Mapping[str, Queues]) -> str | None:
    """Whose a tenant of the nodes is; None: no team's, as far as its name tells."""
    namespace, _, child = tenant.partition("/")
    queues = teams.get(namespace, {})
    names = {one.team for one in queues.values()}
    if not is_shared(queues):
        return next(iter(names), None)
    return next((name for name in names if group_of(name) == child), None)


class Reader:
    """Asks in a thread of its own: a Prometheus that hangs keeps nobody waiting for longer than PATIENCE_S."""

    def __init__(
        self,
        ask: Callable[[str], Mapping[str, float]],
        window_s: float,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._window_s, self._patience_s, self._clock = ask, window_s, patience_s, clock
        self._thread: threading.Thread | None = None
        self._last: tuple[float, Reading] | None = None
        self._error: FairschedError | None = None

    def __call__(self, teams: Mapping[str, Queues]) -> Reading:
        """A reading of now, or while it takes long one that is not stale. Raises Unknown."""
        if self._thread is None or not self._thread.is_alive():
            self._error = None
            self._thread = threading.Thread(target=self._run, args=(teams,), name="prometheus", daemon=True)
            self._thread.start()
        self._thread.join(self._patience_s)
        if self._error is not None:
            raise self._error
        if self._last is None or self._clock() - self._last[0] > STALE_S:
            raise Unknown("Prometheus takes long to answer")
        return self._last[1]

    def _run(self, teams: Mapping[str, Queues]) -> None:
        try:
            self._last = (self._clock(), read(self._ask, teams, self._window_s))
        except FairschedError as error:
            self._error = error
        except Exception as error:  # what it answers must not end the loop in silence
            self._error = Unknown(f"Prometheus: {error!r}")
