# SPDX-License-Identifier: Apache-2.0
"""Keeps the ResourceSlices of this node what they have to be.

The slices are watched: whoever changes or removes one (a kubelet that starts removes all of its node; so does one whose
driver is away for half a minute) finds it made anew. A try that fails is made again after 1, 2, 4 ... 60 s. What the
server makes of a slice is compared with what was sent: one that drops fields would else be written to for ever.

They are left where they are when this ends: another agent goes on with them, a kubelet whose driver stays away removes
them, and the node's end does (they are owned by it).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from fairsched.errors import FairschedError
from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.dra import DRIVER
from fairsched.k8s.dra.devices import GpuFacts, Offer, Sharing, Terms, offers_of
from fairsched.k8s.dra.slices import PATH, Pool, make_plan, same_devices, slice_of
from fairsched.k8s.watch import Client, Watch

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
_PROBE = GpuFacts("GPU-00000000-0000-0000-0000-000000000000", memory_bytes=1 << 30)

logger = logging.getLogger(__name__)


class Api(Client, Protocol):
    """What is asked of the API server (fairsched.k8s.client)."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """What is at `path`."""

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make `body`."""

    def replace(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put `body`."""

    def delete(self, path: str, uid: str | None = None) -> None:
        """Remove it."""

    def node(self, name: str) -> Mapping[str, Any]:
        """A node."""


class Publisher:
    """Call :meth:`step` from a thread of its own, whenever ``changed`` is called or a while has passed."""

    def __init__(self, api: Api, node: str, changed: Callable[[], None]) -> None:
        self._api, self._node = api, node
        mine = {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"}
        self.watch = Watch(api, PATH, mine, changed=changed)
        self.sharing: Sharing | None = None
        """What the server takes; None: it was not asked yet."""
        self.generation: int | None = None
        """Of what is published."""

    def ask_sharing(self) -> Sharing:
        """Whether the server keeps what consumable capacity needs. Raises Refused or Unreachable.

        Its schema names these fields whether its feature gate is on or off; what it does with them is seen in what it
        answers to a creation that it only pretends.
        """
        if self.sharing is None:
            (offer,) = offers_of([_PROBE], Terms("capacity")).values()
            body = slice_of(
                self._pool(), f"{self._node[:200].rstrip('.-')}-{DRIVER}-probe", [offer.device], 1, 1
            )
            answer = self._api.create(f"{PATH}?dryRun=All", body)
            devices = (answer.get("spec") or {}).get("devices") or [{}]
            keeps = bool(devices[0].get("allowMultipleAllocations"))
            self.sharing = "capacity" if keeps else "devices"
            logger.info("dra=sharing kind=%s", self.sharing)
        return self.sharing

    def step(self, offers: Mapping[str, Offer]) -> None:
        """Bring the slices to what `offers` says, if they are another. Raises Refused or Unreachable."""
        there = self.watch.items()
        if there is None:
            return
        devices = [one.device for one in offers.values()]
        if not make_plan(self._pool_as_in(there), devices, there):
            return
        # Whoever made this node anew made it another one, which owns what is made now.
        plan = make_plan(self._pool(), devices, there)
        for name, uid in plan.removed:
            self._remove(name, uid)
        for body in plan.made:
            self._compare(body, self._api.create(PATH, body))
        for body in plan.changed:
            name = str(body["metadata"]["name"])
            self._compare(body, self._api.replace(f"{PATH}/{quote(name)}", body))
        self.generation = plan.generation
        logger.info(
            "dra=published devices=%d slices=%d generation=%d",
            len(devices), len(plan.made) + len(plan.changed), plan.generation,
        )  # fmt: skip

    def _remove(self, name: str, uid: str) -> None:
        try:
            self._api.delete(f"{PATH}/{quote(name)}", uid)
        except Refused as error:
            if not error.is_absent:
                raise

    def _pool(self) -> Pool:
        uid = str((self._api.node(self._node).get("metadata") or {}).get("uid"))
        return Pool(DRIVER, self._node, uid)

    def _pool_as_in(self, there: list[Mapping[str, Any]]) -> Pool:
        """As the slices have it: the node is asked for only where something is to be written."""
        owners = [owner for one in there for owner in one["metadata"].get("ownerReferences") or ()]
        return Pool(DRIVER, self._node, str(owners[0].get("uid")) if owners else "")

    def _compare(self, sent: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        devices = (made.get("spec") or {}).get("devices") or ()
        if not same_devices(sent["spec"]["devices"], devices):
            raise Dropped(
                f"the API server has not kept all of ResourceSlice {sent['metadata']['name']}",
                remedy="restart the agents after a feature gate of the API server was switched",
            )


class Dropped(Unreachable):
    """The server takes a slice, and makes another of it."""


class Loop:
    """The thread of a publisher. ``wanted``: what is to be published; None: it is not known yet."""

    def __init__(
        self, publisher: Publisher, due: threading.Event, wanted: Callable[[], Mapping[str, Offer] | None]
    ) -> None:
        self._publisher, self._due, self._wanted = publisher, due, wanted
        self._over = threading.Event()
        self._wait_s = FIRST_WAIT_S
        self.fault: str | None = None

    def close(self) -> None:
        self._over.set()
        self._due.set()

    def run(self) -> None:
        """Until :meth:`close`."""
        while not self._over.is_set():
            self._due.wait(LONGEST_WAIT_S)
            self._due.clear()
            if not self._over.is_set() and not self.step():
                self._over.wait(self._wait_s)
                self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
                self._due.set()

    def step(self) -> bool:
        """One try; False: it failed."""
        try:
            offers = self._wanted()
            if offers is not None:
                self._publisher.step(offers)
        except FairschedError as error:
            why = error.with_remedy()
            if self.fault is None:
                logger.warning("dra=unpublished error=%r", why)
            self.fault = why
            return False
        except Exception as error:
            logger.exception("dra=failed")
            self.fault = repr(error)
            return False
        self.fault, self._wait_s = None, FIRST_WAIT_S
        return True
