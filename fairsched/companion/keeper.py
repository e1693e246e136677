# SPDX-License-Identifier: Apache-2.0
"""Keeps the companion running for the daemon: starts it, starts it again, remembers what it said for a while.

Nothing here waits, because people are frozen meanwhile: a start costs a fork, a look a ``waitpid``, and one that is
to go is told so and looked after until it has gone. Only :meth:`CompanionKeeper.stop` waits, when nobody is held any
more. A companion that keeps dying is started again after 1, 2, 4 ... 60 seconds, and until then its last words stand
in the status.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairsched.base.package import with_package
from fairsched.companion.address import address_of, check_free
from fairsched.companion.guard import is_left
from fairsched.config import Config
from fairsched.config.models import walk
from fairsched.errors import ConfigError
from fairsched.protocol.slis import SliStatus, TokenRate, slis_from_plain, tokens_from_plain
from fairsched.protocol.status import CompanionStatus

_KEEP_NS = 10_000_000_000
"""What it said is shown for so long; the companion says it again at least every second or so."""
_FIRST_WAIT_NS = 1_000_000_000
_LONGEST_WAIT_NS = 60_000_000_000
_WELL_NS = 60_000_000_000
"""One that lived so long is well: the wait starts from the first again."""
_LEAVE_NS = 1_000_000_000
"""From being told to go until it is killed."""
_MAX_FAULTS = 16
_MAX_FAULT_CHARACTERS = 300

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """What the companion found, as far as it is fresh; empty otherwise."""

    slis: SliStatus | None = None
    tokens: Mapping[str, TokenRate] = field(default_factory=dict)
    """By tenant."""
    faults: tuple[str, ...] = ()


def wishes(config: Config) -> Mapping[str, Any]:
    """What of the configuration concerns the companion; empty = none is needed."""
    found: dict[str, Any] = {}
    if config.metrics.listen is not None:
        found["metrics"] = config.metrics.model_dump()
    if config.escalation.enabled:
        found["escalation"] = config.escalation.model_dump()
    if config.guard.is_kept:
        found["guard"] = config.guard.model_dump()
    elif is_left(config.state_dir):
        found["guard"] = {}  # what it has lowered is to be given back
    if config.history.enabled:
        found["history"] = config.history.model_dump()
    if config.kubernetes.watch_pods or config.kubernetes.dra.enabled:
        found["kubernetes"] = config.kubernetes.model_dump()
    tokens = {
        path: (node.tokens_url, node.tokens_metric, node.token_cost_ms)
        for path, node in walk(config.tenants)
        if node.tokens_url
    }
    if tokens:
        found["tokens"] = tokens
    if found:
        found["slis"] = config.slis.model_dump()
    return found and {**found, "log": config.log.model_dump()}


class CompanionKeeper:
    """Starts the companion and ends it. Call :meth:`refresh` about once a second, and :meth:`stop` at the end.

    Raises ConfigError when the exporter's address makes no sense or its web_config is bad. One that is taken is no
    reason not to start: shares hold without an exporter, and after a crash it may be the companion of before that has
    it for another moment. It is logged, stands in the status, and the companion is started until it can have it.
    """

    def __init__(self, config: Config) -> None:
        if config.metrics.listen is not None:
            address_of(config.metrics.listen)
            try:
                check_free(config.metrics.listen)
            except ConfigError as error:
                logger.error("metrics=absent error=%r remedy=%r", str(error), error.remedy)
            if config.metrics.web_config is not None:
                from fairsched.companion.exporter.webconfig import read_file

                read_file(config.metrics.web_config)
        self._process: subprocess.Popen[bytes] | None = None
        self._leaving: subprocess.Popen[bytes] | None = None
        """Told to go; the next one may need its port."""
        self._kill_ns = 0
        self._config: Config | None = None
        self._wishes: Mapping[str, Any] = {}
        self._started_ns = 0
        self._next_start_ns = 0
        self._wait_ns = _FIRST_WAIT_NS
        self._said = Said()
        self._said_ns = -_KEEP_NS
        self._last_words: tuple[str, ...] = ()
        """Why there is none now."""
        self._starts = 0

    def refresh(self, config: Config, now_ns: int) -> None:
        """Start, restart or end it, as the configuration in force wants it. Raises nothing, waits for nothing."""
        if config is not self._config:  # a configuration is never changed, but replaced
            self._config, wanted = config, wishes(config)
            if wanted != self._wishes:
                self._send_away(now_ns)
                self._wishes, self._next_start_ns, self._wait_ns = wanted, now_ns, _FIRST_WAIT_NS
        if (
            self._has_left(now_ns)
            and self._wishes
            and not self._is_alive(now_ns)
            and now_ns >= self._next_start_ns
        ):
            self._start(config.socket_path, now_ns)

    def _is_alive(self, now_ns: int) -> bool:
        if self._process is None:
            return False
        status = self._process.poll()
        if status is None:
            return True
        self._last_words = self._said.faults or (f"companion: it ended with status {status}",)
        self._forget()
        if now_ns - self._started_ns >= _WELL_NS:
            self._wait_ns = _FIRST_WAIT_NS
        self._next_start_ns = now_ns + self._wait_ns
        logger.warning("companion=ended status=%d next_start_s=%d", status, self._wait_ns // 1_000_000_000)
        self._wait_ns = min(2 * self._wait_ns, _LONGEST_WAIT_NS)
        return False

    def _start(self, socket_path: Path, now_ns: int) -> None:
        self._started_ns, self._next_start_ns = now_ns, now_ns + self._wait_ns
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fairsched.companion", "--socket", str(socket_path)],
                stdin=subprocess.PIPE,  # its end is how the companion learns of ours
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=with_package(os.environ),
                start_new_session=True,
            )
            self._starts += 1
        except OSError as error:
            logger.error("companion=absent error=%r", str(error))

    def _send_away(self, now_ns: int) -> None:
        """Its input closes; see :meth:`_has_left`."""
        self._last_words = ()
        if self._process is not None:
            self._leaving, self._kill_ns = self._process, now_ns + _LEAVE_NS
            self._forget()

    def _has_left(self, now_ns: int) -> bool:
        """Whether the one that was told to go is gone; killed when it takes too long."""
        if self._leaving is not None and self._leaving.poll() is not None:
            self._leaving = None
        if self._leaving is not None and now_ns >= self._kill_ns:
            self._leaving.kill()
        return self._leaving is None

    def _forget(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process, self._said = None, Said()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End it, and wait for that: killed when the time is over. For the end of the daemon, not for its loop."""
        self._send_away(0)
        if self._leaving is None:
            return
        try:
            self._leaving.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._leaving.kill()
            self._leaving.wait()
        self._leaving = None

    def told(self, finding: Mapping[str, Any], now_ns: int) -> None:
        """Take in a ``part.Finding`` as plain data. Raises ValueError or TypeError when it is none."""
        faults = finding.get("faults", [])
        if not isinstance(faults, list):
            raise TypeError("faults must be a list")
        self._said = Said(
            slis=slis_from_plain(finding.get("slis")),
            tokens=tokens_from_plain(finding.get("tokens") or {}),
            faults=tuple(str(fault)[:_MAX_FAULT_CHARACTERS] for fault in faults[:_MAX_FAULTS]),
        )
        self._said_ns = now_ns

    def said(self, now_ns: int) -> Said:
        """What it found, unless that is too old to be shown as now; while there is none, why."""
        if self._process is None and self._last_words:
            return Said(faults=self._last_words)
        return self._said if now_ns - self._said_ns < _KEEP_NS else Said()

    def status(self) -> CompanionStatus | None:
        """None = none is wanted."""
        if not self._wishes:
            return None
        pid = None if self._process is None else self._process.pid
        return CompanionStatus(pid=pid, starts=self._starts)
