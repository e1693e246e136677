# SPDX-License-Identifier: Apache-2.0
"""Documents of runs that never were, for the tests of what is kept and shown."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

WHOLE: Mapping[str, float | None] = {
    "share_error_max_points": 0.4,
    "jain_1s_mean": 0.998,
    "jain_1s_worst": 0.99,
    "jain_10s_mean": 0.9995,
    "jain_10s_worst": 0.999,
    "lag_max_ns": 41e6,
    "tokens_cv_across_ratio": 0.004,
    "busy_ratio": 0.985,
    "held_ms_per_s": 410.0,
    "drain_overshoot_p95_ms": 3.0,
    "take_back_p95_ms": None,
    "take_back_beyond_drain_p95_ms": None,
    "hold_longest_ms": 210.0,
    "cpu_ratio": 0.021,
    "rss_bytes": 120e6,
    "account_error_max_ratio": 0.012,
    "account_error_sure_max_ratio": 0.034,
    "account_unsettled_s": 0.5,
    "held_unsettled_ms": 12.0,
}
LEAF: Mapping[str, float | None] = {
    "share_ratio": 0.25,
    "entitlement_ratio": 0.25,
    "share_error_points": 0.1,
    "tokens_per_s": 12.3,
    "tokens_cv_ratio": 0.012,
    "step_p50_ms": 80.1,
    "step_p99_ms": 95.4,
    "step_p50_vs_solo_ratio": 4.0,
    "step_p99_vs_solo_ratio": 4.5,
    "queue_delay_ms": 12.5,
    "held_ms_per_s": 120.0,
    "hold_longest_ms": 180.0,
    "gain_points": None,
    "account_error_ratio": 0.004,
    "account_error_sure_ratio": None,
    "account_error_sure_max_ratio": 0.03,
    "held_unsettled_ms": 3.0,
    "low_confidence_ratio": 0.0,
    "unsure_after_s": None,
    "misbehaviour_after_s": None,
    "misbehaviour_gone_after_s": None,
}
NAMES = ("chat", "code", "mail", "trainer")


def document(
    scenario: str = "seed-4",
    policy: str = "fairsched",
    seed: int = 1,
    *,
    whole: Mapping[str, float | None] | None = None,
    leaves: Mapping[str, Mapping[str, float | None]] | None = None,
    series: Mapping[str, Any] | None = None,
    **changed: Any,
) -> dict[str, Any]:
    """A run in which everything went well; ``whole`` and ``leaves`` say what did not."""
    given = leaves if leaves is not None else {name: {} for name in NAMES}
    return {
        "scenario": scenario,
        "policy": policy,
        "seed": seed,
        "seconds": 20.0,
        "machine": "A processor",
        "kernel": "6.18.0",
        "cpus": 2,
        "commit": "0123456789ab",
        "started": "2026-01-01T00:00:00+00:00",
        "settings_hash": "0123456789abcdef",
        "measures": {
            "whole": {**WHOLE, **(whole or {})},
            "leaves": {leaf: {**LEAF, **figures} for leaf, figures in given.items()},
        },
        "series": series or {},
        "notes": [],
        **changed,
    }


def series(
    shares: Mapping[str, float],
    due: Mapping[str, float],
    noise_ratio: float,
    rates: Mapping[str, float],
    seed: int,
) -> dict[str, Any]:
    """Twenty seconds of it, four samples a second."""
    chance = random.Random(seed)
    count = 80
    rows = []
    for _ in range(count):
        parts = [share * chance.gauss(1, noise_ratio) for share in shares.values()]
        rows.append([part / sum(parts) * sum(shares.values()) for part in parts])
    jain = [1 - abs(chance.gauss(0, noise_ratio / 4)) - _unfair(shares, due) for _ in range(count)]
    return {
        "at_s": [0.25 * (i + 1) for i in range(count)],
        "share": {leaf: [row[i] for row in rows] for i, leaf in enumerate(shares)},
        "entitlement": {leaf: [due[leaf]] * count for leaf in shares},
        "tokens_per_s": {
            leaf: [rates[leaf] * row[i] / share for row in rows]
            for i, (leaf, share) in enumerate(shares.items())
        },
        "jain_1s": jain,
        "latency_cdf_ms": {leaf: _cdf(1000 / rates[leaf], noise_ratio, chance) for leaf in shares},
    }


def _unfair(shares: Mapping[str, float], due: Mapping[str, float]) -> float:
    ratios = [shares[leaf] / due[leaf] for leaf in shares]
    return 1 - sum(ratios) ** 2 / (len(ratios) * sum(r * r for r in ratios))


def _cdf(median_ms: float, noise_ratio: float, chance: random.Random) -> Sequence[float]:
    return sorted(median_ms * math.exp(chance.gauss(0, noise_ratio)) for _ in range(101))
