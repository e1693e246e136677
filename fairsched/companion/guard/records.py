# SPDX-License-Identifier: Apache-2.0
"""Says what the guard did: in the audit log first, in the daemon's log, in its list of deeds, in numbers.

Terms: a *deed* is something that was done, or in a dry run would have been. A *trouble* is something that could not
be done: it stands in the status under its matter for as long as that is so, and is logged when it begins or changes.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from fairsched.errors import FairschedError
from fairsched.guard.breach import Breach, Subject, What
from fairsched.guard.report import Deed

EVENT = "guard"
"""Of entries in the audit log."""
_DEEDS = 64
"""Kept for ``fairsched guard show``."""
_LISTED = 64
"""Pids and tenants that one entry names."""

Cause = tuple[str, Subject, What, "str | None"]
"""A breach without its figures: limit, subject, what, GPU."""

logger = logging.getLogger(__name__)


class AuditLog(Protocol):
    """As reclaim.audit.Audit."""

    def write(self, event: str, entry: Mapping[str, Any], summary: str) -> object:
        """It is on the disk when this returns. Raises FairschedError when it cannot be written."""


class Records:
    """Keeps them. One thread writes; deeds and numbers may be read by others."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self.deeds: deque[Deed] = deque(maxlen=_DEEDS)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """By limit, act and outcome."""
        self._troubles: dict[str, str] = {}

    @property
    def troubles(self) -> tuple[str, ...]:
        """Sentences about what cannot be done."""
        return tuple(self._troubles.values())

    def write(self, did: str, entry: Mapping[str, Any]) -> str | None:
        """To the audit log; a sentence says why that failed, and then what it is about must not be done."""
        said = entry.get("text") or " ".join(f"{key}={value}" for key, value in entry.items())
        try:
            self._audit.write(EVENT, {"did": did, **entry}, f"guard did={did!r} {said}")
        except FairschedError as error:
            self.trouble("audit", text_of(error))
            return text_of(error)
        self.trouble("audit", None)
        return None

    def write_breach(self, did: str, breach: Breach, *, is_dry: bool = False, **more: Any) -> str | None:
        """As :meth:`write`, with what the breach says."""
        return self.write(
            did,
            {
                "is_dry": is_dry,
                "limit": breach.limit,
                "subject": breach.subject.text,
                "uid": breach.subject.uid,
                "what": breach.what.value,
                "used": breach.used,
                "allowed": breach.allowed,
                "gpu": breach.gpu,
                "since_s": round(breach.since_s, 3),
                "warnings": breach.warnings,
                "pids": [one.pid for one in breach.processes[:_LISTED]],
                "tenants": list(breach.tenants[:_LISTED]),
                "text": breach.text,
                **more,
            },
        )

    def deed(
        self,
        breach: Breach,
        now_s: float,
        outcome: str,
        *,
        word: str = "done",
        pids: tuple[int, ...] = (),
        tenants: tuple[str, ...] = (),
    ) -> None:
        """Something was done. ``word``: done, dry_run or refused; ``outcome``: a sentence."""
        deed = Deed.of(breach, now_s, is_dry=word == "dry_run", outcome=outcome)
        self.deeds.append(replace(deed, pids=pids, tenants=tenants))
        self.counts[breach.limit, breach.act.value, word] += 1
        logger.warning(
            "guard=%s outcome=%s limit=%s subject=%r what=%s warnings=%d text=%r detail=%r",
            breach.act.value,
            word,
            breach.limit,
            breach.subject.text,
            breach.what.value,
            breach.warnings,
            breach.text,
            outcome,
        )

    def refused(self, matter: str, text: str, breach: Breach, now_s: float) -> None:
        """Something that a breach asks for is not done: written down once for each reason."""
        if self._troubles.get(matter) != text:
            self.write_breach("refused", breach, detail=text)
            self.deed(breach, now_s, text, word="refused")
        self._troubles[matter] = text

    def trouble(self, matter: str, text: str | None) -> None:
        """None: it is over."""
        if text is None:
            if self._troubles.pop(matter, None) is not None:
                logger.info("guard=well_again matter=%r", matter)
            return
        if self._troubles.get(matter) != text:
            logger.error("guard=trouble matter=%r text=%r", matter, text)
        self._troubles[matter] = text

    def over(self, prefix: str, stay: set[str]) -> None:
        """Troubles whose matter begins so are over, but for these matters."""
        for matter in [one for one in self._troubles if one.startswith(prefix) and one not in stay]:
            del self._troubles[matter]


def cause_of(breach: Breach) -> Cause:
    return breach.limit, breach.subject, breach.what, breach.gpu


def text_of(error: FairschedError) -> str:
    """With its remedy."""
    return f"{error} ({error.remedy})" if error.remedy else str(error)
