# SPDX-License-Identifier: Apache-2.0
"""Does everybody get what was promised?

Two sets: weights 4:2:1 of decoders beside a greedy trainer (1: three processes, deep queues), without a daemon and
with it; and four equal decoders.

Used is how long each had the GPU, where that is known (hosts.py: the GPU's own trace, or the simulated GPU). Elsewhere
it is what was *worked*: steps times the cost of a step alone, which overestimates a model that is launched more slowly
than it runs, because others use its gaps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.arithmetic import cv_in_time
from benchmarks.gpu.figures import Figure, measured, not_possible
from benchmarks.gpu.hosts import Crew, Host, Load, logs_of
from benchmarks.gpu.windows import costs_alone, everyone, wait_logged, work_ns
from benchmarks.rig import SETTLE_SAMPLED_S
from benchmarks.stats import Window, share_errors_points, shares

WEIGHTED = (
    Load("gold", "decode", 4),
    Load("silver", "decode", 2),
    Load("bronze", "decode", 1),
    Load("greedy", "trainer", 1, "batch", processes=3, queue_ms=40),
)
EQUAL = tuple(Load(name, "decode") for name in ("north", "east", "south", "west"))
_SETTLE_S = 2.0


def measure(host: Host, seconds: float) -> list[Figure]:
    costs = costs_alone(host, WEIGHTED, min(seconds, 5.0))
    with host.tenants(WEIGHTED) as crew:
        free = _look(host, crew, costs, seconds)
    settle_s = _SETTLE_S if host.source != "nvml" else SETTLE_SAMPLED_S
    with host.daemon("enforce", WEIGHTED), host.tenants(WEIGHTED) as crew:
        held = _look(host, crew, costs, seconds, settle_s)
    found = _shares(free, held)
    if host.source != "ebpf":
        return [*found, not_possible("token_cv_time", f"left out: the account is {host.source}")]
    return [*found, _equal(host, seconds)]


@dataclass(frozen=True)
class _Look:
    """What each did in a window, in seconds of GPU per second."""

    worked: dict[str, float]
    had: dict[str, float] | None
    """None = nobody knows."""

    @property
    def used(self) -> dict[str, float]:
        return self.worked if self.had is None else self.had


def _look(
    host: Host, crew: Crew, costs: Mapping[str, float], seconds: float, settle_s: float = _SETTLE_S
) -> _Look:
    time.sleep(settle_s)
    before = {name: host.exec_ns(members) for name, members in crew.items()}
    window = _window(crew, seconds)
    length_ns = window[1] - window[0]
    had = {}
    for name, members in crew.items():
        begin, end = before[name], host.exec_ns(members)
        if begin is not None and end is not None:
            had[name] = (end - begin) / length_ns
    worked = {name: ns / length_ns for name, ns in work_ns(crew, costs, window).items()}
    return _Look(worked, had if len(had) == len(crew) else None)


def _window(crew: Crew, seconds: float) -> Window:
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    end_ns = time.monotonic_ns()
    wait_logged(everyone(crew), end_ns)
    return start_ns, end_ns


def _shares(free: _Look, held: _Look) -> list[Figure]:
    weights = {load.name: load.weight for load in WEIGHTED}
    errors = share_errors_points(held.used, weights)
    known = "of the work" if held.had is None else "of the time by the GPU's own account"
    got = " ".join(f"{name} {share:.3f}" for name, share in shares(held.used).items())
    found = [
        measured(
            "share_error_points",
            max(map(abs, errors.values())),
            f"{known}: {got}; without fairsched {_plain(free.used)}; of the work {_plain(held.worked)}",
        )
    ]
    if sum(free.used.values()) > 0:
        ratio = sum(held.used.values()) / sum(free.used.values())
        found.append(measured("busy_ratio", ratio, f"the same set, {known}"))
    else:
        found.append(not_possible("busy_ratio", "nobody worked"))
    return found


def _plain(used: Mapping[str, float]) -> str:
    return " ".join(f"{share:.3f}" for share in shares(used).values())


def _equal(host: Host, seconds: float) -> Figure:
    with host.daemon("enforce", EQUAL), host.tenants(EQUAL) as crew:
        time.sleep(_SETTLE_S)
        window = _window(crew, max(seconds, 3.0))
        return judge_equal({name: cv_in_time(logs_of(members), window) for name, members in crew.items()})


def judge_equal(variation: dict[str, float | None]) -> Figure:
    """The worst of the equal ones (pure)."""
    known: Sequence[float] = [cv for cv in variation.values() if cv is not None]
    if len(known) < len(variation):
        return not_possible("token_cv_time", "a tenant made no token in this time")
    note = ", ".join(f"{name} {100 * cv:.2f} %" for name, cv in variation.items() if cv is not None)
    return measured("token_cv_time", max(known), note)
