# SPDX-License-Identifier: Apache-2.0
"""Puts the sources of GPU time of this host in order, with what each promises and what keeps it away (pure).

Problem. "account: nvml" does not say what that costs, nor what would change it.

Approach. A row for each source: whether it is in use, how far shares may be off on it over a second, ten and a minute,
and why it is not taken. What would lift the host by a rung is the obstacle of the best source above the one in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairsched.accounting.error import probed_points, sampled_points
from fairsched.host.choose import choose, dcgm_obstacle, ebpf_obstacle, nvml_obstacle, obstacle_of
from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.config import Config
    from fairsched.host.facts import HostFacts

WINDOWS_S = (1, 10, 60)


@dataclass(frozen=True)
class Rung:
    """One source of GPU time."""

    source: Source
    is_in_use: bool
    error_points: tuple[float, ...]
    """Over each of WINDOWS_S, in 19 of 20 windows; of an absolute time, on a partly idle GPU, only DCGM's is scaled."""
    obstacle: str | None
    """Why it cannot be used, or nobody is held on it; None: nothing is in the way."""


def ladder(facts: HostFacts, config: Config) -> tuple[Rung, ...]:
    """Best first."""
    used = choose(facts, config).source
    obstacles = {
        Source.EBPF: ebpf_obstacle(facts, config),
        Source.DCGM: dcgm_obstacle(facts, config),
        Source.NVML: nvml_obstacle(facts, config),
    }
    return tuple(
        Rung(source, source is used, _points(source), obstacle or obstacle_of(source, config))
        for source, obstacle in obstacles.items()
    )


def _points(source: Source) -> tuple[float, ...]:
    of = sampled_points if source.is_sampled else probed_points
    return tuple(of(window_s) for window_s in WINDOWS_S)
