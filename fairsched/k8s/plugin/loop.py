# SPDX-License-Identifier: Apache-2.0
"""The plugin's loop: what GPUs there are, published; the kubelet, kept in touch with; who has what, written down."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from fairsched.errors import FairschedError
from fairsched.k8s.plugin.cdi import Specification
from fairsched.k8s.plugin.inventory import STALE_S, Inventory
from fairsched.k8s.plugin.link import Link
from fairsched.k8s.plugin.placed import PlacedFile
from fairsched.k8s.plugin.service import ShareService
from fairsched.k8s.plugin.settings import FILE, PluginSettings
from fairsched.k8s.plugin.shares import RESOURCE, Offer

STEP_S = 0.5
"""A kubelet that is back is noticed within this."""
FAILED_S = 10.0
"""After a bug, which is said with all of it each time."""
PLACED_S = 5.0
"""Between two questions to the kubelet who has what."""
SOON_S = 1.0
"""The same while pods have just been given something: it is told once the kubelet has admitted them."""
SOON_TIMES = 5
SPEC_S = 30.0
"""A specification that lacks a GPU is tried again: device nodes come after the driver."""

logger = logging.getLogger(__name__)


class Loop:
    """Close it in the end; twice does no harm."""

    def __init__(
        self,
        settings: PluginSettings,
        inventory: Inventory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises FairschedError where another plugin is there, OSError for its directory."""
        self._settings, self._clock = settings, clock
        settings.run.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._lock: int | None = self._lock_of()
        self._inventory = inventory or Inventory(settings.unwell_xids, settings.quiet_s)
        self._spec = Specification(settings.places)
        self._missing: dict[str, str] = {}
        self._described: frozenset[Offer] | None = None
        self._described_s = 0.0
        self.service = ShareService(settings.shares_per_gpu, settings.how, settings.ways)
        self.link = Link(self.service, settings.plugins, clock=clock)
        self._placed = PlacedFile(settings.pod_resources, settings.run / FILE, RESOURCE)
        self._placed_s = clock() - PLACED_S
        self._begun_s = clock()
        self._soon = 0
        self._troubles: dict[str, str | None] = {}

    def run(self, over: threading.Event) -> None:
        """Until it is `over`."""
        while not over.is_set():
            try:
                self.step()
                over.wait(STEP_S)
            except Exception:
                logger.exception("plugin=failed")
                over.wait(FAILED_S)

    def close(self) -> None:
        self.link.close()
        self._inventory.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def step(self) -> None:
        """Once around."""
        now_s = self._clock()
        # A kubelet that is told of no GPU refuses the pods that it starts just then.
        if self._inventory.has_looked or now_s - self._begun_s >= STALE_S:
            self._publish()
            self.link.step()
        if self.service.allocated.is_set():
            self.service.allocated.clear()
            self._soon = SOON_TIMES
        if now_s - self._placed_s >= (SOON_S if self._soon else PLACED_S):
            self._placed_s, self._soon = now_s, max(0, self._soon - 1)
            self._placed.step()

    # ---- what there is ----

    def _publish(self) -> None:
        offers = self._inventory.offers()
        if self._settings.ways.is_cdi:
            self._describe(offers)
            offers = tuple(
                replace(one, trouble=self._missing[one.uuid])
                if one.is_well and one.uuid in self._missing
                else one
                for one in offers
            )
        self.service.publish(offers)
        troubles = {one.uuid: one.trouble for one in offers}
        for uuid in sorted(troubles.keys() | self._troubles.keys()):
            if uuid not in troubles:
                logger.warning("gpu=%s shares=gone", uuid)
            elif troubles[uuid] is not None and troubles[uuid] != self._troubles.get(uuid):
                logger.warning("gpu=%s shares=unhealthy reason=%r", uuid, troubles[uuid])
            elif troubles[uuid] is None and self._troubles.get(uuid, "new") is not None:
                logger.info("gpu=%s shares=healthy", uuid)
        self._troubles = troubles

    def _describe(self, offers: tuple[Offer, ...]) -> None:
        """Have the specification say what there is; what is unwell stays in it, for pods that are started again."""
        wanted = frozenset(replace(one, trouble=None) for one in offers)
        is_late = bool(self._missing) and self._clock() - self._described_s >= SPEC_S
        if wanted == self._described and not is_late and (self._spec.is_there() or not wanted):
            return
        self._missing = self._spec.write(sorted(wanted, key=lambda one: one.uuid)) if wanted else {}
        self._described, self._described_s = wanted, self._clock()

    def _lock_of(self) -> int:
        """One plugin on a node: two would take the socket from each other for ever."""
        lock = os.open(self._settings.run / "plugin.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise FairschedError(
                "another device plugin of fairsched runs on this node",
                remedy="end it, or wait until it has gone",
            ) from None
        return lock
