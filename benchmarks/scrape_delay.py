# SPDX-License-Identifier: Apache-2.0
"""Is the exported queue delay the true one? The 99th percentile of both, side by side, per kind of work.

Problem: the exporter's histogram has the mean wait of each burst's turns, by the processor-sharing clock in BPF; the
truth is when the simulated GPU executed whose kernels.

Approach: decode, bursty and trainer share one GPU, observed and scheduled. Truth: a piece of work begins when its
program gives it to the GPU and ends when that program is told that it is done, both by the program's own log. In
between its context has turns, by the engine's list of stays: before each it waited since the one before, or since the
piece began; a stay longer than a turn is several, and only the first was waited for. A trainer, whose queue never
empties, is told of a step at a time: its pieces are from one such moment to the next. Exported: the growth of the
page's histogram, and its quantile as ``histogram_quantile`` works it out.
"""

from __future__ import annotations

import bisect
import itertools
import math
import socket
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.rig import BenchError, Rig, TenantLoad
from benchmarks.stats import percentile
from fairsched.companion.exporter.family import BOUNDS
from fairsched.config import Config
from fairsched.simgpu import PRESETS, GpuSpec, Residency, Step, Worker

KINDS = ("decode", "burst", "trainer")
MODES = ("observe", "enforce")
_Q = 0.99
_SETTLE_S = 3.0
_LOOK_S = 2.0
"""Between two readings of the engine's ring of stays, which holds some ten seconds."""
_TURN_NS = 1000 * (Config().gpu.timeslice_us + Config().gpu.switch_us)
_PAGE_S = 1.1
"""A page is shared for a second."""


@dataclass(frozen=True)
class Delay:
    """One tenant in one case."""

    case: str
    tenant: str
    turns: int
    """Waits that the truth knows."""
    counted: int
    """Those in the histogram."""
    true_p99_ms: float
    exported_p99_ms: float

    @property
    def buckets_off(self) -> int:
        """Buckets of the page between the two."""
        return bucket(self.exported_p99_ms) - bucket(self.true_p99_ms)


def bucket(ms: float) -> int:
    """The bucket of the page it falls into."""
    return bisect.bisect_right(BOUNDS, ms / 1e3, key=float)


def quantile_ms(buckets: Sequence[tuple[float, float]], q: float) -> float:
    """As ``histogram_quantile``: (upper bound in s, count of what was not longer), by bound. Raises ValueError."""
    total = buckets[-1][1]
    if not total:
        raise ValueError("nothing was counted")
    rank, below, start_s = q * total, 0.0, 0.0
    for bound_s, count in buckets:
        if count >= rank and count > below:
            if math.isinf(bound_s):
                return start_s * 1e3
            return (start_s + (bound_s - start_s) * (rank - below) / (count - below)) * 1e3
        below, start_s = count, bound_s
    return start_s * 1e3


def true_waits_ms(
    kind: str, steps: Sequence[Step], stays: Sequence[Residency], begin_ns: int, end_ns: int, turn_ns: int
) -> list[float]:
    """How long each turn was waited for, of work that ended in the window; ``stays`` of its context, in order."""
    spans = [(step.end_ns - step.latency_ns, step.end_ns) for step in steps]
    if kind == "trainer":
        spans = [(earlier[1], later[1]) for earlier, later in itertools.pairwise(spans)]
    ends = [stay.end_ns for stay in stays]
    found: list[float] = []
    for start, end in spans:
        if start < begin_ns or end > end_ns:
            continue
        free_ns = start
        for stay in itertools.islice(stays, bisect.bisect_right(ends, start), None):
            if stay.start_ns >= end:
                break
            found.append(max(0, stay.start_ns - free_ns) / 1e6)
            free_ns = min(stay.end_ns, end)
            found += [0.0] * ((free_ns - max(stay.start_ns, start) - 1) // turn_ns)
    return found


class _Page:
    """The histograms of a page, by tenant: bound in s -> count."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def read(self) -> dict[str, dict[float, float]]:
        time.sleep(_PAGE_S)
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            text = answer.read().decode()
        found: dict[str, dict[float, float]] = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                if one.name == "fairsched_queue_delay_seconds_bucket":
                    mine = found.setdefault(one.labels["tenant"], {})
                    bound_s = float(one.labels["le"])
                    mine[bound_s] = mine.get(bound_s, 0.0) + one.value
        return found


def _grown(before: Mapping[float, float], after: Mapping[float, float]) -> list[tuple[float, float]]:
    return [(bound_s, count - before.get(bound_s, 0.0)) for bound_s, count in sorted(after.items())]


def measure_delays(directory: Path, seconds: float, seed: int, modes: Sequence[str] = MODES) -> list[Delay]:
    """Every tenant of every case. Raises BenchError when a histogram does not grow."""
    loads = [
        TenantLoad(kind, PRESETS[kind], 1.0, "batch" if kind == "trainer" else "latency") for kind in KINDS
    ]
    found: list[Delay] = []
    for mode in modes:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        with Rig(GpuSpec(), build_dir=directory) as rig:
            tenants = {
                load.name: {
                    "weight": load.weight,
                    "class": load.tenant_class,
                    "cgroup": rig.cgroup_path(load.name).lstrip("/"),
                }
                for load in loads
            }
            document = {"mode": mode, "tenants": tenants, "metrics": {"listen": f":{port}"}}
            with rig.daemon_of(document), rig.tenants(loads, seed) as workers:
                found += _measure(rig, mode, workers, _Page(port), seconds)
    return found


def _measure(
    rig: Rig, mode: str, workers: Mapping[str, list[Worker]], page: _Page, seconds: float
) -> Iterable[Delay]:
    time.sleep(_SETTLE_S)
    seen = rig.host.residencies_since(0, 0).count
    since = {name: group[0].step_count() for name, group in workers.items()}
    before, begin_ns = page.read(), time.monotonic_ns()
    stays: list[Residency] = []
    while time.monotonic_ns() - begin_ns < seconds * 1e9:
        time.sleep(_LOOK_S)
        new = rig.host.residencies_since(0, seen)
        seen, stays = new.count, [*stays, *new.stays]
        if new.lost:
            raise BenchError(f"{new.lost} stays were overwritten before they were read")
    end_ns, after = time.monotonic_ns(), page.read()
    stays += rig.host.residencies_since(0, seen).stays
    for kind, group in workers.items():
        mine = {context.id for context in rig.host.truth_of(group[0])}
        own = [stay for stay in stays if stay.context_id in mine]
        waits = true_waits_ms(kind, group[0].steps(since[kind]), own, begin_ns, end_ns, _TURN_NS)
        buckets = _grown(before.get(kind, {}), after.get(kind, {}))
        if kind == "trainer" and waits and not (buckets and buckets[-1][1]):
            print(
                f"{mode}: the queue of the trainer never empties: no queue delay is on record",
                file=sys.stderr,
            )
            continue
        if not waits or not buckets or not buckets[-1][1]:
            raise BenchError(f"{kind}, {mode}: {len(waits)} waits, and none in the histogram")
        yield Delay(
            case=mode,
            tenant=kind,
            turns=len(waits),
            counted=round(buckets[-1][1]),
            true_p99_ms=percentile(waits, _Q),
            exported_p99_ms=quantile_ms(buckets, _Q),
        )
