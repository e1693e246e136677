# SPDX-License-Identifier: Apache-2.0
"""Keeps a guardian running for the daemon: starts one where one is wanted, and another when it has died.

A start is waited for, because a hold must not be older than its guardian. That takes 60 ms, or seconds where something
is wrong: who calls :meth:`GuardianKeeper.start` lets everybody go first. After a failure it is tried again in
1, 2, 4 ... 60 seconds. Meanwhile ``auto`` holds unguarded and says so; ``required`` holds nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fairsched.errors import FairschedError
from fairsched.guardian.process import Guardian

_FIRST_WAIT_NS = 1_000_000_000
_LONGEST_WAIT_NS = 60_000_000_000
_FIRST_START_S = 20.0
_START_S = 5.0
"""Waited for a guardian in the loop; longer at the start of the daemon, when nobody else waits."""

logger = logging.getLogger(__name__)


class GuardianKeeper:
    """Starts the guardian, and again when it died.

    Call :meth:`is_due` about once a second, and :meth:`start` when it says so. Call :meth:`stop` when no tenant is held
    any more.
    """

    def __init__(
        self,
        mechanism: str,
        journal_directory: str,
        *,
        make: Callable[[str], Guardian] = Guardian,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._mechanism = mechanism
        self._guardian = make(journal_directory)
        self._clock_ns = clock_ns
        self._error: FairschedError | None = None
        """Why there is none although one is wanted."""
        self._next_start_ns = 0
        self._wait_ns = _FIRST_WAIT_NS

    @property
    def pid(self) -> int | None:
        return self._guardian.pid

    def fileno(self) -> int:
        """Readable when it died; another number after each start."""
        return self._guardian.fileno()

    @property
    def is_lacking(self) -> bool:
        """Whether no tenant may be held, because the guardian is required and is not there."""
        return self._error is not None and self._mechanism == "required"

    @property
    def warning(self) -> str | None:
        """What follows from a missing guardian, for the status; None where one lives or none is wanted."""
        if self._error is None:
            return None
        if self.is_lacking:
            return f"nobody is held, because mechanisms.guardian is required: {self._error}"
        return f"what is held would stay frozen if the daemon died: {self._error}"

    def is_due(self, *, is_wanted: bool) -> bool:
        """Whether to start one now. ``is_wanted``: people may be held; one that was started is kept alive."""
        if self._mechanism == "off" or not (is_wanted or self._guardian.pid is not None):
            self._error, self._next_start_ns, self._wait_ns = None, 0, _FIRST_WAIT_NS
            return False
        return self._clock_ns() >= self._next_start_ns and not self._guardian.is_alive()

    def start(self, *, is_first: bool = False) -> bool:
        """Start one and wait for it; False: it did not come up.

        Raises FairschedError where it is required and this ``is_first``: the daemon does not start without.
        """
        is_another = self._guardian.starts > 0
        try:
            self._guardian.start(_FIRST_START_S if is_first else _START_S)
        except FairschedError as error:
            if is_first and self._mechanism == "required":
                raise
            self._error = error
            self._next_start_ns = self._clock_ns() + self._wait_ns
            logger.error(
                "guardian=absent error=%r next_start_s=%d", str(error), self._wait_ns // 1_000_000_000
            )
            self._wait_ns = min(2 * self._wait_ns, _LONGEST_WAIT_NS)
            return False
        if is_another:
            logger.warning("guardian=restarted pid=%s", self._guardian.pid)
        self._error, self._next_start_ns, self._wait_ns = None, 0, _FIRST_WAIT_NS
        return True

    def stop(self) -> None:
        """Let it go, and wait for that."""
        self._guardian.stop()
