# SPDX-License-Identifier: Apache-2.0
"""What the daemon remembers: totals that survive restarts, and the recent past for ``status``.

Totals are GPU time in ns per (tenant, GPU UUID). While a daemon lives they never fall. They are written, with the
policy's debts and how the GPUs take turns, to ``state_dir/state.json`` every ten seconds and at the end, atomically:
after ``kill -9`` or a crash the next daemon goes on from what was written last, up to ten seconds earlier. Who reads
them as a Prometheus counter sees a reset. A damaged file is set aside and said so, because an account is worth less
than a node that schedules.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from fairsched.accounting.natures import Natures
from fairsched.model import Snapshot
from fairsched.policy.lag import PolicyState

VERSION = 1
WINDOW_NS = 10_000_000_000

logger = logging.getLogger(__name__)


class Ledger:
    """Totals by (tenant, GPU) and sums of the last ten seconds."""

    def __init__(self) -> None:
        self.total_ns: dict[tuple[str, str], int] = {}
        self.stranger_total_ns: dict[str, int] = {}
        self.natures = Natures()
        self.last: Snapshot | None = None
        """What was booked last."""
        self._recent: deque[tuple[int, int, dict[str, int], dict[str, int]]] = deque()

    def add(self, snapshot: Snapshot, strangers: dict[str, int]) -> None:
        """Book one snapshot; ``strangers`` is the GPU time in ns of no tenant's processes, by UUID."""
        self.last = snapshot
        used: dict[str, int] = dict(strangers)
        for use in snapshot.uses:
            key = (use.tenant, use.gpu)
            self.total_ns[key] = self.total_ns.get(key, 0) + use.used_ns
            used[use.gpu] = used.get(use.gpu, 0) + use.used_ns
        for gpu, ns in strangers.items():
            self.stranger_total_ns[gpu] = self.stranger_total_ns.get(gpu, 0) + ns
        self._recent.append((snapshot.now_ns, snapshot.interval_ns, used, strangers))
        while self._recent and snapshot.now_ns - self._recent[0][0] > WINDOW_NS:
            self._recent.popleft()

    def busy_ratio(self, gpu: str, window_ns: int, now_ns: int) -> tuple[float, float] | None:
        """(by anybody, by no tenant) parts of the last ``window_ns`` in which the GPU worked."""
        wall = busy = strange = 0
        for t_ns, interval_ns, used, strangers in reversed(self._recent):
            if now_ns - t_ns > window_ns:
                break
            wall += interval_ns
            busy += used.get(gpu, 0)
            strange += strangers.get(gpu, 0)
        return (min(1.0, busy / wall), min(1.0, strange / wall)) if wall else None


def load_state(path: Path, ledger: Ledger) -> PolicyState:
    """Totals and natures into ``ledger``; returns the policy's state. No file, or a damaged one, is a fresh start."""
    try:
        data = json.loads(path.read_text())
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}")
        totals = {(tenant, gpu): int(ns) for tenant, gpu, ns in data["total_ns"]}
        state = PolicyState.from_dict(data["policy"])
        ledger.natures.restore(data.get("natures", ()))  # a file of before they were remembered has none
    except FileNotFoundError:
        return PolicyState()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        aside = path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            path.replace(aside)
        logger.error("state=%s error=%r kept_as=%s totals=start_at_0", path, str(error), aside)
        return PolicyState()
    ledger.total_ns.update(totals)
    return state


def save_state(path: Path, ledger: Ledger, state: PolicyState) -> None:
    """Write everything, all or nothing. Raises OSError."""
    document: dict[str, Any] = {
        "version": VERSION,
        "total_ns": [[*key, ns] for key, ns in sorted(ledger.total_ns.items())],
        "policy": state.to_dict(),
        "natures": ledger.natures.to_list(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w") as file:
            json.dump(document, file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
