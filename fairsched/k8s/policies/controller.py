# SPDX-License-Identifier: Apache-2.0
"""Writes whom each policy reaches into its status: one process of the cluster, elected by a Lease.

Problem. A hundred agents know their own pods each; whom a policy reaches in all of the cluster, only who watches all
pods does. That is too much for an agent, and more than an agent should be allowed to see.

Approach. A Deployment of the same image, which may read metadata and write the status of policies, and nothing else. It
has no part in the shares: agents read policies themselves, and it may be away. Who holds the Lease watches policies,
namespaces and pods that have not ended, of the latter two the labels only, and writes each status that says something
else than it should (status.py), with the version that it read: who writes late writes nothing. The others wait, and
ask for nothing but the Lease.

Errors: none leave :meth:`Controller.run`. What cannot be written is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from fairsched.errors import FairschedError
from fairsched.k8s import watch
from fairsched.k8s.client import Refused
from fairsched.k8s.lease import Election
from fairsched.k8s.objects import LIVING, name_of
from fairsched.k8s.policies import watch as policy_watch
from fairsched.k8s.policies.model import PATH
from fairsched.k8s.policies.status import differs, statuses
from fairsched.k8s.policies.watch import PolicyWatch
from fairsched.k8s.watch import Watch

LEASE = "fairsched-policies"
CALL_S = 5.0
"""Of its calls; see k8s/lease.py."""
PAUSE_S = 1.0
"""From one round to the next: pods that come together are counted together."""
_AGAIN_S = 5.0
"""After something was not written."""

logger = logging.getLogger(__name__)


class Client(policy_watch.Client, Protocol):
    """What the controller needs of KubeClient."""

    def patch(self, path: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        """A JSON merge patch. Raises Refused (409: it was changed meanwhile) or Unreachable."""


class Controller:
    """``metadata``: a client that is told the metadata of objects only (k8s/metadata.py)."""

    def __init__(
        self,
        client: Client,
        metadata: watch.Client,
        election: Election,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._election, self._wall = client, election, wall
        self._due, self._over = threading.Event(), threading.Event()
        self._policies = PolicyWatch(client, changed=self._due.set)
        self._namespaces = Watch(metadata, "/api/v1/namespaces", changed=self._due.set, keep=slim)
        self._pods = Watch(
            metadata, "/api/v1/pods", {"fieldSelector": LIVING}, changed=self._due.set, keep=slim
        )
        self._watches = (self._policies, self._namespaces, self._pods)
        self._is_watching = False
        self._failed: dict[str, str] = {}
        """Policies whose status was not written, and why: said once."""

    def close(self) -> None:
        """Ends :meth:`run`. May be called by a handler of signals."""
        self._over.set()
        self._due.set()

    def run(self) -> None:
        """Until :meth:`close`; the Lease is given back."""
        election = self._election.start()
        try:
            while not self._over.is_set():
                self._due.wait(PAUSE_S)
                if self._election.is_leader() and not self._is_watching:
                    self._is_watching = True
                    for one in self._watches:
                        one.start()
                if self._due.is_set() and self._election.is_leader():
                    self._due.clear()
                    if not self.round():
                        self._over.wait(_AGAIN_S)
                        self._due.set()
                self._over.wait(PAUSE_S)
        finally:
            for one in self._watches:
                one.close()
            self._election.close()
            election.join(CALL_S * 2)

    def round(self) -> bool:
        """:meth:`step`; what an API server answers must not end it."""
        try:
            return self.step()
        except Exception:
            logger.exception("policy_status=failed")
            return False

    def step(self) -> bool:
        """Write what is another than it should be; whether all of that was written."""
        policies, namespaces, pods = (one.items() for one in self._watches)
        if policies is None or namespaces is None or pods is None:
            return True  # it is due again when they are known
        wanted = statuses(
            policies, namespaces, pods, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall()))
        )
        by_name = {name_of(one): one for one in policies}
        self._failed = {name: why for name, why in self._failed.items() if name in by_name}
        is_done = True
        for name, status in sorted(wanted.items()):
            if not differs(status, by_name[name]):
                continue
            if not self._election.is_leader() or self._over.is_set():
                return True  # whoever is it now does
            is_done = self._write(name, status, by_name[name]) and is_done
        return is_done

    def _write(self, name: str, status: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
        version = (document.get("metadata") or {}).get("resourceVersion")
        patch = {"metadata": {"resourceVersion": version}, "status": status}
        try:
            self._client.patch(f"{PATH}/{quote(name)}/status", patch)
        except FairschedError as error:
            if isinstance(error, Refused) and (error.is_conflict or error.is_absent):
                return True  # the watch tells what it is now, and then it is due again
            why = error.with_remedy()
            if self._failed.get(name) != why:
                logger.warning("policy_status=refused policy=%s error=%r", name, why)
            self._failed[name] = why
            return False
        if self._failed.pop(name, None) is not None:
            logger.info("policy_status=written policy=%s", name)
        return True


def slim(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is remembered of a pod or a namespace: thousands of them fit, and what else changes is no change."""
    metadata = item.get("metadata") or {}
    return {
        "metadata": {key: metadata[key] for key in ("namespace", "name", "uid", "labels") if key in metadata}
    }
