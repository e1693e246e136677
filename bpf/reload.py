# SPDX-License-Identifier: Apache-2.0
"""Replaces lost probes beside the loop of the daemon.

It takes seconds, in a child, and the loop goes on meanwhile: a thread here waits for the old process to end and for the
new one to be ready.
"""

from __future__ import annotations

import logging
import threading

from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.errors import FairschedError

_RELOADS = 3
"""Tries in a row. Then it is better to go on without, or to end and be started again by whoever started us."""

logger = logging.getLogger(__name__)


class ProbeReload:
    """Begins at once."""

    def __init__(self, lost: GpuTimeProbe | None) -> None:
        self._lost = lost
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._probe: GpuTimeProbe | None = None
        self._error: Exception | None = None
        # A daemon thread: who ends us does not wait for a compiler, which sees its socket closed and ends, too.
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._lost is not None:
            self._lost.close()
        for left in reversed(range(_RELOADS)):
            try:
                probe = GpuTimeProbe()
            except (FairschedError, OSError) as error:
                self._error = error
                logger.error("probes=refused tries_left=%d error=%r", left, str(error))
                continue
            with self._lock:
                self._probe = probe
                if self._is_abandoned:
                    probe.close()
            return

    def take(self) -> GpuTimeProbe | None:
        """The new ones; None while they are not ready. Raises FairschedError when there will be none."""
        if self._thread.is_alive():
            return None
        if self._probe is None:
            # Not HostUnsupported, after which no service manager tries again: this host could, a moment ago.
            raise FairschedError(
                f"the probes were lost and could not be put back: {self._error}",
                remedy="start the daemon again; fairsched doctor shows what this host can do",
            ) from self._error
        return self._probe

    def abandon(self) -> None:
        """Nobody will take them."""
        with self._lock:
            self._is_abandoned = True
            if self._probe is not None:
                self._probe.close()
