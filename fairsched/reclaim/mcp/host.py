# SPDX-License-Identifier: Apache-2.0
"""Defines what the tools need of this host, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fairsched.protocol.status import StatusReport
from fairsched.reclaim.audit import Audit
from fairsched.reclaim.chain import Head
from fairsched.reclaim.listing import Lister
from fairsched.reclaim.session import Own, Session


class Host(Protocol):
    """This host. Each call may block, and may come from any thread."""

    audit_directory: Path

    def lister(self) -> Lister:
        """A new one. Raises HostUnsupported."""
        ...

    def own(self) -> Own:
        """What is known of the daemon."""
        ...

    def session(self, lister: Lister) -> Session:
        """Plans and ends."""
        ...

    def status(self) -> StatusReport | None:
        """The daemon's; None: it does not answer."""
        ...

    def explain(self, tenant: str) -> list[Any]:
        """The daemon's records of the last minute. Raises ControlError."""
        ...


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    session: str
    """Key of the session."""
    transport: str
    """stdio or http."""
    claims_client: str | None = None
    """What the client calls itself: a claim."""

    def plain(self) -> dict[str, Any]:
        """For the audit log."""
        return {"via": "mcp", "transport": self.transport, "claims_client": self.claims_client}


class CallersAudit(Audit):
    """The audit log, with who asked in every entry."""

    def __init__(self, directory: Path, caller: Caller, plan: str) -> None:
        """``plan``: the digest of its id, which joins the entries of a plan."""
        super().__init__(directory)
        self._added = {**caller.plain(), "plan": plan}

    def write(self, event: str, entry: Mapping[str, Any], summary: str, at_s: float | None = None) -> Head:
        client = self._added["claims_client"]
        return super().write(
            event, {**self._added, **entry}, f"{summary} via=mcp claims_client={client!r}", at_s
        )
