# SPDX-License-Identifier: Apache-2.0
"""The rungs: fairsched with other eyes and other hands (pure).

Problem. The same promise is kept on an account of NVML's samples and with SIGSTOP, only worse; how much worse is to be
measured on the same scenarios.

Approach. A rung is a policy with a name of its own: ``fairsched``, the source unless it is ebpf, the brake unless it
is freezer. On samples more is played before measuring starts, and longer, as chance has to even out.

Terms. source: where the account comes from. brake: what holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

SOURCES = ("ebpf", "trace", "nvml", "nvml-accounting", "dcgm")
"""trace: the GPU's own of context switches, alone. nvml: its samples. nvml-accounting: the same with its accounting
mode on. dcgm: samples, scaled to a GPU's load."""
BRAKES = ("freezer", "freezer_v1", "sigstop")
OURS = "fairsched"
TRACED = "fairsched-traced"
"""fairsched with the GPU's own trace of context switches."""
_SETTLE_SAMPLED_S = 25.0
"""Until what chance makes of samples can be told from a wrong share."""
_LEAST_SAMPLED_S = 20.0
"""Two windows of the law on samples."""
_LEAST_S = 12.0
"""A tenant counts as locked out after ten."""


@dataclass(frozen=True)
class Rung:
    """One of SOURCES and one of BRAKES."""

    source: str = "ebpf"
    brake: str = "freezer"

    @property
    def policy(self) -> str:
        """Its name in files of results and on the command line."""
        parts = [
            OURS,
            *([self.source] * (self.source != "ebpf")),
            *([self.brake] * (self.brake != "freezer")),
        ]
        return "-".join(parts)

    @property
    def is_sampled(self) -> bool:
        return self.source not in ("ebpf", "trace")

    @property
    def settle_s(self) -> float:
        """Played at least before measuring starts."""
        return _SETTLE_SAMPLED_S if self.is_sampled else 0.0

    @property
    def least_s(self) -> float:
        """Measured at least by the suite of rungs."""
        return _LEAST_SAMPLED_S if self.is_sampled else _LEAST_S


ALL = {rung.policy: rung for rung in (Rung(source, brake) for source in SOURCES for brake in BRAKES)}
"""By policy."""
SUITE = (
    Rung("dcgm"),
    Rung("nvml-accounting"),
    Rung("nvml"),
    Rung("trace"),
    Rung(brake="freezer_v1"),
    Rung(brake="sigstop"),
)
"""What `--suite rungs` plays: each source by itself, and each brake with the best source."""
SAMPLED = Rung("nvml").policy
_NEED_PROCESSORS = ("hostile-fork-storm", "hostile-starve-cpu", "tenants-32")
"""Scenarios whose tenants would starve beside others."""


def least_s(policy: str) -> float:
    """Measured at least by the suite of rungs; 0 for a policy that is none."""
    rung = ALL.get(policy)
    return 0.0 if rung is None else rung.least_s


class _Job(Protocol):
    """Of benchmarks/fairness.py."""

    @property
    def file(self) -> Path: ...
    @property
    def play(self) -> Any: ...
    @property
    def policy(self) -> str: ...
    @property
    def seed(self) -> int: ...


_J = TypeVar("_J", bound=_Job)


def batches(jobs: Sequence[_J]) -> list[tuple[_J, ...]]:
    """What is played at the same time, in order: what may be played beside others is played beside the other rungs of
    its scenario and seed, on samples beside samples, with probes beside probes. On samples nothing is timed finely, so
    there it is every scenario that leaves processors to others."""
    found: dict[tuple[Any, ...], tuple[_J, ...]] = {}
    for number, job in enumerate(jobs):
        is_beside = job.policy in ALL and (
            job.play.scenario.beside_others
            or (ALL[job.policy].is_sampled and job.play.name not in _NEED_PROCESSORS)
        )
        key = (job.file, job.seed, ALL[job.policy].is_sampled) if is_beside else (number,)
        found[key] = (*found.get(key, ()), job)
    return list(found.values())
