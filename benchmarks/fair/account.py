# SPDX-License-Identifier: Apache-2.0
"""How well the daemon's own account and judgement agree with the truth, by leaf (pure).

Both counters are compared by their growth between the first and the last reading that name the leaf; the
first is the one taken just before measuring began, so that what happened while settling does not count. For
misbehaviour it does: a detector is judged from the start of the leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.fair.recording import AccountReading, Recording
from fairsched.model import Confidence

LEAST_SHARE_RATIO = 0.1
"""A leaf with less has an error of a few slices, which says nothing."""


@dataclass(frozen=True)
class Account:
    """Of one leaf; None where the policy has no account or did not name it."""

    error_ratio: float | None
    truth_share_ratio: float | None
    """Its part of what all leaves executed between the readings."""
    low_confidence_ratio: float | None
    misbehaviour_after_s: float | None
    misbehaviour: str


def account(recording: Recording) -> dict[str, Account]:
    """By leaf."""
    readings = _measured(recording)
    grown = {leaf: _growth(leaf, readings) for leaf in recording.leaves}
    total = sum(truth for _, truth in grown.values() if truth)
    found = {}
    for leaf, (said, truth) in grown.items():
        sure = [r.confidence[leaf] == Confidence.HIGH.value for r in readings if leaf in r.confidence]
        named = next((r for r in recording.accounts if leaf in r.misbehaviour), None)
        began = recording.present_ns.get(leaf)
        found[leaf] = Account(
            said / truth - 1 if said is not None and truth else None,
            truth / total if truth is not None and total else None,
            1 - sum(sure) / len(sure) if sure else None,
            (named.at_ns - began[0]) / 1e9 if named and began else None,
            named.misbehaviour[leaf] if named else "",
        )
    return found


def error_max_ratio(said: Mapping[str, Account]) -> float | None:
    """Over the leaves that count, without a sign."""
    return max(
        (
            abs(one.error_ratio)
            for one in said.values()
            if one.error_ratio is not None
            and (one.truth_share_ratio or 0.0) >= LEAST_SHARE_RATIO
            and one.low_confidence_ratio == 0
        ),
        default=None,
    )


def _measured(recording: Recording) -> tuple[AccountReading, ...]:
    before = [n for n, reading in enumerate(recording.accounts) if reading.at_ns <= recording.start_ns]
    return recording.accounts[before[-1] if before else 0 :]


def _growth(leaf: str, readings: tuple[AccountReading, ...]) -> tuple[float | None, float | None]:
    both = [r for r in readings if leaf in r.gpu_time_ns and leaf in r.truth_ns]
    if len(both) < 2:
        return None, None
    first, last = both[0], both[-1]
    return (
        float(last.gpu_time_ns[leaf] - first.gpu_time_ns[leaf]),
        float(last.truth_ns[leaf] - first.truth_ns[leaf]),
    )
