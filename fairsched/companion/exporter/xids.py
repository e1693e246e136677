# SPDX-License-Identifier: Apache-2.0
"""Counts the errors that the driver reports of GPUs (Xid), for the exporter's pages.

Problem. NVML tells a report to who waits for it just then; and neither the daemon's tick nor a page may wait. GPUs and
the driver may come later than the companion. An alert must be able to tell "none was reported" from "nobody listens".

Approach. gpu/health.py waits in a thread of its own. Another one looks every LOOK_S whether NVML works and all GPUs are
waited for, and begins anew where they are not; what was counted stays. A GPU whose reports come here has a series of
each Xid of the hardware from the first page on, 0 or not, and of others once they came. Where NVML has no reports (an
old driver, WSL) there is no series: the log and ``fairsched doctor`` say why.

Counts are of this process: what was reported before it began, or while a watch began anew (milliseconds), is in
``dmesg`` only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fairsched.base.beside import Poller
from fairsched.gpu.health import UNWELL_XIDS, XidWatch
from fairsched.gpu.nvml import Nvml

FAMILY = "fairsched_gpu_xid_errors"
LOOK_S = 60.0

Row = tuple[str, tuple[str, ...], float]


class XidRows:
    """The rows of a page. Close it in the end."""

    def __init__(self, open_nvml: Callable[[], Nvml] = Nvml, look_s: float = LOOK_S) -> None:
        self._watch = XidWatch(UNWELL_XIDS, time.monotonic, open_nvml=open_nvml)
        self._poller = Poller("xids", self.look, lambda: look_s, "reports of errors (Xid)")
        self._poller.ask()

    def rows(self) -> list[Row]:
        """How often each Xid was reported; of a GPU that is not listened to nothing."""
        watched = self._watch.watched()
        none = {(uuid, xid): 0 for uuid in sorted(watched) for xid in UNWELL_XIDS}
        found = none | self._watch.counts()
        return [(FAMILY, (uuid, str(xid)), count) for (uuid, xid), count in found.items() if uuid in watched]

    def close(self) -> None:
        """End the threads; NVML is let go of unless it hangs."""
        if self._poller.close():
            self._watch.close()

    def look(self) -> None:
        """Listen to every GPU that there is. Asks NVML, as long as it takes; the thread does."""
        nvml = self._watch.nvml
        if (nvml is not None and nvml.error is None) or self._watch.reopen():
            self._watch.follow()
