# SPDX-License-Identifier: Apache-2.0
"""What being observed costs a tenant: a decoder's tokens with the daemon observing and with none, in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.rig import Rig, TenantLoad
from benchmarks.stats import Window, tokens_per_s
from fairsched.simgpu import PRESETS

LOADS = (TenantLoad("decode", PRESETS["decode"]),)
_LAST_STEP_S = 0.1
"""Longer than a step: after it, the step across the last edge is in the log."""


@dataclass(frozen=True)
class Observing:
    """Tokens per second, per segment."""

    without: list[float]
    observed: list[float]
    ratio: float
    """Of the sums."""


def measure(rig: Rig, *, pairs: int, seconds: float, settle_s: float, seed: int) -> Observing:
    """``pairs`` segments of each, one process from beginning to end."""
    windows: dict[bool, list[Window]] = {False: [], True: []}
    with rig.tenants(LOADS, seed) as workers:
        time.sleep(settle_s)
        for number in range(pairs):
            # Without, with, with, without: a drift of the machine falls on both.
            for is_observed in ((False, True), (True, False))[number % 2]:
                windows[is_observed].append(_segment(rig, is_observed, seconds, settle_s))
        time.sleep(_LAST_STEP_S)
        steps = workers["decode"][0].steps()
    rates = {key: [tokens_per_s(steps, [window]) for window in found] for key, found in windows.items()}
    ratio = tokens_per_s(steps, windows[True]) / tokens_per_s(steps, windows[False])
    return Observing(rates[False], rates[True], ratio)


def _segment(rig: Rig, is_observed: bool, seconds: float, settle_s: float) -> Window:
    if not is_observed:
        return _wait(seconds, settle_s)
    with rig.daemon("observe", LOADS):
        return _wait(seconds, settle_s)


def _wait(seconds: float, settle_s: float) -> Window:
    time.sleep(settle_s)
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    return start_ns, time.monotonic_ns()
