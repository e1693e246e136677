# SPDX-License-Identifier: Apache-2.0
"""Ends processes that misbehave or have too much memory: SIGTERM, and SIGKILL if they go on.

Problem: a signal to a pid may reach somebody else by the time it is sent, and there is no taking it back.

Approach: a pidfd is opened first; only then it is checked that the process is the one that was accused (its start
time) and is in the accused tenant's cgroup now. Signals go through that descriptor, so they reach that process or
nobody. Before SIGKILL the cgroup is checked again, and the process must still be accused: one that ends its work
after SIGTERM and takes long to save what it has is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from fairsched.base.process import ProcessId
from fairsched.model import MisbehaviourKind, ReasonCode
from fairsched.protocol.events import EventBook

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accused:
    """A process that is to end."""

    tenant: str
    kind: MisbehaviourKind | ReasonCode
    owner: ProcessId


@dataclass
class _Ending:
    accused: Accused
    pidfd: int
    asked_ns: int
    is_killed: bool = False


class Terminator:
    """Ends processes and counts them."""

    def __init__(
        self,
        tenant_of: Callable[[int], str | None],
        let_run: Callable[[str, int], None] = lambda _tenant, _now_ns: None,
    ) -> None:
        """``tenant_of`` tells which tenant a process belongs to now; ``let_run`` ends our hold of one.

        What cgroup v1 has frozen is not killed before it is thawed.
        """
        self._tenant_of = tenant_of
        self._let_run = let_run
        self._endings: dict[ProcessId, _Ending] = {}
        self._protected = frozenset((0, 1, os.getpid(), os.getppid()))
        self.book = EventBook(logger, "termination")
        self.total: Counter[tuple[str, MisbehaviourKind | ReasonCode]] = Counter()
        """Processes that were told to end, by (tenant, kind)."""

    def is_asked(self, owner: ProcessId) -> bool:
        """Whether it was told to end already."""
        return owner in self._endings

    def ask(self, accused: Accused, now_ns: int) -> bool:
        """SIGTERM, once per process. False when it is not, or no longer, ours to end."""
        pid = accused.owner.pid
        if accused.owner in self._endings or pid in self._protected:
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        if not accused.owner.is_alive() or self._tenant_of(pid) != accused.tenant:
            os.close(pidfd)
            return False
        if not _send(pidfd, signal.SIGTERM):
            os.close(pidfd)
            return False
        self._endings[accused.owner] = _Ending(accused, pidfd, now_ns)
        self.total[accused.tenant, accused.kind] += 1
        self._tell(logging.WARNING, "SIGTERM", accused)
        return True

    def settle(self, still: Collection[ProcessId], now_ns: int, grace_ns: int) -> None:
        """SIGKILL to those that were asked ``grace_ns`` ago and are ``still`` accused; the others are let off."""
        for owner, ending in list(self._endings.items()):
            if not owner.is_alive():
                self._forget(owner)
            elif ending.is_killed or now_ns - ending.asked_ns < grace_ns:
                continue
            elif owner not in still:
                self._tell(logging.INFO, "let_off", ending.accused)
                self._forget(owner)
            elif self._tenant_of(owner.pid) == ending.accused.tenant and _send(ending.pidfd, signal.SIGKILL):
                ending.is_killed = True
                self._let_run(ending.accused.tenant, now_ns)
                self._tell(logging.WARNING, "SIGKILL", ending.accused)

    def _tell(self, level: int, what: str, whom: Accused) -> None:
        self.book.tell(level, terminate=what, tenant=whom.tenant, pid=whom.owner.pid, kind=whom.kind.value)

    def forget(self, owners: Iterable[ProcessId]) -> None:
        """They are not to end after all."""
        for owner in owners:
            self._forget(owner)

    def _forget(self, owner: ProcessId) -> None:
        ending = self._endings.pop(owner, None)
        if ending is not None:
            with contextlib.suppress(OSError):
                os.close(ending.pidfd)

    def terminations(self, tenant: str) -> dict[str, int]:
        """Processes of a tenant that were told to end since the start, by kind."""
        return {kind.value: n for (name, kind), n in self.total.items() if name == tenant}

    def remembered_tenants(self) -> set[str]:
        return {name for name, _ in self.total}

    def forget_tenants(self, names: Collection[str]) -> None:
        """Drop what was counted of these tenants; a process that was told to end is still to end."""
        self.total = Counter({key: n for key, n in self.total.items() if key[0] not in names})

    def close(self) -> None:
        """Give the descriptors back; nobody else is signalled."""
        self.forget(list(self._endings))


def _send(pidfd: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True
