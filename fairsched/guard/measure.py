# SPDX-License-Identifier: Apache-2.0
"""Measures what a subject uses of what a bound limits, in the round that was added up last (pure).

What is not known is never over: of a sum of which a part is not known, the known part counts and is said to be the
least. A GPU whose index is not known is meant by no index, and forbidden by none.

Units: bytes, counts, seconds, Unix seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from fairsched.guard.breach import What
from fairsched.guard.ledger import Ledger
from fairsched.guard.rules import Bound
from fairsched.guard.subjects import Gpus
from fairsched.guard.tally import CONTEXTS, CONTEXTS_UNKNOWN, PROCESSES, VRAM, VRAM_UNKNOWN, Cell, Row, Sum

COLUMNS = {
    What.VRAM: (VRAM, VRAM_UNKNOWN),
    What.CONTEXTS: (CONTEXTS, CONTEXTS_UNKNOWN),
    What.PROCESSES: (PROCESSES, None),
}
"""Of a cell: what is known, and of how many it is not."""
Amount = tuple["str | None", float, bool]
"""GPU (None = all together), what is used, whether it may be more."""


class Measure:
    """Asked about one subject and one bound."""

    def __init__(self, gpus: Gpus, ledger: Ledger) -> None:
        self._gpus, self._ledger = gpus, ledger
        self._open: dict[int, tuple[float, float, bool]] = {}
        """By bound: between these moments its hours are open, or not."""

    def set_back(self) -> None:
        """The clock shows less than before."""
        self._open.clear()

    def excesses(self, one: Sum, bound: Bound, t_s: float) -> Iterator[Amount]:
        """Where it is over."""
        if bound.amount is None:
            if self.offending(one, bound, t_s):
                yield None, 0.0, False
            return
        for gpu, used, is_least in self.amounts(one, bound, t_s):
            if used <= bound.amount:
                continue
            if bound.what is not What.GPU_SECONDS or any(
                not seat.is_allowed for seat, _, _ in one.rows(self.counted(bound, gpu))
            ):
                yield gpu, used, is_least

    def counted(self, bound: Bound, gpu: str | None) -> Collection[str] | None:
        """Which GPUs count; None = all."""
        if gpu is not None:
            return (gpu,)
        return None if bound.gpus is None else self._gpus.meant(bound.gpus)

    def amounts(self, one: Sum, bound: Bound, t_s: float) -> Iterator[Amount]:
        """What is used, of each GPU or of all together."""
        counted = self.counted(bound, None)
        if bound.what is What.GPU_SECONDS:
            use = self._ledger.used(one.key, str(bound.zone), t_s)
            if counted is None and not bound.each_gpu:
                yield None, use.get("", 0.0), False
                return
            by_gpu = {gpu: some for gpu, some in use.items() if gpu and (counted is None or gpu in counted)}
            if bound.each_gpu:
                yield from ((gpu, some, False) for gpu, some in by_gpu.items())
            else:
                yield None, math.fsum(by_gpu.values()), False
            return
        if not bound.each_gpu:
            cell = one.total if counted is None else one.sums(_mine(one, counted))
            yield None, *_column(cell, bound.what)
            return
        for gpu in one.gpus():
            if counted is None or gpu in counted:
                yield gpu, *_column(one.sums((gpu,)), bound.what)

    def offending(self, one: Sum, bound: Bound, t_s: float) -> list[Row]:
        """Who is where, or when, it may not be, but for those that are allowed."""
        counted = self.counted(bound, None)
        if bound.what is What.HOURS:
            if self._is_open(bound, t_s):
                return []
        elif bound.maintenance is not None and not is_due(bound, t_s):
            return []
        rows = [row for row in one.rows(counted) if not row[0].is_allowed]
        if bound.what is What.GPUS:
            may = self._gpus.meant(bound.allowed_gpus)
            rows = [
                row
                for row in rows
                if row[1].gpu not in may and not self._gpus.is_doubtful(bound.allowed_gpus, row[1].gpu)
            ]
        return rows

    def _is_open(self, bound: Bound, t_s: float) -> bool:
        assert bound.hours is not None
        known = self._open.get(id(bound))
        if known is None or not known[0] <= t_s < known[1]:
            change_s = bound.hours.next_change_s(t_s)
            end_s = math.inf if change_s is None else change_s
            known = self._open[id(bound)] = (t_s, end_s, bound.hours.is_open(t_s))
        return known[2]


def is_due(bound: Bound, t_s: float) -> bool:
    """Whether a window of maintenance is on, or so near that it is told of."""
    window = bound.maintenance
    return window is not None and window.begin_s - bound.warn_before_s <= t_s < window.end_s


def _mine(one: Sum, gpus: Collection[str]) -> Collection[str]:
    """Of these GPUs, those that the subject is about."""
    return gpus if one.gpu is None else tuple(gpu for gpu in gpus if gpu == one.gpu)


def _column(cell: Cell, what: What) -> tuple[float, bool]:
    column, unknown = COLUMNS[what]
    return cell[column], unknown is not None and cell[unknown] > 0
