# SPDX-License-Identifier: Apache-2.0
"""Defines a part of the companion: it is handed moments, and may have something to tell the daemon.

A part must return from ``take`` within a second or so, because the parts take turns: what waits for somebody else
belongs into a thread of the part's own, whose findings the next ``take`` picks up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fairsched.errors import ControlError
from fairsched.protocol.client import ControlClient
from fairsched.protocol.status import (
    DecisionRecord,
    SliStatus,
    StatusReport,
    TokenRate,
    decision_from_plain,
    status_from_plain,
)

_ASK_S = 5.0
_STATUS_S = 2.0
"""For a whole status: a scrape that waits for it must be answered in three seconds, with a daemon or without."""
_SHARED_S = 1.0
"""That there was no answer is told to all who ask in the same second."""


@dataclass(frozen=True)
class Moment:
    """The node as the daemon sees it now."""

    report: StatusReport
    decisions: Sequence[DecisionRecord] = ()
    """Taken since this part's previous moment, oldest first; empty for a part that does not want them."""
    is_gapless: bool = True
    """False: the daemon may have forgotten decisions since the previous moment, or it is a new daemon."""


@dataclass(frozen=True)
class Finding:
    """What a part tells the daemon, which shows it in its status until it is too old."""

    slis: SliStatus | None = None
    tokens: Mapping[str, TokenRate] = field(default_factory=dict)
    """By tenant."""
    faults: Sequence[str] = ()
    """What a person must know; shown among the warnings."""


class Part(Protocol):
    """One thing the companion does."""

    name: str
    """For the log."""
    interval_s: float
    """Between two moments."""
    wants_decisions: bool

    def take(self, moment: Moment) -> Finding | None:
        """Take in the moment. An exception is logged and counted, and the part is asked again next time."""

    def close(self) -> None:
        """The companion ends."""


class Node:
    """The daemon, for parts: its control socket, and the last status, or why there is none, for all who ask in the same
    second.

    Safe to use from several threads. Every call raises ControlError when the daemon does not answer.
    """

    def __init__(self, socket_path: Path) -> None:
        self._client = ControlClient(socket_path, timeout_s=_ASK_S)
        self._status = ControlClient(socket_path, timeout_s=_STATUS_S)
        self._lock = threading.Lock()
        self._answer: StatusReport | ControlError | None = None
        self._asked_s = 0.0

    def report(self, max_age_s: float = _SHARED_S) -> StatusReport:
        """The status, asked for anew when the last is older than that. Others wait meanwhile and share the answer."""
        with self._lock:
            age_s = time.monotonic() - self._asked_s
            is_failure = isinstance(self._answer, ControlError)
            if self._answer is None or age_s >= (min(max_age_s, _SHARED_S) if is_failure else max_age_s):
                self._ask()
            if isinstance(self._answer, ControlError):
                raise ControlError(str(self._answer), remedy=self._answer.remedy)
            assert self._answer is not None
            return self._answer

    def _ask(self) -> None:
        try:
            self._answer = status_from_plain(self._status.request("status"))
        except ControlError as error:
            self._answer = error
        finally:
            self._asked_s = time.monotonic()

    def decisions(self, since_ns: int) -> tuple[list[DecisionRecord], bool]:
        """Decisions later than `since_ns` (CLOCK_MONOTONIC), oldest first; False: some are forgotten."""
        answer = self._client.request("decisions", since_ns=since_ns)
        return [decision_from_plain(one) for one in answer["decisions"]], bool(answer["is_gapless"])

    def explain(self, tenant: str) -> list[Any]:
        """Decisions about a tenant in the last minute, as plain data. Raises ControlError also where it is unknown."""
        return list(self._client.request("explain", tenant=tenant))

    def config_text(self) -> str:
        """The configuration in force, as YAML."""
        return str(self._client.request("config_show")["yaml"])

    def file_text(self) -> str:
        """The configuration as the file has it, without what was set or came of pods, as YAML."""
        return str(self._client.request("config_file")["yaml"])

    def set_tenant(self, tenant: str, values: Mapping[str, Any]) -> list[str]:
        """As ``fairsched tenant set``: the changes as lines."""
        return list(self._client.request("tenant_set", tenant=tenant, values=dict(values)))

    def unset_tenant(self, tenant: str, keys: Sequence[str]) -> list[str]:
        """As ``fairsched tenant unset``."""
        return list(self._client.request("tenant_unset", tenant=tenant, keys=list(keys)))

    def set_pods(self, layer: Mapping[str, Any]) -> None:
        """Other tenants come of pods now. Raises ControlError also where the daemon refuses them."""
        self._client.request("tell", finding={"pods": dict(layer)})

    def tell(self, finding: Mapping[str, Any]) -> None:
        """A :class:`Finding` as plain data, for the daemon's status."""
        self._client.request("tell", finding=dict(finding))
