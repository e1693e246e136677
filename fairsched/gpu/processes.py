# SPDX-License-Identifier: Apache-2.0
"""Lists the processes on the GPUs and their memory as NVML tells, asked beside the loop (see base/beside.py for why).

A GPU that gives no answer has not become empty: what was last known of it stands, less the processes that have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairsched.base.beside import Poller
from fairsched.base.process import ProcessId
from fairsched.gpu.nvml import Nvml

_POLL_S = 0.5


@dataclass(frozen=True)
class Listed:
    """One process on one GPU."""

    owner: ProcessId
    slot: int
    cgroup_id: int
    vram_bytes: int


class Listing:
    """Asks NVML which processes have memory, in a thread. ``cgroup_of`` tells the cgroup id of a pid."""

    def __init__(self, nvml: Nvml, cgroup_of: Callable[[int], int | None], poll_s: float = _POLL_S) -> None:
        self._nvml, self._cgroup_of = nvml, cgroup_of
        self._known: tuple[Listed, ...] = ()
        self._found: tuple[Listed, ...] | None = None
        self._poller = Poller("listing", self.poll, lambda: poll_s, "list of processes")

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
                owner, cgroup_id = ProcessId.of(pid), self._cgroup_of(pid)
                if owner is not None and cgroup_id is not None and vram_bytes is not None:
                    found.append(Listed(owner, slot, cgroup_id, vram_bytes))
        self._known = self._found = tuple(found)

    def stop(self) -> None:
        """Ask no more; the thread ends by itself."""
        self._poller.stop()

    def close(self) -> None:
        """End the thread, unless NVML keeps it."""
        self._poller.close()
