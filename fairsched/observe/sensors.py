# SPDX-License-Identifier: Apache-2.0
"""Owns everything that observes the GPUs: the BPF account, NVML, and the search for libcuda files and processes.

The source is chosen in one place, by the function doctor asks: eBPF; where it cannot be had and is not required, the
trace of context switches, and below it NVML's samples (``reason`` says why); with none, this host cannot, and the
daemon says so.

The probes live in a process of their own, which can be killed. Then nothing is seen any more: the daemon learns of
it as :class:`ProbesLost`, lets go of everybody and has the programs loaded again beside the loop (bpf/reload.py).
Meanwhile NVML's samples are the account, where there are any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set

from fairsched.accounting.context import Events, ProcessUse
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.accounting.nvml import NvmlAccount, open_account
from fairsched.accounting.queue_delay import Counts, DelayBook
from fairsched.accounting.traced import TracedAccount
from fairsched.base.process import started_ns
from fairsched.bpf import abi
from fairsched.bpf.child import LoaderInStart
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.bpf.reload import ProbeReload
from fairsched.bpf.rooms import Rooms
from fairsched.config import Config
from fairsched.driver.watch import DriverWatch
from fairsched.errors import FairschedError, HostUnsupported
from fairsched.gpu.loads import LoadWatch
from fairsched.gpu.nvml import Gpu, Nvml
from fairsched.gpu.watch import GpuWatch
from fairsched.host import dcgm as host_dcgm
from fairsched.host.choose import ONLY_V1, but_mig, choose_source, switched_off
from fairsched.model import NEVER_NS, Source
from fairsched.observe import gpus, lower
from fairsched.observe.libraries import Libraries, ProbesLost, is_ending
from fairsched.observe.life import LifeWatch
from fairsched.observe.mps import MpsWatch
from fairsched.observe.ordinals import Ordinals
from fairsched.observe.owners import Owners
from fairsched.observe.portions import Portions
from fairsched.observe.silent import end_silent, silent_contexts
from fairsched.observe.told import Told
from fairsched.observe.traces import Traces
from fairsched.observe.tree import TenantView
from fairsched.observe.whose import Whose
from fairsched.protocol.delays import AMinuteAgo

_RELOAD_AGAIN_NS = 60_000_000_000
_PROCESS_EDGES = (abi.EdgeKind.PROC_NEW, abi.EdgeKind.PROC_EXIT)

logger = logging.getLogger(__name__)


class Sensors(Told):
    """Observes the GPUs for the daemon. ``account`` and ``probe`` are None where BPF is off, refused or lost."""

    def __init__(self, config: Config, whose: Whose, loader: LoaderInStart | None = None) -> None:
        """``loader``: of :func:`start_loader`. Raises HostUnsupported when eBPF is required and refused."""
        self._whose = whose
        self._whose_version = whose.version
        """As the account was last told."""
        self._nature = (config.gpu.timeslice_us * 1000, config.gpu.switch_us * 1000)
        self.nvml = Nvml() if config.mechanisms.nvml != "off" else None
        if self.nvml is not None and self.nvml.error and config.mechanisms.nvml == "required":
            raise HostUnsupported(
                f"NVML is required and not usable: {self.nvml.error}",
                remedy="install the NVIDIA driver's libnvidia-ml.so.1, or set mechanisms.nvml: auto",
            )
        self.gpus: tuple[Gpu, ...] = self.nvml.gpus if self.nvml else ()
        self.gpu_watch = GpuWatch(self.nvml) if self.nvml is not None and not self.nvml.error else None
        """What the loop may ask of NVML."""
        self.probe: GpuTimeProbe | None = None
        self.account: EbpfAccount | None = None
        self.sampled: NvmlAccount | None = None
        """Instead of ``account`` where there is no better source ..."""
        self.traced: TracedAccount | None = None
        """... and what is above it where the trace of context switches may be the account."""
        self.mps = MpsWatch(whose.cgroup_of)
        self.loads: LoadWatch | None = None
        """What DCGM says of the GPUs: ``sampled`` is scaled to it. Beside eBPF only where it is required."""
        self.reason: str | None = None
        self.libraries = Libraries(config.gpu.libcuda, None)
        self._ordinals: Ordinals | None = None
        self._life, self.owners, self._drains = LifeWatch(), Owners(), dict[int, int]()
        self.more_rooms: Callable[[], Iterable[Rooms]] = tuple
        self._reload: ProbeReload | None = None
        self._reload_ns = NEVER_NS
        """When that is tried again."""
        self._delays, self.a_minute_ago = DelayBook(), AMinuteAgo()
        self.traces = Traces(config, self.nvml)
        self._start(config, loader)
        self.traces.begin(self.following, self.gpus)
        self.driver = DriverWatch(config.mechanisms.driver, config.gpu.device_dir, self.gpus)

    def _start(self, config: Config, loader: LoaderInStart | None) -> None:
        """Chosen by the function that doctor asks; an account that cannot be had after all is an obstacle then."""
        nvml = switched_off(config, "nvml") if self.nvml is None else self.nvml.obstacle
        dcgm = but_mig(nvml) or host_dcgm.obstacle(config)
        self.loads = host_dcgm.open_required(config, self.gpus, but_mig(nvml))
        only_v1 = ONLY_V1 if self._whose.mount.v1 else None
        if only_v1 is not None and config.mechanisms.ebpf == "required":
            raise HostUnsupported(f"eBPF is required, but {only_v1}", remedy="set mechanisms.ebpf to auto")
        ebpf = switched_off(config, "ebpf") or only_v1
        trace = lower.obstacle(config, self.nvml)
        source, reason = choose_source(config.gpu.source, ebpf, nvml, dcgm, trace)
        if source is Source.EBPF:
            try:
                self._start_ebpf(config, loader)
                return
            except HostUnsupported as error:
                if config.mechanisms.ebpf == "required" or config.gpu.source == "ebpf":
                    raise
                source, reason = choose_source(config.gpu.source, str(error), nvml, dcgm, trace)
                logger.error("ebpf=refused error=%r remedy=%r", str(error), error.remedy)
        self.reason = reason
        if source is None:
            raise HostUnsupported(
                f"GPU time cannot be accounted here: {reason}",
                remedy="fairsched doctor shows what is missing, line by line, and what to do about it",
            )
        self._start_sampled(config, is_scaled=source is not Source.NVML and dcgm is None)
        if source is Source.TRACE:
            self._start_traced()
        logger.warning("source=%s reason=%r", source.value, self.reason)

    def _start_sampled(self, config: Config, *, is_scaled: bool) -> None:
        """``is_scaled``: to the load of the GPUs, as soon as somebody tells it."""
        assert self.nvml and self.gpu_watch  # else it is not chosen
        self.sampled = open_account(self.nvml, self._whose.cgroup_of, config.gpu.nvml_accounting)
        self.sampled.tenant_of = self._whose.tenant_of
        if is_scaled:
            self.loads = self.loads or host_dcgm.open_watch(config, self.gpus)
            self.sampled.scale(self.loads, self.gpu_watch.on_instances)

    def _start_traced(self) -> None:
        assert self.sampled
        self.traced = lower.open_traced(self, self.sampled, self._whose.cgroup_of, self._nature)

    def _end_sampled(self) -> None:
        self.traced = None
        if self.sampled is not None:
            self.sampled.close()
        self.sampled = None

    def _start_ebpf(self, config: Config, loader: LoaderInStart | None = None) -> None:
        """Raises HostUnsupported."""
        self._take_in(GpuTimeProbe(loader), config)

    def _take_in(self, probe: GpuTimeProbe, config: Config) -> None:
        self.probe = probe
        probe.limits.turn_ns = sum(self._nature)
        self._end_sampled()
        self.account = EbpfAccount(
            probe, gpus=max(1, len(self.gpus)), nature=self._nature, started_ns=started_ns
        )
        self.account.tenant_of, self.account.cgroup_of = self._whose.tenant_of, self._whose.cgroup_of
        self.account.is_lived_in = self._whose.is_lived_in
        self.libraries = Libraries(config.gpu.libcuda, probe, self._whose.mount)
        gpus.name_gpus(probe, self.account, self.nvml)
        self._ordinals = Ordinals(probe, self.account, self.gpus, self._owner_of)
        self._portions = Portions(probe, self.account)

    def restart(self, config: Config) -> None:
        """Begin to load the programs again after ProbesLost.

        Until they are there NVML's samples are the account, unless eBPF is required.
        """
        lost, self.probe, self.account = self.probe, None, None
        self.reason = "the probes were lost and are being put back"
        self.libraries, self._ordinals = Libraries(config.gpu.libcuda, None), None
        if lost is not None:
            self._reload = ProbeReload(lost)
        is_allowed = config.gpu.source == "auto" and config.mechanisms.ebpf != "required"
        if self.nvml is not None and not self.nvml.obstacle and is_allowed:
            self._start_sampled(config, is_scaled=self.loads is not None)
            if lower.obstacle(config, self.nvml) is None:
                self._start_traced()

    def is_restarted(self, config: Config, now_ns: int) -> bool:
        """True once after :meth:`restart`, when the probes are back, and when another law is in force.

        Where they cannot be, samples stay the account, and it is tried again now and then. Raises FairschedError where
        there are no samples.
        """
        if self._reload is None:
            if self.has_switched():
                return True
            if now_ns >= self._reload_ns:
                self._reload, self._reload_ns = ProbeReload(None), NEVER_NS
            return False
        try:
            probe = self._reload.take()
        except FairschedError as error:
            if self.sampled is None:
                raise
            logger.error("probes=given_up source=%s error=%r", self.sampled.source.value, str(error))
            self._reload, self._reload_ns, self.reason = None, now_ns + _RELOAD_AGAIN_NS, str(error)
            return False
        if probe is None:
            return False
        self._reload = self.reason = None
        self._take_in(probe, config)
        logger.warning("probes=restarted")
        return True

    # ---- per tick ----

    def has_caught_up(self) -> bool:
        """Whether a read has no flood to take in; see :mod:`fairsched.observe.portions`."""
        return self.account is None or self._portions.has_caught_up()

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Account rows since the last call; new and gone processes and GPUs are dealt with."""
        if self.nvml is not None and self.nvml.gpus is not self.gpus:
            before, self.gpus = self.gpus, self.nvml.gpus
            gpus.take_in(before, self.nvml, self.probe, self.account, now_ns)
            for part in (self.loads, self._ordinals):
                if part is not None:
                    part.take_in(self.gpus)
        self._follow()
        if self.account is None or self._ordinals is None:
            self.owners.look(now_ns)
            if self.traced is not None:
                self.traces.look(self.traced, self.gpus, self.mps.served, now_ns)
            return lower.read(self.traced or self.sampled, now_ns)
        self._portions.check()
        self.traces.look(self.account.following, self.gpus, self.mps.served, now_ns)
        if self._whose_version != self._whose.version:
            self._whose_version = self._whose.version
            self.account.tenants_changed()
        rows = self.account.read(now_ns)
        self.owners.look(now_ns)
        for pid in self.account.events.new_processes:
            self._ordinals.resolve(pid)
        if gone := set(self.account.events.gone_processes):
            self._ordinals.forget(gone)
            self.libraries.forget(gone, now_ns)
        return rows

    def _owner_of(self, pid: int) -> int:
        """The number of a process's tenant."""
        return self.owners.number(self._whose.tenant_of_process(pid))

    def hidden_beside(self, held: Collection[str]) -> frozenset[str]:
        """Who is over its budget and may have work now which nobody sees, where those tenants are held."""
        hidden = self.owners.hidden_beside(held)
        if self.account is not None:
            self.account.is_anybody_hidden = bool(hidden)
        return hidden

    def take_in_tenants(self, tenants: Mapping[str, TenantView]) -> None:
        """Whose which cgroups are, as far as that has changed."""
        self._follow()
        self.owners.refresh(tenants)

    def _follow(self) -> None:
        own = [one.rooms for one in (self.probe, self._ordinals) if one is not None]
        self.owners.follow([*own, *self.driver.rooms(), *self.more_rooms()])

    def idle_gpus(self) -> set[int]:
        """Slots of GPUs that have contexts, none of which has work."""
        return set() if self.account is None else self.account.idle_gpus()

    def next_drain_end_ns(self) -> int | None:
        """When a GPU falls idle on which nothing but a drain runs; None: none does."""
        return self.account.next_drain_end_ns() if self.account is not None else None

    def peek(self) -> tuple[bool, dict[int, int]]:
        """Of edges that no tick has read: whether a process came or went, or came back to a GPU it had left, and
        when GPU slots fell idle."""
        if self.probe is None or self.account is None:
            return False, {}
        edges = self.probe.peek_edges()
        idle = {edge.gpu: edge.t_ns for edge in edges if edge.kind == abi.EdgeKind.GPU_IDLE}
        is_urgent = any(edge.kind in _PROCESS_EDGES or self.account.is_comeback(edge) for edge in edges)
        return is_urgent, idle

    def is_idle(self, slot: int, *, but_drains: bool = False) -> bool:
        """Whether no work is open on a GPU right now, as BPF knows it; but for drains, of whose end that is told."""
        return self.probe is not None and self.probe.is_idle(slot, self._drains.get(slot, 0) * but_drains)

    def watch_loads(self, *, is_wanted: bool) -> None:
        """Whether :meth:`take_loads` is going to be asked."""
        if self.gpu_watch is not None:
            self.gpu_watch.is_close = is_wanted

    def take_loads(self, slot: int) -> tuple[float, ...]:
        """What NVML has said of the load of a GPU since the call before; nothing where it does not."""
        return self.gpu_watch.take_loads(slot) if self.gpu_watch is not None else ()

    def silent_contexts(self, slot: int, now_ns: int) -> list[tuple[int, int]]:
        """See :func:`fairsched.observe.silent.silent_contexts`; none without an account."""
        if self.probe is None or self.account is None:
            return []
        return silent_contexts(self.probe, self.account, slot, now_ns)

    def doubt(self, slot: int, now_ns: int) -> int:
        """The account of a GPU is wrong: its silent work is over, and the rest is learnt anew.

        Returns how many contexts had such work.
        """
        if self.account is None or self.probe is None:
            return 0
        self.account.relearn(slot)
        return end_silent(self.probe, self.account, slot, now_ns)

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """Tell the account, if there is one, that these cgroups were just frozen."""
        if self.in_use is not None:
            self.in_use.hold(cgroup_ids, now_ns, by_others=by_others)

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """Tell the account, if there is one, that these cgroups run again."""
        if self.in_use is not None:
            self.in_use.thaw(cgroup_ids, now_ns)

    def look_for_mps(self) -> None:
        """Take in who is a client of MPS, if NVML has listed that anew."""
        if self.gpu_watch is not None:
            self.mps.look(self.gpu_watch.mps, self.gpus, self._whose.tenant_of)

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """See :meth:`EbpfAccount.queued_since_hold_ns`; 0 without an account."""
        return 0 if self.in_use is None else self.in_use.queued_since_hold_ns(cgroup_ids)

    @property
    def events(self) -> Events:
        """What the last read said besides time."""
        return self.account.events if self.account is not None else Events()

    def look_for_libraries(self, pids: Mapping[int, str] | None, now_ns: int) -> None:
        """Attach to libcuda files not seen before. ``pids``: the processes to watch from now on, and of which tenants.

        Raises ProbesLost.
        """
        if self.probe is None or self._ordinals is None:
            return
        if is_ending(self.probe.attacher_pid):
            raise ProbesLost(f"the process that holds the probes (pid {self.probe.attacher_pid}) has ended")
        if pids is not None:
            self.libraries.watch(pids, now_ns)
            self._ordinals.forget_the_gone()
            self._ordinals.check(self._slots_of, now_ns)
        for pid in self.libraries.poll(now_ns):
            self._ordinals.resolve(pid)
        self.libraries.take_attached(now_ns)

    def bury(self, now_ns: int) -> None:
        """Drop the contexts of processes of whose end the kernel did not tell; a portion at each call."""
        if self.probe is None or self._ordinals is None:
            return
        if self._life.is_due(now_ns):
            self._life.begin((live.tgid for _, live in self.probe.contexts()), now_ns)
        if gone := self._life.gone():
            logger.warning("pids=%s gone=unnoticed", sorted(gone))
            self.probe.end_contexts(gone)
            self._ordinals.forget(gone)

    def take_answers(self, now_ns: int) -> bool:
        """What the process that holds the probes says; no more, for a tenant of many libcudas makes it say much.

        False: it has ended.
        """
        try:
            self.libraries.take_attached(now_ns)
        except ProbesLost:
            return False
        return True

    def _slots_of(self, pids: Set[int]) -> dict[int, set[int]]:
        return gpus.slots_of(pids, self.gpus, self.gpu_watch, self.driver)

    def queue_delays(
        self,
        tenant_of: Callable[[int], str | None],
        is_there: Callable[[int], bool],
        tenants: Collection[str],
    ) -> dict[tuple[str, int], Counts]:
        """Totals by (tenant, GPU slot), see :class:`DelayBook`. ``is_there``: a cgroup, by its id."""
        if self.probe is None:
            return {}
        found = self._delays.read(self.probe.delays(), tenant_of, tenants)
        self.probe.forget_delays(self._delays.gone(is_there))
        return found

    def map_fds(self) -> list[tuple[str, int]]:
        """Of all maps we hold, by name; programs among them."""
        own = [] if self.probe is None else self.probe.map_fds()
        return [*own, *self.driver.map_fds()]

    def map_entries(self) -> dict[str, int]:
        """Entries now, of maps for which that is known or quickly found out."""
        own = {}
        if self.probe is not None:
            contexts = sum(1 for _ in self.probe.contexts())
            own = {"ctx_by_slot": contexts, "delay_by_key": self._delays.entries}
        return {**own, **self.driver.map_entries()}

    def set_wake_on_idle(self, wake: bool) -> None:
        """Whether a GPU that falls idle, but for drains, wakes the daemon at once."""
        self._drains = self.account.open_drains() if wake and self.account is not None else {}
        if self.probe is not None:
            for slot in range(max(1, len(self.gpus))):
                self.probe.set_wake_on_idle(slot, self._drains.get(slot, 0) if wake else None)

    def close(self) -> None:
        """Detach everything."""
        self.driver.close()
        self.traces.close()
        if self._reload is not None:
            self._reload.abandon()
        if self.probe is not None:
            self.probe.close()
        self._end_sampled()
        if self.loads is not None:
            self.loads.close()
        if (self.gpu_watch is None or self.gpu_watch.close()) and self.nvml is not None:
            self.nvml.close()
