# SPDX-License-Identifier: Apache-2.0
"""Does everybody get what was promised? The fairness figures that need no truth: from the tenants' own logs.

Two sets: weights 4:2:1 of decoders beside a greedy trainer (1: three processes, deep queues), without a daemon and
with it; and four equal decoders. Used is what was *worked*: steps times the cost of a step alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.gpu.arithmetic import cv_in_time
from benchmarks.gpu.figures import Figure, measured, not_possible
from benchmarks.gpu.hosts import Crew, Host, Load, logs_of
from benchmarks.gpu.windows import costs_alone, everyone, wait_logged, work_ns
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
        free = work_ns(crew, costs, _window(crew, seconds))
    with host.daemon("enforce", WEIGHTED), host.tenants(WEIGHTED) as crew:
        held = work_ns(crew, costs, _window(crew, seconds))
    return [*_shares(free, held), _equal(host, seconds)]


def _window(crew: Crew, seconds: float) -> Window:
    time.sleep(_SETTLE_S)
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    end_ns = time.monotonic_ns()
    wait_logged(everyone(crew), end_ns)
    return start_ns, end_ns


def _shares(free: dict[str, float], held: dict[str, float]) -> list[Figure]:
    weights = {load.name: load.weight for load in WEIGHTED}
    errors = share_errors_points(held, weights)
    got = " ".join(f"{name} {share:.3f}" for name, share in shares(held).items())
    without = " ".join(f"{share:.3f}" for share in shares(free).values())
    found = [
        measured("share_error_points", max(map(abs, errors.values())), f"{got}; without fairsched {without}")
    ]
    if sum(free.values()) > 0:
        ratio = sum(held.values()) / sum(free.values())
        found.append(measured("busy_ratio", ratio, "the same set"))
    else:
        found.append(not_possible("busy_ratio", "nobody worked"))
    return found


def _equal(host: Host, seconds: float) -> Figure:
    with host.daemon("enforce", EQUAL), host.tenants(EQUAL) as crew:
        window = _window(crew, max(seconds, 3.0))
        return judge_equal({name: cv_in_time(logs_of(members), window) for name, members in crew.items()})


def judge_equal(variation: dict[str, float | None]) -> Figure:
    """The worst of the equal ones (pure)."""
    known: Sequence[float] = [cv for cv in variation.values() if cv is not None]
    if len(known) < len(variation):
        return not_possible("token_cv_time", "a tenant made no token in this time")
    note = ", ".join(f"{name} {100 * cv:.2f} %" for name, cv in variation.items() if cv is not None)
    return measured("token_cv_time", max(known), note)
