# SPDX-License-Identifier: Apache-2.0
"""Runs the daemon: observe, decide, apply, again and again, until told to stop.

Problem: a loop that freezes processes must be quick, miss nothing in between, and end in a thaw however it ends.

Approach: one thread, one epoll set. A tick (law 2) comes every ``tick_ms``, every ``inner_tick_ms`` while tenants
compete for a GPU, and at once on an event: a GPU fell idle while somebody is held, a drain ends, a process came or
went. All else happens between ticks in portions. Start-up fails whole; a tick fails alone and is counted, and so does
what is done between ticks: nobody is held then, and where all of them fail the watchdog is not fed.

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

from fairsched import __version__
from fairsched.act.device_gate import DeviceGate
from fairsched.act.holds import Applier
from fairsched.act.misbehaviour import Misbehaviour
from fairsched.act.vram import VramLimits
from fairsched.base.sd_notify import Notifier
from fairsched.base.signals import not_ignored
from fairsched.bpf.child import LoaderInStart
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import find_mount
from fairsched.cgroup.release import release_all
from fairsched.companion.keeper import CompanionKeeper
from fairsched.config import CgroupOwners, Config
from fairsched.config.settings import Settings
from fairsched.daemon.answers import Answers
from fairsched.daemon.brakes import ShareFiles, make_brake
from fairsched.daemon.cost import OwnCost
from fairsched.daemon.doubt import AccountWatch
from fairsched.daemon.ledger import Ledger, StateFile
from fairsched.daemon.pace import LEAST_INTERVAL_NS, IdleWatch, next_tick_ns
from fairsched.daemon.parts import Parts, Vitals
from fairsched.daemon.report import status_line
from fairsched.driver import pid_view
from fairsched.guardian.keeper import GuardianKeeper
from fairsched.host.mode import Mode, asked, in_effect
from fairsched.model import Snapshot
from fairsched.observe.libraries import ProbesLost
from fairsched.observe.loader import start_loader
from fairsched.observe.pauses import Pauses
from fairsched.observe.sensors import Sensors
from fairsched.observe.snapshot import Observation, build_snapshot
from fairsched.observe.tree import Tree, refuse_own_cgroup, specs_in_force
from fairsched.policy.decide import Decision, decide
from fairsched.policy.dry_run import as_if_held
from fairsched.policy.lag import PolicyState
from fairsched.protocol.server import ControlServer

_HOUSEKEEPING_NS = 1_000_000_000
_JOIN_NS = 100_000_000
_SAVE_NS = 10_000_000_000
_FED_NS = 5_000_000_000  # and a tick: how old the last good one may be while the watchdog is fed

logger = logging.getLogger(__name__)


class Daemon:
    """The daemon as a context manager: entering sets everything up or nothing, leaving thaws and cleans up."""

    def __init__(self, configured: Settings, *, is_dry_run: bool) -> None:
        self._settings = configured
        self._force_dry_run = is_dry_run
        self._undo = contextlib.ExitStack()
        self._notifier = Notifier()
        self._ledger = Ledger()
        self._is_running = self._is_stopping = self._wants_reload = False
        self._started_ns = self._last_tick_ns = self._last_good_tick_ns = self._well_ns = time.monotonic_ns()
        self._next_tick_ns = self._next_housekeeping_ns = self._next_watchdog_ns = 0
        self._next_save_ns = self._started_ns + _SAVE_NS
        self._cost = OwnCost(self._started_ns)
        self._decision: Decision | None = None

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
        """Begin with what undoes the holds of the daemon before this one, end with what can make holds."""
        config = self._settings.config
        # SIGHUP is a reload, which nohup does not mean; SIGTERM always ends.
        for number in (signal.SIGTERM, signal.SIGHUP, *not_ignored([signal.SIGINT])):
            self._undo.callback(signal.signal, number, signal.signal(number, self._on_signal))
        self._mount = find_mount()
        config.run_dir.mkdir(parents=True, exist_ok=True)
        self._answers = Answers(self._settings, self._parts, self._take_in_settings)
        self._control = ControlServer(config.socket_path, self._answers, group=config.control.group)
        self._undo.callback(self._control.close)
        loader = start_loader(config)  # what takes longest works beside the rest
        if loader is not None:
            self._undo.callback(loader.close)
        owners = CgroupOwners(config)
        refuse_own_cgroup(owners, self._mount, self._settings.display_path or "defaults")
        self._start_holds(config)
        self._start_eyes(config, owners, loader)
        self._start_acting(config)
        self._set_up_epoll()
        # What exists now stays; what a tick makes is free of cycles: collect seldom, and beside the ticks.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._undo.callback(gc.enable)

    def _start_holds(self, config: Config) -> None:
        """Undo the holds on record, then guard new ones."""
        journal = self._undo.enter_context(contextlib.closing(Journal(str(config.run_dir / "holds"))))
        for item in release_all(journal, self._mount):
            logger.warning("reconcile cgroup=%s outcome=%s", item.path, item.kind.value)
        self._brake, self._brake_lack = make_brake(config, journal, self._mount)
        # Also where it is wanted only later: it goes when nobody is held any more, whenever it came.
        self._guardian = GuardianKeeper(config.mechanisms.guardian, journal.directory)
        self._undo.callback(self._guardian.stop)
        if self._guardian.is_due(is_wanted=self._asked().is_guarded):
            self._guardian.start(is_first=True)
        self._undo.callback(self._brake.close)

    def _start_eyes(self, config: Config, owners: CgroupOwners, loader: LoaderInStart | None) -> None:
        """What is remembered, and what is seen."""
        self._undo.callback(self._settings.close)
        state_file = StateFile(config.state_dir / "state.json", self._ledger)
        self._state_file = self._undo.enter_context(contextlib.closing(state_file))
        self._policy_state = self._state_file.load()
        self._tree = self._undo.enter_context(contextlib.closing(Tree(self._mount, owners, is_beside=True)))
        self._sensors = self._undo.enter_context(contextlib.closing(Sensors(config, self._tree, loader)))

    def _start_acting(self, config: Config) -> None:
        """The hands. At the end, whoever is held is released before any of this is closed."""
        self._gate = DeviceGate(self._mount, self._tree, self._settings, is_dry_run=self._force_dry_run)
        self._undo.callback(self._gate.close)
        self._pid_view = pid_view.keep(config.mechanisms.pid_view)
        if self._pid_view is not None:
            self._undo.callback(self._pid_view.close)
            self._sensors.more_rooms = self._pid_view.rooms
        self._in_use = self._mode()
        self._applier = Applier(self._brake, self._tree, self._sensors, is_dry_run=not self._in_use.is_acting)
        self._doubt = AccountWatch(self._sensors, self._applier.holds)
        self._pauses = Pauses(self._mount, self._tree, self._sensors, self._applier.holds_cgroup)
        self._undo.callback(self._pauses.close)
        self._applier.paused = self._pauses.paused
        seen = (self._sensors, self._tree, self._applier)
        self._misbehaviour = self._undo.enter_context(contextlib.closing(Misbehaviour(*seen)))
        self._vram = self._undo.enter_context(contextlib.closing(VramLimits(*seen)))
        self._counted = (self._applier, self._misbehaviour, self._sensors.driver, self._vram)
        endings = (self._misbehaviour.terminator, self._vram.terminator)
        self._tables = (self._ledger, self._gate, self._applier, self._sensors.driver, *endings)
        self._companion = CompanionKeeper(config)
        self._undo.callback(self._companion.stop)
        self._undo.callback(self._save)
        self._undo.callback(lambda: self._applier.release_all(time.monotonic_ns()))
        self._specs, self._params = dict(config.tenant_specs()), config.policy_params()
        self._idle = IdleWatch(self._params.idle_confirm_ns)
        self._shares = self._undo.enter_context(ShareFiles(config.run_dir, self._tree, self._sensors.gpus))

    def _set_up_epoll(self) -> None:
        self._epoll = self._undo.enter_context(contextlib.closing(select.epoll()))
        self._wake_fd, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False))
        for fd in (self._wake_fd, self._control.fileno(), self._brake.fileno(), self._gate.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        self._watch_probe()
        self._watch_guardian()

    def _watch_probe(self) -> None:
        if self._sensors.probe is not None:
            # Edge-triggered: edges that asked for no wake-up also make the ring readable.
            self._epoll.register(self._sensors.probe.fileno(), select.EPOLLIN | select.EPOLLET)
            self._epoll.register(self._sensors.probe.channel_fileno(), select.EPOLLIN)

    def _watch_guardian(self) -> None:
        if self._guardian.fileno() >= 0:
            self._epoll.register(self._guardian.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._wants_reload = True
        else:
            self._is_stopping = True
            if not self._is_running:  # nobody asks yet: the start itself is what is to end
                raise SystemExit(0)

    def run(self, *, once: bool = False) -> int:
        """Tick until a signal comes; returns the exit status."""
        self._is_running = True
        self._last_good_tick_ns = self._well_ns = time.monotonic_ns()  # however long the start took
        self._housekeep(self._last_good_tick_ns)
        self._notifier.ready()
        logger.info("started version=%s mode=%s pid=%d", __version__, self._mode().name, os.getpid())
        while not self._is_stopping:
            self._wait()
            now_ns = time.monotonic_ns()
            if self._wants_reload:
                self._reload_on_signal()
            if now_ns >= self._next_tick_ns and self._sensors.has_caught_up():
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
        look_ns = min(self._idle.due_ns, self._applier.look_ns)
        due_ns = min(self._next_tick_ns, self._next_housekeeping_ns + _JOIN_NS, look_ns) - time.monotonic_ns()
        probe = self._sensors.probe
        ring, channel = (-1, -1) if probe is None else (probe.fileno(), probe.channel_fileno())
        for fd, _ in self._epoll.poll(max(0, due_ns) / 1e9):
            if fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            elif fd == self._control.fileno():
                self._control.handle_ready()
            elif fd == ring:
                self._on_edges()
            elif fd == self._brake.fileno():
                self._applier.settle(time.monotonic_ns())
                self._pauses.poll(time.monotonic_ns())  # a hold of ours may have become somebody's pause
            elif fd == self._gate.fileno():
                self._gate.refresh()
            elif fd != channel or not self._sensors.take_answers(time.monotonic_ns()):  # one of them died
                self._next_housekeeping_ns = self._next_watchdog_ns = 0
        now_ns = time.monotonic_ns()
        if now_ns >= self._applier.look_ns:
            self._applier.hold_filled(now_ns)
        if now_ns >= self._idle.due_ns and self._idle.is_confirmed(now_ns, self._may_be_idle):
            self._next_tick_ns = min(self._next_tick_ns, now_ns)

    def _on_edges(self) -> None:
        """Tick at once for a process that came or went, and for an idle GPU when that is more than a pause."""
        is_process, idle_since_ns = self._sensors.peek()
        if is_process:
            self._next_tick_ns = min(self._next_tick_ns, self._last_tick_ns + LEAST_INTERVAL_NS)
        self._idle.note(idle_since_ns)

    def _may_be_idle(self, slot: int) -> bool:
        return self._sensors.is_idle(slot, but_drains=True)

    def _tick(self, now_ns: int) -> None:
        config = self._settings.config
        if self._next_tick_ns and now_ns - self._next_tick_ns > config.tick_ms * 1_000_000:
            self._cost.late_ticks += 1
        try:
            snapshot = self._observe(now_ns)
            law = self._sensors.law(self._params)
            self._decision = decide(snapshot, self._policy_state, self._specs, law)
            self._apply(self._decision, now_ns)
            self._last_good_tick_ns = now_ns
        except Exception:
            self._cost.failed_ticks += 1
            logger.exception("tick failed")
            self._applier.release_all(now_ns)  # not knowing what is true, hold nobody
        has_holds = bool(self._applier.holds)
        drain_end_ns = self._sensors.next_drain_end_ns() if has_holds else None
        due_ns = next_tick_ns(now_ns, self._decision, config, has_holds, drain_end_ns)
        self._next_tick_ns = min(due_ns, self._vram.due_ns)
        self._cost.note_tick(time.monotonic_ns() - now_ns)

    def _observe(self, now_ns: int) -> Snapshot:
        """The world now."""
        interval_ns, self._last_tick_ns = now_ns - self._last_tick_ns, now_ns
        rows = self._sensors.read(now_ns)
        self._misbehaviour.book(rows)
        users = {row.cgroup_id for row in rows} | self._sensors.events.unknown
        if self._tree.refresh(now_ns, self._brake.held, users):
            self._take_in_tenants()
        self._pauses.poll(now_ns, users)
        seen = Observation(
            now_ns=now_ns,
            interval_ns=interval_ns,
            rows=rows,
            holds=self._applier.all_holds(),
            freeze_latency_ns=self._applier.freeze_latency_ns(),
            idle_slots=self._sensors.idle_gpus(),
            idle_since_ns=self._idle.take(),
            doubted=self._misbehaviour.doubted,
            stuck=self._misbehaviour.stuck,
            kept=self._sensors.mps.doubted,
            contradicted=self._doubt.poll(now_ns, interval_ns, rows, self._policy_state.gates),
            unseen=self._misbehaviour.unseen,
            hidden=self._sensors.hidden_beside(self._applier.holds),
        )
        snapshot, strangers = build_snapshot(seen, self._tree, self._sensors.gpus)
        self._ledger.add(snapshot, strangers)
        return as_if_held(snapshot, self._decision) if self._applier.dry.holds else snapshot

    def _apply(self, decision: Decision, now_ns: int) -> None:
        self._policy_state = decision.state
        if self._settings.config.mode != "observe" or self._force_dry_run:
            self._applier.apply(decision.plan, now_ns)
        self._vram.step(now_ns)
        self._sensors.set_wake_on_idle(bool(self._applier.holds))

    def _take_in_tenants(self) -> None:
        self._specs = specs_in_force(self._settings.config.tenant_specs(), self._tree.tenants)
        self._ledger.departed.see(self._specs)
        self._sensors.take_in_tenants(self._tree.tenants)

    def _housekeep(self, now_ns: int) -> None:
        self._next_housekeeping_ns = now_ns + _HOUSEKEEPING_NS // 5
        try:
            self._look_after(now_ns)
        except Exception:
            self._cost.failed_housekeeping += 1
            logger.exception("housekeeping failed")
            self._applier.release_all(now_ns)

    def _look_after(self, now_ns: int) -> None:
        self._control.handle_ready()
        config, mode = self._settings.config, self._mode()
        self._notifier.status(status_line(mode, len(self._specs), self._settings.error))
        self._applier.thaw_expired(now_ns)
        self._gate.refresh()
        self._shares.poll(config, self._specs, is_wanted=mode.is_sharing)
        self._sensors.bury(now_ns)
        self._sensors.look_for_mps()
        self._sensors.driver.poll(now_ns, self._tree.tenant_of)
        self._misbehaviour.poll(now_ns, self._specs, config, is_acting=mode.is_acting)
        self._vram.poll(now_ns, self._specs, config.misbehaviour.grace_s, is_acting=mode.is_acting)
        is_time = now_ns >= self._next_watchdog_ns
        try:
            self._sensors.look_for_libraries(self._tree.pids(begin=is_time), now_ns)
        except ProbesLost as lost:
            self._let_go_of_probes(lost, now_ns)
        if self._sensors.is_restarted(config, now_ns):
            self._begin_anew(now_ns)
            self._watch_probe()
            self._take_in_tenants()
        if not is_time:
            return
        self._next_watchdog_ns = now_ns + _HOUSEKEEPING_NS
        self._ensure_guardian()
        self._companion.refresh(self._settings.config, now_ns)
        if now_ns - self._last_good_tick_ns < config.tick_ms * 1_000_000 + _FED_NS:
            self._notifier.watchdog()  # only good ticks feed it: where all fail, systemd starts another daemon
            self._well_ns = now_ns
        self._cost.refresh(now_ns)
        if now_ns >= self._next_save_ns:
            self._next_save_ns = now_ns + _SAVE_NS
            self._ledger.departed.refresh({*self._specs, *self._tree.tenants}, self._tables, now_ns)
            self._save()
            gc.collect()

    def _let_go_of_probes(self, lost: ProbesLost, now_ns: int) -> None:
        """Release all holds, as nothing is seen any more, and have the programs loaded again beside the loop."""
        logger.error("probes=lost error=%r held=%d", str(lost), len(self._applier.holds))
        self._begin_anew(now_ns)
        if self._sensors.probe is not None:
            self._epoll.unregister(self._sensors.probe.fileno())  # its mapping would keep it in the set
            self._epoll.unregister(self._sensors.probe.channel_fileno())
        self._sensors.restart(self._settings.config)
        self._ensure_guardian()  # another source may not be one to hold tenants on

    def _begin_anew(self, now_ns: int) -> None:
        """Another account is in force: it knows of no hold and no pause, and what chance made of samples is no debt."""
        self._applier.release_all(now_ns)
        self._pauses.forget()
        self._policy_state = PolicyState()

    def _ensure_guardian(self) -> None:
        """Start one where it is wanted and none lives; who may be held depends on it."""
        if self._guardian.is_due(is_wanted=self._asked().is_guarded):
            self._applier.release_all(time.monotonic_ns())  # this may take seconds, and nobody guards them
            if self._guardian.start():
                self._watch_guardian()
        mode = self._mode()
        if mode != self._in_use:
            self._applier.switch(is_dry_run=not mode.is_acting, now_ns=time.monotonic_ns())
            if not self._in_use.is_acting:
                self._policy_state = PolicyState()  # what was used while nobody was held is nobody's debt
            self._in_use = mode

    def _save(self) -> None:
        # Nobody held, no debts; and those on samples are chance for the most part.
        is_kept = not self._applier.is_dry_run and self._sensors.account is not None
        self._state_file.save(self._policy_state if is_kept else PolicyState())

    def _reload_on_signal(self) -> None:
        self._wants_reload = False
        self._notifier.reloading()
        self._answers.reload_on_signal()
        self._notifier.ready()

    def _take_in_settings(self) -> None:
        """Make a new configuration take effect now."""
        self._tree.set_owners(CgroupOwners(self._settings.config))
        self._params = self._settings.config.policy_params()
        self._take_in_tenants()
        self._ensure_guardian()
        self._next_tick_ns = 0

    def _asked(self) -> Mode:
        return asked(self._settings.config, is_dry_run=self._force_dry_run, no_brake=self._brake_lack)

    def _mode(self) -> Mode:
        lack = self._guardian.warning if self._guardian.is_lacking else None
        return in_effect(self._asked(), self._settings.config, source=self._sensors.source, lack=lack)

    def _parts(self) -> Parts:
        """For whoever asks on the control socket."""
        vitals = Vitals(
            started_ns=self._started_ns,
            now_ns=time.monotonic_ns(),
            mode=self._in_use.name,
            mode_reason=self._in_use.reason,
            tick_ms=self._settings.config.tick_ms,
            errors=self._cost.errors + sum(part.errors for part in self._counted),
            cost=self._cost,
            well_ns=self._well_ns,
        )
        return Parts(
            vitals=vitals,
            settings=self._settings,
            sensors=self._sensors,
            tree=self._tree,
            applier=self._applier,
            ledger=self._ledger,
            misbehaviour=self._misbehaviour,
            vram=self._vram,
            shares=self._decision.shares if self._decision else (),
            specs=self._specs,
            mount=self._mount,
            gate=self._gate.status(),
            pid_view=None if self._pid_view is None else self._pid_view.status(),
            companion=self._companion,
            guardian=self._guardian,
            control=self._control.counters,
            doubts=self._doubt.doubts,
        )
