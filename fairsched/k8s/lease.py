# SPDX-License-Identifier: Apache-2.0
"""Elects one of several processes by a Lease of the API server: who holds it may write, the others wait.

Problem. What one process writes into the cluster must not be written by two, also not when one of them hangs, is cut
off from the API server, or has a clock that is wrong.

Approach. As Kubernetes' own controllers do it. Who holds the Lease renews it every `retry_s`. Another takes it when
it has not changed for `duration_s` by the other's own clock: no two clocks are compared. The holder believes
in its Lease for `deadline_s` only, counted from before the last renewal was sent, so that it has stopped before
another begins; a call that it has begun then ends within the client's ``call_s``, so ``deadline_s + call_s`` is at
most ``duration_s``. A replacement names the version it read (409: somebody was faster). Who ends in order gives it
back, and the next need not wait.

What it cannot: a process that is stopped between :meth:`Election.is_leader` and its write may write late. So what is
written names the version that was read, or makes no difference when it is written twice.

Errors: none leave :meth:`Election.run`; :meth:`Election.trouble` says what is in the way.
"""

from __future__ import annotations

import datetime
import logging
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from fairsched.errors import ConfigError, FairschedError
from fairsched.k8s.client import Refused

logger = logging.getLogger(__name__)


class Client(Protocol):
    """What an election needs of KubeClient."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """What is at `path`. Raises Refused (404: nothing) or Unreachable."""

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make it. Raises Refused (409: there is one) or Unreachable."""

    def replace(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put it there. Raises Refused (409: it was changed meanwhile) or Unreachable."""


@dataclass(frozen=True)
class LeaseTimes:
    """In seconds; the values are those of Kubernetes' own controllers (k8s.io/component-base)."""

    duration_s: int = 15
    """Of a Lease that nobody renews, until another takes it."""
    deadline_s: float = 10.0
    """For so long the holder trusts a renewal."""
    retry_s: float = 2.0
    """Between two renewals, and between two looks of who waits."""

    def check(self, call_s: float) -> None:
        """Raises ConfigError where two could write at once: a call may last `call_s`."""
        if not 0 < self.retry_s < self.deadline_s or self.deadline_s + call_s > self.duration_s:
            raise ConfigError(
                f"a Lease of {self.duration_s} s, trusted for {self.deadline_s:g} s, renewed each "
                f"{self.retry_s:g} s, with calls of up to {call_s:g} s: two could hold it at once",
                remedy="keep retry < deadline, and deadline + call <= duration",
            )


def boot_clock_s() -> float:
    """Seconds that go on while a machine sleeps, as the other candidates' do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identity() -> str:
    """Of this process; another start on the same host is another."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Election:
    """One Lease and one candidate. ``changed`` is called from the election's thread, with whether we hold it now."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        candidate: str,
        *,
        times: LeaseTimes | None = None,
        changed: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = boot_clock_s,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.candidate = candidate
        self._client, self._times, self._changed = client, times or LeaseTimes(), changed
        self._clock, self._wall, self._jitter = clock, wall, jitter
        self._namespace, self._name = namespace, name
        self._group = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"
        self._path = f"{self._group}/{quote(name)}"
        self._lock = threading.Lock()
        self._trusted_until_s: float | None = None
        self._seen: tuple[str, Mapping[str, Any], float] | None = None
        """The Lease's version and text as seen last, and since when by our clock."""
        self._was_leader = False
        self._trouble: tuple[float, str] | None = None
        self._over = threading.Event()

    # ---- for others ----

    def is_leader(self) -> bool:
        """Whether we hold it, by our own clock: ask before each write."""
        with self._lock:
            return self._trusted_until_s is not None and self._clock() < self._trusted_until_s

    def holder(self) -> str:
        """Who held it when we looked last; empty: nobody, or it was not seen yet."""
        with self._lock:
            return "" if self._seen is None else str(self._seen[1].get("holderIdentity") or "")

    def trouble(self) -> tuple[float, str] | None:
        """For how many seconds the Lease can be neither read nor written, and why; None: it can."""
        with self._lock:
            return None if self._trouble is None else (self._clock() - self._trouble[0], self._trouble[1])

    def close(self) -> None:
        """Ends :meth:`run`, which gives the Lease back."""
        self._over.set()

    # ---- the thread ----

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.run, name=f"lease/{self._name}", daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Until :meth:`close`."""
        while not self._over.is_set():
            self.step()
            # Candidates that were started together must not ask together for ever.
            self._over.wait(self._times.retry_s * (1 + 0.2 * self._jitter()))
        self._give_back()

    def step(self) -> None:
        """One look, and what follows from it."""
        try:
            self._try()
            self._well()
        except FairschedError as error:
            self._note(error.with_remedy())
        except Exception as error:  # what a server answers must not end it
            logger.exception("lease=failed name=%s", self._name)
            self._note(repr(error))
        self._tell()

    def _try(self) -> None:
        sent_s = self._clock()
        try:
            found = self._client.get(self._path)
        except Refused as error:
            if not error.is_absent:
                raise
            found = None
        spec = _spec(found)
        self._look(found)
        if found is not None and not self._is_free(spec):
            with self._lock:
                self._trusted_until_s = None
            return
        wanted = self._wanted(spec)
        try:
            if found is None:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": wanted,
                }
                answer = self._client.create(self._group, body)
            else:
                # With its version: who was faster has it.
                answer = self._client.replace(self._path, {**found, "spec": wanted})
        except Refused as error:
            if not error.is_conflict:
                raise
            return  # what we believe until our deadline is still so, or it is somebody's after that
        self._look(answer)
        with self._lock:
            self._trusted_until_s = sent_s + self._times.deadline_s

    def _look(self, found: Mapping[str, Any] | None) -> None:
        """Its version is another with each renewal, also where the holder's clock stands still.

        It is seen when the answer is here, not when it was asked for: its holder may have renewed it in between.
        """
        version = str(((found or {}).get("metadata") or {}).get("resourceVersion") or "")
        with self._lock:
            if self._seen is None or self._seen[0] != version:
                self._seen = (version, _spec(found), self._clock())

    def _is_free(self, spec: Mapping[str, Any]) -> bool:
        """Ours, nobody's, or not renewed for as long as its holder promised to."""
        holder = spec.get("holderIdentity")
        if not holder or holder == self.candidate:
            return True
        promised = spec.get("leaseDurationSeconds")
        promised_s = promised if isinstance(promised, int) else 0
        with self._lock:
            assert self._seen is not None
            return self._clock() - self._seen[2] >= max(promised_s, self._times.duration_s)

    def _wanted(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.fromtimestamp(self._wall(), datetime.timezone.utc)
        text = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = spec.get("holderIdentity") == self.candidate
        changes = spec.get("leaseTransitions")
        changes = changes if isinstance(changes, int) else 0
        return {
            "holderIdentity": self.candidate,
            "leaseDurationSeconds": self._times.duration_s,
            "acquireTime": spec.get("acquireTime") if is_mine and spec.get("acquireTime") else text,
            "renewTime": text,
            "leaseTransitions": changes if is_mine or not spec else changes + 1,
        }

    def _give_back(self) -> None:
        """Best effort: else the next waits until it is over."""
        if not self.is_leader():
            return
        with self._lock:
            self._trusted_until_s = None
        try:
            found = self._client.get(self._path)
            spec = _spec(found)
            if spec.get("holderIdentity") == self.candidate:
                self._client.replace(self._path, {**found, "spec": {**spec, "holderIdentity": ""}})
        except FairschedError as error:
            logger.info("lease=kept name=%s error=%r", self._name, str(error))
        self._tell()

    def _tell(self) -> None:
        is_leader = self.is_leader()
        if is_leader is self._was_leader:
            return
        self._was_leader = is_leader
        if is_leader:
            logger.info("lease=taken name=%s candidate=%s", self._name, self.candidate)
        else:
            logger.info("lease=lost name=%s holder=%s", self._name, self.holder())
        self._changed(is_leader)

    def _well(self) -> None:
        with self._lock:
            self._trouble = None

    def _note(self, why: str) -> None:
        with self._lock:
            is_new = self._trouble is None
            since_s = self._clock() if self._trouble is None else self._trouble[0]
            self._trouble = (since_s, why)
        if is_new:
            logger.warning("lease=unknown name=%s error=%r", self._name, why)


def _spec(found: Mapping[str, Any] | None) -> Mapping[str, Any]:
    spec = None if found is None else found.get("spec")
    return spec if isinstance(spec, dict) else {}
