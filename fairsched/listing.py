# SPDX-License-Identifier: Apache-2.0
"""The processes NVML lists on the GPUs and their memory, asked for beside the loop (see sightings.py for why).

A GPU that gives no answer has not become empty: what was last known of it stands, less the processes that have ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fairsched.cgroup.journal import Owner
from fairsched.gpu import Nvml

_POLL_S = 0.5
_CLOSE_S = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """One process on one GPU."""

    owner: Owner
    slot: int
    cgroup_id: int
    vram_bytes: int


class Listing:
    """The thread. ``cgroup_of`` tells the cgroup id of a pid."""

    def __init__(self, nvml: Nvml, cgroup_of: Callable[[int], int | None], poll_s: float = _POLL_S) -> None:
        self._nvml, self._cgroup_of, self._poll_s = nvml, cgroup_of, poll_s
        self._known: tuple[Listed, ...] = ()
        self._found: tuple[Listed, ...] | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listing", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Listed, ...] | None:
        """The last answer, once; None: there is none since the call before."""
        found, self._found = self._found, None
        return found

    def poll(self) -> None:
        """Ask once. The thread does; tests do."""
        said = self._nvml.listed_by_slot()
        found = [one for one in self._known if one.slot not in said and one.owner.is_alive()]
        for slot, processes in said.items():
            for pid, vram_bytes in processes.items():
                owner, cgroup_id = Owner.of(pid), self._cgroup_of(pid)
                if owner is not None and cgroup_id is not None and vram_bytes is not None:
                    found.append(Listed(owner, slot, cgroup_id, vram_bytes))
        self._known = self._found = tuple(found)

    def _run(self) -> None:
        while not self._is_closing.wait(self._poll_s):
            try:
                self.poll()
            except Exception:
                logger.exception("nvml=failed: its list of processes is lost")

    def stop(self) -> None:
        """Ask no more; the thread ends by itself."""
        self._is_closing.set()

    def close(self) -> None:
        """End the thread, unless NVML keeps it."""
        self.stop()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.warning("nvml=hangs: left behind")
