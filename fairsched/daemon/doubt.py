# SPDX-License-Identifier: Apache-2.0
"""Shows the watchdog of the policy each GPU, says what it finds, and has the account learn anew.

While somebody is held the load of the GPUs is asked for four times a second, beside the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from fairsched.accounting.context import ProcessUse
from fairsched.gpu.nvml import gpu_label
from fairsched.model import Hold
from fairsched.observe.sensors import Sensors
from fairsched.policy.lag import Gate
from fairsched.policy.watchdog import WINDOW_NS, WINDOWS, Doubt, Look, begun_anew, is_due, watch

_ASK_ON_NS = 2 * WINDOWS * WINDOW_NS
"""After the last hold: most are short, and the next one comes soon."""

logger = logging.getLogger(__name__)


class AccountWatch:
    """Call :meth:`poll` at each tick."""

    def __init__(self, sensors: Sensors, holds: Mapping[str, Hold]) -> None:
        """``holds``: ours at any time, by tenant; not a copy."""
        self._sensors, self._holds = sensors, holds
        self.doubts: dict[int, Doubt] = {}
        """By GPU slot."""
        self._held_ns: int | None = None
        """When somebody was last held."""

    def poll(
        self,
        now_ns: int,
        interval_ns: int,
        rows: Iterable[ProcessUse],
        gates: Mapping[str, Gate],
    ) -> frozenset[str]:
        """The UUIDs of GPUs on which nobody is to be held now. ``gates``: of the interval."""
        sensors = self._sensors
        has_account = sensors.account is not None
        if self._holds and has_account:
            self._held_ns = now_ns
        elif self._held_ns is not None and (not has_account or now_ns - self._held_ns > _ASK_ON_NS):
            self._held_ns = None
            self.doubts = {slot: begun_anew(doubt) for slot, doubt in self.doubts.items()}
        sensors.watch_loads(is_wanted=self._held_ns is not None)
        if not has_account:
            return frozenset()
        if self._held_ns is not None:
            self._look(now_ns, interval_ns, rows, gates)
        return frozenset(
            gpu_label(sensors.gpus, slot) for slot, doubt in self.doubts.items() if now_ns < doubt.until_ns
        )

    def _look(
        self,
        now_ns: int,
        interval_ns: int,
        rows: Iterable[ProcessUse],
        gates: Mapping[str, Gate],
    ) -> None:
        sensors = self._sensors
        claimed: dict[int, int] = {}
        for row in rows:
            claimed[row.gpu] = claimed.get(row.gpu, 0) + row.used_ns
        held_for = {
            gates[name].hold_gpu for name in self._holds if name in gates and not gates[name].is_quota
        }
        for slot in range(max(1, len(sensors.gpus))):
            before = self.doubts.get(slot, Doubt())
            is_silent = is_due(before, interval_ns) and bool(sensors.silent_contexts(slot, now_ns))
            look = Look(
                interval_ns=interval_ns,
                claimed_ns=claimed.get(slot, 0),
                is_held=gpu_label(sensors.gpus, slot) in held_for,
                is_open=not sensors.is_idle(slot),
                loads=sensors.take_loads(slot),
                is_silent=is_silent,
            )
            after = self.doubts[slot] = watch(look, before, now_ns)
            if after.times != before.times:
                self._contradicted(slot, after, now_ns)

    def _contradicted(self, slot: int, doubt: Doubt, now_ns: int) -> None:
        ended = self._sensors.doubt(slot, now_ns)
        label = gpu_label(self._sensors.gpus, slot)
        logger.warning("gpu=%s account=contradicted %s claims_ended=%d", label, doubt.said, ended)
