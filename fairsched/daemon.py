# SPDX-License-Identifier: Apache-2.0
"""The daemon: observe, decide, apply, again and again, until told to stop.

Problem: a loop that freezes people's processes must be quick, must not miss what happened in between, and must
end in a thaw however it ends.

Approach: one thread, one epoll set. A tick is three lines (law 2). It comes every ``tick_ms``, every
``inner_tick_ms`` while tenants compete for a GPU, and at once on an event: a GPU fell idle while somebody is held, a
drain ends, a process came or went. Everything else (control socket, signals, guardian, hunting for libraries)
happens between ticks in bounded portions. Start-up fails at once and whole; a tick fails alone and is counted.

Order at start: configuration, cgroup2, the control socket (its lock makes us the only daemon), thaw what a dead
daemon left (reconcile), guardian, eyes. In reverse at the end, and the guardian goes last.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairsched import __version__
from fairsched.apply import Applier
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import find_mount
from fairsched.cgroup.release import release_all
from fairsched.config import CgroupOwners
from fairsched.control_socket import ControlServer, Peer
from fairsched.errors import ConfigError, FairschedError, HostUnsupported
from fairsched.guardian import Guardian
from fairsched.ledger import Ledger, load_state, save_state
from fairsched.logs import set_up_logging
from fairsched.misbehaviour import Misbehaviour
from fairsched.model import Snapshot
from fairsched.observe import Tree, build_snapshot, refuse_own_cgroup
from fairsched.pace import LEAST_INTERVAL_NS, IdleWatch, next_tick_ns
from fairsched.policy.decide import Decision, decide
from fairsched.policy.lag import PolicyState
from fairsched.reporting import Vitals, build_status
from fairsched.sd_notify import Notifier
from fairsched.sensors import ProbesLost, Sensors
from fairsched.settings import Settings
from fairsched.status import DecisionRecord, StatusReport

_HOUSEKEEPING_NS = 1_000_000_000
_JOIN_NS = 100_000_000
_SAVE_NS = 10_000_000_000
_EXPLAIN_NS = 60_000_000_000
_CPU_WINDOW_NS = 10_000_000_000

logger = logging.getLogger(__name__)


def run_daemon(config_path: Path | None, *, dry_run: bool, once: bool) -> int:
    """Run until SIGTERM or SIGINT; ``once`` ends after one tick. Returns the exit status.

    Raises ConfigError, HostUnsupported and ControlError at start.
    """
    configured = Settings(config_path)
    log = configured.config.log
    set_up_logging(log.format, log.level)
    if os.geteuid() != 0:
        raise HostUnsupported(
            "fairsched run needs root (BPF, cgroup.freeze)",
            remedy="sudo fairsched run, or the systemd service",
        )
    with Daemon(configured, is_dry_run=dry_run) as daemon:
        return daemon.run(once=once)


class Daemon:
    """A context manager: entering sets everything up or nothing, leaving thaws and cleans up."""

    def __init__(self, configured: Settings, *, is_dry_run: bool) -> None:
        self._settings = configured
        self._force_dry_run = is_dry_run
        self._undo = contextlib.ExitStack()
        self._notifier = Notifier()
        self._ledger = Ledger()
        self._is_running = self._is_stopping = self._wants_reload = False
        self._started_ns = self._last_tick_ns = time.monotonic_ns()
        self._next_tick_ns = self._next_housekeeping_ns = self._next_watchdog_ns = 0
        self._next_save_ns = self._started_ns + _SAVE_NS
        self._late_ticks = self._failed_ticks = 0
        self._cpu_mark = (self._started_ns, time.process_time_ns())
        self._cpu_ratio: float | None = None
        self._decision: Decision | None = None

    # ---- start and end ----

    def __enter__(self) -> Daemon:
        try:
            self._start()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _start(self) -> None:
        config = self._settings.config
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._undo.callback(signal.signal, number, signal.signal(number, self._on_signal))
        self._mount = find_mount()
        config.run_dir.mkdir(parents=True, exist_ok=True)
        self._control = ControlServer(config.socket_path, self, group=config.control.group)
        self._undo.callback(self._control.close)
        owners = CgroupOwners(config)
        refuse_own_cgroup(owners, self._mount, self._settings.display_path or "defaults")
        journal = Journal(str(config.run_dir / "holds"))
        self._undo.callback(journal.close)
        for item in release_all(journal, self._mount):
            logger.warning("reconcile cgroup=%s outcome=%s", item.path, item.kind.value)
        self._guardian = self._start_guardian(journal)
        self._freezer = Freezer(journal)
        self._undo.callback(self._freezer.close)
        self._state_path = config.state_dir / "state.json"
        self._policy_state = load_state(self._state_path, self._ledger)
        self._sensors = Sensors(config)
        self._undo.callback(self._sensors.close)
        self._tree = Tree(self._mount, owners)
        self._undo.callback(self._tree.close)
        is_dry_run = self._mode() != "enforce"
        self._applier = Applier(self._freezer, self._tree, self._sensors, is_dry_run=is_dry_run)
        self._misbehaviour = Misbehaviour(self._sensors, self._tree, self._applier, self._mount)
        self._undo.callback(self._misbehaviour.close)
        if config.metrics.listen is not None:
            from fairsched.metrics import serve  # an HTTP server, where one is asked for only

            self._undo.callback(serve(config.metrics.listen, config.socket_path).close)
        self._undo.callback(self._save)
        self._undo.callback(lambda: self._applier.release_all(time.monotonic_ns()))
        self._specs = dict(config.tenant_specs())
        self._params = config.policy_params()
        self._idle = IdleWatch(self._params.idle_confirm_ns)
        self._set_up_epoll()
        # What exists now lives as long as the daemon; what a tick makes is free of cycles: collect seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000)

    def _start_guardian(self, journal: Journal) -> Guardian | None:
        mode = self._settings.config.mechanisms.guardian
        if mode == "off" or self._mode() != "enforce":
            return None
        guardian = Guardian(str(journal.directory))
        try:
            guardian.start()
        except FairschedError as error:
            if mode == "required":
                raise
            logger.error("guardian=absent error=%r", str(error))
            return None
        self._undo.callback(guardian.stop)
        return guardian

    def _set_up_epoll(self) -> None:
        self._epoll = select.epoll()
        self._undo.callback(self._epoll.close)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_fd = wake_read
        previous = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._undo.callback(lambda: signal.set_wakeup_fd(previous))
        for fd in (wake_read, self._control.fileno(), self._freezer.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        self._watch_probe()
        self._watch_guardian()

    def _watch_probe(self) -> None:
        if self._sensors.probe is not None:
            # Edge-triggered: edges that asked for no wake-up also make the ring readable.
            self._epoll.register(self._sensors.probe.fileno(), select.EPOLLIN | select.EPOLLET)
            self._epoll.register(self._sensors.probe.channel_fileno(), select.EPOLLIN)

    def _watch_guardian(self) -> None:
        if self._guardian is not None and self._guardian.fileno() >= 0:
            self._epoll.register(self._guardian.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._wants_reload = True
        else:
            self._is_stopping = True
            if not self._is_running:  # nobody asks yet: the start itself is what is to end
                raise SystemExit(0)

    # ---- the loop ----

    def run(self, *, once: bool = False) -> int:
        """Ticks until a signal; returns the exit status."""
        self._is_running = True
        self._housekeep(time.monotonic_ns())
        self._notifier.ready(f"{self._mode()}, {len(self._specs)} tenants")
        logger.info("started version=%s mode=%s pid=%d", __version__, self._mode(), os.getpid())
        while not self._is_stopping:
            self._wait()
            now_ns = time.monotonic_ns()
            if self._wants_reload:
                self._reload_on_signal()
            if now_ns >= self._next_tick_ns:
                self._tick(now_ns)
                if once:
                    break
            if now_ns >= self._next_housekeeping_ns:
                self._housekeep(now_ns)
        self._notifier.stopping()
        logger.info("stopping held=%d", len(self._applier.holds))
        return 0

    def _wait(self) -> None:
        """Sleep until the next tick or something to serve; an urgent event makes a tick due now."""
        # Housekeeping waits for a tick that comes soon: together they wake the processor once.
        due_ns = min(self._next_tick_ns, self._next_housekeeping_ns + _JOIN_NS, self._idle.due_ns)
        timeout_s = max(0, due_ns - time.monotonic_ns()) / 1e9
        ring = self._sensors.probe.fileno() if self._sensors.probe is not None else -1
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            elif fd == self._control.fileno():
                self._control.handle_ready()
            elif fd == ring:
                self._on_edges()
            elif fd == self._freezer.fileno():
                self._applier.settle(time.monotonic_ns())
            else:  # the guardian died, or the process that holds the probes has something to say or died
                self._next_housekeeping_ns = self._next_watchdog_ns = 0
        now_ns = time.monotonic_ns()
        if now_ns >= self._idle.due_ns and self._idle.is_confirmed(now_ns, self._sensors.is_idle):
            self._next_tick_ns = min(self._next_tick_ns, now_ns)

    def _on_edges(self) -> None:
        """A process that came or went is looked at at once, an idle GPU when that is more than a pause."""
        is_process, idle_since_ns = self._sensors.peek()
        if is_process:
            self._next_tick_ns = min(self._next_tick_ns, self._last_tick_ns + LEAST_INTERVAL_NS)
        self._idle.note(idle_since_ns)

    def _tick(self, now_ns: int) -> None:
        config = self._settings.config
        if now_ns - self._next_tick_ns > config.tick_ms * 1_000_000:
            self._late_ticks += 1
        try:
            snapshot = self._observe(now_ns)
            self._decision = decide(snapshot, self._policy_state, self._specs, self._params)
            self._apply(self._decision, now_ns)
        except Exception:
            self._failed_ticks += 1
            logger.exception("tick failed")
            self._applier.release_all(now_ns)  # not knowing what is true, hold nobody
        has_holds = bool(self._applier.holds)
        drain_end_ns = self._sensors.next_drain_end_ns() if has_holds else None
        self._next_tick_ns = next_tick_ns(now_ns, self._decision, config, has_holds, drain_end_ns)

    def _observe(self, now_ns: int) -> Snapshot:
        """The world now."""
        interval_ns, self._last_tick_ns = now_ns - self._last_tick_ns, now_ns
        idle_since_ns = self._idle.take()
        rows = self._sensors.read(now_ns)
        self._misbehaviour.book(rows)
        if self._tree.refresh(now_ns, self._freezer.held, [row.cgroup_id for row in rows]):
            self._take_in_tenants()
        snapshot, strangers = build_snapshot(
            rows,
            self._tree,
            self._sensors.gpus,
            self._applier.all_holds(),
            self._applier.freeze_latency_ns(),
            self._sensors.idle_gpus(),
            now_ns,
            interval_ns,
            idle_since_ns,
            self._misbehaviour.doubted,
        )
        self._ledger.add(snapshot, strangers)
        return snapshot

    def _apply(self, decision: Decision, now_ns: int) -> None:
        self._policy_state = decision.state
        if self._settings.config.mode != "observe" or self._force_dry_run:
            self._applier.apply(decision.plan, now_ns)
        self._sensors.set_wake_on_idle(bool(self._applier.holds))

    def _take_in_tenants(self) -> None:
        """Specs of tenants that exist only because a cgroup matched a pattern."""
        config = self._settings.config
        self._specs = dict(config.tenant_specs())
        owners = CgroupOwners(config)
        for name, view in self._tree.tenants.items():
            if not view.is_leaf:
                # Processes directly in a parent's cgroup: holding them would hold all children.
                self._specs[name] = replace(self._specs[name], is_exempt=True)
            elif name not in self._specs and view.refs:
                owner = owners.owner(next(iter(view.refs.values())).path)
                if owner is not None:
                    self._specs[name] = owner.spec

    # ---- between ticks ----

    def _housekeep(self, now_ns: int) -> None:
        self._next_housekeeping_ns = now_ns + _HOUSEKEEPING_NS // 5
        self._control.handle_ready()
        self._applier.thaw_expired(now_ns)
        self._sensors.tune(now_ns)
        is_acting = self._mode() == "enforce"
        self._misbehaviour.look(now_ns, self._specs, self._settings.config, is_acting=is_acting)
        is_time = now_ns >= self._next_watchdog_ns
        try:
            self._sensors.look_for_libraries(self._tree.pids(begin=is_time), now_ns)
        except ProbesLost as lost:
            self._let_go_of_probes(lost, now_ns)
        if self._sensors.is_restarted(self._settings.config):
            self._watch_probe()
        if not is_time:
            return
        self._next_watchdog_ns = now_ns + _HOUSEKEEPING_NS
        self._ensure_guardian()
        if now_ns - self._last_tick_ns < 5 * _HOUSEKEEPING_NS:
            self._notifier.watchdog()  # fed by real ticks: no tick, no food
        wall_ns, cpu_ns = now_ns - self._cpu_mark[0], time.process_time_ns() - self._cpu_mark[1]
        if wall_ns >= _CPU_WINDOW_NS:
            self._cpu_ratio = cpu_ns / wall_ns
            self._cpu_mark = (now_ns, time.process_time_ns())
        if now_ns >= self._next_save_ns:
            self._next_save_ns = now_ns + _SAVE_NS
            self._save()

    def _let_go_of_probes(self, lost: ProbesLost, now_ns: int) -> None:
        """Nothing is seen any more: hold nobody, and have the programs loaded again beside the loop."""
        logger.error("probes=lost error=%r held=%d", str(lost), len(self._applier.holds))
        self._applier.release_all(now_ns)
        if self._sensors.probe is not None:
            self._epoll.unregister(self._sensors.probe.fileno())  # its mapping would keep it in the set
            self._epoll.unregister(self._sensors.probe.channel_fileno())
        self._sensors.restart(self._settings.config)

    def _ensure_guardian(self) -> None:
        if self._guardian is None:
            return
        try:
            if self._guardian.ensure():
                logger.warning("guardian=restarted pid=%s", self._guardian.pid)
                self._watch_guardian()
        except FairschedError as error:
            logger.error("guardian=absent error=%r", str(error))

    def _save(self) -> None:
        try:
            state = PolicyState() if self._applier.is_dry_run else self._policy_state  # nobody held, no debts
            save_state(self._state_path, self._ledger, state)
        except OSError as error:
            logger.error("state=%s error=%r", self._state_path, str(error))

    def _reload_on_signal(self) -> None:
        self._wants_reload = False
        self._notifier.reloading()
        try:
            for line in self._reload():
                logger.info("reload change=%r", line)
        except ConfigError as error:
            logger.error("reload=refused error=%r remedy=%r kept=running", str(error), error.remedy)
        self._notifier.ready()

    def _reload(self) -> list[str]:
        lines = self._settings.reload()
        self._take_in_settings()
        return lines

    def _take_in_settings(self) -> None:
        """Make a new configuration take effect now."""
        config = self._settings.config
        self._tree.set_owners(CgroupOwners(config))
        self._params = config.policy_params()
        self._take_in_tenants()
        is_dry_run = self._mode() != "enforce"
        if is_dry_run and not self._applier.is_dry_run:
            self._applier.release_all(time.monotonic_ns())
        elif self._applier.is_dry_run and not is_dry_run:
            self._policy_state = PolicyState()  # what was used while nobody was held is nobody's debt
        self._applier.is_dry_run = is_dry_run
        if not is_dry_run and self._guardian is None:
            self._guardian = self._start_guardian(Journal(str(config.run_dir / "holds")))
            self._watch_guardian()
        self._next_tick_ns = 0

    def _mode(self) -> str:
        config = self._settings.config
        if self._force_dry_run:
            return "dry_run"
        return "observe" if config.mechanisms.freezer == "off" else config.mode

    # ---- control requests (ControlHandler) ----

    def ping(self) -> Mapping[str, Any]:
        return {"version": __version__, "pid": os.getpid()}

    def status(self) -> StatusReport:
        config = self._settings.config
        vitals = Vitals(
            started_ns=self._started_ns,
            now_ns=time.monotonic_ns(),
            mode=self._mode(),
            mode_reason="--dry-run" if self._force_dry_run else None,
            tick_ms=config.tick_ms,
            cpu_ratio=self._cpu_ratio,
            late_ticks=self._late_ticks,
            errors=self._failed_ticks + self._applier.errors + self._misbehaviour.errors,
        )
        shares = self._decision.shares if self._decision else ()
        parts = (self._settings, self._sensors, self._tree, self._applier, self._ledger, self._misbehaviour)
        return build_status(vitals, *parts, shares, self._specs)

    def explain(self, tenant: str) -> Sequence[DecisionRecord]:
        if tenant not in self._specs and tenant not in self._tree.tenants:
            names = ", ".join(sorted({*self._specs, *self._tree.tenants})) or "none"
            raise ConfigError(f"no tenant '{tenant}'", remedy=f"name one of: {names}")
        begin_ns = time.monotonic_ns() - _EXPLAIN_NS
        return [r for r in self._applier.records if r.tenant == tenant and r.t_ns >= begin_ns]

    def tenant_list(self) -> Mapping[str, Any]:
        return self._settings.tenant_list()

    def tenant_set(self, tenant: str, values: Mapping[str, Any], by: Peer) -> list[str]:
        return self._changed(self._settings.set_tenant(tenant, values), by)

    def tenant_unset(self, tenant: str, keys: Sequence[str], by: Peer) -> list[str]:
        return self._changed(self._settings.unset_tenant(tenant, keys), by)

    def _changed(self, lines: list[str], by: Peer) -> list[str]:
        for line in lines:
            logger.info("change=%r uid=%d pid=%d", line, by.uid, by.pid)
        self._take_in_settings()
        return lines

    def config_show(self) -> Mapping[str, Any]:
        return self._settings.show()

    def reload(self, by: Peer) -> list[str]:
        return self._changed(self._reload(), by)
