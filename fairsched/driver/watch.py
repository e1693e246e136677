# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of the driver: loads the probe beside the loop, reads its books once a second.

Problem: compiling takes seconds, the driver may be loaded long after the daemon and may hang, and none of it may hold
up a tick or a start. A host without any of it must still be scheduled.

Approach: once a second :meth:`DriverWatch.poll` does one small step: is there a driver (or files that stand for its
nodes)? then a thread (loading.py) asks it which GPU is which, loads and attaches; when that is done, each look is one
read of the books. ``required`` waits for the thread at the start instead, and fails with it. Each look also compares
the driver with that of the load: loaded anew, its probes are too; of new device numbers and GPUs the probe is told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairsched.bpf.rooms import MapRooms
from fairsched.driver import hooks
from fairsched.driver.books import DriverBooks, DriverCalls, DriverLook, DriverUse
from fairsched.driver.devices import Instances
from fairsched.driver.hooks import NO_DRIVER
from fairsched.driver.inventory import MODULES
from fairsched.driver.loading import Beside, Loaded, Place, Seen, load
from fairsched.driver.probe import DriverProbe
from fairsched.driver.vram_gate import VramGate
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.gpu.nvml import Gpu

_LOOK_NS = 1_000_000_000
_AGAIN_NS = 10_000_000_000
"""Between two looks for a driver that is not there, and after a failure."""
_TRIES = 3
_THREADS_EVERY = 60
"""Looks between two searches for threads that died in a call."""
LOADING = "its programs are being loaded"

logger = logging.getLogger(__name__)


@dataclass
class CallTotals:
    """Calls of one tenant to the driver since the daemon began to see them; never falls."""

    ioctls: int = 0
    failed: int = 0
    time_ns: int = 0
    opens: int = 0

    def add(self, calls: DriverCalls) -> None:
        self.ioctls += calls.ioctls
        self.failed += calls.failed
        self.time_ns += calls.time_ns
        self.opens += calls.opens


class DriverWatch:
    """``gpus`` in the order of their slots; ``device_dir`` has the driver's nodes, or plain files for a simulated one.

    Raises HostUnsupported when ``mechanism`` is required and it cannot be had.
    """

    def __init__(
        self,
        mechanism: str,
        device_dir: Path,
        gpus: tuple[Gpu, ...],
        proc: Path = Path("/proc"),
        modules: Path = MODULES,
    ) -> None:
        self._place = Place({gpu.uuid: slot for slot, gpu in enumerate(gpus)}, device_dir, proc, modules)
        self._told: Seen | None = None
        """The driver for which the probe was loaded, or is being; None: none was, or it is for plain files."""
        self._loading: Beside[Loaded] | None = None
        self._asking: Beside[Instances] | None = None
        """Which GPU is which, after they have changed."""
        self._ending: list[Beside[Any]] = []
        """What is given up; the next probe waits for its end, as both have the same names in tracefs."""
        self._probe: DriverProbe | None = None
        self._books: DriverBooks | None = None
        self.gate: VramGate | None = None
        """The VRAM limit in the kernel; None while calls are not seen."""
        self._last = DriverLook((), ())
        self._final: dict[str, CallTotals] = {}
        """By tenant, of processes that are gone."""
        self._tenant_of: dict[tuple[int, int], str] = {}
        """By (cgroup, process) of those whose calls are known: their cgroup may go before the last look at them."""
        self.since_ns: int | None = None
        """CLOCK_MONOTONIC: what was made before is not known; None while calls are not seen."""
        self._next_ns = 0
        self._tries_left = _TRIES
        self._looks = 0
        self.errors = 0
        self.reason: str | None = "mechanisms.driver is off" if mechanism == "off" else NO_DRIVER
        """Why calls to the driver are not seen; None: they are."""
        self.lost: str | None = None
        """Why calls that were seen are not any more; None: they are, or never were."""
        self._is_off = mechanism == "off"
        if mechanism == "required":
            self._start()

    # ---- loading ----

    def _start(self) -> None:
        if not self._is_there():
            raise HostUnsupported(
                f"calls to the driver are required and cannot be seen: {NO_DRIVER}",
                remedy="load the driver first (nvidia-smi does), or set mechanisms.driver: auto",
            )
        self._take_in(self._load().take())

    def _load(self) -> Beside[Loaded]:
        self._told = None if self._place.plain_nodes() else self._place.read()
        return Beside(lambda: load(self._place), Loaded.close)

    def _is_there(self) -> bool:
        """The driver, or files that stand for its nodes."""
        return bool(self._place.plain_nodes() or self._place.majors())

    def _take_in(self, loaded: Loaded) -> None:
        probe, found = loaded.probe, loaded.instances
        self._probe, self._books, self.reason = probe, DriverBooks(probe, str(self._place.proc)), None
        self.gate, self.since_ns = probe.vram_gate(), loaded.since_ns
        self.lost = None
        assumed = f" gpu_instances=assumed reason={found.reason!r}" if found.is_assumed else ""
        logger.info("driver=seen hook=%s%s", probe.hook, assumed)

    def _step_loading(self, now_ns: int) -> None:
        if self._loading is None:
            if not self._is_there():
                self._next_ns, self.reason = now_ns + _AGAIN_NS, NO_DRIVER
                return
            self._ending = [one for one in self._ending if one.is_running]
            if self._ending or self._place.is_changing():
                return
            self.reason = LOADING
            self._loading = self._load()
            return
        if self._loading.is_running:
            return
        ended, self._loading = self._loading, None
        self._tries_left -= 1
        try:
            self._take_in(ended.take())
        except Exception as error:
            self._next_ns, self.reason = now_ns + _AGAIN_NS, str(error) or repr(error)
            logger.warning("driver=unseen tries_left=%d error=%r", self._tries_left, self.reason)
            if not isinstance(error, FairschedError | OSError):
                raise  # it is ours: told whole

    # ---- a driver that changes ----

    def _follow(self) -> None:
        """A module that was loaded anew has none of our probes, and other device numbers, GPUs, objects."""
        if self._told is None:
            return
        seen, told = self._place.read(), self._told
        if seen.module != told.module:
            self._let_go()
        elif self._probe is not None and seen != told:
            self._told = seen
            logger.info("driver=changed majors=%s", sorted(self._place.majors()))
            self._probe.set_majors(self._place.majors())
            if seen.uvm != told.uvm:
                self._probe.attach_uvm()
            self._give_up(self._asking)
            self._asking = Beside(self._place.ask_instances)
        if self._asking is not None and self._probe is not None and not self._asking.is_running:
            answered, self._asking = self._asking, None
            self._probe.set_instances(answered.take().slot_of)

    def _let_go(self) -> None:
        """Of a driver that is gone. What its processes called counts on, what they had is gone with it."""
        if self._probe is not None:
            logger.warning("driver=lost: its module was taken out, or loaded anew")
            self.lost = "the driver's module was taken out or loaded anew, and its programs are not back"
            self._close_gate()
            self._ending.append(Beside(self._probe.close))
        self._give_up(self._loading)
        self._give_up(self._asking)
        self._loading = self._asking = self._probe = self._books = self._told = self.since_ns = None
        for calls in self._last.calls:
            tenant = self._tenant_of.get((calls.cgroup_id, calls.tgid))
            if tenant is not None and not calls.is_final:
                self._final.setdefault(tenant, CallTotals()).add(calls)
        self._last, self._tenant_of = DriverLook((), ()), {}
        self._tries_left, self.reason = _TRIES, LOADING

    def _give_up(self, one: Beside[Any] | None) -> None:
        if one is not None:
            one.abandon()
            self._ending.append(one)

    def _close_gate(self) -> None:
        if self.gate is not None:
            self.gate.close()
            self.gate = None

    # ---- once a second ----

    def poll(self, now_ns: int, tenant_of: Callable[[int], str | None]) -> None:
        """One step of loading, or one read. ``tenant_of``: of a cgroup id."""
        if self._is_off or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _LOOK_NS
        try:
            self._follow()
            if self._probe is None or self._books is None:
                if self._tries_left > 0:
                    self._step_loading(now_ns)
                return
            self._last = self._books.read()
            self._book_calls(tenant_of)
            self._looks += 1
            if self._looks % _THREADS_EVERY == 0:
                self._probe.forget_threads(self._is_thread_gone)
        except Exception:
            self.errors += 1
            logger.exception("look at the driver's books failed")

    def _book_calls(self, tenant_of: Callable[[int], str | None]) -> None:
        known: dict[tuple[int, int], str] = {}
        for calls in self._last.calls:
            key = (calls.cgroup_id, calls.tgid)
            tenant = tenant_of(calls.cgroup_id) or self._tenant_of.get(key)
            if tenant is None:
                continue
            if calls.is_final:
                self._final.setdefault(tenant, CallTotals()).add(calls)
            else:
                known[key] = tenant
        self._tenant_of = known

    def _is_thread_gone(self, tgid: int, tid: int) -> bool:
        return not os.path.exists(f"{self._place.proc}/{tgid}/task/{tid}")

    # ---- what is known ----

    @property
    def hook(self) -> hooks.Hook | None:
        """How calls are seen; None: they are not."""
        return None if self._probe is None else self._probe.hook

    @property
    def refused(self) -> Mapping[str, str]:
        """Better hooks than the one in force, and why they were not taken."""
        return {} if self._probe is None else {str(hook): why for hook, why in self._probe.refused.items()}

    def uses(self) -> tuple[DriverUse, ...]:
        """Contexts and VRAM by process and GPU, as of the last look; empty where calls are not seen."""
        return self._last.uses

    def rooms(self) -> list[MapRooms]:
        """Who has how much of the books; of none where calls are not seen."""
        return [] if self._probe is None else [self._probe.rooms]

    def partial(self) -> frozenset[int]:
        """Processes that have more than :meth:`uses` says: their tenant had no room in the books for it."""
        return frozenset() if self._books is None else self._books.partial

    def slots_of(self, pids: Iterable[int]) -> dict[int, set[int]]:
        """On which GPUs these processes have contexts. A process with one on a GPU without a slot is left out."""
        wanted, found, unknown = set(pids), dict[int, set[int]](), set[int]()
        for use in self._last.uses:
            if use.tgid in wanted and use.contexts:
                if use.gpu is None:
                    unknown.add(use.tgid)
                else:
                    found.setdefault(use.tgid, set()).add(use.gpu)
        return {pid: slots for pid, slots in found.items() if pid not in unknown}

    def calls(self) -> dict[str, CallTotals]:
        """Calls by tenant since the daemon saw the first, those of dead processes included."""
        found = {tenant: replace(total) for tenant, total in self._final.items()}
        for calls in self._last.calls:
            tenant = self._tenant_of.get((calls.cgroup_id, calls.tgid))
            if tenant is not None and not calls.is_final:
                found.setdefault(tenant, CallTotals()).add(calls)
        return found

    def remembered_tenants(self) -> set[str]:
        return {*self._final, *(self.gate.numbered if self.gate is not None else ())}

    def forget_tenants(self, names: Collection[str]) -> None:
        for name in names:
            self._final.pop(name, None)
        if self.gate is not None:
            try:
                self.gate.forget_tenants(names)
            except OSError as error:
                self.errors += 1
                logger.error("vram_limits=not_forgotten error=%r", str(error))

    def counts(self) -> Mapping[str, int]:
        """What BPF could not count, and how often; without what is merely a size."""
        if self._probe is None:
            return {}
        return {name: n for name, n in self._probe.counts().items() if not name.startswith("objects_")}

    def map_fds(self) -> list[tuple[str, int]]:
        """Descriptors by name, for fdinfo; empty where calls are not seen."""
        return [] if self._probe is None else self._probe.map_fds()

    def map_entries(self) -> dict[str, int]:
        """Of maps that the last look read whole."""
        if self._probe is None:
            return {}
        return {"calls_by_proc": len(self._last.calls)}

    def close(self) -> None:
        """Detach. Idempotent."""
        self._is_off = True
        self._give_up(self._loading)
        self._give_up(self._asking)
        self._loading = self._asking = None
        self._close_gate()
        if self._probe is not None:
            self._probe.close()
            self._probe = self._books = None
