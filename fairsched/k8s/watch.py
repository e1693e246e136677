# SPDX-License-Identifier: Apache-2.0
"""Keeps one list of the API server current: lists it once, then watches, and goes on where a watch has ended.

Problem. A watch ends all the time: the server closes it after a while, restarts, or has forgotten the version that we
go on from; a connection may hang without an end. Nothing may be missed for that, and nothing listed anew without need.

Approach. Each event, and each bookmark, has a version; the next watch begins there. 410 (in the answer or as an event)
means that the server has forgotten it: list again, and what is not in the list has gone. A watch is asked to end after
a minute, so that one that hangs is noticed within some more seconds. After a failure the next try waits 1, 2, 4 ...
30 s; no longer than five where no server answers, as nobody is spared by waiting then, and what is said when it is back
shall not wait. Nodes that have lost it in the same moment do not come back in the same. An error is over with the next
event, or when a watch has ended in order.

Errors: none leave :meth:`Watch.run`; :attr:`Watch.trouble` says what is in the way, and since when.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fairsched.errors import FairschedError
from fairsched.k8s.client import Refused, Unreachable

WATCH_S = 60
SHORT_AWAY_S = 5.0
"""An API server that is away for less is not worth a warning."""
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_LONGEST_AWAY_S = 5.0
"""Where no server answers. With 30 one that was away for a minute was found 91 s after it went."""
_EXPIRED = 410

logger = logging.getLogger(__name__)


class Client(Protocol):
    """What a watch needs of KubeClient."""

    def listed(self, path: str, query: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], str]:
        """Everything, and the version of that. Raises Refused or Unreachable."""

    def events(
        self, path: str, query: Mapping[str, str], take: Callable[[Mapping[str, Any]], None], last_s: float
    ) -> None:
        """Hand on each event until the server ends it. Raises Refused or Unreachable."""


class _Forgotten(Exception):
    """The server has forgotten the version that we go on from."""


class Watch:
    """One list. ``changed`` is called from the watch's thread, whenever something is another.

    ``keep``: what to remember of an object, where there are many.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        changed: Callable[[], None] = lambda: None,
        keep: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda item: item,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._client, self._query, self._changed, self._clock = client, dict(query or {}), changed, clock
        self._keep = keep
        self._lock = threading.Lock()
        self._items: dict[str, Mapping[str, Any]] = {}
        self._version = ""
        self._trouble: tuple[float, str] | None = None
        self._is_listed = False
        self._over = threading.Event()
        self._wait_s = _FIRST_WAIT_S

    # ---- for others ----

    def items(self) -> list[Mapping[str, Any]] | None:
        """What is there, as far as was seen; None before the first list."""
        with self._lock:
            return list(self._items.values()) if self._is_listed else None

    def trouble(self) -> tuple[float, str] | None:
        """For how many seconds the server has not told anything, and why; None: it tells."""
        with self._lock:
            return None if self._trouble is None else (self._clock() - self._trouble[0], self._trouble[1])

    def close(self) -> None:
        """No further try. A watch that is open ends with the process."""
        self._over.set()

    # ---- the thread ----

    def start(self) -> None:
        threading.Thread(target=self.run, name=f"watch{self.path}", daemon=True).start()

    def run(self) -> None:
        """Until :meth:`close`."""
        while not self._over.is_set():
            try:
                self.step()
            except FairschedError as error:
                self._note(error.with_remedy())
                self._over.wait(self._wait_s * random.uniform(0.5, 1.0))
                longest_s = _LONGEST_WAIT_S if isinstance(error, Refused) else _LONGEST_AWAY_S
                self._wait_s = min(2 * self._wait_s, longest_s)
            except Exception as error:  # what a server answers must not end it
                logger.exception("watch=failed path=%s", self.path)
                self._note(repr(error))
                self._over.wait(_LONGEST_WAIT_S)

    def step(self) -> None:
        """List, if need be, and one watch until its end. Raises Refused or Unreachable."""
        try:
            if not self._version:
                self._list()
            query = {
                **self._query,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": self._version,
                "timeoutSeconds": str(WATCH_S),
            }
            self._client.events(self.path, query, self._take, WATCH_S)
            self._well()
        except _Forgotten:
            self._version = ""
        except Refused as error:
            if error.status != _EXPIRED:
                raise
            self._version = ""

    def _list(self) -> None:
        self._set(*self._client.listed(self.path, self._query))

    def _set(self, items: list[Mapping[str, Any]], version: str) -> None:
        with self._lock:
            known = {_uid(one): self._keep(one) for one in items}
            is_another = not self._is_listed or known != self._items
            self._items, self._is_listed, self._version = known, True, version
        self._well()
        if is_another:
            self._changed()

    def _take(self, event: Mapping[str, Any]) -> None:
        """One event of the watch."""
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise Unreachable(f"{self.path}: an event without an object; is this an API server?")
        if kind == "ERROR":
            if item.get("code") == _EXPIRED:
                raise _Forgotten
            raise Unreachable(f"{self.path}: {item.get('message') or json.dumps(item)[:200]}")
        with self._lock:
            self._version = str((item.get("metadata") or {}).get("resourceVersion") or self._version)
            before = self._items.get(_uid(item))
            if kind == "DELETED":
                self._items.pop(_uid(item), None)
            elif kind in ("ADDED", "MODIFIED"):
                self._items[_uid(item)] = self._keep(item)
            is_another = self._items.get(_uid(item)) != before
        self._well()
        if is_another:
            self._changed()

    def _well(self) -> None:
        with self._lock:
            was, self._trouble = self._trouble, None
        self._wait_s = _FIRST_WAIT_S
        if was is not None:
            logger.info("watch=back path=%s away_s=%.0f", self.path, self._clock() - was[0])

    def _note(self, why: str) -> None:
        with self._lock:
            is_new = self._trouble is None
            since = self._clock() if self._trouble is None else self._trouble[0]
            self._trouble = (since, why)
        if is_new:
            logger.warning("watch=lost path=%s error=%r kept='what was seen last'", self.path, why)


def _uid(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
