# SPDX-License-Identifier: Apache-2.0
"""Keeps plans until they are confirmed, expire, or their session ends.

A plan id is 192 random bits, and only its SHA-256 is kept and logged: who reads the audit log cannot confirm by it. It
is good once, for :data:`EXPIRY_S`, in the session that got it. For any other session it does not exist. A plan holds
pidfds, so there are few: the oldest goes where there would be more than :data:`MOST`.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fairsched.errors import FairschedError
from fairsched.reclaim.mcp.arguments import PlanArguments
from fairsched.reclaim.session import Prepared, Wish

EXPIRY_S = 120.0
MOST = 16
PER_MINUTE = 20
"""Plans and refused confirmations that are written down: nobody turns the audit log over by asking."""


class PlanRefused(FairschedError):
    """A plan, or a confirmation, that is refused. ``code``: a word from a fixed list."""

    def __init__(self, code: str, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


@dataclass(frozen=True)
class Kept:
    """A plan that waits."""

    session: str
    digest: str
    """The beginning of the SHA-256 of its id: for the audit log."""
    until_s: float
    asked: PlanArguments
    wish: Wish
    prepared: Prepared

    @property
    def pids(self) -> list[int]:
        return sorted(one.pid for one in self.prepared.plan.targets)


class Plans:
    """Safe for several threads. Call :meth:`close`."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, expiry_s: float = EXPIRY_S) -> None:
        self._clock_s, self.expiry_s = clock_s, expiry_s
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()
        self._written: deque[float] = deque()

    def keep(self, plan_id: str, session: str, asked: PlanArguments, wish: Wish, prepared: Prepared) -> Kept:
        """Keeps a plan, and from now on owns its pins."""
        digest = digest_of(plan_id)
        kept = Kept(session, digest[:16], self._clock_s() + self.expiry_s, asked, wish, prepared)
        with self._lock:
            self._sweep()
            while len(self._kept) >= MOST:
                self._kept.pop(next(iter(self._kept))).prepared.close()
            self._kept[digest] = kept
        return kept

    def take(self, plan_id: str, session: str) -> Kept:
        """The plan, which is none any more; the caller closes its pins. Raises PlanRefused."""
        with self._lock:
            self._sweep()
            digest = digest_of(plan_id)
            kept = self._kept.get(digest)
            if kept is None or kept.session != session:
                raise PlanRefused(
                    "unknown_plan",
                    "there is no such plan in this session: it expired, was used, or never was",
                    remedy="plan again",
                )
            return self._kept.pop(digest)

    def end_session(self, session: str) -> None:
        """Forget its plans. ``session``: the beginning of its key is enough."""
        with self._lock:
            for digest, kept in list(self._kept.items()):
                if kept.session.startswith(session):
                    self._kept.pop(digest).prepared.close()

    def may_write(self) -> bool:
        """Whether one more line may go into the audit log in this minute; it counts as written."""
        with self._lock:
            now_s = self._clock_s()
            while self._written and self._written[0] <= now_s - 60:
                self._written.popleft()
            if len(self._written) >= PER_MINUTE:
                return False
            self._written.append(now_s)
            return True

    def close(self) -> None:
        """Forget all of them."""
        self.end_session("")

    def _sweep(self) -> None:
        now_s = self._clock_s()
        for digest, kept in list(self._kept.items()):
            if kept.until_s <= now_s:
                self._kept.pop(digest).prepared.close()


def new_id() -> str:
    return secrets.token_urlsafe(24)


def digest_of(plan_id: str) -> str:
    return hashlib.sha256(plan_id.encode("utf-8", "surrogatepass")).hexdigest()
