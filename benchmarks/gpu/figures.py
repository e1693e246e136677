# SPDX-License-Identifier: Apache-2.0
"""The figures of the GPU checks, their bars and verdicts, and how they are shown (pure).

A figure that could not be had is *not possible* and says why: what was not measured is never met.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.bars import WIDTH, Side, noted, show

SECTIONS = ("coverage", "account", "freeze", "fairness")


class Verdict(str, enum.Enum):
    MET = "met"
    MISSED = "missed"
    NOT_POSSIBLE = "not possible"


@dataclass(frozen=True)
class Bar(Side):
    """What a figure must reach; ``limit`` None = it depends on the run and comes with the figure."""

    key: str
    section: str
    what: str
    limit: float | None
    is_upper: bool = True
    unit: str = "percent"
    """percent, points, count, ratio or ms."""


BARS = (
    Bar("coverage_spin_error", "coverage", "launches BPF counted / launches made, known number of kernels", 0.01),
    Bar("coverage_decode_error", "coverage", "the same, a decoder: per token, against the profiler's count", 0.01),
    Bar("coverage_graph_error", "coverage", "the same, a decoder as one CUDA graph per token", 0.01),
    Bar("coverage_trainer_error", "coverage", "the same, a trainer: forward, backward, update", 0.01),
    Bar("account_solo_error", "account", "GPU time accounted / run, each load alone, the worst", 0.05),
    Bar("account_share_error", "account", "account / tokens times a token's cost alone, side by side, the worst", 0.05),
    Bar("account_nvml_points", "account", "account against NVML's samples, share, the worst", None, unit="points"),
    Bar("account_truth_error", "account", "account / the GPU's own trace, side by side, the worst", 0.05),
    Bar("work_method_error", "account", "tokens times cost of a token alone / truth, share, the worst", 0.05),
    Bar("freeze_latency_ms", "freeze", "write to frozen, median; 300 threads", 10.0, unit="ms"),
    Bar("frozen_launches", "freeze", "launches of a frozen process, all holds", 0, unit="count"),
    Bar("frozen_returns", "freeze", "sync calls of a frozen process that returned, all holds", 0, unit="count"),
    Bar("drain_ratio", "freeze", "drain / queue asked for (200 ms): no more runs than was queued", 1.1, unit="ratio"),
    Bar("drain_least_ratio", "freeze", "the same, the shortest: queues go on while frozen", 0.3, False, "ratio"),
    Bar("thaw_latency_ms", "freeze", "thaw to the next launch, median; 300 threads", 30.0, unit="ms"),
    Bar("share_error_points", "fairness", "share of the GPU, weights 4:2:1:1, the worst", 1.5, unit="points"),
    Bar("token_cv_time", "fairness", "token/s in time, 1 s windows, four equal decoders, the worst", 0.03),
    Bar("busy_ratio", "fairness", "GPU in use, fairsched / none", 0.98, False, "ratio"),
)  # fmt: skip
_BY_KEY = {bar.key: bar for bar in BARS}


@dataclass(frozen=True)
class Figure:
    """One of :data:`BARS`, measured or not."""

    bar: Bar
    value: float | None
    note: str = ""
    """Where it comes from; of a figure that is not possible: why."""

    @property
    def verdict(self) -> Verdict:
        is_met = self.bar.is_met(self.value)
        return {None: Verdict.NOT_POSSIBLE, True: Verdict.MET, False: Verdict.MISSED}[is_met]

    def to_plain(self) -> dict[str, Any]:
        return {
            "section": self.bar.section,
            "value": self.value,
            "limit": self.bar.limit,
            "is_upper": self.bar.is_upper,
            "unit": self.bar.unit,
            "verdict": self.verdict.value,
            "what": self.bar.what,
            "note": self.note,
        }


def measured(key: str, value: float, note: str = "", *, limit: float | None = None) -> Figure:
    """``limit`` is for a bar that depends on the run."""
    bar = _BY_KEY[key]
    return Figure(bar if limit is None else replace(bar, limit=limit), value, note)


def not_possible(key: str, why: str) -> Figure:
    if not why:
        raise ValueError(f"{key}: say why")
    return Figure(_BY_KEY[key], None, why)


def complete(figures: Iterable[Figure], sections: Iterable[str], why: str) -> list[Figure]:
    """Every figure of the sections, in the order of the table; those nobody measured say ``why``."""
    found = {figure.bar.key: figure for figure in figures}
    wanted = set(sections)
    return [
        found.get(bar.key) or not_possible(bar.key, why)
        for bar in BARS
        if bar.section in wanted or bar.key in found
    ]


def exit_status(figures: Iterable[Figure]) -> int:
    """1 when a bar was missed; what was not possible fails nobody, and nothing at all is no success."""
    verdicts = [figure.verdict for figure in figures]
    return int(Verdict.MISSED in verdicts or Verdict.MET not in verdicts)


def render(figures: Iterable[Figure]) -> list[str]:
    lines = [f"{'figure':<26}{'value':>11}   {'bar':<12}  verdict", "-" * WIDTH]
    for figure in figures:
        bar = figure.bar
        limit = "" if bar.limit is None else f"{bar.sign} {show(bar.limit, bar.unit)}"
        value = show(figure.value, bar.unit)
        lines.append(f"{bar.key:<26}{value:>11}   {limit:<12}  {figure.verdict.value}")
        lines += noted(f"{bar.what}; {figure.note}" if figure.note else bar.what)
    return lines
