# SPDX-License-Identifier: Apache-2.0
"""How well the daemon's own account and judgement agree with the truth, by leaf (pure).

Problem. An account that is right in the end may have been wrong, sure of it and acted on while the daemon still
searched for the nature of the GPU; and one that says "not sure" most of the time must be right when it does not.

Approach. Two counters are compared by their growth between two readings. ``error_ratio`` and ``error_sure_ratio``
are of the measured part: from the reading taken just before it began. All else is judged from the first reading on,
with nothing left out: the worst two seconds in which the account was sure of itself, when it was not settled, and how
soon a detector named somebody.

Terms. sure: high confidence; a stretch of time is sure when every reading in it is. unsettled: until an account was
right for two seconds or said that it was not sure, and later all time in which it was sure and wrong (``unsettled``).
An account is as old as the daemon's last tick: the error of two seconds has some points, on a busy machine ten, that
are only that. So right is within the bar, and wrong is more than three times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.fair.recording import AccountReading, Recording
from benchmarks.fair.windows import Array, spans
from fairsched.model import Confidence

GONE_NS = 1_000_000_000
LEAST_SHARE_RATIO = 0.1
"""A leaf with less has an error of a few slices, which says nothing."""
LEAST_SURE_NS = 1_500_000_000
"""Sure for less time than this in all, an error of the measured part says nothing either."""
WINDOW_NS = 2_000_000_000
_LEAST_STRETCH_NS = 1_000_000_000
RIGHT_RATIO = 0.05
WRONG_RATIO = 0.15


@dataclass(frozen=True)
class Account:
    """Of one leaf; None where the policy has no account or did not name it."""

    error_ratio: float | None
    error_sure_ratio: float | None
    """Between readings side by side that are both sure; None where that is too little time."""
    error_sure_max_ratio: float | None
    """The largest of any two seconds that were sure, since the first reading, with its sign; where none were, of the
    longest stretch that was, if that is a second. Of a tenth of all that was executed, where the leaf had less."""
    truth_share_ratio: float | None
    """Its part of what all leaves executed between the readings."""
    low_confidence_ratio: float | None
    unsure_after_s: float | None
    """From its start until the daemon first said that it is not sure of it."""
    settled_ns: int | None
    """The first reading from which on the account was right for two seconds, or that said it was not sure."""
    wrong_ns: tuple[tuple[int, int], ...]
    """Windows as those of ``error_sure_max_ratio`` in which it was."""
    misbehaviour_after_s: float | None
    """Until it was named: as what it is (``Recording.expected``), where that is known."""
    misbehaviour_gone_after_s: float | None
    """From then until it executed no more; None while it does, or where it was not named."""
    misbehaviour: str
    """What it was called first."""


def account(recording: Recording) -> dict[str, Account]:
    """By leaf."""
    readings = _measured(recording)
    grown = {leaf: _growth(leaf, readings) for leaf in recording.leaves}
    total = sum(truth for _, truth in grown.values() if truth)
    found = {}
    for leaf, (said, truth) in grown.items():
        sure = [_is_sure(r, leaf) for r in readings if leaf in r.confidence]
        kinds = [(r.at_ns, r.misbehaviour[leaf]) for r in recording.accounts if leaf in r.misbehaviour]
        expected = recording.expected.get(leaf)
        named_ns = next((at for at, kind in kinds if expected in (None, kind)), None)
        began = recording.present_ns.get(leaf)
        windows = _sure_windows(leaf, recording.accounts)
        found[leaf] = Account(
            error_ratio=said / truth - 1 if said is not None and truth else None,
            error_sure_ratio=_error_sure(leaf, readings),
            error_sure_max_ratio=max((error for _, error in windows), key=abs, default=None),
            truth_share_ratio=truth / total if truth is not None and total else None,
            low_confidence_ratio=1 - sum(sure) / len(sure) if sure else None,
            unsure_after_s=_unsure_after_s(recording, leaf),
            settled_ns=_settled_ns(leaf, recording.accounts),
            wrong_ns=tuple(window for window, error in windows if abs(error) > WRONG_RATIO),
            misbehaviour_after_s=(named_ns - began[0]) / 1e9 if named_ns and began else None,
            misbehaviour_gone_after_s=_gone_after_s(recording, leaf, named_ns),
            misbehaviour=kinds[0][1] if kinds else "",
        )
    return found


def _unsure_after_s(recording: Recording, leaf: str) -> float | None:
    began = recording.present_ns.get(leaf)
    low = (r.at_ns for r in recording.accounts if r.confidence.get(leaf) == Confidence.LOW.value)
    first_ns = next(low, None)
    return None if first_ns is None or not began else (first_ns - began[0]) / 1e9


def _gone_after_s(recording: Recording, leaf: str, named_ns: int | None) -> float | None:
    """By the engine. Who has not executed in the last second of the recording is taken for gone."""
    ran_ns = [
        later.at_ns
        for earlier, later in pairwise(recording.samples)
        if any(now > earlier.exec_ns.get(key, 0) for key, now in later.exec_ns.items() if key[0] == leaf)
    ]
    if named_ns is None or not ran_ns or recording.samples[-1].at_ns - ran_ns[-1] < GONE_NS:
        return None
    return max(0, ran_ns[-1] - named_ns) / 1e9


def error_max_ratio(said: Mapping[str, Account]) -> float | None:
    """Over the leaves that count, without a sign."""
    return max(
        (
            abs(one.error_ratio)
            for one in said.values()
            if one.error_ratio is not None and _counts(one) and one.low_confidence_ratio == 0
        ),
        default=None,
    )


def unsettled(recording: Recording, said: Mapping[str, Account]) -> Array | None:
    """Spans in which somebody may have been held for no reason, because the account of some leaf that counts was not
    settled yet, or sure and wrong. None without an account."""
    if not recording.accounts:
        return None
    first_ns, last_ns = recording.accounts[0].at_ns, recording.accounts[-1].at_ns
    counting = [one for one in said.values() if _counts(one)]
    before = [(first_ns, last_ns if one.settled_ns is None else one.settled_ns) for one in counting]
    return spans([*before, *(window for one in counting for window in one.wrong_ns)])


def _counts(one: Account) -> bool:
    return (one.truth_share_ratio or 0.0) >= LEAST_SHARE_RATIO


def _is_sure(reading: AccountReading, leaf: str) -> bool:
    return reading.confidence.get(leaf) == Confidence.HIGH.value


def _measured(recording: Recording) -> tuple[AccountReading, ...]:
    before = [n for n, reading in enumerate(recording.accounts) if reading.at_ns <= recording.start_ns]
    return recording.accounts[before[-1] if before else 0 :]


def _knowing(leaf: str, readings: Iterable[AccountReading]) -> list[AccountReading]:
    return [r for r in readings if leaf in r.gpu_time_ns and leaf in r.truth_ns]


def _growth(leaf: str, readings: Sequence[AccountReading]) -> tuple[float | None, float | None]:
    both = _knowing(leaf, readings)
    if len(both) < 2:
        return None, None
    first, last = both[0], both[-1]
    return (
        float(last.gpu_time_ns[leaf] - first.gpu_time_ns[leaf]),
        float(last.truth_ns[leaf] - first.truth_ns[leaf]),
    )


def _error_sure(leaf: str, readings: Sequence[AccountReading]) -> float | None:
    said_ns = truth_ns = time_ns = 0
    for one, other in pairwise(_knowing(leaf, readings)):
        if _is_sure(one, leaf) and _is_sure(other, leaf):
            said_ns += other.gpu_time_ns[leaf] - one.gpu_time_ns[leaf]
            truth_ns += other.truth_ns[leaf] - one.truth_ns[leaf]
            time_ns += other.at_ns - one.at_ns
    return said_ns / truth_ns - 1 if time_ns >= LEAST_SURE_NS and truth_ns else None


# ---- from the first reading on ----


def _sure_windows(leaf: str, readings: Sequence[AccountReading]) -> list[tuple[tuple[int, int], float]]:
    """(start, end) and error of each."""
    stretches = _sure_stretches(leaf, readings)
    pairs = [(one, end) for part in stretches for one in part if (end := _after(part, one)) is not None]
    if not pairs:
        longest = max(stretches, key=_length_ns, default=[])
        pairs = [(longest[0], longest[-1])] if longest and _length_ns(longest) >= _LEAST_STRETCH_NS else []
    errors = [((one.at_ns, end.at_ns), _error_between(leaf, one, end)) for one, end in pairs]
    return [(window, error) for window, error in errors if error is not None]


def _sure_stretches(leaf: str, readings: Sequence[AccountReading]) -> list[list[AccountReading]]:
    """Readings that follow each other and are all sure."""
    found: list[list[AccountReading]] = [[]]
    for reading in readings:
        if _is_sure(reading, leaf) and leaf in reading.gpu_time_ns and leaf in reading.truth_ns:
            found[-1].append(reading)
        elif found[-1]:
            found.append([])
    return [part for part in found if part]


def _length_ns(part: Sequence[AccountReading]) -> int:
    return part[-1].at_ns - part[0].at_ns


def _after(readings: Iterable[AccountReading], one: AccountReading) -> AccountReading | None:
    """The first that is a window later."""
    return next((r for r in readings if r.at_ns >= one.at_ns + WINDOW_NS), None)


def _error_between(leaf: str, first: AccountReading, last: AccountReading) -> float | None:
    said = last.gpu_time_ns[leaf] - first.gpu_time_ns[leaf]
    truth = last.truth_ns[leaf] - first.truth_ns[leaf]
    total = sum(last.truth_ns[name] - ns for name, ns in first.truth_ns.items() if name in last.truth_ns)
    base = max(truth, LEAST_SHARE_RATIO * total)
    return (said - truth) / base if base > 0 else None


def _settled_ns(leaf: str, readings: Sequence[AccountReading]) -> int | None:
    known = _knowing(leaf, readings)
    for one in readings:
        if leaf in one.confidence and not _is_sure(one, leaf):
            return one.at_ns
        last = _after(known, one)
        error = _error_between(leaf, one, last) if last and one in known else None
        if error is not None and abs(error) <= RIGHT_RATIO:
            return one.at_ns
    return None
