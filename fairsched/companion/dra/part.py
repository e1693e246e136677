# SPDX-License-Identifier: Apache-2.0
"""The DRA driver as a part of the companion.

``take`` brings what the daemon sees of GPUs, and makes the sockets and files that are missing: all of it local. The
thread speaks to the API server and to NVML.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from fairsched.companion.dra.asked import asked_by_claims
from fairsched.companion.part import Finding, Moment
from fairsched.companion.pods.asked import Asked
from fairsched.companion.pods.said import taken
from fairsched.config import Config
from fairsched.errors import ConfigError, FairschedError
from fairsched.gpu.hardware import Hardware, read_hardware
from fairsched.gpu.nvml import UNKNOWN
from fairsched.k8s import grants, kubeconfig
from fairsched.k8s.client import KubeClient
from fairsched.k8s.dra.cdi import Places, Specs
from fairsched.k8s.dra.devices import GpuFacts, Offer, Terms, offers_of
from fairsched.k8s.dra.driver import Driver
from fairsched.k8s.dra.publish import Loop, Publisher
from fairsched.k8s.dra.server import Sockets
from fairsched.k8s.dra.slices import API
from fairsched.k8s.nodename import node_name
from fairsched.k8s.objects import PodKey
from fairsched.k8s.watch import SHORT_AWAY_S
from fairsched.protocol.status import GpuStatus

SWEEP_S = 600.0
"""Between two looks whether claims still are; they only outlive their kubelet's memory."""
_UNREGISTERED_S = 60.0
"""A kubelet looks at a new socket within seconds."""

logger = logging.getLogger(__name__)


class DraPart:
    """See companion.part.Part."""

    name = "dra"
    interval_s = 1.0
    wants_decisions = False

    def __init__(
        self,
        config: Config,
        client: KubeClient,
        node_name: str,
        places: Places,
        hardware: Callable[[Iterable[str]], Mapping[str, Hardware]] = read_hardware,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OSError where records cannot be kept."""
        self._section, self._hardware_of, self._clock_s = config.kubernetes.dra, hardware, clock_s
        self._is_watched = config.kubernetes.watch_pods
        self._due = threading.Event()
        self.changed: Callable[[], None] = lambda: None
        """What claims come to is another."""

        def get_claim(namespace: str, name: str) -> Mapping[str, Any]:
            return client.get(f"/apis/{API}/namespaces/{quote(namespace)}/resourceclaims/{quote(name)}")

        self.driver = Driver(
            node_name, config.state_dir / "dra", Specs(places), get_claim, taken, lambda: self.changed()
        )
        self.sockets = Sockets(self._section.kubelet_dir, self.driver)
        self._publisher = Publisher(client, node_name, self._due.set)
        self._loop = Loop(self._publisher, self._due, self._wanted)
        self._gpus: tuple[GpuStatus, ...] | None = None
        self._hardware: Mapping[str, Hardware] = {}
        self._is_offering = False
        self._swept_s: float | None = None
        self._served_s = 0.0

    def start(self) -> None:
        """Raises OSError."""
        self.driver.load()
        self._served_s = self._clock_s()
        self._publisher.watch.start()
        threading.Thread(target=self._loop.run, name="dra", daemon=True).start()

    def close(self) -> None:
        self._publisher.watch.close()
        self._loop.close()
        self.sockets.close()

    def asked(self, pods: Iterable[Mapping[str, Any]]) -> Mapping[PodKey, Asked]:
        """A source of companion.pods.asked."""
        return asked_by_claims(pods, self.driver.prepared())

    def take(self, moment: Moment) -> Finding | None:
        """What a person must know."""
        gpus = tuple(one for one in moment.report.gpus if not one.uuid.startswith(UNKNOWN))
        if self._gpus is None or facts_of(gpus, {}) != facts_of(self._gpus, {}):
            self._gpus = gpus
            self._due.set()
        return Finding(faults=self._faults())

    def _faults(self) -> list[str]:
        """Makes what is missing, and says what is in the way."""
        faults = []
        # Served once claims can be judged; those of before can be undone without.
        if self._is_offering or self.driver.prepared():
            try:
                if self.sockets.refresh():
                    self._served_s = self._clock_s()
                if self._is_offering:
                    self.driver.mend()
            except OSError as error:
                faults.append(f"dra: the kubelet cannot be served: {error}")
        refusal = self.sockets.refusal
        if refusal is not None and self._clock_s() - self._served_s >= _UNREGISTERED_S:
            faults.append(f"dra: no claim can be prepared: {refusal}; is kubernetes.dra.kubelet_dir right?")
        trouble = self._publisher.watch.trouble()
        if trouble is not None and trouble[0] >= SHORT_AWAY_S:
            faults.append(f"dra: the ResourceSlices have not been seen for {trouble[0]:.0f} s: {trouble[1]}")
        elif self._loop.fault is not None:
            faults.append(f"dra: the ResourceSlices are not what they have to be: {self._loop.fault}")
        if not self._is_watched:
            faults.append("dra: shares are not held: set kubernetes.watch_pods: true")
        return faults

    # ---- the thread ----

    def _wanted(self) -> Mapping[str, Offer] | None:
        """What is to be published. Raises Refused or Unreachable."""
        self._sweep()
        gpus = self._gpus
        if gpus is None:
            return None
        uuids = set(one.parent_uuid or one.uuid for one in gpus)
        if not uuids <= set(self._hardware):
            self._hardware = self._hardware_of(sorted(uuids))
        section = self._section
        sharing = self._publisher.ask_sharing() if section.sharing == "auto" else section.sharing
        terms = Terms(sharing, section.devices_per_gpu, section.default_share)
        offers = offers_of(facts_of(gpus, self._hardware), terms)
        self.driver.set_offers(offers)
        self._is_offering = True
        return offers

    def _sweep(self) -> None:
        if self._swept_s is None or self._clock_s() - self._swept_s >= SWEEP_S:
            try:
                self.driver.sweep()
            except FairschedError as error:  # it has time; the slices have not
                logger.info("dra=unswept error=%r", str(error))
            self._swept_s = self._clock_s()


def facts_of(gpus: Iterable[GpuStatus], hardware: Mapping[str, Hardware]) -> list[GpuFacts]:
    """What the daemon and NVML say of GPUs, together."""
    found = []
    for one in gpus:
        place = hardware.get(one.parent_uuid or one.uuid, Hardware())
        found.append(
            GpuFacts(
                uuid=one.uuid,
                index=one.index,
                name=one.name,
                memory_bytes=one.memory_total_bytes,
                is_up=one.is_up,
                minor=place.minor,
                pci_bus_id=place.pci_bus_id,
                pcie_root=place.pcie_root,
                numa_node=place.numa_node,
                driver_version=place.driver_version,
                parent_uuid=one.parent_uuid,
                gpu_instance=one.gpu_instance,
                compute_instance=one.compute_instance,
                profile=one.mig_profile,
            )
        )
    return found


def part_of(config: Config) -> DraPart:
    """Raises ConfigError where there is no way to the API server, or records cannot be kept."""
    section = config.kubernetes
    client = KubeClient(kubeconfig.access(section.kubeconfig), grant=grants.DRA)
    name = node_name(section.node)
    places = Places(cdi_dir=section.dra.cdi_dir, device_dir=config.gpu.device_dir)
    try:
        part = DraPart(config, client, name, places)
        part.start()
    except OSError as error:
        raise ConfigError(f"kubernetes.dra: its records cannot be kept: {error}", key="state_dir") from None
    return part
