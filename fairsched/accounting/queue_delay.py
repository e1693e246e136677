# SPDX-License-Identifier: Apache-2.0
"""Queue delays: what is counted, and totals by tenant that never fall.

What. The hardware runs contexts in turn, so work waits before each turn, not once. A queue delay is how long a context
with work waited for one turn, which is a slice and a switch. When a burst is proven complete, BPF knows how long it was
open (W) and what it was charged (S, by the processor-sharing clock). It took k = ceil(S / turn) turns, so k waits of
(W - S) / k are counted (bpf/delay.h). With n equal contexts at work each is that of n - 1 turns.

Not seen: which turns of a burst waited longer than their mean, since nothing tells when a kernel starts; work that is
never proven complete, until it is (what was open when its tenant was held ends with the estimated end of the drain);
and the time for which a hold keeps a program from launching, since there is no work yet. A turn is the configured one
(gpu.timeslice_us, gpu.switch_us): where slices are half as long, half as many waits are counted, each twice as long.

Totals. BPF keeps a histogram per cgroup and GPU. Problem: cgroups come and go below a tenant, and what a tenant waited
must not become less when one goes. So whoever asks for the totals also takes in what cgroups that are gone had counted,
and the map gets their entries back. Nothing is done between two questions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import add
from typing import Protocol


class _Key(Protocol):
    cgroup_id: int
    gpu: int


class _Delay(Protocol):
    bucket: Sequence[int]
    sum_ns: int


Counts = list[int]
"""The buckets, and the sum of all waits in ns behind them."""
_Place = tuple[int, int]
"""(cgroup id, GPU slot): a key of the map."""


class DelayBook:
    """Queue delays by (tenant, GPU slot) since the daemon started."""

    def __init__(self) -> None:
        self._settled: dict[tuple[str, int], Counts] = {}
        """Of cgroups that are gone."""
        self._last: dict[_Place, tuple[str, Counts]] = {}
        """What each entry of the map said last time, and whose it was."""
        self._places: list[_Place] = []
        """All entries of the last reading, also of cgroups that belong to nobody."""
        self._missing: set[_Place] = set()
        """Of these, whose cgroup was not there the last time that was asked."""

    def read(
        self,
        delays: Iterable[tuple[_Key, _Delay]],
        tenant_of: Callable[[int], str | None],
        tenants: Collection[str],
    ) -> dict[tuple[str, int], Counts]:
        """Totals by (tenant, GPU slot). ``tenants``: all there are; what is kept of others is forgotten."""
        now: dict[_Place, tuple[str, Counts]] = {}
        places = []
        for key, delay in delays:
            place = (key.cgroup_id, key.gpu)
            places.append(place)
            known = self._last.get(place)
            tenant = tenant_of(key.cgroup_id) or (known[0] if known else None)
            if tenant is not None:
                counts = list(
                    delay.bucket[:]
                )  # of a ctypes array a slice is five times as quick as its items
                counts.append(delay.sum_ns)
                now[place] = (tenant, counts)
        for place, (tenant, counts) in self._last.items():
            if place not in now:
                self._settle(tenant, place[1], counts)
            elif (
                now[place][1][-1] < counts[-1]
            ):  # a new entry under the same key: the probes were loaded again
                self._settle(tenant, place[1], counts)
        self._last, self._places = now, places
        self._settled = {key: counts for key, counts in self._settled.items() if key[0] in tenants}
        total = {key: counts[:] for key, counts in self._settled.items()}
        for place, (tenant, counts) in now.items():
            _add(total, (tenant, place[1]), counts)
        return total

    @property
    def entries(self) -> int:
        """Of the map, as of the last reading."""
        return len(self._places)

    def gone(self, is_there: Callable[[int], bool]) -> list[_Place]:
        """Keys of the last reading whose cgroup is there no more: their entries may be deleted.

        One that was nobody's may be too new to be known: it has to be missing twice.
        """
        missing = {place for place in self._places if not is_there(place[0])}
        known = missing & (self._last.keys() | self._missing)
        found = [place for place in self._places if place in known]
        self._missing = missing
        return found

    def _settle(self, tenant: str, slot: int, counts: Counts) -> None:
        _add(self._settled, (tenant, slot), counts)


def _add(total: dict[tuple[str, int], Counts], key: tuple[str, int], counts: Counts) -> None:
    known = total.get(key)
    total[key] = counts[:] if known is None else [*map(add, known, counts)]
