# SPDX-License-Identifier: Apache-2.0
"""Keeps what the daemon remembers: totals that survive restarts, and the recent past for ``status``.

Totals are GPU time in ns per (tenant, GPU UUID). While a daemon lives they never fall. They are written, with the
policy's debts, to ``state_dir/state.json`` every ten seconds and at the end, atomically:
after ``kill -9`` or a crash the next daemon goes on from what was written last, up to ten seconds earlier. Who reads
them as a Prometheus counter sees a reset. A damaged file is set aside and said so, because an account is worth less
than a node that schedules. Totals of tenants that are long gone are dropped (departed.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fairsched.base.saver import Saver
from fairsched.daemon.departed import Departed
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
        self.departed = Departed()
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

    def remembered_tenants(self) -> set[str]:
        return {tenant for tenant, _ in self.total_ns}

    def forget_tenants(self, names: Collection[str]) -> None:
        self.total_ns = {key: ns for key, ns in self.total_ns.items() if key[0] not in names}

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
    """Read totals into ``ledger``; returns the policy's state.

    No file, or a damaged one, is a fresh start.
    """
    try:
        data = json.loads(path.read_text())
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}")
        totals = {(tenant, gpu): int(ns) for tenant, gpu, ns in data["total_ns"]}
        state = PolicyState.from_dict(data["policy"])
        now_ns = time.monotonic_ns()
        # a file of before they were remembered has none
        since_ns = {name: now_ns - int(s * 1e9) for name, s in data.get("departed_s", {}).items()}
    except FileNotFoundError:
        return PolicyState()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        aside = path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            path.replace(aside)
        logger.error("state=%s error=%r kept_as=%s totals=start_at_0", path, str(error), aside)
        return PolicyState()
    ledger.total_ns.update(totals)
    ledger.departed.since_ns = since_ns
    return state


class StateFile:
    """Saves the ledger and the policy's state, beside the loop."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path, self._ledger = path, ledger
        self._saver = Saver(path, "state")

    def load(self) -> PolicyState:
        """What was saved last; see load_state."""
        return load_state(self._path, self._ledger)

    def save(self, state: PolicyState) -> None:
        """What is so now. While the disk is busy the newest of these waits, the others are left out."""
        self._saver.save(_to_text(self._ledger, state))

    def close(self) -> None:
        """Wait for what was saved last, but not for a disk that does not answer."""
        self._saver.close()


def _to_text(ledger: Ledger, state: PolicyState) -> str:
    now_ns = time.monotonic_ns()
    document: dict[str, Any] = {
        "version": VERSION,
        "total_ns": [[*key, ns] for key, ns in sorted(ledger.total_ns.items())],
        "departed_s": {name: (now_ns - ns) // 10**9 for name, ns in sorted(ledger.departed.since_ns.items())},
        "policy": state.to_dict(),
    }
    return json.dumps(document)  # in one piece: json.dump is written in Python, and takes many times as long
