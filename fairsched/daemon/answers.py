# SPDX-License-Identifier: Apache-2.0
"""Answers the requests that come in on the daemon's control socket (see protocol/server.py).

Problem: every new question would otherwise be a few more lines in the loop that freezes people's processes.

Approach: the daemon hands out its :class:`Parts` when somebody asks; nothing here is kept, and nothing but a change of
settings reaches back, through the function given for that.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairsched import __version__
from fairsched.base.later import Later
from fairsched.config.settings import Settings
from fairsched.daemon.cost import MapFacts, read_processes
from fairsched.daemon.parts import Parts
from fairsched.daemon.processes import Launches, build_processes, held_by_process
from fairsched.daemon.report import build_status
from fairsched.errors import ConfigError, ControlError, FairschedError
from fairsched.protocol.events import later
from fairsched.protocol.listen import Peer
from fairsched.protocol.own import OwnStatus
from fairsched.protocol.process import ProcessStatus
from fairsched.protocol.status import DecisionRecord, StatusReport

_EXPLAIN_NS = 60_000_000_000

logger = logging.getLogger(__name__)


class Answers:
    """Answers each request of the control socket (a ControlHandler). ``take_in`` makes changed settings take effect."""

    def __init__(
        self,
        settings: Settings,
        parts: Callable[[], Parts],
        take_in: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._take_in = take_in
        self._maps = MapFacts()

    def ping(self) -> Mapping[str, Any]:
        vitals = self._parts().vitals
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mode": vitals.mode,
            "wanted_mode": self._settings.config.mode,
            "mode_reason": vitals.mode_reason,
            "well_age_s": (vitals.now_ns - vitals.well_ns) / 1e9,
        }

    def status(self) -> StatusReport:
        parts = self._parts()
        report = build_status(parts)
        said = parts.companion.said(parts.vitals.now_ns)
        unguarded = (parts.guardian.warning,) if parts.guardian.warning else ()
        return replace(
            report,
            pid_view=parts.pid_view,
            companion=parts.companion.status(),
            slis=said.slis,
            tenants=tuple(
                replace(tenant, tokens=said.tokens[tenant.name]) if tenant.name in said.tokens else tenant
                for tenant in report.tenants
            ),
            warnings=(*report.warnings, *unguarded, *said.faults),
            own=self._own(parts),
        )

    def _own(self, parts: Parts) -> OwnStatus:
        """What we cost; read now."""
        sensors, counters = parts.sensors, parts.control
        companion = parts.companion.status()
        pids = {
            "daemon": os.getpid(),
            "companion": companion.pid if companion is not None else None,
            "guardian": parts.guardian.pid,
            "attacher": sensors.probe.attacher_pid if sensors.probe is not None else None,
        }
        return OwnStatus(
            processes=read_processes(pids),
            ticks=parts.vitals.cost.ticks(),
            errors={
                "tick": parts.vitals.cost.failed_ticks,
                "housekeeping": parts.vitals.cost.failed_housekeeping,
                "freezer": parts.applier.errors,
                "misbehaviour": parts.misbehaviour.errors,
                "driver": sensors.driver.errors,
                "vram": parts.vram.errors,
            },
            maps=self._maps.read(sensors.map_fds(), sensors.map_entries()),
            control={
                "answered": counters.requests_total - counters.faults_total,
                "refused": counters.refused_total,
                "dropped": counters.dropped_total,
                "fault": counters.faults_total,
            },
        )

    def explain(self, tenant: str) -> Sequence[DecisionRecord]:
        parts = self._parts()
        if tenant not in parts.specs and tenant not in parts.tree.tenants:
            names = ", ".join(sorted({*parts.specs, *parts.tree.tenants})) or "none"
            raise ConfigError(f"no tenant '{tenant}'", remedy=f"name one of: {names}")
        begin_ns = time.monotonic_ns() - _EXPLAIN_NS
        return [r for r in parts.applier.records if r.tenant == tenant and r.t_ns >= begin_ns]

    def decisions(self, since_ns: int) -> Mapping[str, Any]:
        parts = self._parts()
        decisions, is_gapless = later(parts.applier.records, since_ns)
        books = (parts.misbehaviour.terminator.book, parts.vram.terminator.book, parts.vram.book)
        told = [later(book.records, since_ns) for book in books]
        return {
            "decisions": decisions,
            "events": sorted((one for found, _ in told for one in found), key=lambda one: one.t_ns),
            "is_gapless": is_gapless and all(is_whole for _, is_whole in told),
        }

    def tell(self, finding: Mapping[str, Any], by: Peer) -> None:
        if by.uid not in (0, os.geteuid()):
            raise ControlError(f"uid {by.uid} is not the companion", remedy="ask for the status instead")
        if "pods" in finding:
            if not isinstance(layer := finding["pods"], Mapping):
                raise ControlError("pods must be a mapping")
            self._changed(self._settings.set_pods(layer), by)
            return
        try:
            self._parts().companion.told(finding, time.monotonic_ns())
        except (AttributeError, TypeError, ValueError) as error:
            raise ControlError(f"this is no finding: {error}") from None

    def processes(self) -> Sequence[ProcessStatus]:
        parts = self._parts()
        sensors = parts.sensors
        account, probe, launches = sensors.account, sensors.probe, None
        if account is not None and probe is not None:
            running = account.seen_running.keys()
            launches = Launches(account.work(), running, probe.began_ns, time.monotonic_ns())
        listed = sensors.gpu_watch.listed() if sensors.gpu_watch is not None else {}
        held = held_by_process(sensors.driver.uses())
        return build_processes(launches, held, listed, sensors.gpus, parts.tree, parts.mount)

    def tenant_list(self) -> Mapping[str, Any]:
        return self._settings.tenant_list()

    def tenant_set(self, tenant: str, values: Mapping[str, Any], by: Peer) -> Later[list[str]]:
        return self._settings.set_tenant(tenant, values).before(lambda lines: self._changed(lines, by))

    def tenant_unset(self, tenant: str, keys: Sequence[str], by: Peer) -> Later[list[str]]:
        return self._settings.unset_tenant(tenant, keys).before(lambda lines: self._changed(lines, by))

    def fileno(self) -> int:
        return self._settings.fileno()

    def settle(self) -> None:
        self._settings.settle()

    def config_show(self) -> Mapping[str, Any]:
        return self._settings.show()

    def config_file(self) -> Mapping[str, Any]:
        return {"yaml": self._settings.file_text()}

    def reload(self, by: Peer) -> list[str]:
        return self._changed(self._settings.reload(), by)

    def reload_on_signal(self) -> None:
        """Nobody waits for an answer, so the log has it."""
        try:
            for line in self._settings.reload():
                logger.info("reload change=%r", line)
            self._take_in()
        except FairschedError as error:
            logger.error("reload=refused error=%r remedy=%r kept=running", str(error), error.remedy)

    def _changed(self, lines: list[str], by: Peer) -> list[str]:
        for line in lines:
            logger.info("change=%r uid=%d pid=%d", line, by.uid, by.pid)
        self._take_in()
        return lines
