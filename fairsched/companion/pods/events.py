# SPDX-License-Identifier: Apache-2.0
"""Makes an Event of each complaint about a pod, so that `kubectl describe` says it.

Problem. A call takes as long as the API server likes, and who may make pods decides how much there is to complain of.
Neither may keep what pods come to from the daemon, nor one namespace's the Events of another.

Approach. A thread of its own, one Event after the other at a pace, namespaces in turn. Each is made once for as long as
it is complained of. Best effort: `fairsched status` says it as well. Where the server is away they wait.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fairsched.companion.pods.said import Complaint
from fairsched.k8s.client import Refused, Unreachable

_PACE_S = 0.25
_AWAY_S = 5.0
"""Where the API server does not answer, or has too much to do."""
_REMEMBERED = 256
"""Made, of what nobody complains of any more: it may be said again."""

logger = logging.getLogger(__name__)


class Api(Protocol):
    """What it needs of the API server."""

    def report_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Make an Event. Raises Refused or Unreachable."""


class Events:
    """Of one node. Call :meth:`start`, and :meth:`close` at the end."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api, self._node_name = api, node_name
        self._lock = threading.Lock()
        self._due, self._over = threading.Event(), threading.Event()
        self._now: dict[tuple[str, str], Complaint] = {}
        """By uid and text."""
        self._made: set[tuple[str, str]] = set()
        self._last = ""
        """The namespace whose turn it was."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._due.set()

    def tell(self, complaints: Iterable[Complaint]) -> None:
        """All that there is to complain of now."""
        with self._lock:
            self._now = {(one.uid, one.text): one for one in complaints if one.name}
            if len(self._made) > len(self._now) + _REMEMBERED:
                self._made &= self._now.keys()
        self._due.set()

    def step(self) -> bool:
        """Make one Event; whether there was one to make. Raises Refused or Unreachable: it is still to be made."""
        with self._lock:
            one = self._next()
        if one is None:
            return False
        try:
            self._api.report_event(one.namespace, event_of(one, self._node_name))
        except Refused as error:
            if error.is_passing:
                raise
            logger.warning("event=refused pod=%s/%s error=%r", one.namespace, one.name, str(error))
        with self._lock:
            self._made.add((one.uid, one.text))
            self._last = one.namespace
        return True

    def _next(self) -> Complaint | None:
        first: dict[str, Complaint] = {}
        for key, one in self._now.items():
            if key not in self._made:
                first.setdefault(one.namespace, one)
        if not first:
            return None
        return first[min((name for name in first if name > self._last), default=min(first))]

    def _run(self) -> None:
        while not self._over.is_set():
            self._due.wait()
            self._due.clear()
            try:
                while not self._over.is_set() and self.step():
                    self._over.wait(_PACE_S)
            except (Refused, Unreachable) as error:
                logger.info("event=waiting error=%r", str(error))
                self._over.wait(_AWAY_S)
                self._due.set()
            except Exception:
                logger.exception("event=failed")
                self._over.wait(_AWAY_S)


def event_of(complaint: Complaint, node_name: str) -> Mapping[str, Any]:
    """A Warning on the pod."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "fairsched-", "namespace": complaint.namespace},
        "type": "Warning",
        "reason": complaint.reason,
        "message": complaint.text[:1000],
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": complaint.namespace,
            "name": complaint.name,
            "uid": complaint.uid,
        },
        "source": {"component": "fairsched", "host": node_name},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
