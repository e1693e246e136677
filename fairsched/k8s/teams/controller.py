# SPDX-License-Identifier: Apache-2.0
"""Writes what teams weigh on Namespaces: one of several processes does, the others wait.

A round: what Kueue's objects say now (watched), a reading of Prometheus where there is one, the law, and a patch of
each Namespace whose annotation is another by more than the deadband. A round is due every `interval_s`, and at once
when an object has changed. What the annotation says is the controller's whole memory: who takes over goes on from
there.

Guards. A write names the version that was read, so that it changes nothing that was not seen. The Lease is asked
before each write. Only our own key is ever written, and it is removed where a Namespace has no queue any more.
Until every list was seen, and where the server has no Kueue, nothing is written.

Errors: none leave :meth:`Controller.run`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from fairsched.errors import FairschedError
from fairsched.k8s import watch
from fairsched.k8s.client import Refused
from fairsched.k8s.objects import annotations_of, name_of, text_of
from fairsched.k8s.teams import law
from fairsched.k8s.teams.queues import (
    KEY,
    Queue,
    Queues,
    bounded,
    nominal_weights,
    queues_of,
    teams_of,
    text_of_queues,
)

GROUP = "/apis/kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Of Kueue's objects, the one that is wanted first."""
LOOK_S = 30.0
"""Between two looks whether the server has Kueue."""
SETTLE_S = 0.2
"""Objects that change together are looked at together."""

logger = logging.getLogger(__name__)


class Client(watch.Client, Protocol):
    """The API server."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """What is at `path`. Raises Refused or Unreachable."""

    def patch(self, path: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        """A JSON merge patch. Raises Refused or Unreachable."""


@dataclass(frozen=True)
class Change:
    """One Namespace whose annotation is to be another."""

    namespace: str
    version: str
    before: str | None
    after: str | None
    """None: it goes."""


def kueue_version(client: Client) -> str | None:
    """Of Kueue's objects; None: the server does not know them. Raises Refused or Unreachable."""
    try:
        found = client.get(GROUP)
    except Refused as error:
        if error.is_absent:
            return None
        raise
    served = {str(one.get("version")) for one in found.get("versions") or () if isinstance(one, dict)}
    return next((one for one in VERSIONS if one in served), None)


def paths_of(version: str) -> dict[str, str]:
    """What is watched."""
    return {
        "namespaces": "/api/v1/namespaces",
        "clusterqueues": f"{GROUP}/{version}/clusterqueues",
        "localqueues": f"{GROUP}/{version}/localqueues",
    }


class Controller:
    """One candidate. `reading` asks Prometheus (usage.read) and raises FairschedError; None: the loop stays open."""

    def __init__(
        self,
        client: Client,
        *,
        reading: Callable[[Mapping[str, Queues]], law.Reading] | None,
        limits: law.Limits,
        interval_s: float,
        is_leader: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._reading, self._limits = client, reading, limits
        self._interval_s, self._is_leader, self._clock = interval_s, is_leader, clock
        self._due, self._over = threading.Event(), threading.Event()
        self._watches: dict[str, watch.Watch] = {}
        self._corrections: dict[str, float] | None = None
        self._stepped_s = clock()
        self._heard_s = clock()
        self._fault: str | None = None

    def close(self) -> None:
        self._over.set()
        self._due.set()
        for one in self._watches.values():
            one.close()

    def wake(self) -> None:
        """A round is due now."""
        self._due.set()

    def run(self) -> None:
        """Until :meth:`close`."""
        while not self._over.is_set():
            wait_s = self._interval_s
            try:
                if not self.start_watches():
                    wait_s = LOOK_S
                elif self._is_leader():
                    self.write(self.changes())
                else:
                    self._corrections = None  # another writes: what it wrote is where we would go on
                self._well()
            except FairschedError as error:
                self._note(error.with_remedy())
            except Exception as error:  # what a server answers must not end it
                logger.exception("teams=failed")
                self._note(repr(error))
            self._due.wait(wait_s)
            self._over.wait(SETTLE_S)
            self._due.clear()

    # ---- one round ----

    def start_watches(self) -> bool:
        """Watch what there is to watch; whether the server has Kueue. Raises Refused or Unreachable."""
        if not self._watches:
            version = kueue_version(self._client)
            if version is None:
                return False
            for name, path in paths_of(version).items():
                self._watches[name] = watch.Watch(self._client, path, changed=self.wake)
                self._watches[name].start()
            logger.info("teams=watching version=%s", version)
        return True

    def changes(self) -> list[Change]:
        """What is to be written now."""
        seen = {name: one.items() for name, one in self._watches.items()}
        if any(items is None for items in seen.values()):
            return []
        return self._changes({name: items or [] for name, items in seen.items()})

    def rehearse(self) -> list[Change] | None:
        """What the first round would write; None: the server has no Kueue. Raises Refused or Unreachable."""
        version = kueue_version(self._client)
        if version is None:
            return None
        self._stepped_s = self._clock() - self._interval_s
        return self._changes(
            {name: self._client.listed(path, {})[0] for name, path in paths_of(version).items()}
        )

    def _changes(self, seen: Mapping[str, list[Mapping[str, Any]]]) -> list[Change]:
        spaces = seen["namespaces"]
        nominal = nominal_weights(seen["clusterqueues"])
        teams = teams_of(seen["localqueues"], nominal)
        if self._corrections is None:
            self._corrections = corrections_of(nominal, {name_of(one): _written(one) for one in spaces})
            self._heard_s = self._clock()
        return changes_of(spaces, teams, nominal, self._step(nominal, teams))

    def _step(self, nominal: Mapping[str, float], teams: Mapping[str, Queues]) -> Mapping[str, float]:
        assert self._corrections is not None
        if self._reading is None:
            return dict.fromkeys(nominal, 0.0)
        now_s = self._clock()
        # Rounds that objects have called for ask nobody: their number is not ours to choose.
        if now_s - self._stepped_s >= self._interval_s:
            try:
                reading: law.Reading | None = self._reading(teams)
                self._heard_s = now_s
                self._well("prometheus")
            except FairschedError as error:
                reading = None
                self._note(str(error), "prometheus")
            # A process that was stopped for long must not believe that all of that time was as it is now.
            dt_s = min(now_s - self._stepped_s, 2 * self._interval_s)
            silent_s = now_s - self._heard_s
            self._corrections = law.step(self._corrections, nominal, reading, silent_s, dt_s, self._limits)
            self._stepped_s = now_s
        return self._corrections

    def write(self, changes: list[Change]) -> None:
        """One patch for each, as long as we lead. Raises Unreachable, and Refused once all others were written."""
        refusal: Refused | None = None
        for one in changes:
            if not self._is_leader():
                return
            patch = {"metadata": {"resourceVersion": one.version, "annotations": {KEY: one.after}}}
            try:
                self._client.patch(f"/api/v1/namespaces/{quote(one.namespace)}", patch)
            except Refused as error:
                if not (error.is_absent or error.is_conflict):
                    refusal = refusal or error
                continue  # one that has gone or changed the next round sees as it is
            before, after = one.before or "", one.after or ""
            logger.info("teams=written namespace=%s before=%r after=%r", one.namespace, before, after)
        if refusal is not None:
            raise refusal

    # ---- what is in the way ----

    def _note(self, why: str, what: str = "round") -> None:
        if self._fault != f"{what}: {why}":
            self._fault = f"{what}: {why}"
            logger.warning("teams=held what=%s error=%r kept='what was written last'", what, why)

    def _well(self, what: str = "round") -> None:
        if self._fault is not None and self._fault.startswith(f"{what}: "):
            self._fault = None
            logger.info("teams=well what=%s", what)


def changes_of(
    spaces: list[Mapping[str, Any]],
    teams: Mapping[str, Queues],
    nominal: Mapping[str, float],
    corrections: Mapping[str, float],
) -> list[Change]:
    """Namespaces whose annotation is to be another (pure)."""
    found = []
    for one in spaces:
        name, before = name_of(one), _annotation(one)
        queues = teams.get(name, {})
        old = {} if before is None else queues_of(before) or {}
        if not queues:
            after = None
        else:
            wanted = {
                key: Queue(queue.team, bounded(law.weight_of(queue.weight, corrections.get(queue.team, 0.0))))
                for key, queue in queues.items()
            }
            is_same = set(old) == set(wanted) and not any(
                old[key].team != queue.team
                or law.is_worth_writing(old[key].weight, queue.weight, nominal[queue.team])
                for key, queue in wanted.items()
            )
            after = before if is_same else text_of_queues(wanted)
        if after != before:
            version = text_of(one, "resourceVersion")
            found.append(Change(name, version, before, after))
    return found


def corrections_of(nominal: Mapping[str, float], written: Mapping[str, Queues]) -> dict[str, float]:
    """What somebody who wrote this had in mind (pure); of a team with several queues any of them."""
    found = dict.fromkeys(nominal, 0.0)
    for queues in written.values():
        for one in queues.values():
            if one.team in nominal:
                found[one.team] = math.log(one.weight / nominal[one.team])
    return found


def _written(space: Mapping[str, Any]) -> Queues:
    text = _annotation(space)
    return {} if text is None else queues_of(text) or {}


def _annotation(space: Mapping[str, Any]) -> str | None:
    value = annotations_of(space).get(KEY)
    return None if value is None else str(value)
