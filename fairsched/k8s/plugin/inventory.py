# SPDX-License-Identifier: Apache-2.0
"""Which GPUs there are and whether each is well, asked of NVML in a thread of its own.

Problem. NVML may hang, die with its driver, or not be there yet. GPUs and MIG instances come and go.

Approach. A thread asks once a second and puts what it saw in place of what it saw before; who wants to know takes that,
and never waits. What is older than STALE_S is not believed: every GPU is then unwell, and the reason says so. Where
NVML does not work at all, or answers for no GPU, it is opened anew; the GPUs that were known stay, unwell. A MIG
instance that was destroyed is gone, and so is a GPU that was put into MIG mode.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from fairsched.base.beside import Poller
from fairsched.gpu.health import (
    QUIET_S,
    UNWELL_XIDS,
    Illness,
    XidWatch,
    minor_of,
    numa_node,
    probe,
    whole_uuid,
)
from fairsched.gpu.nvml import Gpu, Nvml
from fairsched.k8s.plugin.shares import Offer

POLL_S = 1.0
STALE_S = 10.0
"""Ten polls: a driver that is busy with a reset answers late, one that hangs never."""
REOPEN_S = 10.0
"""Initialising NVML takes up to seconds on a node whose driver is not kept loaded."""


class Inventory:
    """See above. Close it in the end."""

    def __init__(
        self,
        unwell_xids: Collection[int] = UNWELL_XIDS,
        quiet_s: float = QUIET_S,
        *,
        open_nvml: Callable[[], Nvml] = Nvml,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet_s, self._clock = quiet_s, clock
        self._xids = XidWatch(unwell_xids, clock, lambda: self._poller.ask(), open_nvml)
        self._opened_s = 0.0
        self._ill: dict[str, Illness] = {}
        self._known: dict[str, Offer] = {}
        self._seen: tuple[float, tuple[Offer, ...]] = (clock(), ())
        self.has_looked = False
        """NVML has answered, or said that it does not work."""
        self.error: str | None = None
        """Why NVML does not work; None: it does."""
        self.changed = threading.Event()
        """There is news."""
        self._poller = Poller("gpus", self.poll, lambda: poll_s, "health of the GPUs")
        self._poller.ask()

    def offers(self) -> tuple[Offer, ...]:
        """Every GPU that is known, by UUID."""
        at_s, offers = self._seen
        age_s = self._clock() - at_s
        if age_s <= STALE_S:
            return offers
        return tuple(replace(one, trouble="NVML does not answer") for one in offers)

    def close(self) -> bool:
        """End the threads and let go of NVML; False: the driver keeps them."""
        return self._poller.close() and self._xids.close()

    # ---- the thread ----

    def poll(self) -> None:
        """Ask NVML, as long as it takes."""
        if self._is_to_be_opened():
            if not self._xids.reopen():
                return
            self._opened_s = self._clock()
        self._xids.follow()
        nvml = self._xids.nvml
        assert nvml is not None
        found: dict[str, Offer] = {}
        if nvml.error is None:
            for slot, gpu in enumerate(nvml.gpus):
                if not gpu.is_gone:
                    found[gpu.uuid] = self._look(nvml, slot, gpu)
            gone = {gpu.uuid for gpu in nvml.gpus if gpu.is_gone}
        else:
            gone = set()
        why = f"NVML: {nvml.error or 'it does not know it any more'}"
        for uuid, offer in self._known.items():
            if uuid not in found and uuid not in gone:
                found[uuid] = replace(offer, trouble=why)
        self._known = dict(sorted(found.items()))
        self._ill = {uuid: ill for uuid, ill in self._ill.items() if uuid in found}
        self.error = nvml.error
        before = self._seen[1]
        self._seen = (self._clock(), tuple(self._known.values()))
        self.has_looked = True
        if self._seen[1] != before:
            self.changed.set()

    def _is_to_be_opened(self) -> bool:
        if self._xids.nvml is None:
            return True
        is_of_use = self._xids.nvml.error is None and any(offer.is_well for offer in self._known.values())
        return not is_of_use and self._clock() - self._opened_s >= REOPEN_S

    def _look(self, nvml: Nvml, slot: int, gpu: Gpu) -> Offer:
        known = self._known.get(gpu.uuid)
        if known is None or known.minor is None:
            known = Offer(gpu.uuid, minor_of(nvml, slot), numa_node(nvml, slot), gpu.mig)
        report = self._xids.last(whole_uuid(gpu))
        ill = self._ill.setdefault(gpu.uuid, Illness(self._quiet_s))
        return replace(known, mig=gpu.mig, trouble=ill.take(probe(nvml, slot), report, self._clock()))
